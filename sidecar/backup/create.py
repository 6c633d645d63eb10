"""Creates a backup of a running cluster over the read protocol, from in-sync replicas.

Goal: every record that was committed at the barrier, byte for byte, and the metadata and cursors that belong to it.

The barrier is a description of the metadata after a committed entry. The backup then reads the cursors, and after these the
high watermark (HW) of every partition from its leader. So no cursor points past the stored records. The copy of a compacted
partition ends later, because a record above that HW may have replaced one below it. It continues to the offset up to which
the replicas have compacted [R11]. It starts again if tombstones were removed that it has not read yet [D30]. Producers and
message ids outlive their records [A16]. So if a log begins above 0, the backup requests their state from a replica just
before it reads the HW.

Constraint: a failure at any moment leaves all earlier backups complete. So no file of theirs is written, file names contain
the backup's own id, and the manifest is written last.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from liftpy import __version__
from liftpy.client import Client
from liftpy.client.positions import Bounds
from liftpy.client.replica_reads import DamagedRecordsError, ReplicaAddress, ReplicaReads, ReplicaUnavailableError
from liftpy.core.backup.manifest import (
    CursorCopy,
    Manifest,
    PartitionCopy,
    StateCopy,
    StoredFile,
    StoredPiece,
    StreamCopy,
    backup_moment,
    image_path,
    piece_path,
    running_path,
    state_path,
    writer_of,
)
from liftpy.core.backup.pieces import PIECE_BYTES, extend_chain, left_out_streams, missing_files, reusable_pieces
from liftpy.core.base.ids import PartitionKey, is_internal
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import CorruptionError, LiftError, NotFoundError, StorageError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from sidecar.backup.inspect import UNREADABLE, read_image
from sidecar.backup.store import DEFAULT_BYTES_PER_S, BackupRateLimit, Store, in_thread
from sidecar.runtime.tasks import start_attended

T = TypeVar("T")
_AT_ONCE = 4
"""Maximum number of partitions that are copied at the same time. Each needs memory for one answer (1 MiB) and one open file."""
_ROUNDS = 3
"""Number of times that all replicas of a partition are tried before the backup fails."""
AGAIN_S = 0.5
"""Pause in seconds before all replicas of a partition are tried again."""
_MOVED = 5
"""Number of times that the copy of a partition starts again, because retention or compaction removed the next records."""
MARK_INTERVAL_S = 3600.0
"""Interval at which a running backup renews its mark in the store, in seconds. ``prune`` tells by it that the backup runs."""
_MIN_EXTRA_S = 60.0
"""Minimum time limit for the records of a compacted partition after its barrier, in seconds.

The limit is twice the time that the copy up to the barrier took.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """Options of a backup.

    Attributes:
        namespace: Namespace of the cluster.
        streams: Names of streams. (): all except internal ones.
        since: Backup whose pieces are used again. None: the newest. '': none.
        bytes_per_s: Rate at which the backup reads. 0: no limit.
        piece_bytes: Size at which a piece ends, in bytes.
    """

    namespace: str = "liftpy"
    streams: tuple[str, ...] = ()
    since: str | None = None
    bytes_per_s: int = DEFAULT_BYTES_PER_S
    piece_bytes: int = PIECE_BYTES


@dataclass(slots=True)
class BackupResult:
    """Result of a backup.

    ``written_bytes``: size of the new files, in bytes. ``deleted``: names of the streams that were deleted during the backup.
    The backup does not contain them.
    """

    manifest: Manifest
    written_bytes: int
    took_s: float
    deleted: tuple[str, ...] = ()

    @property
    def reused_bytes(self) -> int:
        """Size of the pieces of earlier backups that this one uses, in bytes."""
        pieces = (piece for stream in self.manifest.streams for copy in stream.partitions for piece in copy.pieces)
        return sum(piece.file.size_bytes for piece in pieces if writer_of(piece.file.path) != self.manifest.backup)


def new_backup_id(moment: datetime, newest: str = "") -> str:
    """Return a new backup id, made from the time ``moment`` and random digits.

    The id sorts after the backup id ``newest`` ('': none), also within one second or after the clock was set back.
    """
    second = moment.replace(microsecond=0)
    if newest:
        second = max(second, backup_moment(newest) + timedelta(seconds=1))
    return f"{second:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"


async def take_backup(
    client: Client,
    store: Store,
    options: BackupOptions,
    *,
    step: Callable[[str], None] = lambda name: None,
    copied: Callable[[int, int], None] = lambda done, total: None,
) -> BackupResult:
    """Create a backup of the cluster of ``client`` in ``store``, and return its result.

    ``step`` is called with the name of each step. ``copied`` is called with the number of copied partitions and the number of
    all partitions.

    Raises UnavailableError, CorruptionError (no replica has valid data), StorageError, NotFoundError.
    """
    return await _BackupRun(client, store, options, step, copied).run()


@dataclass(slots=True)
class _BackupRun:
    client: Client
    store: Store
    options: BackupOptions
    step: Callable[[str], None]
    copied: Callable[[int, int], None] = lambda done, total: None
    id: str = ""
    written_bytes: int = 0
    copied_count: int = 0
    deleted: set[str] = field(default_factory=set)
    pace: BackupRateLimit = field(default_factory=lambda: BackupRateLimit(0))

    async def run(self) -> BackupResult:
        began_s = time.monotonic()
        self.pace = BackupRateLimit(self.options.bytes_per_s)
        earlier = await asyncio.to_thread(self.store.backup_ids)
        self.id = new_backup_id(datetime.now(UTC), earlier[-1] if earlier else "")
        self.step("begin")
        try:
            return await self._run(began_s)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self._clean_up))
            raise

    def _clean_up(self) -> None:
        """Remove the files of this failed backup, so that a full store has room again.

        The mark, a file that shows that the backup is running, is removed last. If the removal fails, ``prune`` removes the rest.
        """
        with suppress(LiftError):
            if self.id in self.store.backup_ids():  # the manifest exists, so only the mark must be removed
                self.store.remove(running_path(self.id))
                return
            for path in self.store.sizes("pieces"):
                if writer_of(path) == self.id:
                    self.store.remove(path)
            self.store.remove_folder(f"backups/{self.id}")
            self.store.remove(running_path(self.id))

    async def _run(self, began_s: float) -> BackupResult:
        mark = {"host": socket.gethostname(), "pid": os.getpid(), "since": "?"}
        await self._store_mark(mark)
        before = await asyncio.to_thread(self._before)
        mark["since"] = "" if before is None else before.backup
        await self._store_mark(mark)
        renewing = start_attended(self._renew_mark(mark))
        try:
            manifest = await self._create_manifest(before)
        finally:
            await end_tasks([renewing])  # it writes no mark behind the removal
        self.step("end")
        await in_thread(self.store.remove, running_path(self.id))
        return BackupResult(manifest, self.written_bytes, time.monotonic() - began_s, tuple(sorted(self.deleted)))

    async def _create_manifest(self, before: Manifest | None) -> Manifest:
        """Copy everything, and store the manifest at the end. ``before``: backup whose pieces are used again."""
        self.step("barrier")
        state = await self.client.admin.describe_cluster(linearizable=True)
        created_ns = time.time_ns()
        streams = self._chosen_streams(state.image)
        described = await self._describe_groups()
        bounds = await self._bounds(streams)
        self.step("pieces")
        copies = await self._copy_streams(streams, bounds, before)
        if self.deleted:
            await in_thread(self._remove_unused, copies)
        copied_keys = {PartitionKey(stream.name, stream.uid, one.partition) for stream in copies for one in stream.partitions}
        cursors = _cursors(described, copied_keys)
        self.step("image")
        copied = state.image
        for name in self.deleted:
            copied = copied.without_stream(name)  # a stream that only the metadata have makes a backup partial
        image = await self.store_file(image_path(self.id), encode_snapshot(copied, operations=False))
        manifest = Manifest(
            backup=self.id,
            created_ns=created_ns,
            namespace=self.options.namespace,
            version=__version__,
            level=state.image.feature_level,
            index=state.image.index,
            leader_epoch=max([state.image.counters.next_leader_epoch - 1, *(p.epoch for s in copies for p in s.partitions)]),
            since="" if before is None else before.backup,
            image=image,
            streams=tuple(copies),
            cursors=cursors,
        )
        self.step("check")
        await self._check_files_exist(manifest)
        self.step("manifest")
        await in_thread(self.store.put_manifest, manifest)
        return manifest

    async def _store_mark(self, mark: Mapping[str, object]) -> None:
        content = json.dumps({**mark, "renewed_ns": time.time_ns()}).encode()
        await in_thread(self.store.put, running_path(self.id), content)

    async def _renew_mark(self, mark: Mapping[str, object]) -> None:
        """Store the mark again and again, so that a backup of several days does not count as dead."""
        while True:
            await asyncio.sleep(MARK_INTERVAL_S)
            with suppress(StorageError):  # the next time will do. If the store is lost, the copy fails
                await self._store_mark(mark)

    async def store_file(self, path: str, data: bytes) -> StoredFile:
        """Store one file of the backup, and return its description."""
        await in_thread(self.store.put, path, data)
        self.written_bytes += len(data)
        return StoredFile(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def _before(self) -> Manifest | None:
        """Return the backup whose pieces are used again: the named one, or a complete one. None: none.

        It is the newest one of this namespace that has all streams of this backup, or else the newest one of this namespace. Manifests
        that are damaged or of a newer version are skipped. Raises CorruptionError or UnknownFormatError if the named one is such a
        backup, or is not complete.
        """
        if self.options.since == "":
            return None
        newest: Manifest | None = None
        sizes = self.store.sizes("pieces") | self.store.sizes("backups")
        for backup in reversed(self.store.backup_ids()) if self.options.since is None else (self.options.since,):
            try:
                manifest = self.store.newest(backup)
                missing = missing_files(manifest, sizes)
                if missing:
                    raise CorruptionError(missing[0])
            except UNREADABLE:
                if self.options.since is not None:
                    raise
                continue
            if self.options.since is None and manifest.namespace != self.options.namespace:
                continue  # another cluster has other streams, also if they have the same names
            newest = newest or manifest
            if self.options.since is not None or self._has_streams(manifest):
                return manifest
        return newest

    def _has_streams(self, manifest: Manifest) -> bool:
        """Return whether an earlier backup has all streams of this one, as far as the metadata of the earlier one show it."""
        if self.options.streams:
            return set(self.options.streams) <= {stream.name for stream in manifest.streams}
        with suppress(*UNREADABLE):
            return not left_out_streams(manifest, read_image(self.store, manifest).streams)
        return False

    def _chosen_streams(self, image: ClusterImage) -> list[StreamImage]:
        for name in self.options.streams:
            if name not in image.streams:
                raise NotFoundError(f"Stream {name!r} does not exist. Check `liftpy stream list`.")
        names = sorted(set(self.options.streams)) or [name for name in sorted(image.streams) if not is_internal(name)]
        return [image.streams[name] for name in names]

    async def _describe_groups(self) -> list[tuple[str, bool, dict[PartitionKey, int]]]:
        """Return (name, True for a cursor, committed offset of each partition) of each group and cursor."""
        groups: list[tuple[str, bool, dict[PartitionKey, int]]] = []
        for group in await self.client.groups.list():
            with suppress(NotFoundError):  # the group was deleted a moment ago
                described = await self.client.groups.describe(group.name)
                positions = described.positions | {queue.key: queue.acknowledged_below for queue in described.queues}
                groups.append((group.name, False, positions))
        for name in await self.client.cursors.list():
            with suppress(NotFoundError):
                groups.append((name, True, await self.client.cursors.describe(name)))
        return groups

    async def _skip_if_deleted(self, stream: StreamImage, work: Awaitable[T]) -> T | None:
        """Await ``work`` on ``stream`` and return its result. None: the stream was deleted, and the operator did not name it.

        Raises:
            NotFoundError: The stream was deleted, and the operator named it.
        """
        try:
            return await work
        except LiftError:
            if not await self._is_deleted(stream):
                raise
        if self.options.streams:
            raise NotFoundError(f"Stream {stream.name} was deleted during the backup. Start the backup again without it.")
        self.deleted.add(stream.name)
        return None

    async def _is_deleted(self, stream: StreamImage) -> bool:
        """Return whether the stream was deleted. Another stream may have its name by now."""
        if stream.name in self.deleted:
            return True
        with suppress(LiftError):
            now = (await self.client.admin.describe_cluster(linearizable=True)).image.streams.get(stream.name)
            return now is None or now.uid != stream.uid
        return False

    def _remove_unused(self, streams: list[StreamCopy]) -> None:
        """Remove the files of streams that were copied but are not in the backup. ``streams``: the streams in the backup."""
        copies = [copy for stream in streams for copy in stream.partitions]
        used = {piece.file.path for copy in copies for piece in copy.pieces}
        used |= {copy.state.file.path for copy in copies if copy.state is not None}
        own = [path for path in self.store.sizes("pieces") if writer_of(path) == self.id]
        for path in (*own, *self.store.sizes(f"backups/{self.id}")):
            if path not in used:
                self.store.remove(path)

    async def _bounds(self, streams: list[StreamImage]) -> dict[tuple[str, int], Barrier]:
        """Return the barrier of each partition: the offset up to which the backup copies it, and the state of its producers.

        The state is read from a replica before the offset is read from the leader.
        """
        room, states = asyncio.Semaphore(_AT_ONCE * 4), asyncio.Semaphore(_AT_ONCE)

        async def ask(stream: StreamImage, number: int) -> Barrier:
            async with room:
                barrier = Barrier(await self.client.bounds(stream.name, number))
            is_without = barrier.bounds.log_start_offset > 0 or bool(
                stream.partitions[number].purges
            )  # a restore does not restore them
            if is_without and barrier.bounds.uid == stream.uid:
                async with states:
                    barrier = await _PartitionCopying(self, stream, number).barrier()
            if barrier.bounds.uid != stream.uid:
                raise NotFoundError(
                    f"Stream {stream.name} was deleted and created again at the start of the backup. Start the backup again."
                )
            return barrier

        async def ask_one(stream: StreamImage, number: int) -> tuple[tuple[str, int], Barrier | None]:
            return (stream.name, number), await self._skip_if_deleted(stream, ask(stream, number))

        requests = [ask_one(stream, partition.partition) for stream in streams for partition in stream.partitions]
        return {key: barrier for key, barrier in await _gather(requests) if barrier is not None}

    async def _copy_streams(
        self, streams: list[StreamImage], barriers: dict[tuple[str, int], Barrier], before: Manifest | None
    ) -> list[StreamCopy]:
        earlier: dict[tuple[str, int], PartitionCopy] = {}
        if before is not None:  # its full pieces may have records that a pending purge has deleted since
            with suppress(*UNREADABLE):  # without its metadata, none of its pieces is used
                was = (await asyncio.to_thread(read_image, self.store, before)).streams
                earlier = {
                    (s.uid, p.partition): p
                    for s in before.streams
                    for p in s.partitions
                    if not was[s.name].partitions[p.partition].purges
                }
        room = asyncio.Semaphore(_AT_ONCE)

        async def copy_one(stream: StreamImage, number: int) -> PartitionCopy | None:
            async with room:
                barrier, old = barriers.get((stream.name, number)), earlier.get((stream.uid, number))
                if barrier is None or stream.name in self.deleted:
                    return None
                copy = await self._skip_if_deleted(stream, _PartitionCopying(self, stream, number).run(barrier, old))
                self.copied_count += 1
                self.copied(self.copied_count, len(barriers))
                return copy

        work = {(stream.name, p.partition): copy_one(stream, p.partition) for stream in streams for p in stream.partitions}
        copies = dict(zip(work, await _gather(work.values()), strict=True))
        return [
            StreamCopy(
                name=stream.name,
                uid=stream.uid,
                compacted=any(barriers[stream.name, p.partition].bounds.compacted for p in stream.partitions),
                partitions=tuple(copy for p in stream.partitions if (copy := copies[stream.name, p.partition]) is not None),
            )
            for stream in streams
            if stream.name not in self.deleted
        ]

    async def _check_files_exist(self, manifest: Manifest) -> None:
        sizes = await asyncio.to_thread(lambda: self.store.sizes("pieces") | self.store.sizes(f"backups/{self.id}"))
        missing = missing_files(manifest, sizes)
        if missing:
            raise CorruptionError(f"The backup is incomplete and has no manifest: {missing[0]}. Start the backup again.")


async def _gather(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all of ``work`` at once, and return the results. After an error, end the rest, so that it writes no more files."""
    tasks = [start_attended(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


@dataclass(frozen=True, slots=True)
class Barrier:
    """Offset at which the copy of one partition ends, and the state of its producers.

    ``bounds``: bounds of the log. The copy ends at its committed end. ``state``: producers and message ids that a replica had
    shortly before. None: a reader can rebuild them from the records. ``knows_dropped``: False if no replica can report them,
    because all of them are on nodes with an earlier version.
    """

    bounds: Bounds
    state: StateCopy | None = None
    knows_dropped: bool = True


def _cursors(described: Iterable[tuple[str, bool, dict[PartitionKey, int]]], keys: set[PartitionKey]) -> tuple[CursorCopy, ...]:
    """Return the positions for a manifest. ``keys``: partitions in the backup. A stream may have got others during the backup."""
    copies = []
    for name, is_cursor, positions in described:
        copied_positions = sorted(
            (key.stream, key.uid, key.partition, at) for key, at in positions.items() if key in keys and at >= 0
        )
        if copied_positions:
            copies.append(CursorCopy(name=name, is_cursor=is_cursor, positions=tuple(copied_positions)))
    return tuple(copies)


def _nodes_to_read(partition: PartitionState) -> list[str]:
    followers = [node for node in partition.isr if node != partition.leader]
    return [*followers, *filter(None, (partition.leader,))] or list(partition.replicas)


class _PartitionCopying:
    """The copy of one partition: first the pieces of earlier backups, then new records."""

    def __init__(self, home: _BackupRun, stream: StreamImage, number: int) -> None:
        self._home = home
        self._stream = stream
        self._number = number
        self._nodes = _nodes_to_read(stream.partitions[number])
        self._nodes_tried = number % len(self._nodes)
        self._compacted_end = 0
        """Exclusive: highest offset up to which a replica that answered has compacted."""
        self._deletes_end: int | None = None
        """Exclusive: every log that was read may have removed tombstones below this offset. None: no log was read."""
        self._answered = ""
        """Node that answered last. Empty: none."""
        self._last_deletes_end = 0
        """Value of ``_deletes_end`` of the last answer alone."""

    async def barrier(self) -> Barrier:
        """Request the producer state first and the bounds after it, so that the state covers the log from its start."""
        for _ in range(_MOVED):
            state = await self._request_state()
            bounds = await self._bounds()
            if state is None or not state[1]:
                return Barrier(bounds, knows_dropped=state is not None)
            end, data = state
            if end >= bounds.log_start_offset:
                path = state_path(self._home.id, self._stream.name, self._stream.uid, self._number)
                return Barrier(bounds, StateCopy(file=await self._home.store_file(path, data), end=end))
        raise UnavailableError(
            f"{self._stream.name}/{self._number}: retention deletes records faster than the backup copies the "
            "state of producers. Start the backup again, or increase the retention of the stream."
        )

    async def _bounds(self) -> Bounds:
        """Return the bounds of the log from its leader. Raises NotFoundError if another stream has the name by now."""
        bounds = await self._home.client.bounds(self._stream.name, self._number)
        if bounds.uid != self._stream.uid:
            raise NotFoundError(f"Stream {self._stream.name} was deleted during the backup. Start the backup again.")
        return bounds

    async def _request_state(self) -> tuple[int, bytes] | None:
        """Return the state from a replica whose version supports the request. None: no replica does."""
        last_error_text, is_old = "nobody was asked", False
        for _ in range(_ROUNDS):
            for _ in list(self._nodes):
                node = self._nodes[self._nodes_tried % len(self._nodes)]
                try:
                    state = await self._reads(node).state()
                    if state is not None:
                        return state
                    is_old = True
                except ReplicaUnavailableError as error:
                    last_error_text = f"{node}: {error}"
                self._nodes_tried += 1
            await self._find_nodes()
        if is_old:
            return None
        raise UnavailableError(
            f"{self._stream.name}/{self._number}: no replica returned the state of its producers: {last_error_text}. Check "
            "`liftpy status`, then start the backup again."
        )

    async def run(self, barrier: Barrier, before: PartitionCopy | None) -> PartitionCopy:
        bounds, state = barrier.bounds, barrier.state
        start = bounds.log_start_offset
        for _ in range(_MOVED):
            if start > (bounds.log_start_offset if state is None else state.end):
                barrier = await self.barrier()
                bounds, state = barrier.bounds, barrier.state
                start = bounds.log_start_offset
            if state is not None:  # a replica had a higher HW than the new leader
                bounds = replace(bounds, high_watermark=max(bounds.high_watermark, state.end - 1))
            chain, reusable = reusable_pieces(before, start, bounds.high_watermark, self._home.options.piece_bytes)
            self._compacted_end, self._deletes_end, self._answered = 0, None, ""
            if reusable and before is not None:
                self._compacted_end, self._deletes_end = before.compacted_end, before.deletes_end
            if reusable and not await self._goes_on(reusable[-1]):
                self._compacted_end, self._deletes_end, self._answered = 0, None, ""
                chain, reusable = reusable_pieces(None, start, bounds.high_watermark, self._home.options.piece_bytes)
            try:
                copy = await self._read_partition(start, bounds.high_watermark, chain, reusable)
                return replace(copy, state=state, knows_dropped=barrier.knows_dropped)
            except _DeletedTombstonesError:
                before = None
            except _RecordsDeletedError:
                start = (await self._bounds()).log_start_offset
        raise UnavailableError(
            f"{self._stream.name}/{self._number}: retention or compaction deletes records faster than the backup "
            "copies them. Increase --bytes-per-s, or the delete retention of the stream."
        )

    async def _goes_on(self, last: StoredPiece) -> bool:
        """Return whether the log still contains the end of ``last``, the last piece of earlier backups.

        This is so if a batch ends at the end offset of the piece and has the LeaderEpoch of the piece.
        """
        try:
            batches = await self._batches(last.end - 1)
        except (_RecordsDeletedError, _DeletedTombstonesError):
            return False
        return any(batch.next_offset == last.end and batch.leader_epoch == last.last_epoch for batch in batches)

    async def _read_partition(
        self, start: int, high_watermark: int, before: str, reusable: tuple[StoredPiece, ...]
    ) -> PartitionCopy:
        position, barrier = reusable[-1].end if reusable else start, high_watermark
        chain = bytes.fromhex(reusable[-1].chain if reusable else before)
        pieces = list(reusable)
        writer: _PieceWriter | None = None
        began_s, compacted_end, latest_s = time.monotonic(), self._compacted_end, 0.0
        with ExitStack() as files:
            while position <= high_watermark:
                batches_read = await self._batches(position)
                if self._compacted_end > max(high_watermark + 1, compacted_end):
                    compacted_end = self._compacted_end
                    committed = (await self._bounds()).high_watermark
                    high_watermark = max(high_watermark, min(compacted_end - 1, committed))
                if position > barrier:
                    now_s = time.monotonic()
                    latest_s = latest_s or now_s + max(_MIN_EXTRA_S, 2 * (now_s - began_s))
                    if now_s > latest_s:
                        raise UnavailableError(
                            f"{self._stream.name}/{self._number}: compaction runs faster than the backup copies records. Increase "
                            "--bytes-per-s."
                        )
                batches = [b for b in batches_read if b.next_offset > position and b.base_offset <= high_watermark]
                data = b"".join(batch.view for batch in batches)
                if writer is None:
                    writer = files.enter_context(_piece_writer(self._home, self._stream, self._number, batches[0].base_offset))
                for batch in batches:
                    chain = extend_chain(chain, batch)
                await in_thread(writer.write, data)
                if position <= barrier:  # there is a limit, because the copy might never end otherwise
                    await self._home.pace.spent(len(data))
                position = batches[-1].next_offset
                done = position > high_watermark
                if done or writer.size_bytes >= self._home.options.piece_bytes:
                    await in_thread(files.close)
                    pieces.append(writer.piece(position, chain.hex(), batches[-1].leader_epoch))
                    self._home.written_bytes += writer.size_bytes
                    writer = None
        return PartitionCopy(
            partition=self._number,
            start=start,
            high_watermark=max(high_watermark, position - 1 if pieces else -1),
            pieces=tuple(pieces),
            before=before,
            compacted_end=min(self._compacted_end, max(high_watermark + 1, position)),
            deletes_end=self._deletes_end or 0,
        )

    async def _batches(self, offset: int) -> list[RecordBatch]:
        last_error_text = "nobody was asked"
        damaged: DamagedRecordsError | None = None
        for _ in range(_ROUNDS):
            for _ in list(self._nodes):
                node = self._nodes[self._nodes_tried % len(self._nodes)]
                reads = self._reads(node)
                try:
                    batches = (await reads.batches(offset))[0]
                    self._learn_compaction(reads, node, offset)
                    return batches
                except DamagedRecordsError as error:
                    last_error_text, damaged = f"{node}: {error}", error
                except ReplicaUnavailableError as error:
                    last_error_text, damaged = f"{node}: {error}", None
                    is_outside = str(error).startswith("OFFSET_OUT_OF_RANGE")
                    if is_outside and offset < (await self._bounds()).log_start_offset:
                        raise _RecordsDeletedError from None
                self._nodes_tried += 1
            await asyncio.sleep(AGAIN_S)
            await self._find_nodes()
        text = f"{self._stream.name}/{self._number}: no replica gives offset {offset}: {last_error_text}"
        raise CorruptionError(text) if damaged is not None else UnavailableError(text)

    async def _find_nodes(self) -> None:
        """Update the nodes to read from, because the replicas may have moved. If no controller answers, keep the nodes."""
        with suppress(LiftError):
            stream = (await self._home.client.stream(self._stream.name)).image
            if stream.uid == self._stream.uid:
                self._nodes = _nodes_to_read(stream.partitions[self._number])

    def _reads(self, node: str) -> ReplicaReads:
        key = ReplicaAddress(stream=self._stream.name, uid=self._stream.uid, partition=self._number, node=node, patience_s=3.0)
        return ReplicaReads(self._home.client.transport, Subjects(self._home.options.namespace), key)

    def _learn_compaction(self, reads: ReplicaReads, node: str, offset: int) -> None:
        """Update the compaction offsets from ``reads``, the last answer of the replica on ``node``.

        The backup has read all records below ``offset``. Raises _DeletedTombstonesError if the replica may have removed a
        tombstone that the backup has not read yet.
        """
        self._compacted_end = max(self._compacted_end, reads.compacted_end)
        known = reads.deletes_end
        if self._deletes_end is not None:  # this replica may lack tombstones of records that were read from another one
            known = self._last_deletes_end if node == self._answered else 0
        self._deletes_end = reads.deletes_end if self._deletes_end is None else min(self._deletes_end, reads.deletes_end)
        self._answered, self._last_deletes_end = node, reads.deletes_end
        if reads.deletes_end > max(known, offset):
            raise _DeletedTombstonesError


class _RecordsDeletedError(Exception):
    """Raised if retention has deleted records that the backup needs."""


class _DeletedTombstonesError(Exception):
    """Raised if a log has removed tombstones that were not read. Records in the backup may be deleted ones."""


class _PieceWriter:
    """Writes one piece, a file with consecutive batches of a partition. ``write`` blocks."""

    def __init__(self, path: str, start: int, stream: Any) -> None:
        self._path, self._start, self._stream = path, start, stream
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self._sha256.update(data)
        self.size_bytes += len(data)

    def piece(self, end: int, chain: str, last_epoch: int) -> StoredPiece:
        """Return the description of the written file."""
        file = StoredFile(path=self._path, size_bytes=self.size_bytes, sha256=self._sha256.hexdigest())
        return StoredPiece(file=file, start=self._start, end=end, chain=chain, last_epoch=last_epoch)


@contextmanager
def _piece_writer(home: _BackupRun, stream: StreamImage, number: int, start: int) -> Iterator[_PieceWriter]:
    path = piece_path(stream.name, stream.uid, number, start, home.id)
    with home.store.open_for_writing(path) as file:
        yield _PieceWriter(path, start, file)
