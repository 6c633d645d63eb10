"""The service ``Ledger`` next to each node, its clients and its operator, and the comparison with a replay of its log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from liftpy.client import Client
from liftpy.client.services import CommandFailedError
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.services.bad_records import BadRecordError, Unit
from liftpy.core.services.outbox import Route
from liftpy.core.services.versions import VersionError
from liftpy.core.wire.batch import Record
from liftpy.core.wire.partitioner import partition_of
from liftpy.errors import ConfigError, LiftError
from liftpy.service import Effect, Service
from liftpy.service.settings import ServiceSettings
from sidecar.cli.service import pass_over, store_now
from tests.simulation.world.checks.logs import workers_of
from tests.simulation.world.load.clients import Clients, Model, Place
from tests.simulation.world.load.ledger import ROUTE, SERVICE, Bank, Replay, ledger_class, replay, wrong_effects
from tests.simulation.world.load.services import ServiceProcess
from tests.simulation.world.machine.disk import Disk
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.node_process import NodeProcess
from tests.simulation.world.world import World

INPUT, OUTPUT, COPIES, DEAD = ("jobs", "jobs.x", 1), ("ledger", "ledger.x", 1), ("copies", "copies.x", 2), ("dead", "dead.x", 1)
_PLACE: Place = (INPUT[0], 0)
_WITHIN_S = 90.0
_CALM_S = 2.0
_TICK_S = 1.0
_SOON_S = 3.0
"""Time within which a timer fires on an idle stream with ticks, in seconds, after the clock has reached its log time."""
_NEWEST_VERSION = 3


class Ledgers:
    """The instances, publishers, callers, and an operator."""

    def __init__(self, world: World, model: Model, clients: Clients) -> None:
        self.world = world
        self.model = model
        self.clients = clients
        self.features = frozenset(world.profile.service_features)
        model.may_repeat.add(DEAD[0])
        self.bank = Bank(self._called)
        self._draw = random.Random(f"ledger {world.seed}")
        self._on_error = "stop" if self._draw.random() < 0.3 else "skip"
        self._deferred = self._draw.random() < 0.5
        self._limits = self._draw_limits()
        self._versions: dict[str, int] = {}
        """Node -> version of the code there."""
        self._newest_version = 1
        """Version of the code that the operator rolls out."""
        self._instances = [self._instance(node) for node in world.nodes]
        self._number = 0
        self._timers: list[str] = []
        self._archive: list[Record] = []
        """Committed records that were read before a purge."""
        self._seen_end = 0
        """Offset below which all records are in each linearizable answer from now on."""
        self._answers: list[tuple[int, bytes]] = []
        """(position, state) of the answers to queries."""
        self._replies: dict[str, bytes] = {}
        """Command -> reply."""
        self._refused: set[str] = set()
        """Commands that the service has skipped."""
        self._stopped_at: dict[str, Unit] = {}
        """Node -> unit at which its service has stopped, until an operator has skipped the unit."""
        self._lost_files = False
        self._is_checked = False

    @property
    def streams(self) -> list[tuple[str, str, int]]:
        """Streams whose replicas must be equal at the end."""
        return [INPUT, OUTPUT, COPIES, DEAD]

    def _draw_limits(self) -> dict[str, Any]:
        choose = self._draw.choice
        limits: dict[str, Any] = {"snapshot_interval_records": choose((20, 50))}
        if "ticks" in self.features:
            limits["tick_interval_s"] = _TICK_S
        if "service_limits" in self.features:
            limits = {
                **limits,
                "snapshot_interval_records": choose((3, 7)),
                "snapshots_kept": 2,
                "snapshot_bytes": 4096,
                "snapshot_interval_s": choose((0.5, 300.0)),
                "outbox_records": choose((1, 5)),
                "emit_window": choose((1, 4)),
                "max_concurrent_effects": choose((1, 2)),
                "read_max_bytes": 4096,
                "snapshot_chunk_bytes": 4096,
            }
        return limits

    # ---- the instances ---------------------------------------------------------------------------------------------------
    def _instance(self, node: NodeProcess) -> ServiceProcess:
        folder = self.world.folder / node.name / "service"
        settings = ServiceSettings(
            service=SERVICE,
            stream=INPUT[0],
            node=node.name,
            data=folder,
            output_stream=OUTPUT[0],
            routes=(Route(ROUTE, COPIES[0]),),
            dead_letter_stream=DEAD[0],
            **self._limits,
        )
        self._versions[node.name] = self._newest_version

        def factory() -> Callable[[], Service]:
            kind = ledger_class(self._versions[node.name], self._on_error, deferred=self._deferred)
            return lambda: kind(self.bank)

        disk = Disk(self.world.scheduler, f"{node.name} service", folder)
        return ServiceProcess(self.world, node, settings, factory, self._failed, disk)

    def _failed(self, instance: ServiceProcess, error: LiftError) -> None:
        node = instance.node.name
        if isinstance(error.__cause__, BadRecordError) and self._on_error == "stop":
            instance.wants_restart = False
            self._stopped_at[node] = error.__cause__.unit
        elif isinstance(error, VersionError) and self._versions[node] < self._newest_version:
            self._versions[node] = self._newest_version  # a replica came to a node that does not have the new code yet
        elif not self.model.may_lose:
            self.world.scheduler.violated(f"the service next to {node} ends, and no restart helps: {error!r}")

    def node_lost(self, node: NodeProcess) -> None:
        """End the instance next to a node whose machine is lost for ever."""
        for instance in [one for one in self._instances if one.node is node]:
            self._instances.remove(instance)
            self._stopped_at.pop(node.name, None)
            instance.kill()

    def node_joined(self, node: NodeProcess) -> None:
        """Start an instance next to a new node."""
        instance = self._instance(node)
        self._instances.append(instance)
        instance.start()

    def _called(self, effect: Effect) -> None:
        """Check that a call of the bank comes from a committed record whose outputs are written."""
        running = workers_of(self.world)
        least = {_PLACE: int(effect.payload.split()[0]) + 1, (OUTPUT[0], 0): effect.output_count}
        for place, end in least.items():
            replicas = running.get(place, [])
            ends = [worker.log.log_end_offset for worker in replicas]
            states = [worker.state for worker in replicas if worker.state is not None]
            size = len(states[0].replicas) if states else 0
            if not self.model.may_lose and len(ends) > size / 2 and max(ends) < end:
                self.world.scheduler.violated(f"effect {effect.id} is called, and {place} ends at {max(ends)}, not at {end}")

    # ---- the load --------------------------------------------------------------------------------------------------------
    async def create(self, client: Client) -> None:
        """Create the streams."""
        for name, subject, partitions in self.streams:
            await client.create_stream(name, subject, partitions=partitions, config=StreamConfig(segment_bytes=4096))

    def start(self) -> None:
        """Start all instances, and their clients."""
        for instance in self._instances:
            instance.start()
        for name, work in (("jobs", self._publish), ("queries", self._query), ("ledger operator", self._operate)):
            self.clients.begin(name, self._repeat(work, random.Random(f"{name} {self.world.seed}")))
        if self._on_error == "stop":
            self.world.run_in(self.world.client_process("skipper"), self._skip_stopped)

    async def _repeat(self, work: Any, draw: random.Random) -> None:
        client = await self.clients.connect()
        while not self.clients.stopping:
            await asyncio.sleep(draw.random() * 0.6)
            await work(client, draw)
        await client.close()

    def _job(self, draw: random.Random) -> bytes:
        """Return a new job."""
        self._number += 1
        name = f"j{self._number}"
        kinds = ["add"] * 4
        if "effects" in self.features:
            kinds += ["effect", "effect", "offer"]
        if "timers" in self.features:
            kinds += ["timer", "timer", "timer", "cancel"]
        if "routes" in self.features:
            kinds += ["copy", "copy", "copy"]
        if "bad_records" in self.features and draw.random() < 0.1:
            kinds = ["reject", "garbage", *(["bad timer"] if "timers" in self.features else [])]
        kind = draw.choice(kinds)
        if kind in ("timer", "bad timer"):
            name = f"bad{name}" if kind == "bad timer" else name
            self._timers.append(name)
            return f"timer {name} {draw.choice((0, 100, 1_500))}".encode()
        if kind == "cancel" and self._timers:
            return f"cancel {draw.choice(self._timers[-3:])} {name}".encode()
        return b"\xff\xfe" + name.encode() if kind == "garbage" else f"{kind} {name}".encode()

    async def _publish(self, client: Client, draw: random.Random) -> None:
        values = [self._job(draw) for _ in range(draw.choice((1, 1, 3, 8)))]
        await asyncio.gather(*(self._publish_one(client, value, draw.choice((2.0, 10.0))) for value in values))

    async def _publish_one(self, client: Client, value: bytes, timeout_s: float) -> None:
        self.model.once.add(value)
        ack = await self.model.call("publish job", client.publish(INPUT[0], value, partition=0, timeout_s=timeout_s))
        if ack is not None:
            self.model.acknowledge(_PLACE, ack.offset, value, AckPolicy.ALL)
            self._seen_end = max(self._seen_end, ack.offset + 1)

    async def _query(self, client: Client, draw: random.Random) -> None:
        if "replies" in self.features and draw.random() < 0.4:
            await self._call(client, draw)
            return
        seen = self._seen_end
        at_least = draw.choice((None, None, 0, seen))
        answer = await self.model.call(
            "query ledger", client.services.query(SERVICE, b"", partition=0, at_least=at_least, timeout_s=5.0)
        )
        if answer is None:
            return
        self._answers.append((answer.position, answer.value))
        least = seen if at_least is None else at_least
        if answer.position < least and not self.model.may_lose:
            self.world.scheduler.violated(
                f"a query (at least {at_least}) was answered with the state at {answer.position}, {least} was seen before it"
            )
        if at_least is None:
            self._seen_end = max(self._seen_end, answer.position)

    async def _call(self, client: Client, draw: random.Random) -> None:
        self._number += 1
        is_bad = "bad_records" in self.features and self._on_error == "skip" and draw.random() < 0.1
        text = f"call {'reject' if is_bad else 'c'}{self._number}"

        async def work() -> Any:
            try:
                return await client.services.call(
                    SERVICE, INPUT[0], text.encode(), partition=0, timeout_s=draw.choice((5.0, 15.0))
                )
            except CommandFailedError:
                self._refused.add(text)
                raise

        answer = await self.model.call("call ledger", work())
        if answer is not None:
            self._replies[text] = answer.value
            self._seen_end = max(self._seen_end, answer.offset + 1)

    # ---- the operator ----------------------------------------------------------------------------------------------------
    async def _operate(self, client: Client, draw: random.Random) -> None:
        kinds = [self._kill, self._kill, self._stop, self._elect]
        if "purges" in self.features:
            kinds += [self._purge, self._purge]
        has_other_copy = len(self._instances) > 1 or "purges" not in self.features
        can_replay = has_other_copy and self._newest_version < _NEWEST_VERSION  # the newest code cannot read the first records
        if "lost_files" in self.features and not self._lost_files and can_replay:
            kinds.append(self._lose_files)
        if "versions" in self.features:
            kinds.append(self._roll_out)
        await asyncio.sleep(draw.random())
        work = draw.choice(kinds)
        await self.model.call(work.__name__.strip("_").replace("_", " "), work(client, draw))

    async def _kill(self, client: Client, draw: random.Random) -> None:
        draw.choice(self._instances).kill()

    async def _stop(self, client: Client, draw: random.Random) -> None:
        draw.choice(self._instances).stop()

    async def _elect(self, client: Client, draw: random.Random) -> None:
        await client.admin.elect_leader(draw.choice(self.streams)[0], 0, draw.choice(self.world.nodes).name)

    async def _lose_files(self, client: Client, draw: random.Random) -> None:
        """Lose the snapshots of one instance. It restarts from a snapshot of another node, or from the log."""
        self._lost_files = True
        instance = draw.choice(self._instances)
        instance.kill()
        assert instance.disk is not None
        instance.disk.empty()

    async def _purge(self, client: Client, draw: random.Random) -> None:
        """Delete records that each instance has in a snapshot. They are read before, for the comparison at the end."""
        await self._read_on(client)
        positions = await store_now(client, SERVICE, INPUT[0], None, (), 5.0, "liftpy")
        replicas = (await client.admin.stream(INPUT[0])).partitions[0].replicas
        before = min(*positions.values(), self._archive[-1].offset + 1 if self._archive else 0)
        if len(positions) < len(replicas) or before < 1:
            return
        self.model.deleted_below[_PLACE] = max(self.model.deleted_below.get(_PLACE, 0), before)
        await client.admin.truncate_before(INPUT[0], 0, before)
        self.world.scheduler.counters["purges of the input of a service"] += 1

    async def _roll_out(self, client: Client, draw: random.Random) -> None:
        """Start the next version of the code on one node after another, if the newest one is active in all snapshots.

        An instance that has lost its snapshots replays the log, whose first records the newest code cannot read.
        """
        answer = await client.services.query(SERVICE, b"", partition=0, timeout_s=3.0)
        if int(answer.value.split()[2]) < self._newest_version or self._newest_version == _NEWEST_VERSION:
            return
        positions = await store_now(client, SERVICE, INPUT[0], None, (), 5.0, "liftpy")
        replicas = (await client.admin.stream(INPUT[0])).partitions[0].replicas
        if self._lost_files or len(positions) < len(replicas):
            return
        self._newest_version += 1
        for instance in draw.sample(self._instances, len(self._instances)):
            self._versions[instance.node.name] = self._newest_version
            draw.choice((instance.kill, instance.stop))()
            await self.clients.sleep(draw.random() * 2)

    async def _skip_stopped(self) -> None:
        """Skip each record at which services have stopped, and start them again, as an operator does."""
        client = await self.clients.connect()
        while not self._is_checked:
            for unit in sorted(set(self._stopped_at.values())):
                try:
                    await pass_over(client, SERVICE, INPUT[0], None, unit, dead_letter=DEAD[0])
                except ConfigError as error:  # another instance is past it, so the log has the decision
                    self.world.scheduler.trace("skip", unit, error)
                except LiftError as error:
                    self.world.scheduler.trace("skip", unit, type(error).__name__, error)
                    continue
                for instance in self._instances:
                    if self._stopped_at.get(instance.node.name) == unit:
                        del self._stopped_at[instance.node.name]
                        instance.start()
            await asyncio.sleep(0.5)
        await client.close()

    # ---- the end ---------------------------------------------------------------------------------------------------------
    async def check(self) -> None:
        """Check after recovery that everything has happened as often and in the order that the log says."""
        for instance in self._instances:  # the operator ends the roll-out
            if self._versions[instance.node.name] < self._newest_version:
                self._versions[instance.node.name] = self._newest_version
                instance.kill()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _WITHIN_S
        wrong = "unread"
        async with self.world.connect() as client:
            while wrong and loop.time() < end_s:
                try:
                    wrong = await self._wrong(client)
                except LiftError as error:
                    wrong = repr(error)
                if wrong:
                    await asyncio.sleep(0.5)
            calls = self.bank.calls.total()
            if calls:
                await asyncio.sleep(_CALM_S)
        self._is_checked = True
        if not wrong and self.bank.calls.total() > calls:
            wrong = "an effect was called again after its result"
        if wrong:
            self.world.scheduler.violated(f"the ledger after {_WITHIN_S:g} s in a quiet cluster: {wrong}")

    async def _read_on(self, client: Client) -> None:
        """Read the committed records behind those that are known."""
        start = self._archive[-1].offset + 1 if self._archive else 0
        async for record in client.consume(INPUT[0], 0, start=start, until="end"):
            if record.offset != (self._archive[-1].offset + 1 if self._archive else 0):
                raise LiftError(f"the record behind {start} is {record.offset}")
            self._archive.append(record)

    async def _wrong(self, client: Client) -> str:
        await self._read_on(client)
        found = replay(self._archive)
        if found.blocked is not None:
            return f"the service is blocked at {found.blocked}"
        if found.needless:
            return f"{found.needless} are skipped, and can be applied"
        if found.pending:
            return f"{len(found.pending)} effects and offers have no result: {sorted(found.pending.items())[:3]}"
        if self._newest_version > 1 and [*range(2, self._newest_version + 1)] != found.versions:
            return f"the active versions were {found.versions}, and the code has version {self._newest_version}"
        return (
            self._wrong_timers(found)
            or wrong_effects(found, self.bank)
            or self._wrong_answers(found)
            or await self._wrong_streams(client, found)
            or await self._wrong_state(client, found)
        )

    def _wrong_timers(self, found: Replay) -> str:
        """Return which timers have not fired on an idle stream with ticks."""
        if "ticks" not in self.features or self.world.scheduler.counters["fault: clock-jump"] or not found.timers:
            return ""
        process = self.world.driver
        late = {name: at_ns for name, at_ns in found.timers.items() if at_ns < process.wall_ns() - int(_SOON_S * NS_PER_S)}
        return f"timers have not fired: {sorted(late.items())[:3]} at {process.wall_ns()}" if late else ""

    def _wrong_answers(self, found: Replay) -> str:
        for position, state in self._answers:
            if found.states.get(position) != state:
                return f"a query was answered with {state!r} at {position}, where the state is {found.states.get(position)!r}"
        for text, value in self._replies.items():
            if found.replies.get(text) != value:
                return f"{text!r} was answered with {value!r}, and the log says {found.replies.get(text)!r}"
        if applied := [text for text in self._refused if found.applied[text]]:
            return f"{applied[:3]} were applied, and their senders were told that they failed"
        twice = [text for text, count in found.applied.items() if count > 1]
        return f"{twice[:3]} were applied twice" if twice else ""

    async def _wrong_streams(self, client: Client, found: Replay) -> str:
        """Compare the outputs, the copies of the route, and the dead letters."""

        async def values(stream: str, partition: int = 0) -> list[bytes | None]:
            return [record.value async for record in client.consume(stream, partition, until="end")]

        outputs = await values(OUTPUT[0])
        if outputs != found.outputs:
            at = next((n for n, (one, other) in enumerate(zip(outputs, found.outputs, strict=False)) if one != other), -1)
            wrong = f", {at} is {outputs[at]!r} and not {found.outputs[at]!r}" if at >= 0 else ""
            return f"{len(outputs)} outputs, the log has {len(found.outputs)}{wrong}"
        for number in range(COPIES[2]):
            wanted = [value for key, value in found.copies if partition_of(key, COPIES[2]) == number]
            copies = await values(COPIES[0], number)
            if copies != wanted:
                return (
                    f"{COPIES[0]}/{number} has {len(copies)} copies, and should have {len(wanted)}: {copies[-2:]} {wanted[-2:]}"
                )
        dead, skipped = set(await values(DEAD[0])), set(found.skipped)
        if dead != skipped:
            return f"the dead letters lack {sorted(skipped - dead)[:5]}, and {list(dead - skipped)[:5]} were not skipped"
        return ""

    async def _wrong_state(self, client: Client, found: Replay) -> str:
        answer = await client.services.query(SERVICE, b"", partition=0)
        if found.states.get(answer.position) != answer.value:
            return f"a query is answered with {answer.value!r} at {answer.position}: {found.states.get(answer.position)!r}"
        counters = self.world.scheduler.counters
        counters["outputs of the ledger"] += len(found.outputs)
        counters["timers of the ledger"] += found.fired
        counters["effects of the ledger"] += len(found.effects)
        counters["calls of the bank"] += self.bank.calls.total()
        counters["records that the ledger skips"] += len(found.skipped)
        counters["decisions of the ledger to skip"] += found.decisions
        counters["decisions of the ledger to number its effects"] += found.numberings
        counters["versions of the ledger"] += len(found.versions)
        counters["copies of the ledger"] += len(found.copies)
        counters["answers of the ledger"] += len(self._answers)
        counters["replies of the ledger"] += len(self._replies)
        return ""
