"""The feed: how nodes that are not controllers follow the image. Pure.

The metadata leader publishes a FeedEntry for each applied entry. It names the previous index, so that a node detects a
missing entry. An entry without records is a head: it only reports the current index. A node that lacks entries requests
them, or a snapshot in chunks. Entries that arrive too early wait in a limited buffer. If an entry does not fit to the
image, the node drops the image and requests a new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

import crc32c

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import quote
from liftpy.core.metadata.codec import decode_snapshot
from liftpy.core.metadata.features import SUPPORTED_LEVELS, LevelRange, check_level
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import (
    OperationDone,
    PartitionsAdded,
    Record,
    StreamCreated,
    record_from_pb,
    record_to_pb,
    replay_all,
)
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.frames import MisdirectedError
from liftpy.errors import IncompatibleVersionError, LiftError, UnknownFormatError

CHUNK_SIZE_BYTES = 256 * 1024
MAX_ENTRY_SIZE_BYTES = 256 * 1024
_SMALLEST_MESSAGE_BYTES = 1024
_OVERHEAD_BYTES = 512
"""Maximum size of the envelope and the other fields of a feed message, in bytes."""
MAX_BUFFERED_ENTRIES = 4096
MAX_BUFFERED_RECORDS = 65_536
MAX_SNAPSHOTS = 2
_MAX_STATE_SIZE_BYTES = 8192
"""Upper bound for one partition, one node, or one stream without its partitions, in bytes. Names have at most 64 characters."""
MAX_WAITING_ENTRIES = 256
MAX_WAITING_BYTES = 16 << 20
"""Maximum total size of entries that wait for a missing one, in bytes."""
MAX_SNAPSHOT_SIZE_BYTES = 512 * 1024 * 1024
RETRY_AFTER_NS = NS_PER_S
MAX_OTHER_CHUNKS = 32
"""Number of consecutive chunks of other snapshots after which the node gives up a started snapshot transfer.

Any controller answers, with the snapshot that it has made. Only one of them may have the rest of this one.
"""
MAX_HEADS_BELOW = 6
"""Number of consecutive feed heads below the own image that the node ignores. After that, it requests a new image.

A metadata leader that was replaced may still have some heads in flight.
"""
MAX_UNREADABLE = 3
"""Number of consecutive complete snapshots of another version after which this version cannot follow the cluster."""


class FeedProducer:
    """Collects the applied entries on a controller, and returns the feed entries to publish.

    Every controller calls ``entry_applied``. Only the metadata leader publishes entries and answers requests.
    """

    def __init__(self, index: int = 0) -> None:
        self._held: deque[tuple[int, int, tuple[Record, ...]]] = deque()
        """Applied entries as (index, previous index, records), without a gap up to ``index``. Entries and records are limited."""
        self._waiting_record_count = 0
        self._takes_bytes: int | None = None
        """Maximum size of a NATS message (max_payload of the server), in bytes. None: unknown."""
        self.index = index
        """Index of the last applied entry."""
        self._published_index = index
        self._snapshots: dict[int, bytes] = {}
        """Index -> encoded snapshot, oldest first. The stored entries lead from each snapshot to ``index``."""

    def set_message_size(self, max_payload_bytes: int) -> None:
        """Set the maximum message size of the NATS server in bytes. Larger entries are sent as a snapshot."""
        before, self._takes_bytes = self._message_bytes, max(_SMALLEST_MESSAGE_BYTES, max_payload_bytes - _OVERHEAD_BYTES)
        if self._message_bytes < before:
            self._held.clear()
            self._waiting_record_count = 0
            self._drop_old_snapshots()

    @property
    def _message_bytes(self) -> int:
        return MAX_ENTRY_SIZE_BYTES if self._takes_bytes is None else min(MAX_ENTRY_SIZE_BYTES, self._takes_bytes)

    def entry_applied(self, index: int, records: tuple[Record, ...]) -> None:
        fed = tuple(record for record in records if not isinstance(record, OperationDone))
        if _is_oversize(fed, self._message_bytes):
            self._held.clear()  # a gap for everyone: it is cheaper as a snapshot
            self._waiting_record_count = 0
        else:
            self._held.append((index, self.index, fed))
            self._waiting_record_count += len(fed)
        self.index = index
        while self._held and (len(self._held) > MAX_BUFFERED_ENTRIES or self._waiting_record_count > MAX_BUFFERED_RECORDS):
            self._waiting_record_count -= len(self._held.popleft()[2])
        self._drop_old_snapshots()

    def snapshot_loaded(self, index: int) -> None:
        """Drop the stored entries, because a snapshot replaced the image and they do not lead to it."""
        self._held.clear()
        self._waiting_record_count = 0
        self._snapshots.clear()
        self.index = self._published_index = index

    def lead(self) -> None:
        """Start to return entries to publish, because this node became the metadata leader.

        Entries that another leader published are not repeated.
        """
        self._published_index = self.index

    def take_entries(self) -> list[pb.FeedEntry]:
        """Return the entries to publish: all entries applied since the last call, combined up to the size limit."""
        entries = list(self._entries(self._published_index, None))
        if self._published_index < self.index and not entries:
            entries = [self.head()]
        self._published_index = self.index
        return entries

    def head(self) -> pb.FeedEntry:
        """Return an entry without records that names the current index. The metadata leader publishes it regularly."""
        return pb.FeedEntry(index=self.index, previousIndex=self.index)

    def answer(self, request: pb.FeedSnapshotRequest) -> pb.FeedSnapshotResponse | None:
        """Return the entries or the chunk of the image that a node requested.

        If the result is None, call ``snapshot_is_ready`` and then this method again. An empty answer with index 0 means
        that this controller has applied nothing yet. The node then retries.
        """
        response = self._answer(request)
        if response is not None:
            response.nodeId = request.nodeId
        return response

    def _answer(self, request: pb.FeedSnapshotRequest) -> pb.FeedSnapshotResponse | None:
        if not self.index:
            return pb.FeedSnapshotResponse()
        after = request.afterIndex
        if after and (after >= self.index or any(previous == after for _, previous, _ in self._held)):
            entries = list(self._entries(after, self._message_bytes))
            return pb.FeedSnapshotResponse(index=self.index, entries=entries)
        return self._chunk(request)

    def snapshot_is_ready(self, index: int, data: bytes) -> None:
        """Pass the encoded snapshot of the image at ``index`` to the producer, which answers requests with it for a while.

        ``data``: result of ``encode_snapshot(image, operations=False)``.
        """
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

    def _drop_old_snapshots(self) -> None:
        usable = {index for index in self._snapshots if index == self.index or (self._held and self._held[0][1] <= index)}
        stale = [index for index in self._snapshots if index not in usable]
        surplus = sorted(index for index in self._snapshots if index not in stale)[:-MAX_SNAPSHOTS]
        for index in (*stale, *surplus):
            del self._snapshots[index]

    def _entries(self, after: int, limit_bytes: int | None) -> Iterator[pb.FeedEntry]:
        """Yield the stored entries after index ``after``, combined up to the size of one message.

        All of them together have at most ``limit_bytes``. None: no limit.
        """
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
    return sum(message.ByteSize() + 8 for message in messages)


def _is_oversize(records: tuple[Record, ...], message_bytes: int) -> bool:
    """Return whether the records do not fit into one feed entry of ``message_bytes``.

    The size of a few records is not measured, because they always fit.
    """
    states = sum(_states(record) for record in records)
    if states * _MAX_STATE_SIZE_BYTES <= message_bytes:
        return False
    return _size_bytes(map(record_to_pb, records)) > message_bytes


def _states(record: Record) -> int:
    if isinstance(record, PartitionsAdded):
        return len(record.partitions)
    return len(record.stream.partitions) + 1 if isinstance(record, StreamCreated) else 1


class FeedSubscription:
    """Copy of the image on a node that is not a controller. It follows the feed.

    ``request`` returns the next request to send. ``entry_received`` and ``response_received`` process data and return
    whether the image changed.
    """

    def __init__(self, node_id: str, spoken: LevelRange = SUPPORTED_LEVELS) -> None:
        self._node_id = node_id
        self._spoken = spoken
        self._unreadable = 0
        """Number of consecutive complete snapshots of another version. A single one may be forged."""
        self.image = ClusterImage()
        self.synced = False
        """True if ``image`` is an image that the cluster has had. It may be older than the newest one."""
        self.known_index = 0
        """Highest index that the feed has shown. If it is above ``image.index``, entries are missing."""
        self.resync_count = 0
        """Number of times that the image was discarded because an entry did not fit."""
        self._heads_below = 0
        self._taken: dict[tuple[int, int], int] = {}
        """(previous index, index) -> digest of the entry, for the last entries that are part of the image."""
        self._waiting: dict[int, pb.FeedEntry] = {}
        """Previous index -> entry, for entries that wait because an earlier one is missing."""
        self._parts = bytearray()
        self._parts_index = 0
        """Index of the incomplete snapshot in ``_parts``. 0: none."""
        self._other_chunks = 0
        self._asked_ns: int | None = None

    @property
    def behind(self) -> bool:
        """True if the image lacks entries, so that the node must request them or a snapshot."""
        return not self.synced or self.known_index > self.image.index

    def request(self, now_ns: int) -> pb.FeedSnapshotRequest | None:
        """Return the request for missed entries or a snapshot to send now. None: there is nothing to send.

        A request without an answer is repeated after ``RETRY_AFTER_NS``.
        """
        if not self.behind or (self._asked_ns is not None and now_ns - self._asked_ns < RETRY_AFTER_NS):
            return None
        self._asked_ns = now_ns
        if self._parts_index:
            return pb.FeedSnapshotRequest(nodeId=self._node_id, snapshotIndex=self._parts_index, offsetBytes=len(self._parts))
        return pb.FeedSnapshotRequest(nodeId=self._node_id, afterIndex=self.image.index if self.synced else 0)

    def entry_received(self, entry: pb.FeedEntry) -> bool:
        before = self.image
        if self._contradicts(entry):
            self.resynchronize()
        self.known_index = max(self.known_index, entry.index)
        self._apply_entry(entry)
        self._apply_waiting()
        return self.image is not before

    def response_received(self, response: pb.FeedSnapshotResponse) -> bool:
        """Process the answer of the metadata leader to ``request``. Return whether the image changed.

        If the answer has nothing new, the next request waits for ``RETRY_AFTER_NS``. Raise MisdirectedError if the answer is
        for another node.
        """
        if response.nodeId not in ("", self._node_id):
            raise MisdirectedError(
                f"Received an answer of the metadata feed for another node, {quote(response.nodeId)}. It is "
                "dropped. Check the NATS subject mappings."
            )
        before = self.image
        if response.chunk or response.sizeBytes:
            self._add_chunk(response)
        elif self.synced:
            for entry in response.entries:
                self._apply_entry(entry)
            self.known_index = max((response.index, *(entry.index for entry in self._waiting.values())))
        self._apply_waiting()
        if self.image is not before:
            self._asked_ns = None
        return self.image is not before

    def _contradicts(self, entry: pb.FeedEntry) -> bool:
        """Return whether the entry proves that the image of this node is not that of the cluster.

        Either another entry was applied instead of this one, or the leader reports a lower index.
        """
        if not self.synced or entry.index > self.image.index:
            self._heads_below = 0
            return False
        if entry.index > entry.previousIndex:
            digest = self._taken.get((entry.previousIndex, entry.index))
            return digest is not None and digest != _digest(entry)
        self._heads_below = self._heads_below + 1 if entry.index < self.image.index else 0
        return self._heads_below >= MAX_HEADS_BELOW

    def resynchronize(self) -> None:
        self.resync_count += 1
        self.synced = False
        self._heads_below = 0
        self._waiting.clear()
        self._taken.clear()

    def _apply_entry(self, entry: pb.FeedEntry) -> None:
        if entry.index <= self.image.index and self.synced:
            return
        if not self.synced or entry.previousIndex != self.image.index:
            if entry.previousIndex < entry.index and self._has_room(entry):
                self._waiting[entry.previousIndex] = entry
            return
        try:
            image = replay_all(self.image, [record_from_pb(record) for record in entry.records])
            check_level(image.feature_level, self._spoken)
        except (LiftError, KeyError, ValueError):
            self.resynchronize()
            return
        self.image = replace(image, index=entry.index)
        self._taken[entry.previousIndex, entry.index] = _digest(entry)
        if len(self._taken) > MAX_WAITING_ENTRIES:
            del self._taken[next(iter(self._taken))]

    def _has_room(self, entry: pb.FeedEntry) -> bool:
        """Return whether one more entry may wait in the buffer of early entries.

        If not, the entry is requested again later.
        """
        waiting_bytes = sum(entry_waiting.ByteSize() for entry_waiting in self._waiting.values())
        return len(self._waiting) < MAX_WAITING_ENTRIES and waiting_bytes + entry.ByteSize() <= MAX_WAITING_BYTES

    def _apply_waiting(self) -> None:
        while self.synced and self._waiting:
            entry = self._waiting.pop(self.image.index, None)
            if entry is None:
                break
            self._apply_entry(entry)
        self._waiting = {previous: e for previous, e in self._waiting.items() if e.index > self.image.index}

    def _add_chunk(self, response: pb.FeedSnapshotResponse) -> None:
        if not response.index:
            return  # no image of the cluster: 0 is no position
        if response.index != self._parts_index and response.offsetBytes == 0:
            if self._parts and self._other_chunks < MAX_OTHER_CHUNKS:
                self._other_chunks += 1
                self._asked_ns = None  # another controller may be the next to answer
                return
            self._parts, self._parts_index = bytearray(), response.index
        wanted = response.index == self._parts_index and response.offsetBytes == len(self._parts)
        if not wanted or not response.chunk or response.sizeBytes > MAX_SNAPSHOT_SIZE_BYTES:
            return
        if crc32c.crc32c(response.chunk) != response.crc:
            return
        self._parts += response.chunk
        self._other_chunks = 0
        self._asked_ns = None
        if len(self._parts) >= response.sizeBytes:
            self._apply_snapshot(bytes(self._parts))
            self._parts, self._parts_index = bytearray(), 0

    def _apply_snapshot(self, data: bytes) -> None:
        try:
            image = decode_snapshot(data)
            check_level(image.feature_level, self._spoken)
        except (IncompatibleVersionError, UnknownFormatError) as error:
            self.resync_count += 1
            self._unreadable += 1
            if self._unreadable >= MAX_UNREADABLE:
                raise IncompatibleVersionError(str(error)) from None
            return
        except LiftError:
            self.resync_count += 1
            return
        self._unreadable = 0
        if image.index and (not self.synced or image.index > self.image.index):
            self.image, self.synced = image, True
            self.known_index = max(self.known_index, image.index)


def _digest(entry: pb.FeedEntry) -> int:
    return int(crc32c.crc32c(entry.SerializeToString(deterministic=True)))
