"""Starts background tasks, and divides long work into slices (``CooperativeQueue``).

Each unexpected end of a task is reported [A6]. If an unexpected error ends a task that writes checkpoints, sends
heartbeats or checks free space, the node would look healthy although it is not. So code that does not await a task
starts it with ``spawn``. An unexpected end goes to the exception handler of the event loop. A node sets this handler
with ``fatal_on``, and it stops the node. So do errors in callbacks of the loop (timers, ends of flushes). Tasks handle
expected errors themselves. IncompatibleVersionError is no bug: it stops the node as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable
from concurrent.futures import Executor, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from liftpy.errors import IncompatibleVersionError, LiftError
from liftpy.nats.cancellation import end_tasks

logger = logging.getLogger("liftpy.node")

T = TypeVar("T")
_TASK_NAME_KEY = "liftpy: background task"
_PACKAGE_PATHS = tuple(str(Path(__file__).resolve().parents[2] / package) for package in ("sidecar", "liftpy"))
SLICE_S = 0.008
"""Duration of a slice in seconds. It ends with the first item that is complete after this time."""
ANSWER_SLICE_S = 0.002
"""Maximum time for which an answer uses the event loop without a pause, in seconds."""
Item = TypeVar("Item", bound=Hashable)


class BackgroundError(LiftError):
    """A background task failed unexpectedly. This is a bug in liftpy. Restart the node."""

    code = "BACKGROUND"


def spawn(work: Coroutine[Any, Any, T], what: str, *, endless: bool = False) -> asyncio.Task[T]:
    """Run ``work`` in a background task. An unexpected end of the task stops the node.

    ``what``: name of the task in the log. ``endless``: True if every end except a cancellation is unexpected.
    """
    task = asyncio.get_running_loop().create_task(work, name=what)
    task.add_done_callback(_endless_task_ended if endless else _task_ended)
    return task


def start_attended(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run ``work`` in a task for a caller that awaits it and handles its errors. Errors are ignored if the caller has ended."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


def spawn_in(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], what: str, *, endless: bool = False
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Run ``work`` in a background task on ``loop``, the event loop of another thread. An unexpected end stops the node.

    ``what``: name of the task in the log. ``endless``: True if every end except a cancellation is unexpected. Return a coroutine
    function that ends the task.
    """
    tasks: list[asyncio.Task[T]] = []

    def begin() -> None:
        tasks.append(spawn(work, what, endless=endless))

    async def end() -> None:
        await end_tasks(tasks)

    loop.call_soon_threadsafe(begin)
    return lambda: elsewhere(loop, end())


async def elsewhere(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on ``loop``, the event loop of another thread, and return its result. Cancellation of the caller cancels it."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


async def open_in_thread(pool: Executor, opening: Callable[[], T], close: Callable[[T], object]) -> T:
    """Call ``opening``, which opens files, in a thread of ``pool``, and return its result.

    If the caller is canceled, a call that has begun runs to its end, and its thread then calls ``close`` with the result. This
    also holds if the caller is canceled again meanwhile, as ``end_tasks`` does.
    """

    closed: Future[None] = Future()

    def close_result(ended: Future[T]) -> None:
        try:
            if ended.exception() is None:
                close(ended.result())
        finally:
            closed.set_result(None)

    job = pool.submit(opening)
    opened = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(opened)
    except asyncio.CancelledError:
        if not job.cancel():
            job.add_done_callback(close_result)
            await asyncio.wait([asyncio.wrap_future(closed)])
        raise


class TaskSet:
    """Background tasks that ``end`` ends together. After that, no more of them start."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        """Run ``work`` in a background task, as ``spawn`` does. ``what``: name of the task in the log."""
        if self._has_ended:
            work.close()
            return
        task = spawn(work, what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, timeout_s: float) -> None:
        """Wait until all tasks have ended, at most ``timeout_s`` seconds."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout_s)

    async def end(self) -> None:
        self._has_ended = True
        await end_tasks(list(self._tasks))


def report_failure(what: str, error: Exception) -> None:
    """Pass ``error`` to the exception handler of the event loop, which stops the node. Use it where other code hides errors."""
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"{what} has ended", "exception": error, _TASK_NAME_KEY: what}
    )


def _task_ended(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _report_end(task, error)


def _endless_task_ended(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        _report_end(task, task.exception() or BackgroundError("the task returned, but should run until the node stops"))
    elif not task.cancelling():
        _report_end(task, BackgroundError("the task canceled itself"))


def _report_end(task: asyncio.Task[Any], error: BaseException) -> None:
    context = {"message": f"{task.get_name()} has ended", "exception": error, _TASK_NAME_KEY: task.get_name()}
    task.get_loop().call_exception_handler(context)


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    """Run ``work`` to its end on a new event loop, on uvloop if it is installed. Return its result."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return int(uvloop.run(work))


def fatal_on(loop: asyncio.AbstractEventLoop, fatal: Callable[[Exception], None]) -> Callable[[], None]:
    """Call ``fatal`` when a task of ``spawn`` ends unexpectedly, and when this project's code fails in a callback of ``loop``.

    ``fatal`` gets a BackgroundError, or the error itself if it is an IncompatibleVersionError. Return a function that restores the
    earlier exception handler.
    """
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        where = context.get(_TASK_NAME_KEY) or (
            repr(context.get("handle")) if "handle" in context and _is_from_liftpy(error) else ""
        )
        if where and isinstance(error, IncompatibleVersionError):
            fatal(error)
        elif where and isinstance(error, Exception):
            logger.critical("background task failed task=%s error=%r: stopping the node", where, error, exc_info=error)
            fatal(
                BackgroundError(
                    f"The background task {where} ended unexpectedly: {error!r}. The node stops. Please report it with its log."
                )
            )
        if before is not None:
            before(loop, context)
        elif not where:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    return lambda: loop.set_exception_handler(before)


def _is_from_liftpy(error: BaseException | None) -> bool:
    """Return whether code of this project is in the traceback of ``error``. Errors in other libraries' own callbacks are not fatal."""
    traceback: TracebackType | None = error.__traceback__ if error is not None else None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE_PATHS):
            return True
        traceback = traceback.tb_next
    return False


# ---- work in slices --------------------------------------------------------------------------------------------------


class LoopPauses:
    """Pauses of a long answer, so that it does not delay other tasks of the event loop, such as the replication."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    async def pause(self) -> None:
        """Let other tasks run if this task has used the event loop for ``ANSWER_SLICE_S`` seconds since the last pause."""
        if time.monotonic() - self._began_s >= ANSWER_SLICE_S:
            await asyncio.sleep(0)
            self._began_s = time.monotonic()


class CooperativeQueue(Generic[Item]):
    """Calls ``work`` with each added item, in order, without blocking the event loop for long.

    The work is divided into slices of ``slice_s`` seconds. The first slice runs at once, and the others in later turns of the
    loop. Between two slices the loop reads sockets, runs Raft and answers heartbeats. If a waiting item is added again, it
    keeps its place and is processed once, with the state of that moment.
    """

    def __init__(self, work: Callable[[Item], None], slice_s: float = SLICE_S) -> None:
        self._work = work
        self._slice_s = slice_s
        self._waiting: dict[Item, None] = {}
        self._handle: asyncio.Handle | None = None
        self._running = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, thing: Item) -> bool:
        return thing in self._waiting

    def add(self, things: Iterable[Item]) -> None:
        """Queue the items ``things``. An item that is already in the queue is not added again."""
        if self._closed:
            return
        self._waiting.update(dict.fromkeys(things))
        if self._handle is None and self._waiting and not self._running:
            self._turn()

    def _turn(self) -> None:
        self._handle = None
        waiting, end = self._waiting, time.monotonic() + self._slice_s
        self._running = True
        try:
            while waiting:
                thing = next(iter(waiting))
                del waiting[thing]
                self._work(thing)
                if time.monotonic() >= end:
                    break
        finally:
            self._running = False
        if waiting and not self._closed:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def close(self) -> None:
        """Drop the queued items. No item is processed afterwards."""
        self._closed = True
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
