"""A node as a simulated process: it starts as ``liftpy sidecar`` starts it, is killed, and is started again by its supervisor."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine
from typing import Any, cast

from liftpy.errors import ConfigError
from sidecar.node import node as running
from sidecar.node import worker_node
from sidecar.node.node import Node
from sidecar.node.worker_node import WorkerNode
from sidecar.runtime.restarts import EXIT_NO_RESTART, EXIT_TO_REPAIR
from sidecar.runtime.settings import NodeSettings, SettingsLoader, with_values
from tests.simulation.world.checks.directories import check_stop
from tests.simulation.world.checks.leftovers import check_end
from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine.disk import Disk, close_descriptors
from tests.simulation.world.machine.loop import VirtualLoop
from tests.simulation.world.machine.network import Network
from tests.simulation.world.machine.scheduler import NS_PER_S, Process, Scheduler

_RESTART_NS = NS_PER_S // 2


def _register(program: Node) -> None:
    """Register the object of a process for the checks."""
    scheduler = scheduling.active
    assert scheduler is not None
    assert scheduler.process is not None
    scheduler.process.program = program


class _KnownNode(Node):
    """Node object that registers itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _register(self)


class _KnownWorker(WorkerNode):
    """Object of a worker process that registers itself."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _register(self)


setattr(running, "Node", _KnownNode)  # noqa: B010  # it is no export of that module
setattr(worker_node, "WorkerNode", _KnownWorker)  # noqa: B010


def begin(process: Process, work: Callable[[], Coroutine[Any, Any, Any]], ended: Callable[[asyncio.Task[Any]], None]) -> None:
    """Run ``work`` on the main loop of a new process."""

    def start() -> None:
        loop, before = VirtualLoop(), asyncio.events._get_running_loop()
        asyncio.events._set_running_loop(loop)
        try:
            task = loop.create_task(work())
        finally:
            asyncio.events._set_running_loop(before)
        task.add_done_callback(ended)

    process.scheduler.run_as(process, start)


class SettingsFile(SettingsLoader):
    """The settings file of a node. A process reads it at its start and after SIGHUP."""

    def __init__(self, settings: NodeSettings) -> None:
        super().__init__(None, {}, {})
        self.settings = settings
        self.error = ""
        """Text of the error if the file is wrong."""

    def load(self) -> NodeSettings:
        """Read the file."""
        if self.error:
            raise ConfigError(self.error)
        return self.settings


class NodeProcess:
    """One node of the cluster over all its process lives."""

    def __init__(self, scheduler: Scheduler, network: Network, disk: Disk, settings: NodeSettings) -> None:
        self.scheduler = scheduler
        self.network = network
        self.disk = disk
        self.file = SettingsFile(settings)
        self.name = settings.node_id
        self.process: Process | None = None
        self.is_ready = False
        self.lives = 0
        self.wants_restart = True
        """True if its supervisor starts it again after its end."""
        self.on_power_cut: list[Callable[[], None]] = []
        """Called after a power cut of the host, for other processes that run there."""
        self.is_lost = False
        """True if its machine and its disk are lost for ever."""
        self.rate = 1.0
        self.wall_offset_ns = 0
        self.exits: list[int] = []
        self.received: list[int] = []
        """Signals that its next processes get before they have handlers."""
        self.ready_line: dict[str, Any] = {}
        """Values of the ready line of the newest process that was ready."""
        self.opening_at_ready = 0
        """Number of partitions that were not open when the newest process said that it is ready."""
        self.passwords: tuple[str, ...] = ()
        """Passwords of which the NATS servers accept each. (): they ask for none."""

    @property
    def is_up(self) -> bool:
        """True if there is a process."""
        return self.process is not None and self.process.is_alive

    @property
    def is_stopping(self) -> bool:
        """True if its process has told its supervisor that it stops."""
        return self.process is not None and "STOPPING" in self.process.reports

    @property
    def node(self) -> Node | None:
        """Node object of the current process, if any."""
        return self.process.program if self.process is not None and self.process.is_alive else None

    @property
    def programs(self) -> list[Node]:
        """Objects of the node and of its workers, as far as they run."""
        if self.process is None or not self.process.is_alive:
            return []
        return [one.program for one in self.process.running if one.program is not None]

    def start(self) -> None:
        """Start a process."""
        if self.is_up or self.is_lost:
            return
        self.lives += 1
        self.is_ready = False
        self.wants_restart = True
        process = Process(self.scheduler, self.name, rate=self.rate, wall_offset_ns=self.wall_offset_ns)
        process.disk = self.disk
        self.process = process
        process.on_end += [lambda: self._ended(process)]
        self.scheduler.trace("process starts", self.name, self.lives)
        begin(process, self._run, lambda task: self._returned(process, task))

    async def _run(self) -> int:
        return await running.run_node(self.file.settings, self._ready, cast(SettingsLoader, self.file), self.received)

    def _ready(self, values: dict[str, Any]) -> None:
        self.is_ready = True
        self.ready_line = values
        self.opening_at_ready = sum(one.partitions.opening_count for one in self.programs if one.partitions is not None)
        self.scheduler.trace("ready", self.name)

    def _returned(self, process: Process, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            error = None if task.cancelled() else task.exception()
            self.scheduler.trace("start failed", self.name, type(error).__name__, error)
            self.scheduler.start_failed(process, error)
            process.end(1)
        else:
            check_end(process, task)
            if task.result() == EXIT_TO_REPAIR and process.signals.keys() & {signal.SIGTERM, signal.SIGINT}:
                self.scheduler.violated(f"{process.name} ignores signals before its restart")
            if task.result() == 0 and self.is_ready:
                check_stop(process)
            process.end(task.result())

    def _ended(self, process: Process) -> None:
        self.network.process_ended(process)
        close_descriptors(process)
        self.is_ready = False
        self.exits.append(process.exit_code or 0)
        if self.wants_restart and process.exit_code != EXIT_NO_RESTART:
            self.scheduler.after(_RESTART_NS, self.start)

    # ---- what happens to it ----------------------------------------------------------------------------------------------
    def kill(self, *, restart_after_ns: int = -1) -> None:
        """Kill the process, and restart it after ``restart_after_ns``, -1: never."""
        self.wants_restart = False
        for process in self.process.running if self.process is not None else ():
            process.end(-9)
        if restart_after_ns >= 0:
            self.scheduler.after(restart_after_ns, self.start)

    def lose(self) -> None:
        """Lose the machine and its disk for ever."""
        self.is_lost = True
        self.kill()
        self.disk.empty()

    def kill_one(self, draw: random.Random) -> None:
        """Kill one of its processes. The others end with it, and its supervisor restarts the node."""
        if self.process is not None and self.process.is_alive:
            process = draw.choice(self.process.running)
            self.scheduler.trace("killed", process.name)
            process.was_killed = True
            process.end(-9)

    def pause_one(self, draw: random.Random, for_ns: int) -> None:
        """Stop one of its processes for a while (SIGSTOP)."""
        if self.process is not None and self.process.is_alive:
            process = draw.choice(self.process.running)
            self.scheduler.trace("paused", process.name, for_ns)
            process.pause(for_ns)

    def set_clock(self, *, rate: float | None = None, wall_offset_ns: int | None = None) -> None:
        """Change the clock of the host, in all processes that run now and later."""
        self.rate = self.rate if rate is None else rate
        self.wall_offset_ns = self.wall_offset_ns if wall_offset_ns is None else wall_offset_ns
        for process in self.process.running if self.process is not None else ():
            process.wall_offset_ns = self.wall_offset_ns
            if rate is not None:
                process.change_rate(rate)

    def power_cut(self, *, restart_after_ns: int) -> None:
        """Kill the process and lose unflushed data."""
        self.kill()
        self.disk.power_cut()
        for callback in self.on_power_cut:
            callback()
        self.scheduler.after(restart_after_ns, self.start)

    @property
    def settings(self) -> NodeSettings:
        """Settings in its file."""
        return self.file.settings

    def change_settings(self, draw: random.Random) -> None:
        """Change the settings file and send SIGHUP. A wrong file changes nothing."""
        self.file.error = draw.choice(("", "", "", "scrub_bytes_per_s = 'x' is no number"))
        if not self.file.error:
            changed: dict[str, Any] = {
                "scrub_bytes_per_s": draw.choice((0, 10_000, 1 << 20)),
                "metrics_streams": draw.choice(((), ("orders",), ("moved", "bills"))),
                "replication.copy_bytes_per_s": draw.choice((1 << 20, 32 << 20)),
                "replication.preferred_leader_interval_s": draw.choice((0.0, 5.0, 300.0)),
            }
            if self.passwords:
                changed["credentials.password"] = draw.choice(self.passwords)
            self.file.settings = with_values(self.file.settings, changed)
        self.reload()

    def reload(self) -> None:
        """Send SIGHUP."""
        if self.process is not None and signal.SIGHUP in self.process.signals:
            self.scheduler.trace("SIGHUP", self.name)
            self.scheduler.run_as(self.process, self.process.signals[signal.SIGHUP])

    def terminate(self) -> None:
        """Send SIGTERM: it transfers leaderships and stops. Its supervisor restarts it."""
        if self.process is not None and signal.SIGTERM in self.process.signals:
            self.scheduler.run_as(self.process, self.process.signals[signal.SIGTERM])

    def interrupt(self) -> None:
        """Send SIGINT: it stops at once. Its supervisor does not start it again."""
        self.wants_restart = False
        if self.process is not None and signal.SIGINT in self.process.signals:
            self.scheduler.run_as(self.process, self.process.signals[signal.SIGINT])

    def pause(self, for_ns: int, *, suspended: bool = False) -> None:
        """SIGSTOP, or its host sleeps."""
        if self.process is not None and self.process.is_alive:
            self.scheduler.trace("suspended" if suspended else "paused", self.name, for_ns)
            for process in self.process.running:
                process.pause(for_ns, suspended=suspended)
