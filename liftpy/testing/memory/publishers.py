"""Receives the publishes of one replica in memory, with ``Ingest``, ``PendingAcks``, ``Standby`` and ``LogState`` of the
product.
"""

from __future__ import annotations

from collections.abc import Callable

from liftpy.config import NS_PER_S
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import derived_state
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.publish.ports import PublishRejector, Sink
from liftpy.core.publish.standby import Standby, StandbyBuffer, StandbyReplayRules
from liftpy.core.publish.state_file import state_owner
from liftpy.core.publish.state_transfer import StateFetcher, StateServer
from liftpy.core.publish.state_writer import StateWriter, pace_of, restore_state
from liftpy.errors import LiftError
from liftpy.testing.memory.home import ReplicaEndpoint
from liftpy.testing.memory.nats import Bus, BusSubscription


class MemoryPublishers:
    """Ingest and standby buffer of one replica (implements ``IngestShell`` and ``StandbyShell``)."""

    def __init__(self, replica: ReplicaEndpoint) -> None:
        self._replica = replica
        self._bus = replica.node.bus
        self.send_lines = self._bus.send_lines
        self.behind_read = self._bus.behind_read
        node, log, core = replica.node, replica.log, replica.replica
        config, stream = node.config, log.config
        self.acks = PendingAcks(self, replica.key, replica.subject)
        self.derived = derived_state(log, replica.subject, stream, config, replica.now_ns)
        self.derived.join(node.derived)
        self.derived.on_lacking = self._read_soon
        self._reading = False
        owner = state_owner(replica.key)
        restore_state(self.derived, log, owner)
        self.states = StateWriter(self.derived, log, owner, pace_of(config), replica.now_ns)
        self.giver = StateServer(self.derived, owner, replica.now_ns)
        self.taker = StateFetcher(self.derived, log, owner)
        self.ingest = Ingest(
            shell=self, subject=replica.subject, config=config, policy=stream.ack_policy, codec=stream.codec,
            inboxes=node.inboxes, acks=self.acks, feed=replica.feed, wall_ns=node.wall_ns,
            log_end_offset=lambda: log.log_end_offset,
            may_refuse=lambda: core.may_refuse_publishers(replica.now_ns()),
            may_refuse_for_now=lambda: core.may_refuse_for_now(replica.now_ns()),
            derived=self.derived, takes=core.takes_publishes, on_drop=self._count_dropped,
        )  # fmt: skip
        self.standby = Standby(
            shell=self, subject=replica.subject, replica=core, log=log, ids=self.derived.ids,
            reader=MessageDecoder(replica.key, replica.subject, stream.ack_policy, node.inboxes, stream.codec),
            heard=StandbyBuffer(node.heard, config.standby_bytes, round(config.standby_age_s * NS_PER_S)),
            now_ns=replica.now_ns, wall_ns=node.wall_ns, rules=StandbyReplayRules(doubt_ns=round(config.lease_s * NS_PER_S)),
        )  # fmt: skip

    def _count_dropped(self, reason: str, count: int) -> None:
        self._replica.node.counters[f"messages dropped: {reason}"] += count

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            self._replica.later(self._read_beside)

    def _read_beside(self) -> None:
        self._reading = False
        try:
            complete = self.derived.read_beside()
        except LiftError:
            return  # its log cannot be read: the next read raises the error
        if not complete:
            self._read_soon()

    def close(self) -> None:
        """Stop accepting publishes permanently, because the replica is closed."""
        self.standby.cancel()
        self.standby.stop()
        self.ingest.stop()
        self.acks.drop()

    def store_state(self) -> None:
        """Store the state of producers and message ids if that is due. Called after a checkpoint of the HW."""
        unwritten = self.states.begin()
        if unwritten is not None:
            self.states.write(unwritten)

    # ---- the shells ------------------------------------------------------------------------------------------------------
    @property
    def max_payload(self) -> int:
        return self._bus.max_payload

    def listen(
        self, subject: str, sink: Sink, *, given_up: Callable[[int], None], refuser: PublishRejector | None = None
    ) -> BusSubscription:
        """Subscribe ``sink`` to ``subject``, and return the subscription.

        ``given_up``, ``refuser``: not used, because the in-memory bus never drops messages.
        """
        return self._bus.listen(subject, sink)

    def hear(self, subject: str, sink: Sink, given_up: Callable[[int], None]) -> _StandbySubscription:
        """Subscribe ``sink`` to ``subject`` as a standby follower, and return the subscription.

        ``given_up``: not used, because the in-memory bus never drops messages.
        """
        return _StandbySubscription(self._replica, self._bus, subject, sink)

    def when_subscribed(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` in the next turn of the event loop, because subscriptions take effect immediately."""
        self._replica.later(heard)

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Report an unexpected error in the processing of a message on ``subject`` to the event loop."""
        self._replica.node.counters["not_taken"] += 1
        self._replica.node.loop.call_exception_handler({"message": f"a message on {subject!r}", "exception": error})


class _StandbySubscription:
    """Subscription of a standby follower to the data subject of its partition."""

    is_denied = False

    def __init__(self, replica: ReplicaEndpoint, bus: Bus, subject: str, sink: Sink) -> None:
        self._replica = replica
        self._sink = sink
        self._subscription = bus.listen(subject, self._message_arrived)
        self.behind_read = bus.behind_read

    def _message_arrived(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        self._sink(subject, reply, payload, block)

    def feed_to(self, sink: Sink, given_up: Callable[[int], None], lost: Callable[[], None]) -> None:
        """Deliver the messages to ``sink`` from now on. The other arguments are not used, because no message is ever dropped."""
        self._sink = sink

    def soon(self, callback: Callable[[], None]) -> None:
        self._replica.later(callback)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the next turn of the event loop. A real connection would first wait for messages in flight."""
        self._replica.later(callback)

    def leave(self) -> None:
        self._subscription.close()

    def close(self) -> None:
        self._subscription.close()
