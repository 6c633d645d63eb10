"""Writes the pieces of a backup as logs into new directories of the helper's data directory. All functions block.

All data of the backup that will be restored is read and checked before the cluster is changed: SHA-256, CRCs, chains. The
batches are appended by the code that a follower uses, byte for byte.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from liftpy.config import StreamConfig
from liftpy.core.backup.manifest import CHAIN_BYTES, PartitionCopy
from liftpy.core.backup.pieces import checked_batches, checked_state, cut_batch, end_of, without_purged
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import Purge
from liftpy.core.log.compaction_point import NEVER, Horizon
from liftpy.core.log.log import Log
from liftpy.core.log.storage import Storage
from liftpy.core.publish.state_file import State, encode_state, state_name, state_owner, why_not
from liftpy.core.wire.batch import RecordBatch
from sidecar.backup.store import Store
from sidecar.disk.files import DirectoryStorage, make_folder

_FLUSH_BYTES = 16 * 1024 * 1024
_APPEND_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """Point in the backup at which a restore ends.

    ``offset``: last offset to restore, inclusive. ``time_ns``: restore only records that are older than this time.
    """

    offset: int | None = None
    time_ns: int | None = None


NOWHERE = RestorePoint()
"""No end: all records are restored."""


@dataclass(frozen=True, slots=True)
class StagedLog:
    """A restored log in a directory, from ``start`` (inclusive) to ``end`` (exclusive).

    Attributes:
        digest: Digest of all batches.
        records: Number of records without control records.
        requested_end: Requested end, if compaction made the log end later.
        state: Producers and message ids. None: none.
        state_left_out: Why the state is missing. '': it is not.
    """

    start: int
    end: int
    digest: str
    records: int
    size_bytes: int
    requested_end: int | None = None
    state: State | None = None
    state_left_out: str = ""


class LogDigest:
    """Digest of the bytes of batches. It does not depend on how they are divided into reads."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=CHAIN_BYTES)
        self.records = 0
        self.size_bytes = 0

    def add(self, batch: RecordBatch) -> None:
        self._digest.update(batch.view)
        self.records += 0 if batch.header.control else batch.record_count
        self.size_bytes += batch.header.size_bytes

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def stage(
    store: Store,
    copy: PartitionCopy,
    config: StreamConfig,
    folder: Path,
    until: RestorePoint,
    tell: Callable[[str], None],
    purges: Sequence[Purge] = (),
) -> StagedLog:
    """Write the log of one partition durably into the new directory ``folder``, and return its description.

    ``until``: end of the restore. ``tell`` is called with the path of each file that is read. ``purges``: purges that were
    pending at the time of the backup. Their records are left out.
    """
    make_folder(folder)
    log, _ = Log.open(DirectoryStorage(folder), config, now_wall_ns=time.time_ns())
    digest = LogDigest()
    has_batches = False
    unflushed = 0
    end_offsets: list[int] = []
    wanted = _wanted_batches(store, copy, until, tell, end_offsets)
    for batches in _portions(without_purged(batch, purges) for batch in wanted):
        if not has_batches:
            has_batches = True
            if batches[0].base_offset:
                log.reset(batches[0].base_offset)
        for batch in batches:
            digest.add(batch)
        data = b"".join(batch.view for batch in batches)
        compacted_end = copy.compacted_end or copy.high_watermark + 1
        is_compacted = any(batch.header.is_compacted for batch in batches)
        seen = Horizon(compacted_end, copy.epoch, compacted_end) if is_compacted else NEVER
        log.append_batches(memoryview(data), batches, time.time_ns(), compacted=seen)
        unflushed += len(data)
        if unflushed >= _FLUSH_BYTES:
            log.flush()
            unflushed = 0
    if not has_batches and copy.start:
        log.reset(copy.start)
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    log.checkpoint()
    state, left_out = _state(store, copy, log)
    end_offset = next((end for end in end_offsets if end < log.log_end_offset), None)
    staged = StagedLog(
        log.log_start_offset,
        log.log_end_offset,
        digest.hexdigest(),
        digest.records,
        digest.size_bytes,
        end_offset,
        state,
        left_out,
    )
    log.close()
    return staged


def install_state(storage: Storage, staged: StagedLog, key: PartitionKey) -> None:
    """Write the state of producers and message ids of a staged log into ``storage``, with ``key`` as its partition [A16]."""
    if staged.state is not None:
        storage.replace(state_name(staged.state.end_offset), encode_state(staged.state._replace(owner=state_owner(key))))


def _state(store: Store, copy: PartitionCopy, log: Log) -> tuple[State | None, str]:
    """Return (state of producers and message ids in the backup, reason why it is not used).

    The state is None if the backup has none, or if it does not fit ``log``.
    """
    if copy.state is None:
        if copy.knows_dropped or not copy.start:
            return None, ""
        return None, "the backup does not hold them: a program or a node of an earlier version made it"
    state = checked_state(copy.state, store.read(copy.state.file.path))
    if state.end_offset > log.log_end_offset:
        return None, f"they are those at offset {state.end_offset}, and the log ends at {log.log_end_offset}"
    why = why_not(state, state_name(state.end_offset), state.owner, log)
    return (None, why) if why else (state, "")


def _wanted_batches(
    store: Store, copy: PartitionCopy, until: RestorePoint, tell: Callable[[str], None], end_offsets: list[int]
) -> Iterator[RecordBatch]:
    """Yield the batches from the log start to the end of the restore. All pieces are read and checked.

    ``tell`` is called with the path of each file. The requested end offset is appended to ``end_offsets`` if the log is cut there.
    """
    before, epoch, ended = copy.before, 0, False
    last_end: int | None = None
    for piece in copy.pieces:
        tell(piece.file.path)
        for batch in checked_batches(piece, store.read(piece.file.path), before, epoch):
            if ended or batch.next_offset <= copy.start:
                continue
            end = end_of(batch, until.offset, until.time_ns) if last_end is None else None
            if end is not None:
                end_offsets.append(end)
                last_end = max(end, copy.compacted_end)  # if the copy ended below this offset, keys would be missing [R11]
            if last_end is None or batch.next_offset <= last_end:
                yield batch
                continue
            ended = True
            rest = cut_batch(batch, last_end)
            if rest is not None:
                yield rest
        before, epoch = piece.chain, piece.last_epoch


def _portions(batches: Iterator[RecordBatch]) -> Iterator[list[RecordBatch]]:
    """Yield lists of batches of about one megabyte. Each has at least one batch."""
    part: list[RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        part.append(batch)
        size_bytes += batch.header.size_bytes
        if size_bytes >= _APPEND_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
