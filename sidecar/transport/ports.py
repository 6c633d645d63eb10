"""The connections to NATS as the partitions of a node see them.

A node connects to nats-server (``connection.py``). The nodes of an in-memory cluster exchange messages inside one process
(``liftpy.testing.memory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from liftpy.core.publish.ports import IngestShell, Sink, StandbyShell, Subscription

Buffer = bytes | bytearray | memoryview


class Bus(Protocol):
    """A connection that sends and receives messages without waiting."""

    inbox: str
    """Prefix of the subjects on which this connection gets answers, without the last dot."""

    @property
    def max_payload(self) -> int:
        """Maximum size of a message that the NATS server accepts now, in bytes."""

    @property
    def has_room(self) -> bool:
        """True if the connection can send a message of the maximum size now."""

    def send(self, subject: str, pieces: Sequence[Buffer], reply: str = "", *, headers: bytes = b"") -> bool:
        """Send a message whose payload is the concatenation of ``pieces``. Return False if that is impossible now.

        ``reply``: reply subject, '': none. ``headers``: header block, b"": none.
        """

    def listen(self, subject: str, sink: Sink, queue: str = "") -> Subscription:
        """Subscribe to ``subject``, wildcards allowed. ``sink``: called with each message. ``queue``: queue group, '': none."""

    def retire(self, listeners: Sequence[Subscription]) -> None:
        """Unsubscribe ``listeners``. Close them when no message for them can arrive any more."""

    def hold(self) -> None:
        """Collect the next messages, so that ``release`` writes them together."""

    def release(self) -> None:
        """Write the messages that were collected since ``hold``."""


class PublishLink(IngestShell, Protocol):
    """The connection for publishes and their acks."""

    @property
    def missed_by_all_nodes(self) -> bool:
        """True if the last reconnect shows that no node received the messages published before it."""


class Links(Protocol):
    """The connections of a node."""

    @property
    def replication(self) -> Bus:
        """Connection for messages between nodes."""

    @property
    def ingest(self) -> PublishLink:
        """Connection for publishes and their acks."""

    @property
    def reads(self) -> Bus:
        """Connection for the requests of readers."""

    @property
    def standby(self) -> StandbyShell:
        """Connection for the publishes that standby followers buffer."""

    @property
    def are_up(self) -> bool:
        """True if the connections that a leader needs are up."""

    async def wait_until_processed(self, timeout_s: float) -> None:
        """Wait until all publishes that a NATS server has sent to this node have arrived. ``timeout_s``: time limit."""
