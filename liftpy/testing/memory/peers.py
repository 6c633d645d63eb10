"""Messages between the replicas of a partition in memory. Each protocol message becomes an event of the receiver.

A request is processed in the next turn of the event loop, and its answer in the turn after it. So no replica calls
another one directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.group_commit import GroupCommit
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import read_portion
from liftpy.core.partition.shell import FetchedBatches
from liftpy.core.publish.state_transfer import StatePiece, StatePieceRequest
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.messages import received_from
from liftpy.core.replication.replica import Replica
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.chunking import NOTHING
from liftpy.errors import LiftError, StorageError
from liftpy.testing.memory.home import FellowReplica, HomeNode
from liftpy.testing.memory.publishers import MemoryPublishers

_ROOM_BYTES = 1 << 40
"""Size limit of a fetch answer, practically unlimited, because no NATS message contains it."""


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """Replica that has sent a request, and the id of the request."""

    peer: FellowReplica
    request_id: int


class Peers:
    """Part of a ``MemoryReplica`` that exchanges messages with the other replicas."""

    node: HomeNode
    node_id: str
    key: PartitionKey
    log: Log
    replica: Replica
    commit: GroupCommit
    publishers: MemoryPublishers
    fetched: dict[int, FetchedBatches]

    def begin_peers(self) -> None:
        self._next_token = 1
        self._askers: dict[int, _PendingRequest] = {}
        self._kept: dict[str, _PendingRequest] = {}
        """Replica -> its last fetch, which got an empty answer and waits for records."""
        self._waiting: do.SendFetch | None = None
        """Fetch that is sent after the state of the leader has arrived. None: none."""

    def end_peers(self) -> None:
        self.stop_serving()
        self.fetched.clear()

    def feed(self, event: ev.Event) -> None:
        raise NotImplementedError

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle:
        raise NotImplementedError

    def log_failed(self, error: StorageError, token: int = 0) -> None:
        raise NotImplementedError

    def _token(self) -> int:
        token, self._next_token = self._next_token, self._next_token + 1
        return token

    # ---- a follower ------------------------------------------------------------------------------------------------------
    def _ask_leader(self, request_id: int, event: Callable[[int], ev.Event]) -> None:
        def ask() -> None:
            leader = self.node.serving_replica(self.key)
            if leader is None or leader is self:
                self.feed(ev.RequestFailed(request_id=request_id, reason="no responders"))
                return
            leader.feed(event(leader.asked_by(self, request_id)))

        self.later(ask)

    def send_fetch(self, effect: do.SendFetch) -> None:
        question = self.publishers.taker.asks(effect.leader_epoch)
        self._waiting = None if question is None else effect
        if question is not None:
            self.later(lambda: self._ask_state(effect, question))
            return
        self._ask_leader(
            effect.request_id,
            lambda token: received_from(
                ev.FetchReceived, effect, token=token, replica=self.node_id, incarnation=self.node.incarnation,
                stream_uid=self.key.uid, awaits_more=True,
            ),
        )  # fmt: skip

    def _ask_state(self, effect: do.SendFetch, question: StatePieceRequest) -> None:
        """Request the leader's state of producers and message ids that belongs to deleted records. Then send the fetch ``effect``."""
        if self._waiting is not effect:
            return  # it has another role
        leader, piece = self.node.serving_replica(self.key), None
        if leader is None or leader is self:
            self.publishers.taker.nobody_listens()
        else:
            piece = leader.read_state(question)
        try:
            goes_on = self.publishers.taker.add_piece(piece)
        except StorageError as error:
            self.log_failed(error)
            return
        if goes_on:
            self.send_fetch(effect)
        else:
            self.feed(ev.RequestFailed(request_id=effect.request_id, reason="the leader's state is not ready"))

    def read_state(self, question: StatePieceRequest) -> StatePiece | None:
        return self.publishers.giver.read_piece(question)

    def send_epoch_query(self, effect: do.SendEpochQuery) -> None:
        self._ask_leader(
            effect.request_id,
            lambda token: received_from(
                ev.EpochQueryReceived, effect, token=token, replica=self.node_id, stream_uid=self.key.uid
            ),
        )

    def answer_arrived(self, request_id: int, leader_epoch: int, high_watermark: int, data: bytes) -> None:
        self.publishers.taker.fetch_answered()
        view = memoryview(data)
        batches = split_batches(view)
        spans = tuple(
            ev.BatchSpan(base_offset=b.base_offset, last_offset=b.last_offset, leader_epoch=b.leader_epoch) for b in batches
        )
        token = self._token() if spans else 0
        if spans:
            self.fetched[token] = FetchedBatches(view, batches)
        answer = ev.FetchAnswered(
            token=token, request_id=request_id, leader_epoch=leader_epoch, high_watermark=high_watermark, spans=spans,
            size_bytes=len(data),
        )  # fmt: skip
        self.feed(answer)

    def quiesce(self, effect: do.Quiesce) -> None:
        self.feed(ev.QuiescenceEnded(heard_ns=None))  # it is asked for alone

    def end_quiescence(self, effect: do.EndQuiescence) -> None:
        pass

    def confirm_quiescence(self, effect: do.ConfirmQuiescence) -> None:
        pass

    def asked_by(self, peer: FellowReplica, request_id: int) -> int:
        token = self._token()
        self._askers[token] = _PendingRequest(peer, request_id)
        return token

    # ---- a leader --------------------------------------------------------------------------------------------------------
    def start_serving(self, effect: do.StartServing) -> None:
        self.node.serve(self.key, self)

    def stop_serving(self) -> None:
        """Stop answering the fetches of followers, because this replica does not lead any more."""
        self.node.serve_no_more(self.key, self)
        self._askers.clear()
        self._kept.clear()

    def send_fetch_response(self, effect: do.SendFetchResponse) -> None:
        asker = self._askers.pop(effect.token, None)
        if asker is not None:
            self._send_batches(asker, effect.leader_epoch, effect.from_offset, effect.max_bytes)
        self.publishers.ingest.settle()

    def park_fetch(self, effect: do.ParkFetch) -> None:
        asker = self._askers.pop(effect.token, None)
        if asker is not None:
            self._kept[effect.replica] = asker
        self.publishers.ingest.settle()

    def answer_parked_fetch(self, effect: do.AnswerParkedFetch) -> None:
        asker = self._kept.pop(effect.replica, None)
        if asker is not None and effect.from_offset < self.log.log_end_offset:
            self._send_batches(asker, effect.leader_epoch, effect.from_offset, effect.max_bytes)

    def send_high_watermark(self, effect: do.SendHighWatermark) -> None:
        asker = self._kept.get(effect.replica)
        if asker is not None:
            self._send(asker, effect.leader_epoch, b"")

    def _send_batches(self, asker: _PendingRequest, leader_epoch: int, from_offset: int, max_bytes: int) -> None:
        try:
            end_offset = self.log.log_end_offset
            portion = read_portion(self.log, from_offset, max_bytes, _ROOM_BYTES, end_offset=end_offset, held=NOTHING)
        except LiftError as error:
            if isinstance(error, StorageError):
                return  # a read that fails is answered by nothing: an empty response would say "you are caught up"
            raise
        self._send(asker, leader_epoch, b"".join(portion.chunks))

    def _send(self, asker: _PendingRequest, leader_epoch: int, data: bytes) -> None:
        high_watermark, peer = self.replica.high_watermark, asker.peer
        peer.later(lambda: peer.answer_arrived(asker.request_id, leader_epoch, high_watermark, data))

    def send_fetch_refusal(self, effect: do.SendFetchRefusal) -> None:
        asker = self._askers.pop(effect.token, None)
        if asker is not None:
            refused = received_from(ev.FetchRefused, effect, request_id=asker.request_id)
            asker.peer.later(lambda: asker.peer.feed(refused))

    def send_epoch_answer(self, effect: do.SendEpochAnswer) -> None:
        asker = self._askers.pop(effect.token, None)
        if asker is not None:
            answered = received_from(ev.EpochQueryAnswered, effect, request_id=asker.request_id)
            asker.peer.later(lambda: asker.peer.feed(answered))

    def notify_replica(self, effect: do.NotifyReplica) -> None:
        self._send_event(effect.replica, ev.NotificationReceived())

    def send_notice(self, effect: do.SendNotice) -> None:
        notice = received_from(ev.NoticeReceived, effect, leader=self.node_id)
        for replica in effect.replicas:
            self._send_event(replica, notice)

    def _send_event(self, node_id: str, event: ev.Event) -> None:
        other = self.node.replica_of(node_id, self.key)
        if other is not None:
            other.later(lambda: other.feed(event))

    def probe_replica(self, effect: do.ProbeReplica) -> None:
        if not self.node.is_up(effect.replica):
            self.later(lambda: self.feed(ev.ReplicaAbsent(replica=effect.replica)))
