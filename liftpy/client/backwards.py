"""A reader's progress backwards: as ``ReadProgress``, from an offset down to another, or to the log's start. Pure.

What retention takes meanwhile was at the far end of it: the reading ends there, which is no loss.
"""

from __future__ import annotations

from liftpy.client.progress import MAX_DECOMPRESSED_BYTES, NotServedError, ReadProgress, check_head, must_agree
from liftpy.client.slices import BatchSlice
from liftpy.dataclass import dataclass
from liftpy.errors import ProtocolError
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2
from liftpy.wire.addressee import must_be_for
from liftpy.wire.batch import RecordBatch


@dataclass(slots=True)
class BackwardProgress(ReadProgress):
    """``next_offset``: everything from it on has been handed on, exclusive. ``end_offset``: the lowest offset wanted, inclusive; None:
    whatever the log starts with. ``last_offset``, ``leader_epoch``: of the lowest record that was looked at, epoch 0: none."""

    log_start_offset: int = 0
    """Inclusive, as the last answer says."""

    @property
    def done(self) -> bool:
        """Whether nothing that is wanted lies below."""
        return self.next_offset <= max(self.end_offset or 0, self.log_start_offset)

    def request(self, max_bytes: int, wait_ms: int, request_id: int = 0) -> client_pb2.ReadRequest:
        """The next question; what lies below is there, so nobody waits."""
        asked = ReadProgress.request(self, max_bytes, 0, request_id)
        asked.backwards = True
        return asked

    def accept(self, answer: bytes | memoryview) -> list[BatchSlice]:
        """The slices of an answer, the last one first, each ascending within; errors as of ``ReadProgress.accept``."""
        head, body = frames.decode_read_response(answer)
        must_be_for(head, self.partition, stream=self.stream, requestId=self._request_id)
        must_agree(head, self.uid, self.last_offset, self.leader_epoch)
        self.leader = head.leader
        gone = head.error == client_pb2.ReadResponse.OFFSET_OUT_OF_RANGE and self.next_offset < head.logStartOffset
        if not gone:
            check_head(head, self.uid, self.stream, self.partition, self.next_offset)
            if not head.selected:
                raise NotServedError(f"{head.node} does not read backwards: it runs an older version", head.leader)
        self.log_start_offset = max(self.log_start_offset, head.logStartOffset)
        self._answered_by(head)
        if gone:
            return []
        piece = frames.piece_in(head, body)
        if piece is not None:
            whole = self.assembly.take(piece)
            if whole is None:
                return []
            body = whole
        self.assembly.forget()
        return self._taken(head, self._split(body, head.node), whole_answer=piece is None)

    def _taken(self, head: client_pb2.ReadResponse, batches: list[RecordBatch], *, whole_answer: bool) -> list[BatchSlice]:
        slices: list[BatchSlice] = []
        position, epoch = self.next_offset, self.leader_epoch
        taken_bytes = 0
        for batch in reversed(batches):
            taken_bytes += batch.header.body_size_bytes
            if taken_bytes > MAX_DECOMPRESSED_BYTES and position < self.next_offset:
                whole_answer = False  # asked for again, when what was taken is done with
                break
            self._check_below(batch, position, epoch, head)
            found = BatchSlice.between(batch, max(self.end_offset or 0, self.log_start_offset), position)
            if found:
                slices.append(found)
            position, epoch = min(position, max(batch.base_offset, self.log_start_offset)), batch.leader_epoch
        if whole_answer and head.nextOffset < position:
            position, epoch = max(head.nextOffset, self.log_start_offset), head.lookedEpoch
        if position == self.next_offset and not self.done:
            raise NotServedError(f"{head.node} sent nothing below {position}", head.leader)
        self.next_offset = self.last_offset = position
        self.leader_epoch = epoch
        return slices

    def _check_below(self, batch: RecordBatch, position: int, epoch: int, head: client_pb2.ReadResponse) -> None:
        where = f"{self.stream}/{self.partition} from {head.node}, backwards"
        follows = batch.next_offset >= position or bool(self.wanted) or head.compacted
        if batch.base_offset >= position or not follows:
            self.suspect = (head.node, max(position - 1, 0))
            raise ProtocolError(f"{where}: what lies below {position} was asked for, and {batch.base_offset} came")
        if batch.last_offset > head.highWatermark:
            raise ProtocolError(f"{where}: offset {batch.last_offset} is past the HW {head.highWatermark}")
        if epoch and batch.leader_epoch > epoch:
            raise ProtocolError(f"{where}: LeaderEpoch {batch.leader_epoch} at {batch.base_offset} lies below {epoch}")
