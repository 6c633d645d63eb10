"""The feed: how nodes that are not controllers learn the image. Snapshot plus records in order. Pure.

The metadata leader publishes a FeedEntry for what it applied; each names the index before it, so that a lost one is
seen. An entry with ``index == previousIndex`` and no records only says where the head is; published on an interval it
shows a loss at the end. A node that misses something asks, on the side channel, for the entries after its index, or,
where these are no longer held, for the chunks of a snapshot. Every controller keeps the latest records, so that a new
metadata leader can go on where the old one stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import crc32c

from liftpy.cluster.records import OperationDone, PartitionsAdded, Record, StreamCreated, record_to_pb
from liftpy.wire._pb import cluster_pb2 as pb

CHUNK_SIZE_BYTES = 256 * 1024
MAX_ENTRY_SIZE_BYTES = 256 * 1024
_SMALLEST_MESSAGE_BYTES = 1024
_OVERHEAD_BYTES = 512
"""Of the envelope and of what stands beside the chunk or the records."""
MAX_HELD_ENTRIES = 4096
MAX_HELD_RECORDS = 65_536
MAX_SNAPSHOTS = 2
_MAX_STATE_SIZE_BYTES = 8192
"""Above the size of any one partition, node or stream without its partitions: names have at most 64 characters."""


class FeedProducer:
    """A controller's side. Every controller calls ``applied``; only the metadata leader publishes and answers."""

    def __init__(self, index: int = 0) -> None:
        self._held: deque[tuple[int, int, tuple[Record, ...]]] = deque()
        """(index, index before it, records), contiguous up to ``index``; bounded by entries and records."""
        self._held_records = 0
        self._takes_bytes: int | None = None
        """What the NATS server's max_payload leaves for one message; None: not known."""
        self.index = index
        """Of the last applied entry."""
        self._published_index = index
        self._snapshots: dict[int, bytes] = {}
        """By index, oldest first; all of them lead to ``index`` through the held entries."""

    def fit(self, max_payload_bytes: int) -> None:
        """The NATS server takes messages of so many bytes. Entries held for larger ones are then sent as a snapshot."""
        before, self._takes_bytes = self._message_bytes, max(_SMALLEST_MESSAGE_BYTES, max_payload_bytes - _OVERHEAD_BYTES)
        if self._message_bytes < before:
            self._held.clear()
            self._held_records = 0
            self._drop_old_snapshots()

    @property
    def _message_bytes(self) -> int:
        return MAX_ENTRY_SIZE_BYTES if self._takes_bytes is None else min(MAX_ENTRY_SIZE_BYTES, self._takes_bytes)

    def applied(self, index: int, records: tuple[Record, ...]) -> None:
        """The entry ``index`` was applied and did ``records`` (``ClusterFsm.last_records``)."""
        fed = tuple(record for record in records if not isinstance(record, OperationDone))
        if _is_oversize(fed, self._message_bytes):
            self._held.clear()  # a gap for everyone: it is cheaper as a snapshot
            self._held_records = 0
        else:
            self._held.append((index, self.index, fed))
            self._held_records += len(fed)
        self.index = index
        while self._held and (len(self._held) > MAX_HELD_ENTRIES or self._held_records > MAX_HELD_RECORDS):
            self._held_records -= len(self._held.popleft()[2])
        self._drop_old_snapshots()

    def restored(self, index: int) -> None:
        """The image was replaced by a snapshot: what was held does not lead to it."""
        self._held.clear()
        self._held_records = 0
        self._snapshots.clear()
        self.index = self._published_index = index

    def lead(self) -> None:
        """This controller has become the metadata leader: what others published need not be published again."""
        self._published_index = self.index

    def take(self) -> list[pb.FeedEntry]:
        """The entries to publish: everything applied since the last call, as few and as large as the bound allows."""
        entries = list(self._entries(self._published_index, None))
        if self._published_index < self.index and not entries:
            entries = [self.head()]
        self._published_index = self.index
        return entries

    def head(self) -> pb.FeedEntry:
        """Says where the feed is; to be published about once a second."""
        return pb.FeedEntry(index=self.index, previousIndex=self.index)

    def answer(self, request: pb.FeedSnapshotRequest) -> pb.FeedSnapshotResponse | None:
        """Entries, a chunk, or None: then ``snapshot_is_ready`` has to be called first, and this again.

        An empty answer of index 0: nothing has been applied here, so there is no image of the cluster yet; ask again.
        """
        response = self._answer(request)
        if response is not None:
            response.nodeId = request.nodeId
        return response

    def _answer(self, request: pb.FeedSnapshotRequest) -> pb.FeedSnapshotResponse | None:
        if not self.index:
            return pb.FeedSnapshotResponse()
        if request.afterIndex and (request.afterIndex >= self.index or self._was_at(request.afterIndex)):
            entries = list(self._entries(request.afterIndex, self._message_bytes))
            return pb.FeedSnapshotResponse(index=self.index, entries=entries)
        return self._chunk(request)

    def snapshot_is_ready(self, index: int, data: bytes) -> None:
        """``encode_snapshot(image, operations=False)`` of the image at ``index`` is done; it serves all who ask for a while."""
        if index:
            self._snapshots[index] = data
        self._drop_old_snapshots()

    def _chunk(self, request: pb.FeedSnapshotRequest) -> pb.FeedSnapshotResponse | None:
        index, offset = request.snapshotIndex, request.offsetBytes
        if not request.snapshotIndex or index not in self._snapshots:
            if max(self._snapshots, default=0) <= request.afterIndex:
                return None  # none, or none that says more than who asks has
            index, offset = max(self._snapshots), 0
        data = self._snapshots[index]
        chunk = data[offset : offset + min(CHUNK_SIZE_BYTES, self._message_bytes)]
        return pb.FeedSnapshotResponse(
            index=index, sizeBytes=len(data), offsetBytes=offset, chunk=chunk, crc=crc32c.crc32c(chunk)
        )

    def _leads_on_from(self, index: int) -> bool:
        return index == self.index or (bool(self._held) and self._held[0][1] <= index)

    def _was_at(self, index: int) -> bool:
        """Whether an entry that is held follows on ``index``. A node that took a forged record may stand between
        two entries: nothing but a snapshot leads on from there."""
        return any(previous == index for _, previous, _ in self._held)

    def _drop_old_snapshots(self) -> None:
        stale = [index for index in self._snapshots if not self._leads_on_from(index)]
        surplus = sorted(index for index in self._snapshots if index not in stale)[:-MAX_SNAPSHOTS]
        for index in (*stale, *surplus):
            del self._snapshots[index]

    def _entries(self, after: int, limit_bytes: int | None) -> Iterator[pb.FeedEntry]:
        """The entries after index ``after``, coalesced up to the bound of one message; in all at most ``limit_bytes``."""
        entry: pb.FeedEntry | None = None
        size = total = 0
        for index, previous, records in self._held:
            if index <= after:
                continue
            messages = [record_to_pb(record) for record in records]
            added = _size_bytes(messages)
            total += added
            if entry is not None and limit_bytes is not None and total > limit_bytes:
                break
            if entry is not None and size + added > self._message_bytes:
                yield entry
                entry = None
            if entry is None:
                entry, size = pb.FeedEntry(previousIndex=previous), 0
            entry.index = index
            entry.records.extend(messages)
            size += added
        if entry is not None:
            yield entry


def _size_bytes(messages: Iterable[pb.Record]) -> int:
    """As part of an entry: each with its tag and length."""
    return sum(message.ByteSize() + 8 for message in messages)


def _is_oversize(records: tuple[Record, ...], message_bytes: int) -> bool:
    """Whether the records don't fit into one entry; measured only when they are so many that they might not."""
    states = sum(_states(record) for record in records)
    if states * _MAX_STATE_SIZE_BYTES <= message_bytes:
        return False
    return _size_bytes(map(record_to_pb, records)) > message_bytes


def _states(record: Record) -> int:
    if isinstance(record, PartitionsAdded):
        return len(record.partitions)
    return len(record.stream.partitions) + 1 if isinstance(record, StreamCreated) else 1
