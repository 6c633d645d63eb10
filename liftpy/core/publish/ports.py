"""Interfaces that ``Ingest`` and ``Standby`` need from the shell: subscriptions and sending acks."""

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
"""``sink(subject, reply, payload, header block)`` takes one message."""


class Subscription(Protocol):
    """Subscription to a data subject."""

    def leave(self) -> None:
        """Unsubscribe. Messages on their way still arrive."""

    def close(self) -> None:
        """Unsubscribe. No message arrives afterwards."""


class Refuser(Protocol):
    """Rejects publishes without reading them, when there is no time to read them."""

    def refuses(self) -> bool:
        """Return whether ``is_refused_unread`` publishes are rejected now."""

    def is_new(self, message_id: bytes) -> bool:
        """Return whether no record with this message id is stored or in progress. Then it may be rejected [A2]."""

    def refuse(self, replies: Sequence[bytes]) -> None:
        """Send a rejection for each publish that has a reply subject."""


def is_refused_unread(reply: bytes, payload: bytes, headers: bytes, is_new: Callable[[bytes], bool]) -> bool:
    """Return whether a publish has a reply subject, no envelope, and no message id that may be stored."""
    return bool(reply) and not payload.startswith(MAGIC) and may_be_told_no(headers, is_new)


def may_be_told_no(headers: bytes, is_new: Callable[[bytes], bool]) -> bool:
    """Return whether a header block has no message id, or a new one."""
    if ID_NAME not in headers:
        return True
    found = _ONE_ID(headers)
    return found is not None and headers.count(ID_NAME) == 1 and is_new(found[1])


class IngestShell(AckShell, Protocol):
    """The shell of ingest: receives publishes and sends answers."""

    @property
    def max_payload(self) -> int:
        """Maximum size of a message at this time, in bytes."""

    def listen(
        self, subject: str, sink: Sink, *, given_up: Callable[[int], None], refuser: Refuser | None = None
    ) -> Subscription:
        """Subscribe to the subject of the partition.

        ``sink`` gets all messages that ``refuser`` does not reject. ``given_up(count)``: called with the number of
        dropped messages.
        """

    def when_heard(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` when the server has processed all earlier subscriptions."""

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call back when everything that has arrived together has been given to its sinks."""

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Report that a message raised an unexpected error and was skipped."""


class Hearing(Protocol):
    """A subscription to the data subject, on the connection that standbys have."""

    is_denied: bool
    """NATS does not let this node have it."""

    def feed_to(self, sink: Sink, given_up: Callable[[int], None], lost: Callable[[], None]) -> None:
        """Deliver messages to another sink from now on. ``lost``: called when the connection is lost."""

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call back when everything that has arrived together has been given to its sinks."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after all other pending work."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once everything that was published before has arrived, or after a bounded time."""

    def leave(self) -> None:
        """Unsubscribe. Messages on their way still arrive."""

    def close(self) -> None:
        """Unsubscribe. No message arrives afterwards."""


class StandbyShell(Protocol):
    """The shell of a standby follower: receives publishes."""

    def hear(self, subject: str, sink: Sink, given_up: Callable[[int], None]) -> Hearing:
        """Subscribe now or after the next connect. ``given_up(count)``: called with the number of dropped messages."""


class ReplyPolicy(NamedTuple):
    """Decides whether a negative ack is allowed."""

    refuse: Callable[[], bool]
    refuse_for_now: Callable[[], bool]
    """True if publishes are rejected that the next leader may store. No standby follower may have buffered them."""
    room: PartitionRoom
    """Memory budget of the node for this partition."""
    leave: Callable[[], bool]
    """Callback when publishes bypass this node. It returns whether standby followers have received them.

    If they have, the leadership is transferred.
    """
