"""``RequestGuard``: catches the exceptions of request handlers [A15].

The bytes of a request come from outside, so an exception that they cause affects only this request. The guard rejects the
request if its kind has a rejection, counts it and logs it. The node continues. A background task of the node is different:
``sidecar.runtime.tasks`` stops the node when one fails.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.core.wire.decode_errors import REFUSED

logger = logging.getLogger("liftpy.requests")

_LOG_EVERY_S = 1.0
_SHOWN_CHARACTERS = 200

Handler = Callable[[bytes, bytes, bytes, bytes], None]
"""Called with (subject, reply, payload, header block) of a request."""
Reject = Callable[[bytes, Exception], Awaitable[Any] | object]
"""Function (reply subject, error of the handler) that sends a rejection. It returns an awaitable, or None."""


class RequestGuard:
    """Catches the exceptions of the handlers of one kind of request, and rejects the failed request.

    Args:
        kind: Kind of request in a few words, for the log, the counter and the metric.
        counters: Counters of failed requests (``refused: failed request, KIND``).
        reject: Sends the rejection. None: this kind has no rejection, and the sender retries after its timeout.
    """

    __slots__ = ("_counters", "_log_limit", "_reject", "kind")

    def __init__(self, kind: str, counters: Counter[str], reject: Reject | None = None) -> None:
        self.kind = kind
        self._counters = counters
        self._reject = reject
        self._log_limit = LogRateLimit(_LOG_EVERY_S)

    def handler(self, handler: Handler) -> Handler:
        """Return ``handler`` with a guard, for ``BusConnection.listen``. If ``handler`` raises, the request is rejected."""

        def received(subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
            try:
                handler(subject, reply, payload, headers)
            except Exception as error:
                self.reject_failed(reply, error)

        return received

    def callback(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Coroutine[Any, Any, None]]:
        """Return the async ``handler`` with a guard, for subscriptions of nats-py. If it raises, the request is rejected."""

        async def received(message: Any) -> None:
            await self.run(handler(message), str(message.reply or "").encode("utf-8", "surrogateescape"))

        return received

    def run(self, work: Awaitable[object], reply: bytes) -> Coroutine[Any, Any, None]:
        """Return a coroutine that awaits ``work``, which answers a request. If ``work`` raises, the request is rejected.

        ``reply``: reply subject of the request. If the task is canceled before it begins, ``work`` is closed.
        """
        running = self._run(work, reply)
        if isinstance(work, Coroutine):
            weakref.finalize(running, work.close).atexit = False
        return running

    async def _run(self, work: Awaitable[object], reply: bytes) -> None:
        try:
            await work
        except Exception as error:
            rejecting = self.reject_failed(reply, error)
            if isinstance(rejecting, Awaitable):
                try:
                    await rejecting
                except Exception as worse:
                    self._note(worse)

    def call(self, work: Callable[[], None], reply: bytes = b"") -> None:
        """Call ``work``, a later step of a request. If it raises, reject the request. ``reply``: reply subject, b"" for none."""
        try:
            work()
        except Exception as error:
            self.reject_failed(reply, error)

    def reject_failed(self, reply: bytes, error: Exception) -> object:
        """Count and log the ``error`` of a handler, and reject its request. ``reply``: reply subject of the request.

        Return an awaitable for the rejection. None: there is nothing to await.
        """
        self._note(error)
        if self._reject is None or not reply:
            return None
        try:
            return self._reject(reply, error)
        except Exception as worse:
            self._note(worse)
            return None

    def _note(self, error: Exception) -> None:
        self._counters[f"{REFUSED}failed request, {self.kind}"] += 1
        if self._log_limit.admit(time.monotonic()) is not None:  # a sender can repeat such a request a million times
            shown = repr(error)[:_SHOWN_CHARACTERS]
            logger.error("request failed kind=%s error=%s: request rejected, node continues", self.kind, shown, exc_info=error)
