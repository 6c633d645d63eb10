"""SimIngest: the data subject of one simulated replica; the shipped ``Ingest`` and ``PendingAcks`` over the simulated NATS.

Bytes of messages go in, bytes of acks come out; the checkers look at each answer before it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from liftpy.config import NS_PER_S, AckPolicy
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import Pause
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import create_log_state
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.publish.ports import PublishRejector, Sink, can_be_rejected_unread
from liftpy.core.publish.standby import Block, FailoverBacklog, NodeStandbyMemory, Standby, StandbyBuffer, StandbyReplayRules
from liftpy.core.publish.state_file import state_owner
from liftpy.core.publish.state_transfer import StateFetcher, StateServer
from liftpy.core.publish.state_writer import StateFileSchedule, StateWriter, restore_state
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.wire.envelope import MAGIC
from liftpy.core.wire.subjects import InboxRule
from liftpy.errors import LiftError, StorageError
from tests.ack_runs import answered_by
from tests.simulation.replica.messages import DELETED_TO, Ack, AckFrame, Publish
from tests.simulation.replica.network import Reply

if TYPE_CHECKING:
    from tests.simulation.replica.sim_replica import SimReplica

_TO = b"Sim-To: "
"""A header that says where below the partition's own subject a message is published."""
_OF_DEAD_PROCESSES = ("PRODUCER_FENCED", "DIVERGED_PRODUCER")
_INBOXES = InboxRule(("_INBOX.",))
_MEMORY_BYTES = 1 << 30
_LATE_NS = 3600 * NS_PER_S
"""Values are unique, and say whose they are: so what a standby recognises need not be recent, and order is known by publisher."""


STATE_PACE = StateFileSchedule(1_000_000_000, 2048, 256, 0)
"""A file each second, where the log has grown at all."""


_LOOK_BACK_NS, _LOOK_BACK_BYTES = 3_000_000, 2048


_BACK_AFTER_NS = 2 * NS_PER_S
_STEP_MESSAGES = 3
"""Number of buffered messages that a standby sorts in one slice. It is small, so that other events come in between."""
_SLICE_NS = 2_000_000


class _Buffer(StandbyBuffer):
    """Buffered message. ``looked_at``: whether the new leader has processed it."""

    looked_at: Sequence[Block] = ()

    def take_all(self, now_ns: int) -> list[Block]:
        """Return the blocks as the real buffer does."""
        self.looked_at = super().take_all(now_ns)
        return self.looked_at


class SimIngest:
    """``PublishPartition`` and ``IngestShell`` of one replica, with its ingest and standby buffer."""

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica
        self._cluster, config = replica.cluster, replica.cluster.config
        self._sink: Sink | None = None
        self._rejector: PublishRejector | None = None
        self._reads = False
        """True while a Publish is being passed to the sink."""
        self._behind: list[Callable[[], None]] = []
        self._askers: dict[bytes, tuple[Publish, int, Reply]] = {}
        """Inbox -> (publish, index of its message, way back)."""
        self._releasing: do.SendAcks | None = None
        self._came_while_paused: set[int] = set()
        self.acks = PendingAcks(self, replica.key, replica.subject)
        below = f"{replica.subject}.>"
        self.log_state = create_log_state(
            replica.log, below, replica.log.config, self._cluster.config, replica.now_ns, replica.process.state_memory
        )
        self._on_standby_lost: Callable[[], None] = lambda: None
        self._left = False
        """Publishes go past it: it hands over when its connection is back."""
        self._reading = False
        self.log_state.on_lacking = self._read_soon
        owner = state_owner(replica.key)
        with suppress(StorageError):
            for why in restore_state(self.log_state, replica.log, owner).values():
                self._cluster.counters[f"derived state left out: {why.partition(' ')[0]}"] += 1
        self._cluster.counters["dedup_state_restored"] += self.log_state.covered > 0
        self.states = StateWriter(self.log_state, replica.log, owner, STATE_PACE, replica.now_ns)
        self.state_server, self.state_fetcher = (
            StateServer(self.log_state, owner, replica.now_ns),
            StateFetcher(self.log_state, replica.log, owner),
        )
        self.log_state.first_read_bytes = 0  # these logs are too short for a first look to leave anything
        self.replica, self.log, self.now_ns = replica.replica, replica.log, replica.now_ns
        reader = MessageDecoder(replica.key, replica.subject, AckPolicy.ALL, _INBOXES)
        self.ingest = Ingest(self, self, reader, self._cluster.config, self._wall_ns, replica.process.room)
        self._buffer = _Buffer(NodeStandbyMemory(_MEMORY_BYTES), config.standby_bytes, round(config.standby_age_s * NS_PER_S))
        rules = StandbyReplayRules(
            uncertainty_ns=round(replica.process.config.lease_s * NS_PER_S),
            credit_ns=_LATE_NS,
            reordered_ns=_LATE_NS,
            gap_ns=0,
            slice_ns=0,
            step_messages=_STEP_MESSAGES,
            origin=self._publisher,
        )
        reader = MessageDecoder(replica.key, replica.subject, AckPolicy.ALL, _INBOXES)
        self.standby = Standby(self, self, reader, self._buffer, rules, self._wall_ns)

    def _publisher(self, reply: bytes, value: bytes | None) -> bytes:
        if value is None:  # a delete marker
            return reply.partition(b".")[2].rsplit(b".", 2)[0]
        return self._cluster.publishes[int(value)][0].encode()

    def open(self) -> None:
        """Start as leader with the standby buffer."""
        counters = self.standby.counters
        was = {name: getattr(counters, name) for name in counters.__slots__}
        self.standby.replay(lambda taken: self._open(taken, was))

    def _open(self, taken: FailoverBacklog | None, was: dict[str, int]) -> None:
        for name, count in was.items():
            self._cluster.counters[f"standby: {name.replace('_', ' ')}"] += getattr(self.standby.counters, name) - count
        if taken is not None:
            messages = [message for block in self._buffer.looked_at for message in block.messages]
            self._cluster.checkers.taken_over(self._replica, messages, taken, self.standby.buffer_start)
        self.ingest.start(taken)

    def store_state(self) -> None:
        """Store the derived state after a checkpoint of the HW, if it is due."""
        unwritten = self.states.begin()
        if unwritten is not None:
            self.states.write(unwritten)

    def feed(self, event: ev.Event) -> None:
        if isinstance(event, ev.PublishesReceived):
            if self._replica.replica.state.pause is Pause.UNTIL_RESUMED:
                self._came_while_paused.add(event.token)
                self._cluster.counters["publishes to what is paused"] += 1
            self._cluster.counters["publishes that wake"] += self._replica.replica.state.pause.until_publish
        self._replica.feed(event)

    def appends(self, effect: do.AppendBatch) -> None:
        """Check that a leader of a paused partition stores nothing [A13]."""
        pause = self._replica.replica.state.pause
        where = self._replica.host, self._replica.key, pause
        check(effect.token not in self._came_while_paused, "A13", where, "stores what came while it was paused")
        check(not pause.until_publish, "A13", where, "stores before it is resumed")

    def stepped(self, event: ev.Event) -> None:
        """The replica may have another role now."""
        if isinstance(event, ev.PartitionChanged | ev.StopRequested | ev.StorageFailed):
            self.standby.review()

    def stop(self) -> None:
        """Stop: it leads no more."""
        self._left, self._on_standby_lost = False, lambda: None
        self.standby.cancel()
        self.ingest.stop()

    def link_changed(self, is_up: bool) -> None:
        """Handle a lost or restored connection for publishes."""
        if not is_up:
            self._on_standby_lost()
            self.ingest.process_link_loss()
        elif self._left:
            self._left, new_leader = False, self._replica.replica.standby_successor()
            if new_leader:
                epoch = self._replica.replica.leader_epoch
                self._replica.transfer_leadership(
                    do.TransferLeadership(
                        leader_epoch=epoch,
                        toward=new_leader,
                        reason="publishes may have gone past it",
                        cause=do.TransferCause.MISSED_PUBLISHES,
                    )
                )
            self._replica.later(_BACK_AFTER_NS if new_leader else 0, self.ingest.resubscribe)

    def ingest_left(self) -> None:
        self._left = True

    def _read_soon(self) -> None:
        if not self._reading:
            self._reading = True
            self._replica.later(_LOOK_BACK_NS, self._read_missing_records)

    def _read_missing_records(self) -> None:
        self._reading = False
        if not (self._replica.failed or self._replica.log.closed):
            with suppress(LiftError):  # damage: the replica has been told
                if not self.log_state.read_missing_records(_LOOK_BACK_BYTES):
                    self._read_soon()

    def _wall_ns(self) -> int:
        return self._replica.process.stamp_ns()

    def mark_changed(self) -> None: ...

    def standby_unreadable(self, error: LiftError) -> None: ...

    def publishes_dropped(self, reason: str, count: int) -> None:
        self._cluster.counters[f"messages dropped: {reason.upper()}"] += count

    def release(self, effect: do.SendAcks) -> None:
        """Carry out the effect."""
        self._releasing = effect
        self.acks.release(effect.policy, effect.through_offset, effect.leader_epoch, self._wall_ns())
        self._releasing = None

    # ---- the shell -------------------------------------------------------------------------------------------------------
    @property
    def max_payload(self) -> int:
        """Maximum message size of the simulated NATS, in bytes."""
        return self._cluster.network.max_payload_bytes

    def listen(
        self, subject: str, sink: Sink, *, on_dropped: Callable[[int], None], rejector: PublishRejector | None = None
    ) -> _Subscribed:
        """Subscribe. All messages of one Publish arrive in one read."""
        self._sink, self._rejector = sink, rejector
        self._cluster.network.subscribe(self._replica.host, subject, self._arrived)
        return _Subscribed(self, subject)

    def subscribe(self, subject: str, sink: Sink, on_dropped: Callable[[int], None]) -> _Subscribed:
        """Subscribe as a standby follower. A leader continues the subscription."""
        return self.listen(subject, sink, on_dropped=on_dropped)

    def later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the time of the replica."""
        self._replica.later(delay_ns, callback)

    def settle(self, subject: str, callback: Callable[[], None]) -> None:
        """Call back when all that is on its way on ``subject`` has arrived."""
        network = self._cluster.network
        delay_ns = max(network.settled_ns(subject, self._replica.host) - network.clock.now_ns, 0) + 1
        self._cluster.clock.after(delay_ns, lambda: (self._replica.later(0, callback), None)[1])

    def close(self, subject: str) -> None:
        """Unsubscribe."""
        self._sink = None
        self._cluster.network.unsubscribe(self._replica.host, subject)

    def when_subscribed(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` when all publishers know the subscription."""
        self._replica.later(self._cluster.network.noise.interest_ns, heard)

    def call_after_read(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the messages of one Publish."""
        if self._reads:
            self._behind.append(callback)
        else:
            self._replica.later(0, callback)

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        """Fail: no simulated message may raise an unexpected error."""
        raise error

    def _arrived(self, publish: Publish, reply: Reply) -> None:
        own, self._reads = self._replica.subject.encode(), True
        for index, (inbox, payload, block) in enumerate(publish.messages):
            self._askers[publish.inbox(index)] = publish, index, reply
            subject = own
            if block.startswith(DELETED_TO):
                subject, block = b"%b.d%b" % (own, block[len(DELETED_TO) :]), b""
            if self._sink is None:
                continue
            rejector = self._rejector
            plain = inbox and not payload.startswith(MAGIC)
            if plain and rejector is not None and rejector.rejects_now() and can_be_rejected_unread(block, rejector.is_new):
                self._cluster.counters["refused unread"] += 1
                rejector.reject_unread([inbox])
            else:
                _, mark, rest = block.partition(_TO)
                self._sink(b"%b.%b" % (own, rest.split(b"\r\n", 1)[0]) if mark else subject, inbox, payload, block)
        self._reads = False
        behind, self._behind = self._behind, []
        for callback in behind:
            callback()

    def send_lines(self, lines: Sequence[bytes]) -> None:
        """Answers to publishers, each as a line of the NATS protocol with its payload."""
        acked: list[tuple[int, int]] = []
        answers: list[tuple[Reply, AckFrame]] = []
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            _, inbox, size = head.split()
            publish, index, reply = self._askers[inbox]
            frame = AckFrame(self._replica.node_id, index, rest[: int(size)])
            ack = frame.decoded()
            answers.append((reply, frame))
            requests = answered_by(inbox, ack.record_count) if publish.takes_runs(index) else [inbox]
            for place, request in enumerate(requests):
                self._look(request, replace(ack, offset=ack.offset + place), place > 0, acked)
        if acked and self._releasing is not None:
            self._cluster.checkers.acknowledged(self._replica, acked, self._releasing)
        for reply, frame in answers:
            reply(frame)

    def _look(self, inbox: bytes, ack: Ack, in_run: bool, acked: list[tuple[int, int]]) -> None:
        """Check an answer. ``in_run``: an Ack to an earlier message covers it."""
        check(inbox in self._askers, "A8", self._replica.host, "answers", inbox, "which has its answer, or never asked")
        publish, index, _ = self._askers.pop(inbox)
        check(not in_run or publish.takes_runs(index), "A8", self._replica.host, "answers", inbox, "by an Ack to another")
        if ack.reason in _OF_DEAD_PROCESSES:
            pass  # an older process is over, whatever became of what it has sent
        elif ack.reason:
            self._cluster.checkers.rejected(self._replica, publish.ids[index])
        elif ack.duplicate:
            assert self._releasing is not None
            self._cluster.checkers.answered_again(self._replica, publish.ids[index], ack.offset, self._releasing)
        else:
            acked.append((publish.ids[index], ack.offset))
            self._cluster.checkers.answered(self._replica, publish, ack, self._releasing)
        self._cluster.counters["answered within a run"] += in_run


class _Subscribed:
    """Subscription of the data subject."""

    is_denied = False

    def __init__(self, shell: SimIngest, subject: str) -> None:
        self._shell = shell
        self._subject = subject
        self.call_after_read = shell.call_after_read

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after messages that have arrived."""
        self._shell.later(_SLICE_NS, callback)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all messages on their way have arrived."""
        self._shell.settle(self._subject, callback)

    def feed_to(self, sink: Sink, on_dropped: Callable[[int], None], lost: Callable[[], None]) -> None:
        """Deliver messages to another sink."""
        self._shell._sink, self._shell._on_standby_lost = sink, lost

    def close(self) -> None:
        """Unsubscribe."""
        self._shell.close(self._subject)

    def leave(self) -> None:
        """Unsubscribe. Messages on their way are lost."""
        self._shell.close(self._subject)
