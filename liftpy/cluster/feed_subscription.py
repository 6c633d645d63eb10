"""The other end of the feed: a node that is not a controller follows the image. Pure; the shell moves the bytes.

Entries that follow the own image are applied; a gap is asked for, from the entries that are still held or as a snapshot
in chunks; an entry that comes while something is missing waits in a bounded buffer. Whatever does not fit (a record that
can't follow, a chunk with a wrong checksum, another snapshot in between) leads to a fresh start, never to a guess.
"""

from __future__ import annotations

from dataclasses import replace

import crc32c

from liftpy.cluster.features import SPOKEN, check_level
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.level_range import LevelRange
from liftpy.cluster.records import record_from_pb
from liftpy.cluster.replay import replay_all
from liftpy.cluster.snapshot import decode_snapshot
from liftpy.config import NS_PER_S
from liftpy.errors import LiftError, UnknownFormatError, UnspokenError
from liftpy.ids import shown
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.addressee import MisdirectedError

MAX_WAITING_ENTRIES = 256
MAX_WAITING_BYTES = 16 << 20
"""Of those entries: each may be as large as a NATS message."""
MAX_SNAPSHOT_SIZE_BYTES = 512 * 1024 * 1024
RETRY_AFTER_NS = NS_PER_S
MAX_OTHER_CHUNKS = 32
"""Chunks of other snapshots, one after the other, for which one that has begun is not given up: any controller answers, each with the
snapshot that it has made itself, and only one of them may have the rest of this one."""
MAX_HEADS_BELOW = 6
"""Heads of the feed below the own image, one after the other, that it is not given up for: they come every half second, and a leader
that was replaced may have some on their way."""


MAX_UNREADABLE = 3
"""Whole snapshots of another version, one after the other, from which on this version can't follow the cluster."""


class FeedSubscription:
    """One node's copy of the image. ``request`` says what to ask for; ``entry_received`` and ``response_received`` feed it.

    Both return whether the image changed.
    """

    def __init__(self, node_id: str, spoken: LevelRange = SPOKEN) -> None:
        self._node_id = node_id
        self._spoken = spoken
        self._unreadable = 0
        """Whole snapshots, one after the other, that are of another version. One may be forged; all of them are the cluster's."""
        self.image = ClusterImage()
        self.synced = False
        """Whether ``image`` is one that the cluster had; it may be behind."""
        self.known_index = 0
        """The highest index that the feed has shown; above ``image.index`` something is missing."""
        self.resync_count = 0
        """How often the image was given up because something did not fit."""
        self._heads_below = 0
        self._taken: dict[tuple[int, int], int] = {}
        """(previous index, index) -> digest of the last entries that are in the image."""
        self._waiting: dict[int, pb.FeedEntry] = {}
        """By previous index: entries beyond the gap."""
        self._parts = bytearray()
        self._parts_index = 0
        """Of the snapshot of which ``_parts`` holds the first bytes; 0: none."""
        self._other_chunks = 0
        self._asked_ns: int | None = None

    @property
    def behind(self) -> bool:
        """Whether there is something to ask for."""
        return not self.synced or self.known_index > self.image.index

    def request(self, now_ns: int) -> pb.FeedSnapshotRequest | None:
        """What to ask for now, or None; an unanswered request is made again after ``RETRY_AFTER_NS``."""
        if not self.behind or (self._asked_ns is not None and now_ns - self._asked_ns < RETRY_AFTER_NS):
            return None
        self._asked_ns = now_ns
        if self._parts_index:
            return pb.FeedSnapshotRequest(nodeId=self._node_id, snapshotIndex=self._parts_index, offsetBytes=len(self._parts))
        return pb.FeedSnapshotRequest(nodeId=self._node_id, afterIndex=self.image.index if self.synced else 0)

    def entry_received(self, entry: pb.FeedEntry) -> bool:
        """A published entry, or the head of the feed."""
        before = self.image
        if self._contradicts(entry):
            self.start_again()
        self.known_index = max(self.known_index, entry.index)
        self._take(entry)
        self._take_waiting()
        return self.image is not before

    def response_received(self, response: pb.FeedSnapshotResponse) -> bool:
        """The answer to ``request``. One that brings nothing new leaves the next request to ``RETRY_AFTER_NS``. Raises MisdirectedError
        for one to somebody else."""
        if response.nodeId not in ("", self._node_id):
            raise MisdirectedError(f"an answer of the feed to node {shown(response.nodeId)}")
        before = self.image
        if response.chunk or response.sizeBytes:
            self._take_chunk(response)
        elif self.synced:
            for entry in response.entries:
                self._take(entry)
            self.known_index = max(response.index, *self._waiting_indexes())
        self._take_waiting()
        if self.image is not before:
            self._asked_ns = None
        return self.image is not before

    def _contradicts(self, entry: pb.FeedEntry) -> bool:
        """Whether the image can't be the cluster's: another entry was taken in the place of this one, or the leader, who knows all that
        there is, keeps saying that there is less."""
        if not self.synced or entry.index > self.image.index:
            self._heads_below = 0
            return False
        if entry.index > entry.previousIndex:
            taken = self._taken.get((entry.previousIndex, entry.index))
            return taken is not None and taken != _digest(entry)
        self._heads_below = self._heads_below + 1 if entry.index < self.image.index else 0
        return self._heads_below >= MAX_HEADS_BELOW

    def start_again(self) -> None:
        """Give the image up, and ask for another one."""
        self.resync_count += 1
        self.synced = False
        self._heads_below = 0
        self._waiting.clear()
        self._taken.clear()

    def _waiting_indexes(self) -> list[int]:
        return [0, *(entry.index for entry in self._waiting.values())]

    def _take(self, entry: pb.FeedEntry) -> None:
        if entry.index <= self.image.index and self.synced:
            return
        if not self.synced or entry.previousIndex != self.image.index:
            if entry.previousIndex < entry.index and self._has_room(entry):
                self._waiting[entry.previousIndex] = entry
            return
        try:
            image = replay_all(self.image, [record_from_pb(record) for record in entry.records])
            check_level(image, self._spoken)
        except (LiftError, KeyError, ValueError):
            self.start_again()
            return
        self.image = replace(image, index=entry.index)
        self._taken[entry.previousIndex, entry.index] = _digest(entry)
        if len(self._taken) > MAX_WAITING_ENTRIES:
            del self._taken[next(iter(self._taken))]

    def _has_room(self, entry: pb.FeedEntry) -> bool:
        """Room for one more entry that waits; an entry without room is asked for again."""
        held_bytes = sum(held.ByteSize() for held in self._waiting.values())
        return len(self._waiting) < MAX_WAITING_ENTRIES and held_bytes + entry.ByteSize() <= MAX_WAITING_BYTES

    def _take_waiting(self) -> None:
        while self.synced and self._waiting:
            entry = self._waiting.pop(self.image.index, None)
            if entry is None:
                break
            self._take(entry)
        self._waiting = {previous: e for previous, e in self._waiting.items() if e.index > self.image.index}

    def _take_chunk(self, response: pb.FeedSnapshotResponse) -> None:
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
            self._take_snapshot(bytes(self._parts))
            self._parts, self._parts_index = bytearray(), 0

    def _take_snapshot(self, data: bytes) -> None:
        try:
            image = decode_snapshot(data)
            check_level(image, self._spoken)
        except (UnspokenError, UnknownFormatError) as error:
            self.resync_count += 1
            self._unreadable += 1
            if self._unreadable >= MAX_UNREADABLE:
                raise UnspokenError(str(error)) from None
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
