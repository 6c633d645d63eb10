"""Options, acks and the in-flight window of publishers and producers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from liftpy.client.arguments import check_bounds
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import LiftError, NotFoundError, PublishRejectedError

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 1.0
PROBE_S = 0.25
"""Maximum time to wait for the answer to a probe, and maximum pause between probes, in seconds.

A probe is a single message or batch that is sent alone after a reconnect.
"""
PROBING_S = 5.0
"""Time after a reconnect during which single probes are sent, in seconds. It ends early when an answer arrives.

Leaders reconnect to NATS in this time, too.
"""


class PublishAck(NamedTuple):
    """The place of a stored message.

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        offset: Offset of the record in the partition.
        leader_epoch: LeaderEpoch in which the record was appended.
        duplicate: True if the message id was stored before, at this offset.
    """

    stream: str
    partition: int
    offset: int
    leader_epoch: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options of a Publisher.

    Args:
        window: Messages in flight before ``send`` waits (1 to 1,048,576). Default 4096. Use 1 for strict order.
        timeout_s: Time to wait for the ack of one attempt, and to hand a message to the connection, in seconds (0.01 to
            600). Default 10.
        patience_s: Total time for all attempts of a message, in seconds (0 to 3600). Default 30.
        overload_patience_s: Total time for all attempts of a message while the leader rejects messages with
            ``OVERLOADED``, in seconds (0 to 3600). So the publisher slows down until the leader has room. Default 0: only
            ``patience_s`` counts.
        window_bytes: Bytes in flight before ``send`` waits (1 to 1 GiB). A larger message is sent alone. Default 32
            MiB.
        message_ids: If True, give each message without an id a random one, so that it can be sent again safely. It
            costs about 40 bytes per record. Default False.

    Raises:
        ConfigError: A value is out of range.

    Example:
        options = liftpy.PublishOptions(window=1, patience_s=60)
        publisher = await client.publisher("orders", options=options)
    """

    window: int = 4096
    timeout_s: float = 10.0
    patience_s: float = 30.0
    overload_patience_s: float = 0.0
    window_bytes: int = 32 * 1024 * 1024
    message_ids: bool = False

    def __post_init__(self) -> None:
        bounds = {
            "window": (1, 1 << 20),
            "timeout_s": (0.01, 600),
            "patience_s": (0, 3600),
            "overload_patience_s": (0, 3600),
            "window_bytes": (1, 1 << 30),
        }
        check_bounds(self, bounds)


@dataclass(slots=True)
class InFlight:
    """One message in flight. Times without ``_ns`` are times of the event loop, in seconds."""

    payload: bytes
    uid: str
    """Uid of the stream that the message is addressed to."""
    answer: asyncio.Future[PublishAck]
    give_up: float
    size_bytes: int
    attempt_s: float = 10.0
    """Time limit for the ack of one attempt, in seconds."""
    message_id: bytes = b""
    known_until_ns: int = 0
    """Time of ``now_ns`` until which the leader recognizes the message id, if it stored the message. 0: it does not."""
    overload_give_up: float = 0.0
    """Latest ``give_up`` while the leader rejects messages with OVERLOADED. 0: that does not extend ``give_up``."""
    deadline: float = 0.0
    """End of the current attempt."""
    began: float = 0.0
    """Time when the application published it."""
    maybe_stored: bool = False
    """True if an attempt got no answer, so that the message may be stored."""
    resend_at: float = 0.0
    wait_s: float = FIRST_WAIT_S
    not_before: float = 0.0
    """Earliest time of the next attempt, because the leader rejected the message by a quota."""
    refusal: LiftError | None = None

    def schedule_retry(self, refusal: LiftError, now: float, after_s: float) -> None:
        """Schedule another attempt after the rejection ``refusal``. ``now``: time of the event loop.

        ``after_s``: pause before the attempt, in seconds. 0: a pause that grows with each attempt.
        """
        self.refusal, self.not_before = refusal, now + after_s
        self.resend_at = now + (after_s or self.wait_s)
        if not after_s:
            self.wait_s = min(self.wait_s * 2, LONGEST_WAIT_S)

    def extend(self, seconds: float) -> None:
        """Move all time limits by ``seconds``, because this process was suspended for that time."""
        self.give_up += seconds
        self.deadline += seconds
        self.overload_give_up += seconds if self.overload_give_up else 0.0

    def connection_renewed(self, attempt_s: float) -> None:
        """Make the pauses short again after a reconnect, because a lost connection says nothing about the leader."""
        self.attempt_s, self.wait_s = attempt_s, FIRST_WAIT_S

    @property
    def answer_by(self) -> float:
        """Time at which the wait for an ack ends: the end of the current attempt, or of the time for all attempts."""
        return min(self.deadline, self.give_up)


def now_ns() -> int:
    """Return monotonic nanoseconds from a clock that also runs while the machine sleeps, if the system has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)


class MessageIds:
    """Generates message ids for one publisher: a random prefix and a counter."""

    def __init__(self) -> None:
        self._form = secrets.token_urlsafe(12).encode() + b".%d"
        self._numbers = itertools.count()

    def next(self) -> bytes:
        return self._form % next(self._numbers)


_Ack = client_pb2.Ack
NOT_STORED_NOW = frozenset({_Ack.NOT_LEADER, _Ack.OVERLOADED, _Ack.WRONG_STREAM, _Ack.QUOTA, _Ack.BELOW_MIN_ISR})
"""Errors of negative acks after which the client sends the message again.

This attempt was not stored; an earlier one may be.
"""


def ack_reason(ack: _Ack) -> str:
    """Return the name of the error in a negative ack. For an error that this version does not know, return its number."""
    return _Ack.Error.Name(ack.ackError) if ack.ackError in _Ack.Error.values() else str(ack.ackError)


def rejection(ack: _Ack, what: str) -> PublishRejectedError:
    """Return the error for a negative ack of a partition. ``what``: what the partition rejected, for the text."""
    reason = ack_reason(ack)
    return PublishRejectedError(f"{ack.stream}/{ack.partition} rejected the {what}: {reason} {ack.detail}".rstrip(), reason)


def is_final(error: LiftError) -> bool:
    """Return whether a rejection with ``error`` proves that no attempt of the message was stored.

    The leader checks the message id before the expected offset and the size limit of the stream. A malformed message is never
    stored. A deleted stream contains nothing.
    """
    if isinstance(error, PublishRejectedError):
        return error.reason in ("INCORRECT_OFFSET", "TOO_LARGE", "MALFORMED")
    return isinstance(error, NotFoundError)


class Window:
    """Limits the messages in flight by number and by bytes. Waiting senders enter in order.

    A single message may be larger than the limit in bytes.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()
        self.count = 0
        self.size_bytes = 0

    def try_enter(self, size_bytes: int, count: int = 1) -> bool:
        """Add messages to the window if there is room and no other sender waits. Return False otherwise."""
        there, total_bytes = self.count + count, self.size_bytes + size_bytes
        if self._waiting or (self.count and (there > self._most or total_bytes > self._most_bytes)):
            return False
        self.count, self.size_bytes = there, total_bytes
        return True

    async def enter(self, size_bytes: int, count: int = 1) -> None:
        """Wait until the window has room, and add ``count`` messages with a total size of ``size_bytes``.

        Call ``leave`` when they are no longer in flight.
        """
        if self.try_enter(size_bytes, count):
            return
        place = (asyncio.get_running_loop().create_future(), size_bytes, count)
        self._waiting.append(place)
        try:
            await place[0]
        except asyncio.CancelledError:
            if place[0].cancelled():
                with contextlib.suppress(ValueError):  # `_wake` has removed it already
                    self._waiting.remove(place)
                self._wake()
            else:  # the sender got its room in the same turn of the event loop
                self.leave(size_bytes, count)
            raise

    def leave(self, size_bytes: int, count: int = 1) -> None:
        self.count -= count
        self.size_bytes -= size_bytes
        if self._waiting:
            self._wake()

    def end(self) -> None:
        """Remove the limits and wake all waiting senders. Called when the publisher is closed."""
        self._most = self._most_bytes = 1 << 62
        self._wake()

    def _fits(self, size_bytes: int, count: int) -> bool:
        return not self.count or (self.count + count <= self._most and self.size_bytes + size_bytes <= self._most_bytes)

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1], self._waiting[0][2]):
            place, size_bytes, count = self._waiting.popleft()
            if not place.done():
                self.count += count
                self.size_bytes += size_bytes
                place.set_result(None)
