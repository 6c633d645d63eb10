"""The scheduler: virtual time, the order of all events, and the simulated processes with their clocks.

One thread runs everything. A turn of an event loop, a delivery of the network, a job of a thread pool: each is one event at a moment of
virtual time, and the next moment is wherever the next event is. Ties and delays are drawn from the seed.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world.machine.loop import VirtualLoop

NS_PER_S = 1_000_000_000
NS_PER_US = 1_000
BEGIN_WALL_NS = 1_700_000_000 * NS_PER_S
_BEGIN_NS = 1_000 * NS_PER_S
_CLOCK_READ_NS = 50
_CALLBACK_NS = 1_000
_TURN_NS = 5_000
_MOST_TURN_JITTER_NS = 20_000
_JITTER_BITS = _MOST_TURN_JITTER_NS.bit_length()
NEVER_NS = 1 << 62
MOST_CPU_NS = NS_PER_S * 3 // 4
"""Maximum real CPU time of one turn of a loop. The daemon's largest limit of work is about a hundredth of it."""
MOST_WRITES = 2_000
"""Maximum number of writes to sockets in one turn of a loop."""
_CPU_MARK_TURNS = 64
_HASHED_LINES = 500
_real_thread_time_ns = time.thread_time_ns
_real_monotonic_ns = time.monotonic_ns

active: Scheduler | None = None
"""The scheduler of this Python process."""


class Violation(Exception):
    """A rule of the world was broken."""


class ProcessEnd(SystemExit):
    """The simulated process ends at once (``os._exit``)."""


class Process:
    """A simulated operating-system process: its loops, its clock, its open files. A restart is another ``Process``."""

    def __init__(self, scheduler: Scheduler, name: str, *, rate: float = 1.0, wall_offset_ns: int = 0) -> None:
        self.scheduler = scheduler
        self.name = name
        self.pid = 1_000 + scheduler.next_number()
        self.is_alive = True
        self.paused_until_ns = 0
        """Time before which it does not run."""
        self.rate = rate
        """Seconds of its clock per second of the world."""
        self.wall_offset_ns = wall_offset_ns
        """Difference between its wall clock and the true one."""
        self.suspended_ns = 0
        """Total time for which its host was suspended and CLOCK_MONOTONIC stopped."""
        self._suspended_until_ns = 0
        self.base_ns = _BEGIN_NS
        self.base_at_ns = scheduler.now_ns
        self._started_ns = scheduler.now_ns - _BEGIN_NS
        """Time between the beginning of the world and its start. CLOCK_MONOTONIC begins again with each process, the wall clock not."""
        self.loops: list[VirtualLoop] = []
        self.descriptors: set[int] = set()
        self.on_end: list[Callable[[], None]] = []
        """Called when the process ends, however it does."""
        self.signals: dict[int, Callable[[], None]] = {}
        self.exit_code: int | None = None
        self.disk: Any = None
        self.reports: dict[str, float] = {}
        """Kind of a report to its supervisor -> time of the newest one, in seconds since the beginning."""
        self.program: Any = None
        """Program that runs in the process, for the checks."""
        self.host = name
        self.children: list[Process] = []
        """Worker processes that it has started."""
        self.was_killed = False
        """Whether a fault has killed it."""
        scheduler.processes[self.pid] = self

    def fork(self, name: str) -> Process:
        """Return a child process on the same host, with its disk and its clock."""
        child = Process(self.scheduler, name, rate=self.rate, wall_offset_ns=self.wall_offset_ns)
        child.base_ns, child.base_at_ns, child.suspended_ns = self.base_ns, self.base_at_ns, self.suspended_ns
        child._started_ns = self._started_ns
        child.host, child.disk, child._suspended_until_ns = self.host, self.disk, self._suspended_until_ns
        self.children.append(child)
        return child

    @property
    def running(self) -> list[Process]:
        """The process and its children, as far as they are alive."""
        return [one for one in (self, *self.children) if one.is_alive]

    # ---- its clock -------------------------------------------------------------------------------------------------------
    def local_ns(self, at_ns: int | None = None) -> int:
        """CLOCK_MONOTONIC at ``at_ns``; None: now, including the time that the present callback has taken."""
        scheduler = self.scheduler
        if at_ns is None:
            at_ns = scheduler.now_ns + scheduler.elapsed_ns
        return self.base_ns + int((at_ns - self.base_at_ns) * self.rate)

    def global_ns(self, local_ns: int) -> int:
        """Return the global time at which CLOCK_MONOTONIC shows ``local_ns``."""
        return self.base_at_ns + int((local_ns - self.base_ns) / self.rate)

    def read_monotonic_ns(self) -> int:
        """Return the monotonic time. Each read takes time, so that no loop spins forever."""
        scheduler = self.scheduler
        scheduler.elapsed_ns = elapsed_ns = scheduler.elapsed_ns + _CLOCK_READ_NS
        return self.base_ns + int((scheduler.now_ns + elapsed_ns - self.base_at_ns) * self.rate)

    def boottime_ns(self) -> int:
        """Return CLOCK_BOOTTIME, which also runs while the host is suspended."""
        return self.read_monotonic_ns() + self.suspended_ns

    def wall_ns(self) -> int:
        """Return the wall clock."""
        return BEGIN_WALL_NS + self._started_ns + self.boottime_ns() - _BEGIN_NS + self.wall_offset_ns

    def change_rate(self, rate: float) -> None:
        """Set the rate of its clock."""
        self.base_ns, self.base_at_ns, self.rate = self.local_ns(), self.scheduler.now_ns + self.scheduler.elapsed_ns, rate
        for loop in self.loops:
            self.scheduler.arm(loop)

    def pause(self, for_ns: int, *, suspended: bool = False) -> None:
        """Pause for a while. ``suspended``: with its host, so that CLOCK_MONOTONIC stops."""
        end_ns = self.scheduler.now_ns + for_ns
        self.paused_until_ns = max(self.paused_until_ns, end_ns)
        if suspended:  # a host that sleeps already sleeps longer
            stopped_ns = max(end_ns - max(self.scheduler.now_ns, self._suspended_until_ns), 0)
            self._suspended_until_ns = max(self._suspended_until_ns, end_ns)
            self.suspended_ns += int(stopped_ns * self.rate)
            self.base_at_ns += stopped_ns

    # ---- its end ---------------------------------------------------------------------------------------------------------
    def end(self, exit_code: int) -> None:
        """End the process at once, without ``finally`` blocks."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.exit_code = exit_code
        self.scheduler.trace("process ends", self.name, exit_code)
        for loop in self.loops:
            self.scheduler.loops.remove(loop)
        self.scheduler.graveyard.append((self, list(self.loops)))
        self.loops.clear()
        for callback in self.on_end:
            callback()


class Scheduler:
    """Scheduler of all events in one world."""

    limits_cpu = True
    """False if something else makes turns slow, such as a tracer."""

    def __init__(self, seed: object) -> None:
        self.now_ns = _BEGIN_NS
        self.elapsed_ns = 0
        """Virtual time that the present callback has taken."""
        self.random = random.Random(f"world {seed}")
        self._bits, self._unit = self.random.getrandbits, self.random.random
        random.seed(f"module {seed}")  # PySyncObj and nats-py draw from the module itself
        self.entropy = random.Random(f"entropy {seed}")
        """Source of random bytes for processes."""
        self.loops: list[VirtualLoop] = []
        self.process: Process | None = None
        """Process that runs now."""
        self.graveyard: list[Any] = []
        """Suspended coroutines of ended processes. Collecting them would run their ``finally`` blocks."""
        self.processes: dict[int, Process] = {}
        """Process id -> process, also of ended ones."""
        self.counters: Counter[str] = Counter()
        self.violations: list[str] = []
        self.warnings: list[str] = []
        """Warnings and errors that nodes have logged."""
        self.network: Any = None
        self.expects: Callable[[Process, BaseException | None], bool] = lambda process, error: False
        """True if a fault may cause an unhandled error now."""
        self.lines: list[str] | None = None
        """Trace as text, if requested."""
        self.turns = 0
        self.marks_each_turn = False
        """True if ``most_cpu`` is measured: it takes two system calls for each turn."""
        self.most_callbacks = self.most_writes = self.most_cpu = (0, "")
        """Largest number of callbacks, writes to sockets and ns of real CPU of one turn, with the process."""
        self.socket_writes = 0
        """Number of writes to sockets until now."""
        self._cpu_mark_ns = _real_thread_time_ns()
        """Real CPU time at the newest mark, at most ``_CPU_MARK_TURNS`` turns ago."""
        self._digest = hashlib.sha256()
        self._unhashed: list[str] = []
        """Newest lines, not in the digest yet."""
        self._events: list[tuple[int, int, Process | None, Callable[..., None], tuple[Any, ...]]] = []
        self._due: list[tuple[int, int, VirtualLoop]] = []
        """When loops have something to do; an entry counts if it is the one that its loop is armed for."""
        self._number = 0

    def next_number(self) -> int:
        """1, 2, 3, ..."""
        self._number += 1
        return self._number

    def draw_int(self, least: int, end: int) -> int:
        """Return a random number, at least ``least`` and below ``end``. It is faster than ``random.randrange``."""
        return least + int(self._unit() * (end - least))

    # ---- the trace -------------------------------------------------------------------------------------------------------
    def trace(self, *what: object) -> None:
        """Add one line to the history."""
        line = f"{self.now_ns + self.elapsed_ns} {' '.join(map(str, what))}"
        self._unhashed.append(line)
        if len(self._unhashed) >= _HASHED_LINES:
            self._hash()
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """Digest of the history so far."""
        self._hash()
        return self._digest.hexdigest()

    def _hash(self) -> None:
        if self._unhashed:
            self._digest.update("\n".join([*self._unhashed, ""]).encode())
            self._unhashed.clear()

    def violated(self, what: str) -> None:
        """Record a violation. The history continues."""
        self.trace("VIOLATION", what)
        self.violations.append(f"at {(self.now_ns - _BEGIN_NS) / NS_PER_S:.6f} s: {what}")

    def unhandled(self, process: Process, what: str, error: BaseException | None, context: dict[str, Any]) -> None:
        """Record an unhandled error."""
        if self.expects(process, error):
            self.counters[f"expected: {type(error).__name__}"] += 1
            self.trace("expected", process.name, what, type(error).__name__)
            return
        where = ""
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            where = " <- ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(frames[-4:]))
        self.violated(f"{process.name}: unhandled: {what}: {error!r} {where}")

    def start_failed(self, process: Process, error: BaseException | None) -> None:
        """The start of a program has raised."""
        if not self.expects(process, error):
            self.unhandled(process, "the start has failed", error, {})

    @property
    def passed_s(self) -> float:
        """Virtual seconds since the beginning."""
        return (self.now_ns - _BEGIN_NS) / NS_PER_S

    # ---- events ----------------------------------------------------------------------------------------------------------
    def after(self, delay_ns: int, callback: Callable[..., None], *args: Any, owner: Process | None = None) -> None:
        """Call ``callback`` later as ``owner``, if it is alive and when it is not paused."""
        self._number += 1
        at_ns = self.now_ns + self.elapsed_ns + max(delay_ns, 0)
        heapq.heappush(self._events, (at_ns, self._number, owner, callback, args))

    def run(self, until_ns: int, done: Callable[[], bool]) -> None:
        """Run until ``done`` or ``until_ns``."""
        events, due = self._events, self._due
        while not done():
            event_ns = events[0][0] if events else NEVER_NS
            loop_ns = due[0][0] if due else NEVER_NS
            if min(event_ns, loop_ns) > until_ns:
                self.now_ns = until_ns
                return
            if event_ns <= loop_ns:
                self._event()
                continue
            _, _, loop = heapq.heappop(due)
            if loop.armed_ns != loop_ns:
                continue  # it was armed for an earlier moment since
            loop.armed_ns = NEVER_NS
            if loop.next_ns() > loop_ns:
                self.arm(loop)  # the timer was cancelled, or its process is paused
                continue
            while loop.process.is_alive and not loop.is_closed():
                if loop_ns > self.now_ns:
                    self.now_ns = loop_ns
                self._turn(loop)
                loop_ns = loop.next_ns()
                if (
                    loop.armed_ns != NEVER_NS
                    or loop_ns > until_ns
                    or (events and events[0][0] <= loop_ns)
                    or (due and due[0][0] <= loop_ns)
                    or done()
                ):
                    self.arm(loop)
                    break  # otherwise its next turn is the next event

    def arm(self, loop: VirtualLoop) -> None:
        """Schedule the next turn of the loop."""
        at_ns = loop.next_ns()
        if at_ns < loop.armed_ns:
            loop.armed_ns = at_ns
            heapq.heappush(self._due, (at_ns, loop.number, loop))

    @property
    def event_count(self) -> int:
        """Number of events that are scheduled."""
        return len(self._events)

    def _event(self) -> None:
        at_ns, number, owner, callback, args = heapq.heappop(self._events)
        self.now_ns = max(self.now_ns, at_ns)
        if owner is not None:
            if not owner.is_alive:
                return
            if owner.paused_until_ns > self.now_ns:
                heapq.heappush(self._events, (owner.paused_until_ns, number, owner, callback, args))
                return
        self.run_as(owner, callback, *args)

    def run_as(self, owner: Process | None, callback: Callable[..., None], *args: Any) -> int:
        """Call it as that process; return how many virtual ns it took."""
        before, before_ns = self.process, self.elapsed_ns
        self.process, self.elapsed_ns = owner, 0
        try:
            callback(*args)
        except ProcessEnd as end:
            assert owner is not None
            owner.end(int(end.code or 0))
        finally:
            took_ns, self.process, self.elapsed_ns = self.elapsed_ns, before, before_ns
        return took_ns

    def _turn(self, loop: VirtualLoop) -> None:
        self.turns += 1
        if self.marks_each_turn or self.turns % _CPU_MARK_TURNS == 0:
            self._cpu_mark_ns = _real_thread_time_ns()
        began_ns, writes = _real_monotonic_ns(), self.socket_writes
        before, before_ns = self.process, self.elapsed_ns
        process = loop.process
        self.process, self.elapsed_ns = process, 0
        try:
            loop.turn()
        except ProcessEnd as end:
            process.end(int(end.code or 0))
        finally:
            took_ns, self.process, self.elapsed_ns = self.elapsed_ns, before, before_ns
        if self.marks_each_turn:
            cpu_ns = _real_thread_time_ns() - self._cpu_mark_ns
            self.most_cpu = max(self.most_cpu, (cpu_ns, process.name))
            self.most_callbacks = max(self.most_callbacks, (loop.last_count, process.name))
            self.most_writes = max(self.most_writes, (self.socket_writes - writes, process.name))
        if _real_monotonic_ns() - began_ns > MOST_CPU_NS:  # other processes of this machine may have caused it
            self._check_cpu(process)
        if self.socket_writes - writes > MOST_WRITES:
            self.violated(f"{process.name}: more than {MOST_WRITES} writes to sockets in one turn of the loop")
        jitter_ns = self._bits(_JITTER_BITS)
        while jitter_ns >= _MOST_TURN_JITTER_NS:
            jitter_ns = self._bits(_JITTER_BITS)
        loop.busy_until_ns = self.now_ns + took_ns + _TURN_NS + loop.last_count * _CALLBACK_NS + jitter_ns

    def _check_cpu(self, process: Process) -> None:
        """Compare the CPU time of the turn that has ended with its limit. The turns since the newest mark add little to it."""
        cpu_ns = _real_thread_time_ns() - self._cpu_mark_ns
        if cpu_ns > MOST_CPU_NS and self.limits_cpu:  # not in the trace: it is a measure of this machine
            self.violations.append(
                f"{self.passed_s:.6f} s: {process.name}: a turn of the loop took {cpu_ns / 1e9:.2f} s of CPU"
            )
        self._cpu_mark_ns += cpu_ns
