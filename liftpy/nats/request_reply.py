"""Answers to a connection's requests: one inbox, and a number for each request.

The ``request`` method of nats-py sometimes swallows a cancellation, may exceed its timeout when the socket is blocked,
and knows nothing
of permissions. Here a request has one deadline for everything, and the caller gets the error if the server denies it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from itertools import count
from typing import Any

from liftpy.errors import LiftError, NotAllowedError

_MAX_DIGITS = 18
_NO_RESPONDERS = "503"


@dataclass(slots=True)
class _Asked:
    subject: str
    answer: asyncio.Future[Any]


class Answers:
    """Requests that wait for answers. Call ``begin`` after subscribing to the inbox, ``expect`` and ``forget`` for each
    request, then ``leave``.
    """

    def __init__(self) -> None:
        self._inbox = ""
        self._subscription: Any = None
        self._numbers = count()
        self._asked: dict[int, _Asked] = {}
        self.is_open = False
        """True if answers can come."""

    @property
    def waiting_count(self) -> int:
        """Requests without an answer."""
        return len(self._asked)

    def begin(self, inbox: str, subscription: Any) -> None:
        """Set the inbox. ``subscription`` passes its messages to ``arrived``."""
        self._inbox, self._subscription, self.is_open = inbox, subscription, True

    async def leave(self) -> None:
        """Unsubscribe from the inbox."""
        subscription, self._subscription, self.is_open = self._subscription, None, False
        if subscription is not None:
            with contextlib.suppress(Exception):
                await subscription.unsubscribe()

    def expect(self, subject: str) -> tuple[int, str, asyncio.Future[Any]]:
        """(number to ``forget``, reply subject, future of the answer) for a request on ``subject``."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(subject, answer)
        return number, f"{self._inbox}.{number}", answer

    def forget(self, number: int) -> None:
        """An answer that comes now is too late, and so is an error."""
        asked = self._asked.pop(number, None)
        if asked is not None and asked.answer.done() and not asked.answer.cancelled():
            asked.answer.exception()

    async def arrived(self, message: Any) -> None:
        """Process a message of the inbox."""
        token = message.subject.rpartition(".")[2]
        number = int(token) if token.isascii() and token.isdigit() and len(token) <= _MAX_DIGITS else -1
        asked = self._asked.get(number)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(message)

    def refused(self, is_publish: bool, subject: str) -> None:
        """NATS does not let us publish on ``subject`` (or be answered there), or listen there."""
        ours = subject == f"{self._inbox}.*"
        if not is_publish and ours:
            self.is_open = False  # the next request tries again: rights may change
        for number, asked in self._asked.items():
            if (asked.subject == subject and is_publish) or ours or subject == f"{self._inbox}.{number}":
                what = "publish" if is_publish and asked.subject == subject else "be answered"
                self._fail(
                    asked,
                    NotAllowedError(
                        f"The NATS permissions of this user do not allow it to {what} on {subject}. Change the permissions: "
                        "`liftpy permissions` prints them."
                    ),
                )

    def end(self, error: LiftError) -> None:
        """Fail all waiting requests."""
        for asked in self._asked.values():
            self._fail(asked, error)

    @staticmethod
    def _fail(asked: _Asked, error: LiftError) -> None:
        if not asked.answer.done():
            asked.answer.set_exception(error)


def nobody_there(message: Any) -> bool:
    """Return whether a message means "no responders"."""
    return bool(message.headers) and not message.data and message.headers.get("Status") == _NO_RESPONDERS
