"""Cancels tasks that use nats-py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

logger = logging.getLogger("liftpy.client")
_TRY_AGAIN_S = 0.1
_TRIES = 50
_T = TypeVar("_T")


async def with_cancellation(work: Awaitable[_T]) -> _T:
    """Await ``work`` and return its result. If the task was canceled but ``work`` suppressed this, raise CancelledError."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await work
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


SUSPENDED_S = 1.0
"""Time by which a timer of the event loop is late, in seconds, if this process was suspended."""
_RESUMED_S = 1.0
"""Time to wait after a suspension for an answer that has arrived during it, in seconds."""


def suspended_s(due_at: float) -> float:
    """Return how long this process was suspended after ``due_at``, the loop time of a timer. In seconds, 0: it was not suspended."""
    late_s = asyncio.get_running_loop().time() - due_at
    return late_s if late_s >= SUSPENDED_S else 0.0


class AnswerDeadline:
    """Time at which the wait for an answer ends. ``at``: loop time in seconds.

    If this process is suspended until after that time, the answer may have arrived before. So the wait then ends a little later.
    """

    def __init__(self, at: float) -> None:
        self._at = at
        self.suspended_s = 0.0
        """Time for which this process was suspended, in seconds."""

    def left_s(self) -> float:
        """Return the time left, in seconds. 0: the wait is over."""
        if not self.suspended_s and (late_s := suspended_s(self._at)):
            self.suspended_s = late_s
            self._at += late_s + _RESUMED_S
        return max(self._at - asyncio.get_running_loop().time(), 0.0)


async def answer_until(coming: asyncio.Future[_T], deadline: AnswerDeadline) -> _T:
    """Await the future ``coming`` and return its result. It fails with TimeoutError at ``deadline``."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def expire() -> None:
        nonlocal timer
        if left_s := deadline.left_s():
            timer = loop.call_later(left_s, expire)
        elif not coming.done():
            coming.set_exception(TimeoutError())

    timer = loop.call_later(deadline.left_s(), expire)
    try:
        return await coming
    finally:
        timer.cancel()


class CloseOnce:
    """Closes an object once. Every caller waits for the end of the close, and a canceled caller does not stop it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closing: asyncio.Task[None] | None = None

    async def run(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call ``close`` if no caller has done so yet, and wait for its end."""
        if self._closing is None:
            self._closing = asyncio.create_task(close(), name=self._name)
        await asyncio.shield(self._closing)


async def end_tasks(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel ``tasks`` and wait until they have ended. None: ignored.

    nats-py suppresses some cancellations, and a loop around one would run forever. So the function cancels again. Errors of the
    tasks are ignored. A task that does not end within ``_TRIES`` x ``_TRY_AGAIN_S`` seconds is abandoned and named in the log.
    """
    task_list = [task for task in tasks if task is not None]
    pending = {task for task in task_list if not task.done()}
    try:
        for _ in range(_TRIES):
            for task in pending:
                task.cancel()
            if not pending:
                return
            _, pending = await asyncio.wait(pending, timeout=_TRY_AGAIN_S)
    finally:
        for task in task_list:
            if task.done() and not task.cancelled():
                task.exception()
    if pending:
        logger.error("tasks did not end tasks=%s: abandoned", ", ".join(sorted(task.get_name() for task in pending)))
