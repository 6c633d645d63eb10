"""Stage of a script: a small cluster of shipped nodes in virtual time, and everything that users and operators see of it.

    @script()
    async def script_leader_is_killed_and_another_node_leads(s: Stage) -> None:
        leader = await s.create("orders")
        await s.publish("orders", 3)
        s[leader].kill()
        await s.becomes(lambda: s.leader("orders") not in ("", leader), within_s=2)
        s.expect_log("n2", "replica role changed partition=orders/0 role=LEADER phase=LEADER_READY epoch=*")

The stage starts the nodes. At the end it stops all nodes with SIGTERM: each has to end with code 0, in time, and leave nothing open.
All rules of the simulated world hold all the time (``tests/README.md``). A script fails with the first wrong expectation.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from liftpy.client import Client
from liftpy.config import StreamConfig
from liftpy.errors import CorruptionError, LiftError
from sidecar.groups.coordinators import CHECK_FAILED
from sidecar.runtime.logs import event_of
from sidecar.runtime.settings import with_values
from tests.simulation.world.checks.controllers import QuietControllers, wrong_group, wrong_group_messages
from tests.simulation.world.checks.figures import Series, metrics_of, values
from tests.simulation.world.checks.logs import records_of, workers_of
from tests.simulation.world.checks.messages import MessageRules
from tests.simulation.world.checks.pages import wrong_pages
from tests.simulation.world.checks.subscriptions import Traffic, wrong_subscriptions, wrong_traffic
from tests.simulation.world.machine.nats_server import MAX_PAYLOAD_BYTES, Message
from tests.simulation.world.machine.scheduler import Process
from tests.simulation.world.node_process import NodeProcess
from tests.simulation.world.profiles import Profile
from tests.simulation.world.world import World

if TYPE_CHECKING:
    from tests.simulation.world.load.services import Services

_FIRST_START_S = 3.0
"""Maximum time of the start of nodes with healthy disks, in seconds."""
_START_S = 1.2
"""Maximum time of the start of nodes while a majority of the controllers runs, in seconds."""
_FIRST_STOP_S = 2.0
"""Maximum time from SIGTERM to the end of nodes while a majority of the controllers continues, in seconds."""
_STOP_S = 12.0
"""Maximum time from SIGTERM to the end of all nodes at once, in seconds. The last node has nobody to transfer leaderships to."""
_WITHIN_S = 10.0
_EVERY_S = 0.02
_PAGE_BYTES = 100_000
"""Maximum size of the metrics of a node in a script, in bytes."""
_OPEN_NATS = "node.open_nats:"
"""Event of the warning that NATS has no users."""
_PROBED_STREAMS = 3
_PROBE_S = 0.1
"""Maximum time until the ack of a publish to a healthy partition, and from there until a reader has it, in seconds."""
_SILENCE_S = 1.0
_CALM_S = 8.0
"""Time within which a metadata group becomes quiet, in seconds. For 5 s after a late tick, its leader sends more messages."""
_MOST_WAKES_PER_S = 200
"""Maximum number of wake-ups of a process without load per second."""
_MOST_MESSAGES_PER_S = 400
"""Maximum number of messages per second in a cluster without load."""
_ORDINARY_COUNTERS = {
    "messages_sent", "sessions_started", "sessions ended: peer began anew", "sessions ended: silence", "sessions ended: bus lost",
    "refused: hellos that answer nobody", "refused: stale frame", "registrations with the id of a running node",
    "control requests that change nothing", "events written to their stream", "images_fetched_again", "pre_votes_rejected",
    "copies_started",
}  # fmt: skip
"""Counters of the metadata group that rise at a start, a stop or a lost connection of a node."""
_ORDINARY_WARNINGS = {"metadata.settings_differ", "metadata.waiting"}
"""Events of warnings of the metadata group that follow from ordinary faults, such as a node that is away."""
_WATCHED = ("metadata.", "group.")
"""Beginnings of the events of warnings and errors that each script has to explain."""
_LEVELS = ("INFO", "WARNING", "ERROR", "CRITICAL")
_VALUE = re.compile(r"0x[0-9a-f]{6,}")


class WrongError(AssertionError):
    """An expectation of a script is wrong."""


@dataclass(frozen=True)
class Cast:
    """Cluster of a script.

    Attributes:
        nodes: Number of nodes.
        controllers: Number of controllers.
        servers: Number of NATS servers.
        workers: Number of processes of each node.
        users: Whether NATS has users with permissions.
        starts: Whether the stage starts the nodes before the script.
        stops: Whether the stage stops the nodes after the script.
        long: Whether only ``--long`` plays the script.
        max_payload_bytes: Maximum size of a NATS message, in bytes.
        settings: Settings of replication.
    """

    nodes: int = 3
    controllers: int = 3
    servers: int = 1
    workers: int = 1
    users: bool = True
    starts: bool = True
    stops: bool = True
    long: bool = False
    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def profile(self) -> Profile:
        """Profile of the world."""
        return Profile(
            "script",
            nodes=self.nodes,
            controllers=min(self.controllers, self.nodes),
            servers=self.servers,
            users=self.users,
            workers=(self.workers,),
            replication={"events_stream": False, **self.settings},
        )


Script = Callable[["Stage"], Awaitable[None]]
SCRIPTS: dict[str, tuple[Script, Cast]] = {}
"""Name of a script -> the script and its cluster."""


def script(
    nodes: int = 3, controllers: int = 3, servers: int = 1, workers: int = 1, *, users: bool = True, starts: bool = True,
    stops: bool = True, long: bool = False, max_payload_bytes: int = MAX_PAYLOAD_BYTES, **settings: Any,
) -> Callable[[Script], Script]:  # fmt: skip
    """Register a script. The arguments are those of ``Cast``. ``settings`` are settings of replication."""

    def register(work: Script) -> Script:
        SCRIPTS[work.__name__.removeprefix("script_")] = (
            work,
            Cast(nodes, controllers, servers, workers, users, starts, stops, long, max_payload_bytes, settings),
        )
        return work

    return register


class Stage:
    """Cluster of a script, its clients, and everything that they see."""

    def __init__(self, world: World, cast: Cast) -> None:
        self.world = world
        self.cast = cast
        self.client: Client
        self.lines: list[tuple[str, str, str]] = []
        """(process, level, text) of each log line. The text begins with the name of the event."""
        self.messages: list[tuple[str, Message, int]] = []
        """(connection, message, number of receivers) of each message that was published."""
        self._allowed: set[str] = set()
        """Counters and events of warnings that the script explains."""
        self._expected_lines: set[str] = set()
        """Log lines that the script has looked for."""
        self.may_lose_records = False
        """True if the script lets an operator give up acknowledged records."""
        self._acked: dict[tuple[str, int], dict[int, bytes]] = {}
        """(Stream, partition) -> offset -> record that ``publish`` was told to be stored."""
        self.counters: Counter[str] = Counter()
        """Sums of the counters of all nodes that run at the end of the script, by name."""
        self._seen_lines: dict[str, int] = {}
        """Process -> number of log lines until the newest ``expect_log`` or ``forget_log``."""
        world.nats.max_payload_bytes = cast.max_payload_bytes
        world.nats.watchers.append(lambda name, message, receivers: self.messages.append((name, message, receivers)))
        MessageRules(world)
        logging.getLogger().addHandler(_Lines(self))
        self.ends_cleanly = True
        """Whether all nodes have to stop cleanly after the script. Nodes with a full disk cannot."""

    def __getitem__(self, name: str) -> NodeProcess:
        return next(node for node in self.world.nodes if node.name == name)

    @property
    def now_s(self) -> float:
        """Virtual time since the beginning, in seconds."""
        return self.world.scheduler.passed_s

    @property
    def names(self) -> list[str]:
        """Names of all nodes."""
        return [node.name for node in self.world.nodes]

    def others(self, *names: str) -> list[str]:
        """Names of all nodes without ``names``."""
        return [name for name in self.names if name not in names]

    # ---- the frame of a script -------------------------------------------------------------------------------------------
    async def play(self, work: Script) -> None:
        """Start the nodes, run the script, and stop the nodes."""
        try:
            if self.cast.starts:
                await self.start()
                warnings = [line for line in self.lines if line[1] not in ("DEBUG", "INFO")]
                expected = () if self.cast.users else (_OPEN_NATS,)
                self.expect([one for one in warnings if not one[2].startswith(expected)], [], "warnings of a first start")
            async with self.connected() as self.client:
                await work(self)
            async with self.connected() as self.client:
                await self.check_pages()  # before the publishes, which let the metrics of these partitions be read again
                await self._check_work()
                await self.check_pages()
                await self._check_connections()
                await self._check_group()
            await self._check_silence()
            await self._check_traffic()
            self._check_records()
            self._check_faults()
            self._count()
            if self.cast.stops:
                await self.stop(cleanly=self.ends_cleanly)
        except WrongError as error:
            self.world.scheduler.violated(str(error))

    async def _check_work(self) -> None:
        """Expect that publishers and readers of a healthy partition wait for milliseconds only, whatever has happened before."""
        if self.world.network.is_faulty or self.world.nats.is_faulty or any(node.disk.is_faulty for node in self.world.nodes):
            return
        if self.cast.max_payload_bytes < _PAGE_BYTES:
            return
        try:
            streams = await self.client.admin.list_streams()
        except LiftError:
            return  # the script has left no controller
        for stream in streams[:_PROBED_STREAMS]:
            partition = stream.partitions[0] if stream.partitions else None
            if (
                partition is None
                or set(partition.isr) != set(partition.replicas)
                or not all(self[node].is_ready for node in partition.replicas)
            ):
                continue
            consumer = self.client.consume(stream.name, start="latest")
            reading = asyncio.ensure_future(anext(aiter(consumer)))
            await asyncio.sleep(_PROBE_S)
            began_s = self.now_s
            try:
                await self.publish(stream.name, 1, value=b"probe")
            except LiftError:  # the script has paused or limited the stream
                reading.cancel()
                continue
            acked_s = self.now_s
            await reading
            took = {"ack": acked_s - began_s, "read": self.now_s - acked_s}
            self.expect({what: s for what, s in took.items() if s > _PROBE_S}, {}, f"slow work in {stream.name}, in seconds")

    async def start_services(self) -> Services:
        """Create the stream orders with the leader n2, and start a replicated service next to each of its replicas."""
        from tests.simulation.world.load.clients import Clients, Model
        from tests.simulation.world.load.services import Services

        model = Model(self.world.scheduler)
        await self.create("orders", leader="n2")
        services = Services(self.world, model, Clients(self.world, model, []))
        await services.create(self.client)
        for instance in services.instances:
            instance.start()
        return services

    async def check_pages(self) -> None:
        """Expect that each node that answers reports possible figures, and the same ones in its status and its metrics."""
        if self.world.network.is_faulty or self.world.nats.is_faulty or self.cast.max_payload_bytes < _PAGE_BYTES:
            return
        for node in [one for one in self.world.nodes if one.is_ready and not one.is_stopping]:

            async def wrong(name: str = node.name) -> list[str]:
                return wrong_pages(
                    await self.status(name), await self.metrics(name), has_closed=self._has_closed_replicas(name)
                )

            await self.shows(wrong, [], within_s=3, what=f"what is wrong with the figures of {node.name}")

    def _has_closed_replicas(self, node: str) -> bool:
        """Return whether the present processes of a node have closed a replica."""
        lines = [text for name, _, text in self.lines if name.partition(".")[0] == node]
        start = max((at for at, text in enumerate(lines) if text.startswith("node.up:")), default=0)
        return any("role=STOPPED" in text or "role=FAILED" in text for text in lines[start:])

    async def _check_connections(self) -> None:
        """Expect that nodes have the subscriptions that they need, and count the messages that their NATS servers count."""
        if self.world.network.is_faulty or self.world.nats.is_faulty:
            return

        async def subscriptions() -> list[str]:
            return wrong_subscriptions(self.world)

        await self.shows(subscriptions, [], within_s=3, what="what is wrong with the subscriptions of the nodes")
        if self.cast.max_payload_bytes < _PAGE_BYTES:
            return
        for node in [one for one in self.world.nodes if one.is_ready and not one.is_stopping]:

            async def traffic(name: str = node.name) -> list[str]:
                before = Traffic(self.world, name)
                return wrong_traffic(await self.status(name), before, Traffic(self.world, name))

            await self.shows(traffic, [], within_s=3, what=f"what is wrong with the traffic of {node.name}")

    async def _check_group(self) -> None:
        """Expect that all nodes have the same metadata, and that each one does what its role asks for and nothing else."""
        if self.world.network.is_faulty or self.world.nats.is_faulty or self.cast.max_payload_bytes < _PAGE_BYTES:
            return
        if any(node.is_ready and not node.is_stopping for node in self.world.nodes):
            await self.shows(lambda: wrong_group(self.world, self.client), [], within_s=5, what="what is wrong with the group")

    def _check_records(self) -> None:
        """Expect that all replicas have the same committed records, and each acknowledged record that was not deleted [D1, D4]."""
        for (name, partition), workers in workers_of(self.world).items():
            copies = {}
            for worker in workers:
                with suppress(CorruptionError):  # a flipped bit that no reader has met until now
                    copies[worker.node_id] = records_of(self.world, worker)
            start = max(worker.log.log_start_offset for worker in workers)
            end = min(worker.high_watermark for worker in workers) + 1
            same = [{offset: value for offset, value in copy.items() if start <= offset < end} for copy in copies.values()]
            self.expect(all(copy == same[0] for copy in same), True, f"replicas of {name}/{partition} have the same records")
            acked = {} if self.may_lose_records else self._acked.get((name, partition), {})
            most = max(copies.values(), key=lambda copy: max(copy, default=-1), default={})
            wrong = [offset for offset, value in acked.items() if offset >= start and most.get(offset, value) != value]
            if not any(worker.config.compaction for worker in workers):
                wrong += [offset for offset in acked if offset >= start and offset not in most]
            self.expect(wrong, [], f"offsets of acknowledged records of {name}/{partition} that are lost")

    async def _check_silence(self) -> None:
        """Expect that no process of a node runs in circles, and that the nodes send few messages."""
        since = len(self.messages)
        loops = {loop: loop.wakes for loop in self.world.scheduler.loops if loop.process.host in self.names}
        wakes = Counter[str]()
        await asyncio.sleep(_SILENCE_S)
        for loop, seen in loops.items():
            wakes[loop.process.name] += loop.wakes - seen
        busy = {name: count for name, count in wakes.items() if count > _MOST_WAKES_PER_S * _SILENCE_S}
        self.expect(busy, {}, "processes without work that wake up too often")
        sent = len(self.messages) - since
        self.expect(
            sent <= _MOST_MESSAGES_PER_S * _SILENCE_S, True, f"{sent} messages in {_SILENCE_S:g} s without work are few"
        )

    async def _check_traffic(self) -> None:
        """Expect that a quiet metadata group sends as many messages of each kind as it needs."""
        up = [node for node in self.world.nodes if node.is_ready and node.node is not None and node.node.group is not None]
        groups = {node.name: node.node.group for node in up if node.node is not None}
        leader = next((name for name, group in groups.items() if group is not None and group.leader == name), "")
        voters = [name for name, group in groups.items() if group is not None and group.is_controller]
        controllers = self.world.nodes[0].settings.controllers
        if self._is_slowed or not leader or (len(voters) < len(controllers)):
            return

        async def wrong() -> list[str]:
            since, controllers_at_work = len(self.messages), QuietControllers(up)
            await asyncio.sleep(_SILENCE_S)
            messages = [message for _, message, _ in self.messages[since:]]
            found = wrong_group_messages(messages, _SILENCE_S, groups.keys(), voters, leader)
            return [*found, *controllers_at_work.wrong()]

        await self.shows(wrong, [], within_s=_CALM_S, what="what is wrong with a quiet metadata group")

    @property
    def _is_slowed(self) -> bool:
        """True if the script has changed the pace of heartbeats, or if messages are lost."""
        is_changed = any(name in self.cast.settings for name in ("heartbeat_interval_s", "session_s", "lease_s"))
        return (
            is_changed or self.world.network.is_faulty or self.world.nats.is_faulty or self.cast.max_payload_bytes < _PAGE_BYTES
        )

    def allow(self, *names: str) -> None:
        """Allow counters and events of warnings of the metadata group that a healthy cluster never has. ``*`` matches any text."""
        self._allowed.update(names)

    def _is_allowed(self, name: str, ordinary: set[str]) -> bool:
        return name in ordinary or any(fnmatch.fnmatchcase(name, pattern) for pattern in self._allowed)

    def _check_faults(self) -> None:
        """Expect no counter and no warning that only a fault explains, unless the script has named or looked for it."""
        counted: Counter[str] = Counter()
        for node in self.world.nodes:
            if node.node is not None and node.node.group is not None:
                counted.update(node.node.group.counters)
        failed = {node.name: program.counters[CHECK_FAILED] for node in self.world.nodes for program in node.programs}
        self.expect({name: count for name, count in failed.items() if count}, {}, "failed measurements of the lags of groups")
        strange = {name: count for name, count in counted.items() if not self._is_allowed(name, _ORDINARY_COUNTERS)}
        self.expect(strange, {}, "counters of the metadata group that nothing explains")
        warnings = {
            f"{name}: {level} {text}": text.partition(":")[0] for name, level, text in self.lines if level in _LEVELS[1:]
        }
        left = [
            line
            for line, event in warnings.items()
            if event.startswith(_WATCHED)
            and line not in self._expected_lines
            and not self._is_allowed(event, _ORDINARY_WARNINGS)
        ]
        self.expect(left[:3], [], "warnings about the metadata group that nothing explains")

    def _count(self) -> None:
        """Add up the counters of the nodes and of the metadata group."""
        for node in (process.node for process in self.world.nodes if process.node is not None):
            self.counters.update(node.counters)
            self.counters.update({} if node.group is None else node.group.counters)

    async def start(self, *names: str) -> None:
        """Start nodes (default: all), and wait until they are ready."""
        nodes = [self[name] for name in names or self.names]
        within_s = _START_S if self._has_majority_without(nodes) else _FIRST_START_S
        for node in nodes:
            node.start()
        await self.becomes(lambda: all(node.is_ready for node in nodes), within_s=within_s, what="the nodes are ready")
        for node in nodes:
            incarnation = node.node.incarnation if node.node is not None else 0
            found = {name: node.ready_line.get(name) for name in ("node", "incarnation")}
            self.expect(found, {"node": node.name, "incarnation": incarnation}, "ready line")

    def _has_majority_without(self, nodes: list[NodeProcess]) -> bool:
        """Return whether a majority of the controllers runs that are not in ``nodes``."""
        stays = [node for node in self.world.nodes[: self.cast.profile.controllers] if node.is_ready and node not in nodes]
        return 2 * len(stays) > self.cast.profile.controllers

    async def stop(self, *names: str, cleanly: bool = True) -> None:
        """Send SIGTERM to nodes (default: all that run). Each has to end with code 0 and to leave nothing open.

        ``cleanly``: each also has to report that everything is flushed and closed.
        """
        nodes = [node for node in self.world.nodes if node.is_up and (not names or node.name in names)]
        within_s = _FIRST_STOP_S if self._has_majority_without(nodes) else _STOP_S
        for node in nodes:
            node.wants_restart = False
            node.terminate()
        await self.becomes(lambda: not any(node.is_up for node in nodes), within_s=within_s, what="the nodes stop")
        self.expect({node.name: node.exits[-1] for node in nodes}, {node.name: 0 for node in nodes}, "exit codes")
        ends = {name: text for name, _, text in self.lines if text.startswith("node.stopped:")}
        unclean = [ends.get(node.name, node.name) for node in nodes if " clean=yes " not in ends.get(node.name, "")]
        if cleanly:
            self.expect(unclean, [], "stops that are not clean")

    def change_settings(self, name: str, **values: object) -> None:
        """Change settings in the file of a node, as ``change_file`` does, and send SIGHUP."""
        self.change_file(name, **values)
        self[name].reload()

    def change_file(self, name: str, **values: object) -> None:
        """Change settings in the file of a node. ``__`` in a name stands for the dot of a section."""
        file = self[name].file
        file.settings = with_values(file.settings, {key.replace("__", "."): one for key, one in values.items()})

    def add_node(self, name: str, *, folder: str) -> NodeProcess:
        """Add one more node or process of a node, with its data in ``folder``."""
        node = self.world.make_node(name, self.world.nodes[0].settings.controllers, folder)
        self.world.nodes.append(node)
        return node

    async def start_fails(self, node: NodeProcess, *errors: type[Exception]) -> str:
        """Expect that the start of a node fails with one of ``errors``. Return the text of the error."""
        found: list[BaseException | None] = []

        def expects(process: Process, error: BaseException | None) -> bool:
            if process is node.process:
                found.append(error)
            return process is node.process

        self.world.scheduler.expects = expects
        node.wants_restart = False
        if not node.is_up:
            node.start()
            node.wants_restart = False
        await self.becomes(lambda: not node.is_up, within_s=60, what=f"the start of {node.name} fails")
        if not found or not isinstance(found[-1], errors):
            raise WrongError(f"the start of {node.name} ends with {found!r}, expected {[one.__name__ for one in errors]}")
        return str(found[-1])

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        """Connect a client while the block runs."""
        async with self.world.connect() as client:
            yield client

    # ---- expectations ----------------------------------------------------------------------------------------------------
    def expect(self, found: Any, wanted: Any, what: str = "") -> None:
        """Compare a value with the expected one."""
        if found != wanted:
            raise WrongError(f"{what or 'it'} is {_short(found)}, expected {_short(wanted)}")

    def expect_in(self, part: str, text: str, what: str = "") -> None:
        """Expect ``part`` in a text. ``*`` matches any text."""
        if not fnmatch.fnmatchcase(text, f"*{_escaped(part)}*"):
            raise WrongError(f"{what or 'the text'} is {text!r}, expected {part!r} in it")

    async def becomes(self, holds: Callable[[], Any], *, within_s: float = _WITHIN_S, what: str = "") -> float:
        """Wait until a condition holds. Return the time that it took, in seconds."""
        began_s = self.now_s
        while not holds():
            if self.now_s - began_s >= within_s:
                raise WrongError(f"not within {within_s:g} s: {what or 'the condition holds'}")
            await asyncio.sleep(_EVERY_S)
        return self.now_s - began_s

    async def shows(
        self, ask: Callable[[], Awaitable[Any]], wanted: Any, *, within_s: float = _WITHIN_S, what: str = ""
    ) -> None:
        """Repeat a question until its answer is ``wanted``."""
        began_s = self.now_s
        while (found := await ask()) != wanted:
            if self.now_s - began_s >= within_s:
                raise WrongError(f"{what or 'the answer'} is {_short(found)} after {within_s:g} s, expected {_short(wanted)}")
            await asyncio.sleep(0.1)

    async def fails(self, work: Awaitable[Any], *errors: type[Exception]) -> str:
        """Expect that a call fails with one of ``errors``. Return the text of the error."""
        try:
            result = await work
        except errors as error:
            return str(error)
        raise WrongError(f"the call is answered with {_short(result)}, expected {[one.__name__ for one in errors]}")

    # ---- log lines -------------------------------------------------------------------------------------------------------
    def log(self, node: str, *, least: str = "INFO") -> list[str]:
        """Return the lines that a node has logged since ``forget_log``, each as level and text."""
        lines = self.lines[self._seen_lines.get(node, 0) :]
        levels = _LEVELS[_LEVELS.index(least) :]
        found = [f"{level} {text}" for name, level, text in lines if name == node and level in levels]
        if least != "INFO":
            self._expected_lines.update(f"{node}: {line}" for line in found)
        return found

    def forget_log(self, *names: str) -> None:
        """Forget the log lines of nodes (default: all)."""
        for name in names or self.names:
            self._seen_lines[name] = len(self.lines)

    def expect_log(self, node: str, wanted: str, *, about: str = "*") -> None:
        """Expect that a node has logged these lines and no others since ``forget_log``, in any order.

        ``wanted``: one line of level and text per line. ``*`` matches any text. ``about``: only lines with this text count.
        """
        patterns = sorted(line.strip() for line in wanted.strip().splitlines() if line.strip())
        left = sorted(line for line in self.log(node) if fnmatch.fnmatchcase(line, f"*{_escaped(about)}*"))
        self._expected_lines.update(f"{node}: {line}" for line in left)
        missing = []
        for pattern in sorted(patterns, key=lambda one: ("*" in one, -len(one))):
            found = next((line for line in left if fnmatch.fnmatchcase(line, _escaped(pattern))), None)
            if found is None:
                missing.append(pattern)
            else:
                left.remove(found)
        if missing or left:
            raise WrongError(f"log of {node}: missing {missing[:3]}, not expected {left[:3]}")

    def count_log(self, node: str, part: str) -> int:
        """Return the number of log lines of a node since ``forget_log`` with this text. ``*`` matches any text."""
        found = [line for line in self.log(node) if fnmatch.fnmatchcase(line, f"*{_escaped(part)}*")]
        self._expected_lines.update(f"{node}: {line}" for line in found)
        return len(found)

    # ---- what users do ---------------------------------------------------------------------------------------------------
    async def create(
        self, name: str, *, subject: str = "", partitions: int = 1, replicas: int = 0, leader: str = "", **settings: Any
    ) -> str:
        """Create a stream. ``leader``: node that leads partition 0. Return the leader of partition 0."""
        config = StreamConfig(**settings)
        self._acked = {place: acks for place, acks in self._acked.items() if place[0] != name}
        info = await self.client.create_stream(
            name, subject or f"{name}.x", partitions=partitions, replicas=replicas, config=config, ready_s=10
        )
        led_by = info.partitions[0].leader
        if leader and led_by != leader:
            await self.client.admin.elect_leader(name, 0, leader)
            await self.becomes(lambda: self.leader(name) == leader, what=f"{leader} leads {name}")
            led_by = leader
        return led_by

    async def publish(
        self, name: str, count: int = 1, *, value: bytes = b"record", first: int = 0, **options: Any
    ) -> list[int]:
        """Publish records ``record-0``, ``record-1``, ... one after another. Return their offsets."""
        offsets = []
        for number in range(first, first + count):
            record = value + b"-%d" % number
            ack = await self.client.publish(name, record, **options)
            self._acked.setdefault((name, ack.partition), {})[ack.offset] = record
            offsets.append(ack.offset)
        return offsets

    async def read(self, name: str, partition: int = 0, *, start: str = "earliest") -> list[bytes]:
        """Return the values of all records of a partition."""
        return [record.value or b"" async for record in self.client.consume(name, partition, start=start, until="end")]

    # ---- what operators see ----------------------------------------------------------------------------------------------
    def leader(self, name: str, partition: int = 0) -> str:
        """Return the leader that most nodes know, '' if a node that runs knows none."""
        known = set()
        for node in self.world.nodes:
            group = node.node.group if node.node is not None else None
            if group is not None and (stream := group.image.streams.get(name)) is not None:
                known.add(stream.partitions[partition].leader)
        return known.pop() if len(known) == 1 else ""

    async def status(self, node: str) -> dict[str, Any]:
        """Return the status of a node as JSON."""
        return await self.client.admin.node_status(node)

    async def row(self, node: str, name: str, partition: int = 0) -> dict[str, Any]:
        """Return the row of a partition in the status of a node. {}: the node has no replica of it."""
        rows = (await self.status(node))["partitions"]
        return next((row for row in rows if (row["stream"], row["partition"]) == (name, partition)), {})

    async def first_offsets(self, name: str, *nodes: str) -> set[int]:
        """Return the first offsets of a partition 0 on some nodes (default: all)."""
        return {(await self.row(node, name))["log_start_offset"] for node in nodes or self.names}

    async def isr(self, name: str, partition: int = 0) -> list[str]:
        """Return the ISR of a partition."""
        return sorted((await self.client.admin.stream(name)).partitions[partition].isr)

    async def metrics(self, node: str) -> Series:
        """Return the metrics of a node."""
        return await metrics_of(self.client, node)

    async def metric(self, node: str, name: str, labels: str = "") -> float:
        """Return the sum of a metric of a node over the series whose labels contain ``labels``."""
        return sum(values([await self.metrics(node)], name, labels))

    async def total(self, name: str, labels: str = "") -> float:
        """Return the sum of a metric over all nodes that run."""
        return sum([await self.metric(node.name, name, labels) for node in self.world.nodes if node.is_ready])

    async def total_counter(self, name: str) -> int:
        """Return the sum of a counter over all nodes that run."""
        return sum([await self.counter(node.name, name) for node in self.world.nodes if node.is_ready])

    async def counter(self, node: str, name: str) -> int:
        """Return a counter in the status of a node."""
        return int((await self.status(node))["counters"].get(name, 0))

    async def events(self, node: str = "") -> list[dict[str, Any]]:
        """Return the events of the cluster as a controller reports them. ``node``: default the metadata leader."""
        node = node or (await self.status(self.names[0]))["metadata_leader"]
        found: list[dict[str, Any]] = []
        while True:
            after = (found[-1]["index"], found[-1]["number"]) if found else (0, 0)
            answer = await self.client.admin.cluster_events(node, after)
            found += answer["events"]
            if not answer["more"] or not answer["events"]:
                return found

    async def node_events(self, node: str) -> list[dict[str, Any]]:
        """Return the events of a node."""
        return list((await self.client.admin.node_events(node))["node_events"]["events"])

    async def unknown_streams(self, node: str) -> list[str]:
        """Return the directories of unknown streams that a node reports."""
        return list((await self.client.admin.node_health(node))["unknown_streams"])

    async def controller(self) -> str:
        """Return the metadata leader."""
        node = next(node.name for node in self.world.nodes if node.is_ready)
        return str((await self.status(node))["metadata_leader"])

    def subjects(self, prefix: str, since: int = 0) -> list[str]:
        """Return the subjects of all published messages that begin with ``prefix``. ``since``: number of messages to skip."""
        return [message.subject for message in self.messages_to(prefix, since)]

    def messages_to(self, prefix: str, since: int = 0) -> list[Message]:
        """Return all published messages whose subjects begin with ``prefix``. ``since``: number of messages to skip."""
        return [message for _, message, _ in self.messages[since:] if message.subject.startswith(prefix)]


class _Lines(logging.Handler):
    """Collects the log lines of all processes."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def emit(self, record: logging.LogRecord) -> None:
        """Add one line."""
        process = self._stage.world.scheduler.process
        name = process.name if process is not None else "-"
        if record.name.startswith("liftpy"):
            text = _VALUE.sub("0x", record.getMessage()).replace("\n", " ")
            self._stage.lines.append((name, record.levelname, f"{event_of(record)}: {text}"))


def _escaped(pattern: str) -> str:
    """Return a pattern in which only ``*`` is special."""
    return re.sub(r"[\[\]?]", lambda found: f"[{found[0]}]", pattern)


def _short(value: Any) -> str:
    text = json.dumps(value, default=repr) if isinstance(value, (dict, list)) else repr(value)
    return text if len(text) <= 600 else f"{text[:600]}..."
