"""Replication over NATS: the leader's side (``.replicate``, ``.offset``), and the follower's requests and answers.

The reply subject of a follower is ``<inbox>.<slot>.<request id>``. So the subject of an answer identifies the partition
and the request [D16]. Malformed frames are counted and dropped. Batches go from the log to the socket without copying.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import Portion, read_portion
from liftpy.core.partition.shell import FetchedBatches
from liftpy.core.publish.ports import Subscription
from liftpy.core.publish.state_transfer import PIECE_BYTES, StateFetcher, StatePiece, StatePieceRequest, StateServer
from liftpy.core.replication import effects as do
from liftpy.core.replication import events, messages
from liftpy.core.replication.fetch_assembly import FetchAssembly
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.chunking import NOTHING, PartialBatch, room_bytes
from liftpy.core.wire.decode_errors import IMPLAUSIBLE, REFUSED, REPLY, counter_name
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.frames import MisdirectedError, address, check_answer_address, check_partition_address
from liftpy.core.wire.headers import is_status
from liftpy.core.wire.subjects import InboxRule, Subjects, reply_to
from liftpy.errors import DamagedBatchError, LiftError, ProtocolError, StorageError
from liftpy.nats.request_guard import RequestGuard
from sidecar.runtime import clock
from sidecar.runtime.logs import WarningLogRateLimit
from sidecar.transport.ports import Buffer, Bus

logger = logging.getLogger("liftpy.replication")

_MAX_DIGITS = 19
"""Maximum number of digits of a request id, which has 63 bits."""
_STATE_OVERHEAD_BYTES = 512
"""Maximum size of a message with a piece of derived state, without the data itself, in bytes."""
_MAX_TOKENS = 4096
"""Maximum number of requests that the core has not answered.

Above it, the oldest request is dropped, and its follower retries.
"""

ASSEMBLING_BYTES = 256 * 1024 * 1024
"""Maximum total size of incomplete batches of all followers of a node, in bytes. Above it, a follower waits and retries."""

Feed = Callable[[events.Event], None]
_seldom = WarningLogRateLimit()


@dataclass(frozen=True, slots=True)
class ReplyDestination:
    """Destination of an answer to a follower.

    ``reply``: reply subject, which was checked [A5]. ``request_id``: id that the answer repeats. ``held``: part of a large batch
    that the follower has.
    """

    reply: str
    request_id: int
    held: PartialBatch | None = None


class ReplicationHandler:
    """Leader's side of replication for one partition: receives requests of followers and sends the answers of the core."""

    __slots__ = (
        "_bus", "_counters", "_feed", "_inbox_rules", "_instruments", "_is_collecting", "_key", "_last_read", "_listeners",
        "_next_token", "_parked", "_subjects", "_tokens", "_too_large_offset", "state_server",
    )  # fmt: skip

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        key: PartitionKey,
        inboxes: InboxRule,
        feed: Feed,
        counters: Counter[str],
        instruments: Instruments | None = None,
    ) -> None:
        self._instruments = instruments or Instruments()
        self._bus = bus
        self._key = key
        self._subjects = subjects
        self._inbox_rules = (inboxes.allows,)
        self._feed = feed
        self._counters = counters
        self._too_large_offset = -1
        """Offset of the last batch that was too large for a message to a follower that accepts no pieces. -1: none."""
        self._listeners: list[Subscription] = []
        self._tokens: dict[int, ReplyDestination] = {}
        self._parked: dict[str, ReplyDestination] = {}
        """Replica -> its waiting fetch that got an empty answer."""
        self._next_token = 1
        self._is_collecting = False
        """True while the answers of a step are collected, so that they are sent together."""
        self.state_server: StateServer | None = None
        """Source of state that the log no longer contains. None: no source."""
        self._last_read: tuple[tuple[int, int, int, int], Portion] | None = None
        """Arguments and result of the last log read in this step, which several followers may share. None: no read yet."""

    def start(self) -> None:
        if not self._listeners:
            stream, partition = self._key.stream, self._key.partition
            fetches, queries = RequestGuard("fetch", self._counters), RequestGuard("epoch query", self._counters)
            self._listeners = [
                self._bus.listen(self._subjects.replicate(stream, partition), fetches.handler(self._fetch_arrived)),
                self._bus.listen(self._subjects.offset(stream, partition), queries.handler(self._offset_arrived)),
            ]

    def stop(self) -> None:
        """Unsubscribe, and forget the requests that have no answer yet.

        The core still rejects requests that arrive later. Otherwise a follower would wait for its timeout.
        """
        self._bus.retire(self._listeners)
        self._listeners = []
        self._tokens.clear()
        self._parked.clear()

    def _token(self, destination: ReplyDestination) -> int:
        token = self._next_token
        self._next_token += 1
        self._tokens[token] = destination
        if len(self._tokens) > _MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        return token

    def _own_reply(self, reply: bytes, replica: str, request_id: int) -> str | None:
        """Return ``reply`` as text if it is the reply subject of ``replica`` for the request ``request_id``. Else return None.

        Without this check, a sender could copy a request and redirect the answer.
        """
        if not reply.endswith(b".%d" % request_id):
            self._counters[REPLY] += 1
            return None
        return reply_to(reply, self._inbox_rules, self._counters, f"{self._subjects.inbox(replica)}.")

    def _send(self, reply: str, pieces: Sequence[Buffer]) -> None:
        self._bus.send(reply, pieces)  # the reply subject was checked when the request arrived

    def _fetch_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        try:
            request = frames.decode(payload, pb.ReplicationRequest)
            check_partition_address(request, self._key.partition)
        except ProtocolError as error:
            self._counters[counter_name(error)] += 1
            return
        reply_subject = self._own_reply(reply, request.replicaID, request.requestId)
        if reply_subject is None:
            return
        partial = PartialBatch(request.position, request.batchCrc) if request.HasField("position") else None
        token = self._token(ReplyDestination(reply_subject, request.requestId, partial))
        self._feed(messages.FETCH_REQUEST.from_pb(request, token=token))

    def _offset_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if envelope.is_of(payload, MessageType.STATE_REQUEST):
            self._process_state_request(reply, payload)
        else:
            self._epoch_query_arrived(reply, payload)

    def _process_state_request(self, reply: bytes, payload: bytes) -> None:
        try:
            request = frames.decode(payload, pb.StateRequest)
            check_partition_address(request, self._key.partition, streamUid=self._key.uid)
        except ProtocolError as error:
            self._counters[counter_name(error)] += 1
            return
        if self.state_server is None:
            return
        reply_subject = self._own_reply(reply, request.replicaID, request.requestId)
        if reply_subject is None:
            return
        room = min(request.maxBytes, self._bus.max_payload) - _STATE_OVERHEAD_BYTES
        question = StatePieceRequest(request.endOffset, request.position)
        is_leader = bool(self._listeners)  # requests still arrive for a moment after the leadership
        piece = self.state_server.read_piece(question, max(1, min(room, PIECE_BYTES))) if is_leader else None
        answer = pb.StateResponse(streamUid=self._key.uid, partition=self._key.partition, requestId=request.requestId)
        if piece is None:
            answer.later = True
        else:
            answer.endOffset, answer.totalBytes = piece.end_offset, piece.total_bytes
            answer.position, answer.data = piece.position, piece.data
        self._counters["state_chunks_sent"] += piece is not None
        self._send(reply_subject, (frames.seal(answer),))

    def _epoch_query_arrived(self, reply: bytes, payload: bytes) -> None:
        try:
            request = frames.decode(payload, pb.LeaderEpochOffsetRequest)
            check_partition_address(request, self._key.partition)
        except ProtocolError as error:
            self._counters[counter_name(error)] += 1
            return
        reply_subject = self._own_reply(reply, request.replicaID, request.requestId)
        if reply_subject is None:
            return
        token = self._token(ReplyDestination(reply_subject, request.requestId))
        self._feed(messages.EPOCH_QUERY.from_pb(request, token=token))

    def send_response(self, effect: do.SendFetchResponse, log: Log, high_watermark: int) -> None:
        """Answer a fetch with complete batches and the HW. If there are no batches, the answer is empty.

        If the log cannot be read, send nothing, because an empty answer means that the follower has all records.
        """
        destination = self._tokens.pop(effect.token, None)
        if destination is None:
            return
        if effect.from_offset >= log.log_end_offset:
            self._send_empty(destination, effect.leader_epoch, high_watermark)
        else:
            self._send_batches(effect, destination, log, high_watermark)

    def park(self, effect: do.ParkFetch) -> None:
        """Store the reply subject of a fetch that waits for records."""
        destination = self._tokens.pop(effect.token, None)
        if destination is not None:
            self._parked[effect.replica] = destination

    def answer_parked_fetch(self, effect: do.AnswerParkedFetch, log: Log, high_watermark: int) -> None:
        """Answer the waiting fetch of a follower with the new records and the HW."""
        self._collect_answers()
        destination = self._parked.pop(effect.replica, None)
        if destination is not None and effect.from_offset < log.log_end_offset:
            self._send_batches(effect, destination, log, high_watermark)

    def send_high_watermark(self, effect: do.SendHighWatermark, high_watermark: int) -> None:
        """Send only the HW to a follower whose fetch waits. The fetch continues to wait for records."""
        self._collect_answers()
        destination = self._parked.get(effect.replica)
        if destination is not None:
            self._send_empty(destination, effect.leader_epoch, high_watermark)

    def _collect_answers(self) -> None:
        if not self._is_collecting:
            self._is_collecting = True
            self._bus.hold()

    def end_step(self) -> None:
        """Write the answers that were collected during the step to the connection. The driver calls it after each step."""
        if self._is_collecting:
            self._is_collecting, self._last_read = False, None
            self._bus.release()

    def _send_empty(self, destination: ReplyDestination, leader_epoch: int, high_watermark: int) -> None:
        header = frames.replication_response_header(leader_epoch, high_watermark, (), self._address(destination))
        self._send(destination.reply, (header,))

    def _address(self, destination: ReplyDestination) -> bytes:
        """Return the address of the request: 16 bytes that its binary answer repeats."""
        return address(self._key.uid, self._key.partition, destination.request_id)

    def _send_batches(
        self, effect: do.SendFetchResponse | do.AnswerParkedFetch, destination: ReplyDestination, log: Log, high_watermark: int
    ) -> None:
        """Send complete batches, or a piece of the first batch if it is larger than a NATS message."""
        room = room_bytes(self._bus.max_payload, frames.PIECE_OVERHEAD_BYTES, effect.max_bytes)
        try:
            portion = self._portion(effect.from_offset, effect.max_bytes, room, log, destination.held or NOTHING)
        except LiftError as error:
            self._counters["fetch_read_failed"] += 1
            _seldom.warning(
                logger, "batch not read for a follower partition=%s offset=%d error=%s", self._key, effect.from_offset, error
            )
            return
        if portion.piece is None:
            header = frames.replication_response_header(
                effect.leader_epoch, high_watermark, portion.chunks, self._address(destination)
            )
        elif destination.held is None:
            self._log_too_large_batch(effect.from_offset, portion.piece.total_bytes)
            return
        else:
            header = frames.replication_piece_header(
                effect.leader_epoch, high_watermark, portion.piece, self._address(destination)
            )
            self._counters["batch_chunks_sent"] += 1
        self._send(destination.reply, (header, *portion.chunks))
        self._instruments.replicated_out_bytes += portion.size_bytes

    def _portion(self, from_offset: int, max_bytes: int, room_bytes: int, log: Log, partial: PartialBatch) -> Portion:
        request = from_offset, max_bytes, room_bytes, log.log_end_offset
        if self._last_read is not None and self._last_read[0] == request and not partial.position:
            return self._last_read[1]
        portion = read_portion(log, from_offset, max_bytes, room_bytes, end_offset=log.log_end_offset, held=partial)
        if self._is_collecting and not partial.position:
            self._last_read = request, portion
        return portion

    def _log_too_large_batch(self, offset: int, size_bytes: int) -> None:
        self._counters["batch_too_large_for_follower"] += 1
        if self._too_large_offset != offset:  # the follower retries, but the log needs one line only
            self._too_large_offset = offset
            logger.error(
                (
                    "batch too large for the follower partition=%s offset=%d bytes=%d max_payload=%d: its version "
                    "accepts no chunks of batches. Upgrade its node, or raise max_payload"
                ),
                self._key,
                offset,
                size_bytes,
                self._bus.max_payload,
            )

    def send_refusal(self, effect: messages.FetchRefusal) -> None:
        reason = effect.reason
        refused = f"{REFUSED}fetch, {reason.name.lower().replace('_', ' ')}"
        self._counters[IMPLAUSIBLE if reason is messages.RefusalReason.UNKNOWN else refused] += 1
        self._answer(effect.token, messages.FETCH_REFUSAL.to_pb(effect))

    def send_epoch_answer(self, effect: messages.EpochAnswer) -> None:
        self._answer(effect.token, messages.EPOCH_ANSWER.to_pb(effect))

    def _answer(self, token: int, answer: pb.ReplicationRefusal | pb.LeaderEpochOffsetResponse) -> None:
        destination = self._tokens.pop(token, None)
        if destination is None:
            return
        answer.streamUid, answer.partition = self._key.uid, self._key.partition
        self._send(destination.reply, (frames.seal(answer),))


class FetchClient:
    """Follower's side of replication for one partition: sends its requests, and feeds the answers to the replica as events."""

    __slots__ = (
        "_asked", "_assembly", "_bus", "_counters", "_feed", "_instruments", "_key", "_next_token", "_node_id",
        "_offset_subject", "_replicate_subject", "_router", "_slot", "_waiting", "failed", "fetched", "state_fetcher",
    )  # fmt: skip

    def __init__(
        self,
        router: AnswerRouter,
        subjects: Subjects,
        key: PartitionKey,
        node_id: str,
        feed: Feed,
        counters: Counter[str],
        instruments: Instruments | None = None,
    ) -> None:
        self._instruments = instruments or Instruments()
        self._asked = (0, 0)
        """Request id and monotonic sending time of the last fetch."""
        self._router = router
        self._bus = router.bus
        self._key = key
        self._node_id = node_id
        self._feed = feed
        self._counters = counters
        self._replicate_subject = subjects.replicate(key.stream, key.partition)
        self._offset_subject = subjects.offset(key.stream, key.partition)
        self._slot = router.add(self._answer_arrived)
        self._assembly = FetchAssembly()
        self.fetched: dict[int, FetchedBatches] = {}
        """Token -> fetched batches that wait for the core's decision."""
        self._next_token = 1
        self.state_fetcher: StateFetcher | None = None
        """Source of state that the leader's log no longer contains. None: fetches do not wait for a state."""
        self.failed: Callable[[StorageError], None] = lambda error: None
        """Callback if the state cannot be stored."""
        self._waiting: messages.FetchRequest | None = None
        """Fetch that is sent after the state has arrived. None: no fetch waits."""

    def close(self) -> None:
        """Ignore all answers that arrive from now on."""
        self.forget_pieces()
        self._router.remove(self._slot)
        self.fetched.clear()

    @property
    def fragment_reassembly_bytes(self) -> int:
        """Size of the received pieces of an incomplete batch, in bytes."""
        return self._assembly.held_bytes

    def send_fetch(self, fetch: messages.FetchRequest) -> None:
        """Request batches, or the next piece of a large batch, from the leader. A request that cannot be sent counts as failed.

        If the log was emptied, the leader's derived state is requested first.
        """
        question = None if self.state_fetcher is None else self.state_fetcher.asks(fetch.leader_epoch)
        if question is not None:
            self._waiting = fetch
            self._ask_state(fetch.request_id, question)
            return
        partial = self._assembly.fetch_sent(fetch)
        if not partial.position:
            self._router.release(self._slot)
        request = messages.FETCH_REQUEST.to_pb(
            fetch, partition=self._key.partition, position=partial.position, batchCrc=partial.crc
        )
        request.maxBytes = min(fetch.max_bytes, self._bus.max_payload)
        self._asked = fetch.request_id, clock.now_ns()
        self._send(self._replicate_subject, fetch.request_id, frames.seal(request))

    def _ask_state(self, request_id: int, question: StatePieceRequest) -> None:
        request = pb.StateRequest(
            replicaID=self._node_id,
            streamUid=self._key.uid,
            partition=self._key.partition,
            requestId=request_id,
            endOffset=question.end_offset,
            position=question.position,
            maxBytes=self._bus.max_payload,
        )
        self._send(self._offset_subject, request_id, frames.seal(request))

    def _process_state_piece(self, request_id: int, answer: pb.StateResponse) -> events.Event | None:
        waiting = self._waiting
        if self.state_fetcher is None or waiting is None or waiting.request_id != request_id:
            self._counters[counter_name(MisdirectedError("received the answer to a state request that is not pending"))] += 1
            return None
        self._waiting = None
        piece = None if answer.later else StatePiece(answer.endOffset, answer.totalBytes, answer.position, answer.data)
        try:
            goes_on = self.state_fetcher.add_piece(piece)
        except StorageError as error:
            self.failed(error)
            return None
        if not goes_on:
            return events.RequestFailed(request_id=request_id, reason="the leader's state is not ready")
        self.send_fetch(waiting)
        return None

    def forget_pieces(self) -> None:
        """Drop the pieces of an incomplete batch, because the role has changed."""
        self._waiting = None
        self._assembly.forget()
        self._router.release(self._slot)

    def send_epoch_query(self, query: messages.EpochQuery) -> None:
        """Ask the leader at which offset an epoch ends in its log."""
        request = messages.EPOCH_QUERY.to_pb(query, partition=self._key.partition)
        self._send(self._offset_subject, query.request_id, frames.seal(request))

    def _send(self, subject: str, request_id: int, frame: bytes) -> None:
        if not self._bus.send(subject, (frame,), f"{self._bus.inbox}.{self._slot}.{request_id}"):
            self._feed(events.RequestFailed(request_id=request_id, reason="not connected"))

    def _answer_arrived(self, request_id: int, payload: bytes, headers: bytes) -> None:
        if headers and is_status(headers, payload):
            if self.state_fetcher is not None:
                self.state_fetcher.note_no_responders()
            self._feed(events.RequestFailed(request_id=request_id, reason="nobody listens"))
            return
        try:
            kind, to, body = envelope.decode_addressed(payload)
            if to:  # protobuf answers have fields for it
                check_answer_address(to, address(self._key.uid, self._key.partition, request_id))
            if kind is MessageType.STATE_RESPONSE:
                answer = frames.parse(body, pb.StateResponse)
                check_partition_address(answer, self._key.partition, streamUid=self._key.uid, requestId=request_id)
                event = self._process_state_piece(request_id, answer)
            else:
                event = self._event(request_id, kind, body)
        except DamagedBatchError as error:
            self._counters["fetched_damage"] += 1
            _seldom.warning(
                logger,
                "batch from the leader damaged partition=%s offset=%d error=%s: fetching it again",
                self._key,
                error.offset,
                error,
            )
            event = events.RequestFailed(request_id=request_id, reason=str(error), bad_offset=error.offset)
        except LiftError as error:  # it can be anybody's: the answer itself may still come, and the request has its timeout
            self._counters[counter_name(error)] += 1
            return
        if event is not None:
            self._feed(event)

    def _event(self, request_id: int, kind: MessageType, body: memoryview) -> events.Event:
        match kind:
            case MessageType.REPLICATION_RESPONSE:
                return self._response(request_id, frames.parse_replication_response(body))
            case MessageType.REPLICATION_PIECE:
                return self._piece(request_id, frames.parse_replication_piece(body))
            case MessageType.REPLICATION_REFUSAL:
                refusal = frames.parse(body, pb.ReplicationRefusal)
                check_partition_address(refusal, self._key.partition, streamUid=self._key.uid, requestId=request_id)
                refusal.requestId = request_id  # older nodes do not send it
                return messages.FETCH_REFUSAL.from_pb(refusal)
            case MessageType.LEADER_EPOCH_OFFSET_RESPONSE:
                answer = frames.parse(body, pb.LeaderEpochOffsetResponse)
                check_partition_address(answer, self._key.partition, streamUid=self._key.uid, requestId=request_id)
                answer.requestId = request_id
                return messages.EPOCH_ANSWER.from_pb(answer)
        raise ProtocolError(f"{kind.name} is not a valid answer to a replication request. Check the versions of the nodes.")

    def _piece(self, request_id: int, answer: frames.ReplicationPiece) -> events.Event:
        """Store a received piece of a large batch.

        Return the event for the replica: FetchAnswered with the last piece, FetchPieceArrived before.
        """
        if not self._assembly.is_newest_request(request_id):
            return events.FetchPieceArrived(
                request_id=request_id, leader_epoch=answer.leader_epoch
            )  # the core ignores an answer that it does not wait for [D16]
        if not self._router.reserve(self._slot, answer.piece.total_bytes):
            self._counters["batch_chunks_delayed"] += 1
            return events.FetchPieceArrived(request_id=request_id, leader_epoch=answer.leader_epoch, has_room=False)
        self._counters["batch_chunks_received"] += 1
        whole = self._assembly.add_piece(answer.piece)
        if not self._assembly.held_bytes:
            self._router.release(self._slot)
        if whole is None:
            return events.FetchPieceArrived(request_id=request_id, leader_epoch=answer.leader_epoch)
        return self._response(request_id, frames.ReplicationResponse(answer.leader_epoch, answer.high_watermark, whole))

    def _response(self, request_id: int, response: frames.ReplicationResponse) -> events.FetchAnswered:
        batches = split_batches(response.batches, verify=True) if response.batches else []
        if self.state_fetcher is not None and self.state_fetcher.fetch_answered():
            text = (
                "leader sends no state partition=%s: its version is older. This replica forgets the producers and "
                "message ids of deleted records"
            )
            logger.warning(text, self._key)
        sent_id, sent_ns = self._asked
        if sent_id == request_id:
            self._asked = 0, 0
            self._instruments.fetches.observe((clock.now_ns() - sent_ns) / NS_PER_S)
        self._instruments.replicated_in_bytes += len(response.batches)
        token = self._next_token
        self._next_token += 1
        if batches:
            self.fetched[token] = FetchedBatches(response.batches, batches)
        spans = tuple(
            [
                events.BatchSpan(base_offset=b.base_offset, last_offset=b.last_offset, leader_epoch=b.leader_epoch)
                for b in batches
            ]
        )
        return events.FetchAnswered(
            token=token,
            request_id=request_id,
            leader_epoch=response.leader_epoch,
            high_watermark=response.high_watermark,
            spans=spans,
            size_bytes=len(response.batches),
        )


class AnswerRouter:
    """Passes the answers to all fetches of a node to the followers that sent them. It has one subscription."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._slots: dict[bytes, Callable[[int, bytes, bytes], None]] = {}
        self._next_slot = 1
        self._assembling: dict[int, int] = {}
        """Slot -> size in bytes of the batch that the follower with this slot receives in pieces."""
        self._prefix_length = len(bus.inbox) + 1
        self._listener = bus.listen(f"{bus.inbox}.*.*", self._answer_arrived)

    def add(self, answered: Callable[[int, bytes, bytes], None]) -> int:
        """Return a new slot (number in the reply subjects) for a follower on this node.

        ``answered``: called with (request id, payload, header block) for each answer to this slot.
        """
        slot = self._next_slot
        self._next_slot += 1
        self._slots[b"%d" % slot] = answered
        return slot

    def reserve(self, slot: int, size_bytes: int) -> bool:
        """Reserve memory for a batch that the follower with ``slot`` assembles from pieces. Return whether there is room.

        A batch that has begun always gets memory, and so does a single batch. So batches never block each other.
        """
        if slot not in self._assembling and self._assembling and self.fragment_reassembly_bytes + size_bytes > ASSEMBLING_BYTES:
            return False
        self._assembling[slot] = size_bytes
        return True

    def release(self, slot: int) -> None:
        self._assembling.pop(slot, None)

    @property
    def fragment_reassembly_bytes(self) -> int:
        return sum(self._assembling.values())

    def remove(self, slot: int) -> None:
        """Ignore further answers to ``slot``, because its follower has ended."""
        self._slots.pop(b"%d" % slot, None)

    def _answer_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        slot, _, request_id = subject[self._prefix_length :].partition(b".")
        answered = self._slots.get(slot)
        if answered is not None and request_id.isdigit() and len(request_id) <= _MAX_DIGITS:
            answered(int(request_id), payload, headers)

    def close(self) -> None:
        self._listener.close()


class Notifications:
    """Sends notifications and notices of the leaders on this node to ``<ns>.notify.<node>`` of their followers."""

    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        self._bus = bus
        self._subjects = subjects
        self._wake_frames: dict[PartitionKey, bytes] = {}

    def wake(self, key: PartitionKey, effect: do.NotifyReplica) -> None:
        """Send a notification to the follower in ``effect``, so that it fetches new records of the partition ``key``."""
        frame = self._wake_frames.get(key)
        if frame is None:
            frame = frames.seal(pb.PartitionNotification(stream=key.stream, partition=key.partition, streamUid=key.uid))
            self._wake_frames[key] = frame
        self._bus.send(self._subjects.notify(effect.replica), (frame,))

    def forget(self, key: PartitionKey) -> None:
        """Drop the stored notification frame of the partition ``key``, which is no longer on this node."""
        self._wake_frames.pop(key, None)

    def send_notice(self, key: PartitionKey, notice: messages.LeaderNotice) -> None:
        """Send a notice about the partition ``key`` to its replicas."""
        frame = frames.seal(messages.LEADER_NOTICE.to_pb(notice, stream=key.stream, streamUid=key.uid, partition=key.partition))
        for replica in notice.replicas:
            self._bus.send(self._subjects.notify(replica), (frame,))
