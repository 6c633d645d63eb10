"""One simulated history: a cluster of real nodes, clients, and the faults of a seed."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import liftpy
from liftpy.client import Client
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.config import ReplicationConfig
from liftpy.core.wire.permissions import AccessRole, Scope, rights_of
from liftpy.errors import LiftError
from liftpy.nats.credentials import Credentials
from sidecar.quorum import library
from sidecar.runtime.settings import NodeSettings
from sidecar.workers.workers import WorkerError
from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine.disk import Disk
from tests.simulation.world.machine.nats_server import NatsCluster, Rights
from tests.simulation.world.machine.network import Network
from tests.simulation.world.machine.scheduler import NS_PER_S, Process, Scheduler
from tests.simulation.world.node_process import NodeProcess, begin
from tests.simulation.world.profiles import PROFILES, SWARM, Profile, draw_profile, features

NODES = ("liftpy-n", "liftpy n")
"""Prefix of the names of nodes' connections."""
_MOST_S = 600.0
"""Virtual seconds that a history takes at most."""
_PASSWORD, _OTHER_PASSWORD = "secret", "another secret"
_SMALL_SNAPSHOT_BYTES = 100_000
_MOST_WARNINGS_PER_S = 100
"""Number of warnings of one kind in a second that show a retry without a pause."""
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


@dataclass
class Outcome:
    """Result of a seed."""

    seed: int
    profile: str
    violations: list[str]
    digest: str
    virtual_s: float
    node_s: float
    """Virtual seconds times nodes that ran."""
    turns: int
    counters: Counter[str] = field(default_factory=Counter)
    lines: list[str] | None = None
    reached: dict[str, list[int]] = field(default_factory=dict)


_FOLDER_DESCRIPTOR = 500
"""File descriptor of the folder with the data directories. Only one world of a process is open at a time."""


class World:
    """Everything of one history."""

    def __init__(self, seed: int, profile: Profile, *, traced: bool = False) -> None:
        self.seed = seed
        self.profile = profile
        self.scheduler = Scheduler(f"{seed} {profile.name}")
        scheduling.active = self.scheduler
        if traced:
            self.scheduler.lines = []
        self.random = self.scheduler.random
        self.network = Network(self.scheduler)
        self.scheduler.network = self.network
        count = profile.servers if profile.servers else self.random.choice((1, 1, 3))
        self.nats = NatsCluster(self.network, [f"s{number + 1}" for number in range(count)])
        self.has_users = self.random.random() < 0.5 if profile.users is None else profile.users
        self.nats.on_protocol_error = self._wrong_command
        if self.has_users:
            self._make_users()
        self.limits: dict[str, Any] = self._draw_limits() if profile.small_limits else {}
        """Settings of replication that the seed has drawn."""
        self.has_small_snapshots = library.COMPACT_AFTER_BYTES < _SMALL_SNAPSHOT_BYTES
        self.has_events_stream = self.random.random() < 0.75
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self._random_folder = tempfile.mkdtemp(prefix="liftpy-world-", dir=base)
        descriptor = os.open(self._random_folder, os.O_RDONLY)
        os.dup2(descriptor, _FOLDER_DESCRIPTOR)
        os.close(descriptor)
        self.folder = Path(f"/proc/self/fd/{_FOLDER_DESCRIPTOR}")
        """Folder of the data directories. Its name is the same in all runs, because nodes put paths into messages."""
        names = tuple(f"n{number + 1}" for number in range(profile.nodes))
        self._first_controllers = names[: profile.controllers]
        self.nodes = [self.make_node(name, self._first_controllers) for name in names]
        """Nodes that are not lost."""
        self._nodes_made = len(names)
        self.driver = Process(self.scheduler, "driver")
        self.is_done = False
        self.most_s = _MOST_S
        self.stops_early = False
        """The first violation ends the history."""
        self.failure: BaseException | None = None
        self.scheduler.expects = self._expects

    def _wrong_command(self, client: str, text: str) -> None:
        if client.startswith(NODES):
            self.scheduler.violated(f"{client}: {text}")

    def _make_users(self) -> None:
        """Nodes have the permissions that ``liftpy rights`` prints, and need no others."""
        rights = rights_of(AccessRole.NODE, Scope(data_subjects=(">",), jetstream="hub"))
        of_nodes = Rights(rights.publish, rights.subscribe, reply=rights.responses is not None)
        self.nats.users["node", _PASSWORD] = self.nats.users["node", _OTHER_PASSWORD] = of_nodes
        self.nats.users["app", _PASSWORD] = Rights()

        def denied(client: str, text: str) -> None:
            if client.startswith(NODES):
                self.scheduler.violated(f"{client}: {text}")

        self.nats.on_denial = denied

    def _draw_limits(self) -> dict[str, Any]:
        """Draw limits. The size at which a metadata snapshot is written is no setting, but a constant of this Python process."""
        choose = self.random.choice
        self.compact_after(choose((library.COMPACT_AFTER_BYTES, 2_000, 20_000)))
        return {
            "ingest_buffer_bytes": choose((256 * 1024 * 1024, 256 * 1024 * 1024, 400_000)),
            "state_checkpoint_interval_s": choose((60.0, 1.0)),
            "replacement_grace_s": choose((300.0, 2.0)),
            "fetch_timeout_s": choose((1.0, 0.3)),
            "replication_max_bytes": choose((1024 * 1024 - 4096, 64 * 1024)),
        }

    @staticmethod
    def compact_after(size_bytes: int) -> None:
        """Let controllers write a snapshot after so many bytes of entries."""
        library.COMPACT_AFTER_BYTES, library.COMPACT_AT_ONCE_BYTES = size_bytes, 4 * size_bytes

    @property
    def credentials(self) -> Credentials:
        """Credentials of applications."""
        return Credentials(user="app", password=_PASSWORD) if self.has_users else Credentials()

    def connect(self) -> AwaitableContext[Client]:
        """Return a client of the cluster, in the process that runs."""
        return liftpy.connect(list(self.nats.urls), credentials=self.credentials)

    def make_node(self, name: str, controllers: tuple[str, ...], folder: str = "") -> NodeProcess:
        """Return a node. ``folder``: name of the folder of its data, default its name."""
        urls = self.nats.urls
        turn = int(name[1:]) % len(urls)
        data = self.folder / (folder or name) / "data"
        settings = NodeSettings(
            node_id=name,
            data=data,
            nats=urls[turn:] + urls[:turn],
            controllers=controllers,
            memory_limit_bytes=256 * 1024 * 1024,
            workers=self.profile.workers[0] if len(self.profile.workers) == 1 else self.random.choice(self.profile.workers),
            jetstream_api="hub",
            credentials=Credentials(user="node", password=_PASSWORD) if self.has_users else Credentials(),
            replication=ReplicationConfig(
                **{"events_stream": self.has_events_stream, **self.limits, **self.profile.replication}
            ),
        )
        node = NodeProcess(self.scheduler, self.network, Disk(self.scheduler, name, data), settings)
        if self.has_users:
            node.passwords = (_PASSWORD, _OTHER_PASSWORD)
        return node

    def add_node(self) -> NodeProcess:
        """Add a node with an empty disk and a new name. The caller starts it."""
        self._nodes_made += 1
        node = self.make_node(f"n{self._nodes_made}", self._first_controllers)
        self.nodes.append(node)
        return node

    def _expects(self, process: Process, error: BaseException | None) -> bool:
        disk = process.disk
        was_faulty = disk is not None and (disk.failures > 0 or disk.is_damaged or disk.was_full)
        lost_a_worker = any(child.was_killed for child in process.children)
        return (was_faulty and isinstance(error, (LiftError, OSError))) or (lost_a_worker and isinstance(error, WorkerError))

    # ---- what the driver uses --------------------------------------------------------------------------------------------
    async def until(self, what: str, holds: Callable[[], bool], within_s: float) -> bool:
        """Wait for a condition. A timeout is a violation."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        while not holds():
            if loop.time() >= end_s:
                self.scheduler.violated(f"not within {within_s:g} s: {what}")
                return False
            await asyncio.sleep(0.05)
        return True

    def client_process(self, name: str) -> Process:
        """Return a process for a client, which loses its state when it dies."""
        return Process(self.scheduler, name)

    def run_in(self, process: Process, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run ``work`` in a process. Its errors are violations."""

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.scheduler.unhandled(process, "the work of a client", error, {})

        begin(process, work, ended)

    def _warned(self, message: Warning | str, *_: Any) -> None:
        """Python warns of a coroutine that nobody awaits. Its work is not done."""
        if "was never awaited" in str(message) and self.scheduler.process is not None:
            self.scheduler.violated(f"{self.scheduler.process.name}: {message}")

    def _ends(self) -> bool:
        return self.is_done or (self.stops_early and bool(self.scheduler.violations))

    # ---- the history -----------------------------------------------------------------------------------------------------
    def run(self, story: Callable[[World], Coroutine[Any, Any, None]]) -> Outcome:
        """Run the history to its end."""
        handler = _TraceHandler(self.scheduler)
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(logging.INFO)
        warnings.simplefilter("always", RuntimeWarning)
        setattr(warnings, "showwarning", self._warned)  # noqa: B010

        def ended(task: asyncio.Task[Any]) -> None:
            self.is_done = True
            if not task.cancelled() and (error := task.exception()) is not None:
                self.scheduler.unhandled(self.driver, "the story", error, {})

        begin(self.driver, lambda: story(self), ended)
        begin_ns = self.scheduler.now_ns
        self.scheduler.run(begin_ns + int(self.most_s * NS_PER_S), self._ends)
        if not self.is_done and not self.stops_early:
            self.scheduler.violated(f"the story has not ended within {self.most_s:g} virtual s")
        root.handlers.clear()
        self.scheduler.counters["writes to sockets"] = self.scheduler.socket_writes
        return Outcome(
            seed=self.seed,
            profile=self.profile.name,
            violations=self.scheduler.violations,
            digest=self.scheduler.digest,
            virtual_s=self.scheduler.passed_s,
            node_s=self.scheduler.passed_s * len(self.nodes),
            turns=self.scheduler.turns,
            counters=self.scheduler.counters,
            lines=self.scheduler.lines,
        )

    def clean(self) -> None:
        """Remove the files."""
        os.close(_FOLDER_DESCRIPTOR)
        shutil.rmtree(self._random_folder, ignore_errors=True)


class _TraceHandler(logging.Handler):
    """Log lines go into the history. An error that a node logs with its traceback is a violation: only a bug has one."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._second = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        """(Process, text without values) -> number of its warnings and errors in the present second."""

    def _count(self, process: str, text: str) -> None:
        second = int(self._scheduler.passed_s)
        if second != self._second:
            self._second = second
            self._counts.clear()
        self._counts[process, text] += 1
        if self._counts[process, text] == _MOST_WARNINGS_PER_S:
            self._scheduler.violated(f"{process}: {_MOST_WARNINGS_PER_S} times within a second: {text}")

    def emit(self, record: logging.LogRecord) -> None:
        """Add one line."""
        process = self._scheduler.process
        text = _ADDRESS.sub("0x", record.getMessage()).replace("\n", " ")
        name = process.name if process is not None else "-"
        self._scheduler.trace("log", name, record.levelname, record.name, text)
        if record.levelno >= logging.ERROR:
            self._scheduler.counters[f"log: {record.levelname} {record.name}"] += 1
        if record.levelno >= logging.WARNING and process is not None and record.name.startswith("liftpy"):
            self._scheduler.warnings.append(f"{name}: {text}")
            if record.name != "liftpy.client":  # it logs each damaged response of many reads at once
                self._count(name, str(record.msg))
        if record.exc_info and process is not None and record.name.startswith("liftpy"):
            self._scheduler.unhandled(process, f"log of {record.name}: {text}", record.exc_info[1], {})


def run_world(seed: int, profile: str, *, busy_s: float = 0.0, traced: bool = False, stops_early: bool = False) -> Outcome:
    """Run one seed in its own Python process. ``busy_s``: seconds of load and faults, 0: as in the profile."""
    from tests.simulation.world.story import tell

    chosen = draw_profile(seed) if profile == SWARM else PROFILES[profile]
    world = World(seed, replace(chosen, busy_s=busy_s) if busy_s else chosen, traced=traced)
    world.stops_early = stops_early
    if profile == SWARM:
        world.scheduler.counters.update(f"seeds with {feature}" for feature in features(chosen))
    try:
        return world.run(tell)
    finally:
        world.clean()
