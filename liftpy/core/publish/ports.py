"""Interfaces that the caller of ``Ingest`` and ``Standby`` implements: subscriptions, and sending acks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from liftpy.core.log.log import Log
from liftpy.core.publish.acks import AckShell, PendingAcks
from liftpy.core.publish.dedup_window import ID_NAME, MAX_ID_BYTES
from liftpy.core.publish.log_state import LogState
from liftpy.core.replication.events import DuplicateReceived, PublishesReceived
from liftpy.core.replication.replica import Replica
from liftpy.errors import LiftError

_ONE_ID = re.compile(rb"\r\n%b: ?([!-~]{1,%d})\r\n" % (ID_NAME, MAX_ID_BYTES)).search
Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""Called as ``sink(subject, reply, payload, header block)`` for one message."""


class Subscription(Protocol):
    """Subscription to the data subject of a partition."""

    def leave(self) -> None:
        """Unsubscribe. Messages that still arrive are passed on until ``close``."""

    def close(self) -> None:
        """Unsubscribe. No message is passed on afterwards."""


class PublishRejector(Protocol):
    """Rejects publishes without decoding them, when there is no time or no room for them."""

    def rejects_now(self) -> bool:
        """Return whether publishes are rejected now, if they have a reply subject, no envelope, and no known id."""

    def is_new(self, message_id: bytes) -> bool:
        """Return whether no record with this message id is stored or in progress.

        Only then may the publish be rejected unread [A2].
        """

    def reject_unread(self, replies: Sequence[bytes]) -> None: ...


def can_be_rejected_unread(headers: bytes, is_new: Callable[[bytes], bool]) -> bool:
    """Return whether the ``headers`` block of a message has no message id, or a new one.

    ``is_new``: returns whether no record with a message id is stored or in progress.
    """
    if ID_NAME not in headers:
        return True
    match = _ONE_ID(headers)
    return match is not None and headers.count(ID_NAME) == 1 and is_new(match[1])


class PublishPartition(Protocol):
    """The partition of an ``Ingest`` and a ``Standby``. Its shell is ``PartitionShell``."""

    acks: PendingAcks
    replica: Replica
    log: Log
    log_state: LogState

    def feed(self, event: PublishesReceived | DuplicateReceived, /) -> None:
        """Pass ``event`` to the replica."""

    def now_ns(self) -> int:
        """Return the monotonic time."""

    def publishes_dropped(self, reason: str, count: int) -> None:
        """Note that ``count`` publishes were dropped. This node does not answer them."""

    def mark_changed(self) -> None:
        """Note that counters of the partition may have changed, for the metrics."""

    def ingest_left(self) -> None:
        """Transfer the leadership, because this leader has unsubscribed, and standby followers receive the publishes."""

    def standby_unreadable(self, error: LiftError) -> None:
        """Note that the standby buffer was not compared with the log, because the log cannot be read."""


class IngestShell(AckShell, Protocol):
    """Interface of the code around ``Ingest``: it receives publishes and sends answers."""

    @property
    def max_payload(self) -> int:
        """Maximum size of a message that the NATS server accepts now, in bytes."""

    def listen(
        self, subject: str, sink: Sink, *, on_dropped: Callable[[int], None], rejector: PublishRejector | None = None
    ) -> Subscription:
        """Subscribe to the data subject of the partition.

        Args:
            subject: Data subject.
            sink: Called with each message that ``rejector`` does not reject.
            on_dropped: Called with the number of messages that were dropped unread because the buffers were full.
            rejector: Rejects messages unread. None: no message is rejected unread.
        """

    def when_subscribed(self, on_subscribed: Callable[[], None]) -> None:
        """Call ``on_subscribed`` when the NATS server has processed all subscriptions made so far."""

    def call_after_read(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all messages that were read together have been passed to their sinks."""

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Count and log that a message on ``subject`` caused an unexpected ``error`` and was skipped."""


class StandbySubscription(Subscription, Protocol):
    """Subscription of a standby follower to the data subject of its partition."""

    is_denied: bool
    """True if NATS has denied the subscription."""

    def feed_to(self, sink: Sink, on_dropped: Callable[[int], None], lost: Callable[[], None]) -> None:
        """Pass the messages to another ``sink`` from now on, because the follower has become the leader.

        ``on_dropped``: called with the number of messages dropped unread. ``lost``: called when the connection is lost or not
        open.
        """

    def call_after_read(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all messages that were read together have been passed to their sinks."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after all other pending work of the event loop."""

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all messages sent before have arrived, at the latest after a fixed time."""


class StandbyShell(Protocol):
    """Interface of the code around ``Standby``: it receives publishes."""

    def subscribe(self, subject: str, sink: Sink, on_dropped: Callable[[int], None]) -> StandbySubscription:
        """Subscribe to ``subject``, now or when the connection is open. ``sink``: called with each message.

        ``on_dropped``: called with the number of messages that were dropped unread because the buffers were full.
        """
