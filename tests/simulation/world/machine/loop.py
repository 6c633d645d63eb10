"""VirtualLoop: asyncio's event loop with the time of the scheduler.

Callbacks, timers, tasks and futures are asyncio's own code. Connections come from the simulated network, threads from the simulated
pools, and a turn of the loop is one event of the scheduler. Tasks and futures hash by number: sets of them have one order in all runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, cast

from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine.scheduler import NEVER_NS, NS_PER_S, Process, Scheduler

MOST_CALLBACKS = 20_000
"""Maximum number of callbacks in one turn. Work for thousands of partitions has to be sliced."""
_RESOLUTION_S = 1e-9


class _Handle(asyncio.Handle):
    """A handle without the debug mode of asyncio."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """A timer without the debug mode of asyncio."""

    __slots__ = ()

    def __init__(self, when_s: float, callback: Any, args: Any, loop: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when_s
        self._scheduled = True


class VirtualTask(asyncio.Task[Any]):
    """A task with a hash that does not depend on its address."""

    def __init__(self, *args: Any, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class VirtualFuture(asyncio.Future[Any]):
    """A future with a hash that does not depend on its address."""

    number: int

    def __hash__(self) -> int:
        return self.number

    __eq__ = object.__eq__


_Base: Any = base_events.BaseEventLoop
"""Its private parts are used here, and mypy knows none of them."""


class VirtualLoop(_Base):  # type: ignore[misc]
    """Event loop of the process that creates it."""

    _timer_cancelled_count: int
    _stopping: bool
    _closed: bool
    _default_executor: Any

    def __init__(self) -> None:
        scheduler = scheduling.active
        assert scheduler is not None
        assert scheduler.process is not None, "a loop belongs to a process"
        self.scheduler: Scheduler = scheduler
        self.process: Process = scheduler.process
        self.busy_until_ns = 0
        self.armed_ns = NEVER_NS
        """The scheduler looks at it then."""
        self._in_turn = False
        self.last_count = 0
        self.wakes = 0
        """Number of turns before which the process slept."""
        self._has_slept = True
        self.number = self.scheduler.next_number()
        self.stopped: Callable[[], None] | None = None
        """The thread that waits in ``run_forever``."""
        super().__init__()
        self._clock_resolution = _RESOLUTION_S
        self.slow_callback_duration = 1e9
        self.set_task_factory(_make_task)
        self.process.loops.append(self)
        self.scheduler.loops.append(self)

    # ---- time and turns --------------------------------------------------------------------------------------------------
    def time(self) -> float:
        """CLOCK_MONOTONIC of the process."""
        process, scheduler = self.process, self.scheduler
        at_ns = scheduler.now_ns + scheduler.elapsed_ns - process.base_at_ns
        return (process.base_ns + int(at_ns * process.rate)) / NS_PER_S

    def next_ns(self) -> int:
        """Return the time of the next work."""
        if self._ready:
            at_ns = self.busy_until_ns
        else:
            timers: list[tuple[float, Any]] = self._scheduled
            while timers and timers[0][1]._cancelled:
                self._timer_cancelled_count -= 1
                heapq.heappop(timers)[1]._scheduled = False
            if not timers:
                return NEVER_NS
            at_ns = self.process.global_ns(int(timers[0][0] * NS_PER_S))
            if at_ns < self.busy_until_ns:
                at_ns = self.busy_until_ns
        paused_until_ns = self.process.paused_until_ns
        return at_ns if at_ns > paused_until_ns else paused_until_ns

    @property
    def timer_count(self) -> int:
        """Number of timers, with the cancelled ones that are still in the heap."""
        return len(self._scheduled)

    @property
    def timers(self) -> list[tuple[float, Any]]:
        """Timers that are not cancelled, with their times."""
        return [entry for entry in self._scheduled if not entry[1]._cancelled]

    def turn(self) -> None:
        """Run what is due once: ``_run_once`` of asyncio without a selector."""
        timers: list[tuple[float, Any]] = self._scheduled
        ready: deque[Any] = self._ready
        if self._timer_cancelled_count > 100 and self._timer_cancelled_count * 2 > len(timers):
            for _, handle in timers:
                if handle._cancelled:
                    handle._scheduled = False
            timers[:] = [entry for entry in timers if not entry[1]._cancelled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        end_s = self.time() + 1e-7
        while timers and timers[0][0] < end_s:
            timer = heapq.heappop(timers)[1]
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        self.last_count = count = len(ready)
        self.wakes += self._has_slept
        if count > MOST_CALLBACKS:
            self.scheduler.violated(f"{self.process.name}: {count} callbacks in one turn of the loop")
        before = events._get_running_loop()
        events._set_running_loop(self)
        self._in_turn = True
        process = self.process
        try:
            for _ in range(count):
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
                    if not process.is_alive:
                        return
        finally:
            self._in_turn = False
            self._has_slept = not ready
            events._set_running_loop(before)
        if self._stopping:
            self._stopping = False
            if self.stopped is not None:
                stopped, self.stopped = self.stopped, None
                stopped()

    def run_forever(self) -> None:
        """Block the simulated thread until the loop stops. The scheduler runs the loop."""
        from tests.simulation.world.machine.threads import current_thread

        thread = current_thread()
        assert thread is not None, "the scheduler runs the loop of a process's main thread"
        self.stopped = thread.resume
        thread.stand()

    def run_until_complete(self, future: Any) -> Any:
        """Run until the future is done, in a simulated thread."""
        events._set_running_loop(self)
        try:
            future = asyncio.ensure_future(future, loop=self)
        finally:
            events._set_running_loop(None)
        future.add_done_callback(lambda _: self.stop())
        self.run_forever()
        return future.result()

    def is_running(self) -> bool:
        """Return whether the loop is open."""
        return not self._closed

    def close(self) -> None:
        """Close the loop. Its threads have to be shut down before."""
        if self._closed:
            return
        if self._default_executor is not None and self.process.is_alive:
            self.process.scheduler.violated(f"{self.process.name} has closed an event loop whose threads run on")
        self._closed = True
        self._ready.clear()
        self._scheduled.clear()
        if self in self.process.loops:
            self.process.loops.remove(self)
            self.scheduler.loops.remove(self)

    def _write_to_self(self) -> None:
        """Do nothing: there is no selector."""
        if not self._in_turn:
            self.scheduler.arm(self)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Schedule a callback, as asyncio does."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._in_turn:
            self.scheduler.arm(self)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a timer, as asyncio does."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, handle))
        if not self._in_turn:
            self.scheduler.arm(self)
        return handle

    def _check_thread(self) -> None:
        """Do nothing: there is one thread."""

    # ---- tasks, futures, errors ------------------------------------------------------------------------------------------
    def create_future(self) -> VirtualFuture:
        """Return a numbered future."""
        future = VirtualFuture(loop=self)
        future.number = self.scheduler.next_number()
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an unhandled error as a violation, unless the process expects it."""
        error = context.get("exception")
        self.scheduler.unhandled(self.process, str(context.get("message", "")), error, context)
        super().call_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Do nothing: the error was recorded."""

    # ---- threads, signals ------------------------------------------------------------------------------------------------
    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run in a simulated pool."""
        if executor is None:
            if self._default_executor is None:
                self._default_executor = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="asyncio")
            executor = self._default_executor
        coming = self.create_future()
        job = executor.submit(func, *args)
        asyncio.futures._chain_future(job, coming)  # type: ignore[attr-defined]
        return coming

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Forget the simulated threads: their jobs end by themselves."""
        self._default_executor = None

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        """Add the handler to ``Process.signals``."""
        self.process.signals[sig] = lambda: cast(None, self.call_soon(callback, *args))

    def remove_signal_handler(self, sig: int) -> bool:
        """Return whether there was one."""
        return self.process.signals.pop(sig, None) is not None

    # ---- the network -----------------------------------------------------------------------------------------------------
    async def create_connection(self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any) -> Any:
        """Connect to a simulated server."""
        network = self.scheduler.network
        protocol = protocol_factory()
        transport = await network.connect(self, protocol, str(host), int(port))
        return transport, protocol

    async def create_unix_connection(self, protocol_factory: Callable[[], Any], *, sock: Any, **_: Any) -> Any:
        """Use one end of a simulated socket pair."""
        from tests.simulation.world.machine.child_process import SocketTransport

        protocol = protocol_factory()
        transport = SocketTransport(self, protocol, sock)
        protocol.connection_made(transport)
        return transport, protocol


def _make_task(loop: Any, coro: Any, context: Context | None = None) -> VirtualTask:
    return VirtualTask(
        coro, loop=loop, number=loop.scheduler.next_number(), **({} if context is None else {"context": context})
    )
