"""Decides which pieces of an earlier backup a new one reuses, and which files of a store are unused. Pure.

Worked example: a backup had orders/0 in two full pieces [0, 900) and [900, 1700), and the tail [1700, 1800). Retention
has moved the log start to 950, and HW is 2499. The new backup keeps [900, 1700), continues the chain at its end, and
reads [1700, 2500).

The module also checks the bytes of a backup's file, and names the file of each error. For a restore, it finds the end
of a partition and cuts the last batch there. These are the only bytes of a backup that are ever changed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from liftpy.core.backup.manifest import CHAIN_BYTES, Manifest, PartitionCopy, StateCopy, StoredFile, StoredPiece, writer_of
from liftpy.core.base.ids import PartitionKey, is_internal
from liftpy.core.base.partition import Purge
from liftpy.core.publish.producer_state import Producers, distance
from liftpy.core.publish.state_file import State, decode_state, state_owner
from liftpy.core.wire.batch import RecordBatch, build_filler, build_remains, parse_batch, reach, split_batches
from liftpy.core.wire.filters import Filter, keep_records
from liftpy.errors import CorruptionError

PIECE_BYTES = 64 * 1024 * 1024
"""Size from which a piece is full, in bytes. A full piece is never written again."""


def extend_chain(chain: bytes, batch: RecordBatch) -> bytes:
    """Return the 16-byte digest chain after ``batch``. ``chain``: the digest chain before it."""
    digest = hashlib.blake2b(chain, digest_size=CHAIN_BYTES)
    digest.update(batch.view)
    return digest.digest()


def reusable_pieces(
    before: PartitionCopy | None, start: int, high_watermark: int, piece_bytes: int
) -> tuple[str, tuple[StoredPiece, ...]]:
    """Return the pieces of an earlier backup that a new backup of a partition reuses.

    Args:
        before: The partition in the earlier backup. None: there is none.
        start: Log start, inclusive.
        high_watermark: Last committed offset, inclusive.
        piece_bytes: Size of a full piece, in bytes. Smaller pieces are not reused.

    Returns:
        (digest chain before the first reused piece, reused pieces).
    """
    if before is None:
        return PartitionCopy(partition=0, start=0, high_watermark=-1).before, ()
    chain, pieces = before.before, []
    for piece in before.pieces:
        if piece.file.size_bytes < piece_bytes or piece.end > high_watermark + 1:
            break
        if piece.end <= start:
            chain = piece.chain
        else:
            pieces.append(piece)
    return chain, tuple(pieces)


def left_out_streams(manifest: Manifest, streams: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the streams that a backup does not contain, because it was limited to others. (): it has all streams.

    Internal streams do not count. ``streams``: names of all streams in the metadata of the backup.
    """
    copied = {stream.name for stream in manifest.streams}
    return tuple(sorted(name for name in streams if name not in copied and not is_internal(name)))


def replaces(newer: Collection[str] | None, older: Collection[str] | None) -> bool:
    """Return whether a complete backup makes an older one superfluous.

    A backup of all streams does. A backup of some streams does if the older one has no other streams. So a backup never counts as
    the copy of a stream that it does not contain.

    ``newer``, ``older``: names of the streams that each backup was limited to. None: it has all streams of its cluster.
    """
    return newer is None or (older is not None and set(older) <= set(newer))


def backups_to_delete(selections: Mapping[str, Collection[str] | None], keep: int) -> tuple[str, ...]:
    """Return the ids of the backups that at least ``keep`` newer ones replace (``replaces``). An id begins with its time.

    Example: keep is 1, and the backups are, from the oldest: all, orders, users, orders. Only the first backup of orders goes.

    ``selections``: id of each complete backup -> names of the streams that it was limited to. None: it has all streams.
    """
    ordered = sorted(selections)
    return tuple(
        backup
        for number, backup in enumerate(ordered, 1)
        if sum(replaces(selections[newer], selections[backup]) for newer in ordered[number:]) >= keep
    )


def unnamed_pieces(pieces: Mapping[str, int], manifests: Sequence[Manifest], unfinished: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of pieces that can be deleted: no manifest names them, and no unfinished backup has written them."""
    named = {path for manifest in manifests for path in manifest.files}
    spared = set(unfinished)
    return tuple(sorted(path for path in pieces if path not in named and (writer := writer_of(path)) and writer not in spared))


def missing_files(manifest: Manifest, sizes: Mapping[str, int]) -> list[str]:
    """Return one text for each file that is missing in the store or has another size than the manifest says."""
    return [
        f"{path}: it is missing" if path not in sizes else f"{path}: it has {sizes[path]} bytes, not {file.size_bytes}"
        for path, file in sorted(manifest.files.items())
        if sizes.get(path) != file.size_bytes
    ]


def check_file(file: StoredFile, data: bytes) -> None:
    """Check that ``data`` has the size and the SHA-256 that the manifest has for ``file``. Raises CorruptionError if not."""
    if len(data) != file.size_bytes:
        raise CorruptionError(
            f"Backup file {file.path} has {len(data)} bytes, but the manifest says {file.size_bytes}. The backup "
            "is damaged: use another one."
        )
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise CorruptionError(
            f"The SHA-256 of backup file {file.path} does not match the manifest. The backup is damaged: use another one."
        )


def checked_state(copy: StateCopy, data: bytes, key: PartitionKey | None = None) -> State:
    """Return the producer and message-id state in ``data``, the content of a state file.

    ``copy``: its entry in the manifest. ``key``: partition to which it must belong, None for any.

    Raise CorruptionError if it was changed or belongs to another partition, UnknownFormatError for a newer version.
    """
    check_file(copy.file, data)
    state = decode_state(data)
    if state is None or state.end_offset != copy.end or (key is not None and state.owner != state_owner(key)):
        raise CorruptionError(
            f"Backup file {copy.file.path} is not the state of {key or 'a partition'} at offset {copy.end}. The "
            "backup is damaged: use another one."
        )
    return state


def why_other_producers(stored_state: State, served: bytes) -> str:
    """Check after a restore that a replica knows the producers of the backup. Return '' if it does, else the reason.

    A producer may have continued since, because the replica has read on in its log. A producer may also have expired.

    ``stored_state``: state in the backup. ``served``: state file of the replica, b"" for none.
    """
    state = decode_state(served) if served else stored_state._replace(parts={})
    if state is None:
        return "its state of producers can't be read"
    before, now = (_producers(one) for one in (stored_state, state))
    for producer_id in before.producer_ids:
        was, known = before.state_of(producer_id), now.state_of(producer_id)
        assert was is not None
        if known is None and now.time_ns > before.time_ns:
            continue
        if known is None or distance(known.next_sequence, was.next_sequence) < 0:
            next_sequence = 0 if known is None else known.next_sequence
            return f"producer {was.name or producer_id} goes on at sequence {next_sequence}, not {was.next_sequence}"
    return ""


def _producers(state: State) -> Producers:
    producers = Producers(0, sys.maxsize)
    version, data = state.parts.get(producers.name, (producers.version, None))
    if version == producers.version and data is not None:
        producers.restore(data, state.end_offset)
    return producers


def checked_batches(piece: StoredPiece, data: bytes, before: str, last_epoch: int = 0) -> list[RecordBatch]:
    """Check the bytes of a piece, and return its batches.

    Raises CorruptionError if the bytes have changed, a batch has a wrong CRC, the order is impossible, or the chain differs.

    ``data``: bytes of the piece. ``before``, ``last_epoch``: digest chain and LeaderEpoch of the batch before the piece.
    """
    path = piece.file.path
    check_file(piece.file, data)
    try:
        batches = split_batches(data)
    except CorruptionError as error:
        raise CorruptionError(f"Backup file {path} is damaged: {error}. Use another backup.") from None
    chain, position, epoch = bytes.fromhex(before), piece.start, last_epoch
    for batch in batches:
        if batch.base_offset < position or batch.leader_epoch < epoch:
            raise CorruptionError(
                f"Backup file {path} is damaged: the batch at offset {batch.base_offset}, LeaderEpoch "
                f"{batch.leader_epoch}, does not follow the batch before it. Use another backup."
            )
        chain, position, epoch = extend_chain(chain, batch), batch.next_offset, batch.leader_epoch
    if (position, epoch, chain.hex()) != (piece.end, piece.last_epoch, piece.chain):
        raise CorruptionError(
            f"Backup file {path} is damaged: it ends at offset {position}, LeaderEpoch {epoch}, with other "
            "content than the manifest says. Use another backup."
        )
    return batches


def end_of(batch: RecordBatch, until_offset: int | None, until_ns: int | None) -> int | None:
    """Return the offset (exclusive) within ``batch`` at which a restore must end. None: it continues after the batch.

    ``until_offset``: last offset to restore. ``until_ns``: the restore ends before the first record with this timestamp or a
    later one. None: no such limit.
    """
    end: int | None = None
    if until_offset is not None and until_offset < batch.last_offset:
        end = max(until_offset + 1, batch.base_offset)
    if until_ns is not None and not batch.header.control and batch.record_count:
        late = np.flatnonzero(batch.timestamps_ns() >= until_ns)
        if late.size:
            at = int(batch.offsets()[late[0]])
            end = at if end is None else min(end, at)
    return end


def cut_batch(batch: RecordBatch, end: int) -> RecordBatch | None:
    """Return the part of ``batch`` below the offset ``end`` (exclusive, within it) as one batch.

    None: the batch begins at ``end`` or later.
    """
    header = batch.header
    if end <= batch.base_offset:
        return None
    mask = batch.offsets() < end if batch.record_count else np.zeros(0, dtype=np.bool_)
    if header.control or not mask.any():
        return parse_batch(build_filler(batch.base_offset, end, header.leader_epoch, header.timestamp_ns))
    return parse_batch(reach(keep_records(batch, mask), end))


def without_purged(batch: RecordBatch, purges: Sequence[Purge]) -> RecordBatch:
    """Return ``batch`` without the records that ``purges`` delete. If there are none, return ``batch`` itself."""
    if batch.header.control or not batch.record_count:
        return batch
    keep = np.ones(batch.record_count, dtype=np.bool_)
    for purge in purges:
        if batch.base_offset < purge.end_offset:
            keep &= ~(Filter(purge.subjects, purge.keys).mask(batch) & (batch.offsets() < purge.end_offset))
    if keep.all():
        return batch
    if not keep.any():
        header = batch.header
        if header.producer_id:
            return parse_batch(build_remains(batch))  # keeps the sequence of its producer
        return parse_batch(build_filler(batch.base_offset, batch.next_offset, header.leader_epoch, header.timestamp_ns))
    return parse_batch(reach(keep_records(batch, keep), batch.next_offset))


def first_leader_epoch(manifest: Manifest, next_leader_epoch: int) -> int:
    """Return the first LeaderEpoch that the restored streams may have [D14].

    It is above all LeaderEpochs of the backup. It is also above ``next_leader_epoch``, which the cluster would give next. So every
    restore makes the cluster skip LeaderEpochs, also a drill in the cluster that was backed up.
    """
    most = max([manifest.leader_epoch, *(p.epoch for stream in manifest.streams for p in stream.partitions)])
    return max(most, next_leader_epoch) + 1
