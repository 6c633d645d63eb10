"""Retries and time limits of the client. Retries wait for randomized exponential times. The core never retries."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from liftpy.client.arguments import check_number
from liftpy.errors import CorruptionError, LiftError, OutcomeUnknownError, ProtocolError, UnavailableError
from liftpy.nats.cancellation import suspended_s
from liftpy.nats.transport import RequestTimeoutError

_T = TypeVar("_T")
FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 0.5
RETRY_S = 0.25
"""Time between two attempts of an iteration over a group or a queue, in seconds. The iteration retries without a limit."""
UNANSWERED = (UnavailableError, OutcomeUnknownError)
"""Errors after which such an iteration retries. A process that was suspended gets OutcomeUnknownError."""


def retry_attempts(patience_s: float, *, reads: bool = False) -> AsyncRetrying:
    """Return the attempts of a request that may be repeated: reads, and changes with an operation id.

    Attempts end when one succeeds, when an error is final, or after ``patience_s`` seconds. Then the last error is
    raised. Time in which this process was suspended does not count. ``reads``: also retry after malformed or damaged answers,
    because another replica may send good ones.
    """
    suspended_total_s = 0.0
    also: tuple[type[LiftError], ...] = (OutcomeUnknownError, *((ProtocolError, CorruptionError) if reads else ()))

    def worth_it(error: BaseException) -> bool:
        return isinstance(error, LiftError) and (error.retryable or isinstance(error, also))

    async def sleep(seconds: float) -> None:
        nonlocal suspended_total_s
        due_at = asyncio.get_running_loop().time() + seconds
        await asyncio.sleep(seconds)
        suspended_total_s += suspended_s(due_at)

    def must_stop(state: RetryCallState) -> bool:
        nonlocal suspended_total_s
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, RequestTimeoutError):
            suspended_total_s += error.suspended_s
        return (state.seconds_since_start or 0.0) - suspended_total_s >= patience_s

    return AsyncRetrying(
        sleep=sleep,
        stop=must_stop,
        wait=wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
        retry=retry_if_exception(worth_it),
        reraise=True,
    )


async def look_up(lookup: Callable[[], Awaitable[_T]], stream: str, timeout_s: float | None) -> tuple[_T, float | None]:
    """Call ``lookup`` for the stream ``stream``, as the first part of a call that may take ``timeout_s`` seconds.

    Returns:
        Its result, and the time left for the other parts of the call, in seconds. None: the call has no time limit.

    Raises:
        UnavailableError: The metadata group did not answer in time. Nothing was sent.
    """
    if timeout_s is None:
        return await lookup(), None
    check_number("timeout_s", timeout_s)
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + timeout_s
    try:
        async with asyncio.timeout_at(None if math.isinf(until_s) else until_s):
            result = await lookup()
    except TimeoutError:
        raise UnavailableError(
            f"Cannot look up stream {stream}: the metadata group did not answer within {timeout_s:g} s. Nothing was sent. Check "
            "the controllers with `liftpy status`, or increase timeout_s."
        ) from None
    return result, max(until_s - now_s(), 0.0)
