"""Reads the bounds and the batches of one replica (``ReplicaReads``), and computes digests of blocks (``BatchBlocks``).

Other readers change to another replica after a bad answer. An audit must see that answer. So damage (``DamagedRecordsError``) and a
missing answer (``ReplicaUnavailableError``) are findings. ``ReplicaReads`` retries a request for its patience if the
replica is not ready, or if the answer was damaged on the network.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections import deque
from dataclasses import dataclass, field

from liftpy.client.positions import Bounds
from liftpy.client.progress import bounds_of, check_head, decode_answer, whole_batches
from liftpy.client.retrying import retry_attempts
from liftpy.core.publish.state_file import MAX_STATE_BYTES, is_whole_state
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import RecordBatch, split_batches
from liftpy.core.wire.chunking import Assembly, requested_bytes
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import CorruptionError, DamagedBatchError, LiftError, NotFoundError
from liftpy.nats.transport import Transport

_ANSWER_TIMEOUT_S = 3.0
_LATER_S = 0.2
DIGEST_BYTES = 16
_ANSWER_BYTES = 1024 * 1024
_ID_BITS = 63
_AT_OFFSET = re.compile(r"\(offset (\d{1,18})\)")
_CORRUPTION = f"{CorruptionError.code}:"
"""Beginning of a node's error text about damage in its own log."""


class DamagedRecordsError(Exception):
    """Raised if the replica has damaged records at ``offset`` or later. The text describes the damage."""

    def __init__(self, text: str, offset: int) -> None:
        super().__init__(text)
        self.offset = offset


class ReplicaUnavailableError(Exception):
    """Raised if the replica does not return the requested range. The text names the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAddress:
    """Address of one replica.

    Attributes:
        node: Node of the replica.
        patience_s: Maximum time without a good answer, in seconds.
    """

    stream: str
    uid: str
    partition: int
    node: str
    patience_s: float = 10.0


@dataclass(slots=True, kw_only=True)
class ReplicaBlock:
    """The batches of a replica that begin in a range of offsets.

    Attributes:
        digest: Digest of their bytes, hexadecimal.
        records: Number of their records, without control records.
        size_bytes: Size of the batches, in bytes.
        unpacked_bytes: Approximate size of their columns, in bytes.
        end_offset: End offset of the last batch, exclusive.
        epochs: Pairs of LeaderEpoch and offset of its first batch.
        compacted: True if offsets may have no record.
        damaged: Damage that ended the block early. None: no damage.
        away: Reason why the replica did not return the rest of the block. '': it returned everything.
    """

    digest: str = ""
    records: int = 0
    size_bytes: int = 0
    unpacked_bytes: int = 0
    end_offset: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    compacted: bool = False
    damaged: DamagedRecordsError | None = None
    away: str = ""

    @property
    def is_whole(self) -> bool:
        """True if the replica returned all batches of the block, without damage."""
        return self.damaged is None and not self.away


class ReplicaReads:
    """Sends read requests to one replica, one at a time, on the event loop of the NATS connection."""

    def __init__(self, transport: Transport, subjects: Subjects, replica: ReplicaAddress) -> None:
        self.replica = replica
        self._transport = transport
        self._subject = subjects.read_from(replica.stream, replica.partition, replica.node)
        self._max_bytes = requested_bytes(_ANSWER_BYTES, transport.max_payload_bytes)
        self.compacted = False
        """True if the replica reported that offsets may have no record."""
        self.compacted_end = 0
        """Highest offset (exclusive) that compaction had reached in any answer [R11]."""
        self.deletes_end = 0
        """Offset (exclusive) below which tombstones may be deleted, from the last answer [D30]."""

    async def bounds(self, at_least: int = -1, patience_s: float | None = None) -> Bounds:
        """Return the bounds of the replica, as soon as its HW is at least ``at_least`` (inclusive).

        ``patience_s``: time limit in seconds. None: that of the replica's address. Raises ReplicaUnavailableError after it.
        """
        request = client_pb2.ReadRequest(boundsOnly=True, minHighWatermark=at_least)
        head, _ = await self._patiently(request, -1, self.replica.patience_s if patience_s is None else patience_s)
        return bounds_of(head)

    async def state(self) -> tuple[int, bytes] | None:
        """Return the producer and message-id state of the replica, including deleted records.

        Returns:
            The offset that the state ends at, and the bytes of its state file. (0, b""): the log itself has everything. None:
                the node has an earlier version, which does not support this request.

        Raises:
            ReplicaUnavailableError: The replica does not answer, or does not know the complete state yet.
        """
        end, state, patient_s = 0, bytearray(), time.monotonic() + self.replica.patience_s
        while True:
            request = client_pb2.ReadRequest(
                boundsOnly=True, minHighWatermark=-1, asksState=True, stateEnd=end, statePosition=len(state)
            )
            head, _ = await self._patiently(request, -1, self.replica.patience_s)
            if head.stateLater:
                if time.monotonic() >= patient_s:
                    raise ReplicaUnavailableError("it has not loaded its state of producers and message ids yet")
                await asyncio.sleep(_LATER_S)
                continue
            if not head.stateBytes:
                return (0, b"") if head.HasField("stateBytes") else None
            if head.statePosition != len(state) or head.stateEnd != end:
                state.clear()
                if head.statePosition:
                    end = 0
                    continue
            end = head.stateEnd
            state += head.stateData
            if not head.stateData or len(state) > head.stateBytes or head.stateBytes > MAX_STATE_BYTES:
                raise ReplicaUnavailableError(
                    "The parts of the replica's saved producers and message ids have different sizes. Run the command again."
                )
            if len(state) < head.stateBytes:
                continue
            if is_whole_state(bytes(state)):
                return end, bytes(state)
            if time.monotonic() >= patient_s:
                raise ReplicaUnavailableError("its state of producers and message ids cannot be read")
            end, state = 0, bytearray()  # parts of two states: the node made a new one during the copy

    async def batches(self, offset: int) -> tuple[list[RecordBatch], int]:
        """Return (whole batches, offset after the last one). The first batch contains ``offset``.

        Raises DamagedRecordsError and ReplicaUnavailableError.
        """
        assembly = Assembly()
        while True:
            request = client_pb2.ReadRequest(
                offset=offset,
                maxBytes=self._max_bytes,
                position=assembly.held.position,
                batchCrc=assembly.held.crc,
                minHighWatermark=offset,
            )
            head, body = await self._patiently(request, offset, self.replica.patience_s)
            self.compacted = self.compacted or head.compacted
            self.compacted_end = max(self.compacted_end, head.compactedEnd)
            self.deletes_end = head.deletesEnd
            batches = whole_batches(assembly, head, body)
            if batches is not None:
                return await self._check_answer(head, batches, offset)

    async def _check_answer(
        self, head: client_pb2.ReadResponse, body: memoryview, offset: int
    ) -> tuple[list[RecordBatch], int]:
        try:
            batches = split_batches(body)
        except DamagedBatchError as error:
            at = max(error.offset, offset)
            await self._complain(at)
            raise DamagedRecordsError(f"the replica sent damaged records: {error}", at) from None
        next_offset, epoch = offset, 0
        for batch in batches:
            wrong = ""
            if batch.base_offset > next_offset and not head.compacted:
                wrong = f"offset {next_offset} is missing, {batch.base_offset} follows"
            elif batch.next_offset <= next_offset or batch.leader_epoch < epoch:
                wrong = f"the batch at {batch.base_offset}, LeaderEpoch {batch.leader_epoch}, does not follow on {next_offset}, {epoch}"
            if wrong:
                raise DamagedRecordsError(wrong, next_offset)
            next_offset, epoch = batch.next_offset, batch.leader_epoch
        if head.compacted:  # the tail may have been compacted away
            next_offset = max(next_offset, min(head.nextOffset, head.highWatermark + 1))
        if next_offset == offset:
            raise ReplicaUnavailableError(
                f"it returned nothing at offset {offset}, although its high watermark is {head.highWatermark}"
            )
        return batches, next_offset

    async def _ask(self, request: client_pb2.ReadRequest, offset: int) -> tuple[client_pb2.ReadResponse, memoryview]:
        """Send one request to the replica and return the header and the records of its answer.

        ``offset``: requested offset, -1 for the bounds. Raises DamagedRecordsError, and the errors that the answer reports.
        """
        replica = self.replica
        request.stream, request.partition, request.streamUid = replica.stream, replica.partition, replica.uid
        request.requestId = secrets.randbits(_ID_BITS)
        answer = await self._transport.request(self._subject, frames.seal(request), min(_ANSWER_TIMEOUT_S, replica.patience_s))
        head, body = decode_answer(answer, (replica.stream, replica.partition), request.requestId, replica.uid)
        if head.error == client_pb2.ReadResponse.UNKNOWN and head.detail.startswith(_CORRUPTION):
            named = _AT_OFFSET.search(head.detail)  # the node names the damaged offset
            raise DamagedRecordsError(head.detail, max(int(named[1]), offset) if named else offset)
        check_head(head, replica.uid, replica.stream, replica.partition, max(offset, 0))
        return head, body

    async def _patiently(
        self, request: client_pb2.ReadRequest, offset: int, patience_s: float
    ) -> tuple[client_pb2.ReadResponse, memoryview]:
        """Send a request until the replica answers, at most ``patience_s`` seconds. Return the header and the records of the answer.

        ``offset``: requested offset, -1 for the bounds. Raises NotFoundError if another stream has this name now.
        """
        try:
            return await retry_attempts(patience_s, reads=True)(self._ask, request, offset)
        except NotFoundError:
            raise
        except LiftError as error:
            raise ReplicaUnavailableError(f"{error.code}: {error}") from error

    async def _complain(self, offset: int) -> None:
        complaint = client_pb2.ReadRequest(boundsOnly=True, minHighWatermark=-1, badOffset=offset)
        try:
            await self._ask(complaint, -1)
        except (LiftError, DamagedRecordsError):
            return


class BatchBlocks:
    """Batches of a replica from offset ``start`` on, grouped into contiguous blocks.

    A batch belongs to the block in which it begins.
    """

    def __init__(self, reads: ReplicaReads, start: int, *, from_log_start: bool = False) -> None:
        self._reads = reads
        self._position = start
        self._floor = 0 if from_log_start else start
        self._held: deque[RecordBatch] = deque()
        """Batches that were read and are not part of a block yet."""

    async def block(self, end: int, into: list[RecordBatch] | None = None) -> ReplicaBlock:
        """Read the batches that begin after the previous block and before ``end`` (exclusive), and return their digest and size.

        ``into``: list to which the batches are added. None: they are not kept.
        """
        block, digest = ReplicaBlock(end_offset=self._position), hashlib.blake2b(digest_size=DIGEST_BYTES)
        try:
            while True:
                while self._held and self._held[0].base_offset < end:
                    batch = self._held.popleft()
                    digest.update(batch.view)
                    _note(block, batch)
                    if into is not None:
                        into.append(batch)
                if self._held or self._position >= end:
                    break
                batches, self._position = await self._reads.batches(self._position)
                self._held += [batch for batch in batches if batch.base_offset >= self._floor]
        except DamagedRecordsError as damaged:
            block.damaged = damaged
        except ReplicaUnavailableError as away:
            block.away = str(away)
        if not block.is_whole:
            self._held.clear()
            self._position = self._floor = end
        block.digest, block.compacted = digest.hexdigest(), self._reads.compacted
        return block


def _note(block: ReplicaBlock, batch: RecordBatch) -> None:
    header = batch.header
    block.records += 0 if header.control else header.record_count
    block.size_bytes += header.size_bytes
    block.unpacked_bytes += max(header.size_bytes, header.body_size_bytes)
    block.end_offset = max(block.end_offset, header.next_offset)
    if not block.epochs or block.epochs[-1][0] != header.leader_epoch:
        block.epochs.append((header.leader_epoch, header.base_offset))
