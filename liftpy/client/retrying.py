"""Retries of the client: randomized exponential waits with a limit. The core never retries."""

from __future__ import annotations

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from liftpy.errors import CorruptionError, LiftError, OutcomeUnknownError, ProtocolError

FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 0.5


def retry_attempts(patience_s: float, *, reads: bool = False) -> AsyncRetrying:
    """Return the attempts of a request that may be repeated: reads, and changes with an operation id.

    Attempts end when one succeeds, when an error is final, or after ``patience_s`` seconds. Then the last error is
    raised. ``reads``: also retry after malformed or damaged answers, because another replica may send good ones.
    """
    also: tuple[type[LiftError], ...] = (OutcomeUnknownError, *((ProtocolError, CorruptionError) if reads else ()))

    def worth_it(error: BaseException) -> bool:
        return isinstance(error, LiftError) and (error.retryable or isinstance(error, also))

    return AsyncRetrying(
        stop=stop_after_delay(patience_s),
        wait=wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S),
        retry=retry_if_exception(worth_it),
        reraise=True,
    )
