"""Interfaces that the caller of ``Ingest`` and ``Standby`` implements: subscriptions, and sending acks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from liftpy.core.publish.acks import AckShell
from liftpy.core.publish.dedup_window import ID_NAME, MAX_ID_BYTES
from liftpy.core.publish.memory_budget import PartitionRoom
from liftpy.core.wire.envelope import MAGIC

_ONE_ID = re.compile(rb"\r\n%b: ?([!-~]{1,%d})\r\n" % (ID_NAME, MAX_ID_BYTES)).search
Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""Called as ``sink(subject, reply, payload, header block)`` for one message."""


class Subscription(Protocol):
    """Subscription to a data subject."""

    def leave(self) -> None:
        """Unsubscribe. Messages in flight still arrive."""

    def close(self) -> None:
        """Unsubscribe. No message arrives afterwards."""


class Refuser(Protocol):
    """Rejects publishes without decoding them, when there is no time for it."""

    def refuses(self) -> bool:
        """Return whether ``is_refused_unread`` publishes are rejected now."""

    def is_new(self, message_id: bytes) -> bool:
        """Return whether no record with this message id is stored or in progress.

        Only then may the publish be rejected unread [A2].
        """

    def refuse(self, replies: Sequence[bytes]) -> None:
        """Send a rejection to each of these reply subjects."""


def is_refused_unread(reply: bytes, payload: bytes, headers: bytes, is_new: Callable[[bytes], bool]) -> bool:
    """Return whether a publish may be rejected without decoding it.

    It has a reply subject, no envelope, and no message id that may be stored.
    """
    return bool(reply) and not payload.startswith(MAGIC) and can_be_rejected_unread(headers, is_new)


def can_be_rejected_unread(headers: bytes, is_new: Callable[[bytes], bool]) -> bool:
    """Return whether a header block has no message id, or a new one."""
    if ID_NAME not in headers:
        return True
    found = _ONE_ID(headers)
    return found is not None and headers.count(ID_NAME) == 1 and is_new(found[1])


class IngestShell(AckShell, Protocol):
    """Receives publishes for ``Ingest`` and sends its answers."""

    @property
    def max_payload(self) -> int:
        """Maximum size of a message at this time, in bytes."""

    def listen(
        self, subject: str, sink: Sink, *, given_up: Callable[[int], None], refuser: Refuser | None = None
    ) -> Subscription:
        """Subscribe to the subject of the partition.

        ``sink`` gets all messages that ``refuser`` does not reject. ``given_up(count)`` is called with the number of
        dropped messages.
        """

    def when_heard(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` when the NATS server has processed all earlier subscriptions."""

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all messages that arrived together were passed to their sinks."""

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Report that a message caused an unexpected error and was skipped."""


class Hearing(Protocol):
    """Subscription of a standby follower to the data subject."""

    is_denied: bool
    """True if NATS has denied the subscription."""

    def feed_to(self, sink: Sink, given_up: Callable[[int], None], lost: Callable[[], None]) -> None:
        """Deliver messages to another sink from now on. ``lost``: called when the connection is lost."""

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all messages that arrived together were passed to their sinks."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after all other pending work."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all earlier publishes have arrived, or after a limited time."""

    def leave(self) -> None:
        """Unsubscribe. Messages in flight still arrive."""

    def close(self) -> None:
        """Unsubscribe. No message arrives afterwards."""


class StandbyShell(Protocol):
    """Receives publishes for a ``Standby``."""

    def hear(self, subject: str, sink: Sink, given_up: Callable[[int], None]) -> Hearing:
        """Subscribe now, or after the next connect. ``given_up(count)`` is called with the number of dropped messages."""


class ReplyPolicy(NamedTuple):
    """Functions that decide whether a leader may send a negative ack."""

    refuse: Callable[[], bool]
    refuse_for_now: Callable[[], bool]
    """Returns True if publishes may be rejected that the next leader could store. Then no standby follower has buffered them.
    """
    room: PartitionRoom
    """Memory limit of this partition on the node."""
    leave: Callable[[], bool]
    """Called when publishes no longer reach this node. It returns True if standby followers receive them.

    In that case the leadership is transferred.
    """
