"""What a publisher is asked, holds and answers: its options, one message in flight, the ack, and which errors are the last word.

How much may be on its way: a bound in messages (or records) and in bytes, whoever waits longest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from liftpy.errors import ConfigError, LiftError, NotFoundError, PublishRejectedError

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 1.0
PROBE_S = 0.25
"""Bound of the wait for an answer to a probe, and of the pause between probes, where the connection was just renewed."""
PROBING_S = 5.0
"""How long a renewed connection counts as just renewed, unless an answer comes: leaders reconnect in this time, too."""


class PublishAck(NamedTuple):
    """Where a message was stored. ``offset``: its own, in its partition; ``leader_epoch``: in which it was appended."""

    stream: str
    partition: int
    offset: int
    leader_epoch: int
    duplicate: bool = False
    """Its message id was known: it was stored before, there."""


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """``window``, ``window_bytes``: messages, and their bytes as sent, in flight before ``send`` waits; a larger one goes alone.
    ``timeout_s``: for an ack, and for handing a message to the connection. ``patience_s``: for sending again. ``message_ids``: give an
    id to each message that has none, where the stream recognises them: some 40 bytes a record, and a place in the leader's table."""

    window: int = 4096
    timeout_s: float = 10.0
    patience_s: float = 30.0
    window_bytes: int = 32 * 1024 * 1024
    message_ids: bool = False

    def __post_init__(self) -> None:
        bounds = {"window": (1, 1 << 20), "timeout_s": (0.01, 600), "patience_s": (0, 3600), "window_bytes": (1, 1 << 30)}
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} = {getattr(self, name)} is outside {low}..{high}. Choose a value in this range.")


@dataclass(slots=True)
class InFlight:
    """One message. ``deadline``, ``give_up``, ``resend_at``: loop time in s; ``resend_at`` 0: it is out there."""

    payload: bytes
    uid: str
    """Of the stream that it is addressed to."""
    answer: asyncio.Future[PublishAck]
    give_up: float
    size_bytes: int
    attempt_s: float = 10.0
    """For the ack of one attempt."""
    message_id: bytes = b""
    known_until: float = 0.0
    """Until then the leader knows the message id, if it is stored; 0: it does not."""
    deadline: float = 0.0
    maybe_stored: bool = False
    """An attempt was not answered."""
    resend_at: float = 0.0
    wait_s: float = FIRST_WAIT_S
    not_before: float = 0.0
    """Loop time in s: a quota lets it in then."""
    refusal: LiftError | None = None

    def refused(self, refusal: LiftError, now: float, after_s: float) -> None:
        """It is to be sent again after ``after_s``; 0: after a pause that grows."""
        self.refusal, self.not_before = refusal, now + after_s
        self.resend_at = now + (after_s or self.wait_s)
        if not after_s:
            self.wait_s = min(self.wait_s * 2, LONGEST_WAIT_S)

    def connection_renewed(self, attempt_s: float) -> None:
        """Forget how long earlier attempts and pauses were: NATS was not there, which says nothing about the leader."""
        self.attempt_s, self.wait_s = attempt_s, FIRST_WAIT_S

    def deadline_from(self, now: float) -> float:
        """Of an attempt that begins now; who may ask again does not wait beyond the patience."""
        return min(now + self.attempt_s, self.give_up) if self.known_until else now + self.attempt_s


class MessageIds:
    """Ids for one publisher's messages: random, then counted."""

    def __init__(self) -> None:
        self._form = secrets.token_urlsafe(12).encode() + b".%d"
        self._numbers = itertools.count()

    def next(self) -> bytes:
        """One that nobody had before."""
        return self._form % next(self._numbers)


def is_final(error: LiftError) -> bool:
    """Return whether an answer of the leader also says that no earlier attempt was stored.

    The leader checks the message id before it checks the last offset and the byte limit of the stream. What breaks a limit of all
    streams, or is malformed, is never stored. A stream that is deleted holds nothing.
    """
    if isinstance(error, PublishRejectedError):
        return error.reason in ("INCORRECT_OFFSET", "TOO_LARGE", "MALFORMED")
    return isinstance(error, NotFoundError)


class Window:
    """``count`` and ``size_bytes``: what is on its way now. One message alone may be larger than the bound in bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()
        self.count = 0
        self.size_bytes = 0

    def try_enter(self, size_bytes: int, count: int = 1) -> bool:
        """Enter if there is room and nobody waits for some. ``count``: several at once, ``size_bytes`` in all."""
        there, total_bytes = self.count + count, self.size_bytes + size_bytes
        if self._waiting or (self.count and (there > self._most or total_bytes > self._most_bytes)):
            return False
        self.count, self.size_bytes = there, total_bytes
        return True

    async def enter(self, size_bytes: int, count: int = 1) -> None:
        """Wait for room; ``leave`` must follow unless this is cancelled."""
        if self.try_enter(size_bytes, count):
            return
        place = (asyncio.get_running_loop().create_future(), size_bytes, count)
        self._waiting.append(place)
        try:
            await place[0]
        except asyncio.CancelledError:
            if place[0].cancelled():
                with contextlib.suppress(ValueError):  # passed over already
                    self._waiting.remove(place)
                self._wake()
            else:  # the room was given in the same turn of the loop
                self.leave(size_bytes, count)
            raise

    def leave(self, size_bytes: int, count: int = 1) -> None:
        """A message of ``size_bytes`` is not on its way any more."""
        self.count -= count
        self.size_bytes -= size_bytes
        if self._waiting:
            self._wake()

    def end(self) -> None:
        """Nothing is bounded any more, nobody waits: it is over."""
        self._most = self._most_bytes = 1 << 62
        self._wake()

    def _fits(self, size_bytes: int, count: int) -> bool:
        return not self.count or (self.count + count <= self._most and self.size_bytes + size_bytes <= self._most_bytes)

    def _add(self, size_bytes: int, count: int) -> None:
        self.count += count
        self.size_bytes += size_bytes

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1], self._waiting[0][2]):
            place, size_bytes, count = self._waiting.popleft()
            if not place.done():
                self._add(size_bytes, count)
                place.set_result(None)
