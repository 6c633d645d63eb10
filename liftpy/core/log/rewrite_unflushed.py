"""Makes unproven data durable when a log is opened after an unclean stop [S1, S4, S12].

After a kill, unflushed data may be only in the page cache. After a failed flush, Linux marks the pages clean, and the
next ``fdatasync`` succeeds without writing. So only this counts as durable:

- a sealed segment whose checksummed index fits (the index is written after the flush),
- data at or below the high watermark of the checkpoint.

All other data is copied into a new file, which is flushed and replaces the old one. A file with a proven beginning is
split there, so that only data since the last checkpoint is copied. A disk without room gets the bytes written again in
place.

Splitting at position P, where a batch of offset o begins, survives a crash at any step:

1. The rest is written to ``<o>.log.tmp``, flushed, and renamed to ``<base>.log.<P>-<o>.tail``.
2. ``<base>.log`` is truncated at P.
3. The tail is renamed to ``<o>.log``. ``finish_splits`` completes 2 and 3 after a crash.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable
from contextlib import suppress

from liftpy.core.log.compaction_point import HORIZON_NAME
from liftpy.core.log.segment import Segment, index_name, log_name, walk
from liftpy.core.log.small_files import CHECKPOINT_NAME, Checkpoint, encode_index
from liftpy.core.log.storage import LogFile, Storage
from liftpy.errors import NoSpaceError, StorageError

FLUSH_FAILED_NAME = "flush-failed"
"""A small file, the durable mark of a flush that failed; its text says why, for people. Nothing relies on it: where the disk did not
even take the mark, the next opening believes as little."""
_COPY_BYTES = 8 * 1024 * 1024
_TAIL = re.compile(r"(\d{20}\.log)\.(\d+)-(\d{20})\.tail")


def mark_failed_flush(storage: Storage, error: Exception) -> None:
    """Leave the durable mark, if the disk takes it."""
    with suppress(StorageError):
        storage.replace(FLUSH_FAILED_NAME, str(error).encode())


def failed_flush(storage: Storage) -> str:
    """Return the text of the failure marker, '' if there is none."""
    mark = storage.load(FLUSH_FAILED_NAME)
    return "" if mark is None else mark.decode(errors="replace") or "a flush failed"


def finish_splits(storage: Storage, names: Iterable[str]) -> None:
    """Complete a split of a segment that a crash interrupted."""
    for name in names:
        found = _TAIL.fullmatch(name)
        if found is not None:
            _cut(storage, found[1], storage.open(found[1]), int(found[2])).close()
            storage.rename(name, log_name(int(found[3])))
            storage.sync_folder()


def prove(
    storage: Storage, segments: list[Segment], checkpoint: Checkpoint, names: Collection[str], *, flush_failed: bool = False
) -> tuple[list[Segment], int]:
    """The segments, and the names in the folder, made durable; and how many bytes had to be written again.

    ``segments``: as recovery found them, ascending; ``checkpoint``: as it is read, whether it is durable or not; ``names``: of
    the files in the folder; ``flush_failed``: there is a mark of a failed flush. Raises StorageError.
    """
    proven_end_offset = checkpoint.high_watermark + 1
    positions = [_proven_position(segment, proven_end_offset) for segment in segments]
    doubtful = [s for s, position in zip(segments, positions, strict=True) if position < s.size_bytes]
    if (
        len(doubtful) > 1
    ):  # or a later one's name could be durable before the bytes of an earlier one are: that looks like damage
        for segment in doubtful:
            with suppress(StorageError):
                segment.file.sync()
    proved: list[Segment] = []
    for segment, position in zip(segments, positions, strict=True):
        proved += [segment] if position == segment.size_bytes else _rewritten(storage, segment, position)
    base_offset = segments[0].base_offset if segments else 0
    _make_names_durable(storage, names, anew=flush_failed or checkpoint.log_start_offset > base_offset)
    return proved, sum(s.size_bytes for s in segments) - sum(positions)


def seal(storage: Storage, segment: Segment) -> None:
    """Write the index of a durable segment. On a full disk it is left out."""
    with suppress(NoSpaceError):
        storage.replace(index_name(segment.base_offset), encode_index(segment.summary()))
    segment.sealed = True
    segment.file.seal()


def _proven_position(segment: Segment, proven_end_offset: int) -> int:
    """Return the position up to which an index or the checkpoint proves that the data is on disk."""
    if segment.sealed or proven_end_offset >= segment.next_offset:
        return segment.size_bytes
    return segment.locate(proven_end_offset) if proven_end_offset > segment.base_offset else 0


def _make_names_durable(storage: Storage, names: Collection[str], *, anew: bool) -> None:
    """Make the small files durable that recovery relies on. Their current content may never have reached the disk.

    The checkpoint is written ``anew`` only where that matters: two flushes for each of thousands of logs are most of what a start
    after a kill costs. Its HW proves what was flushed whether it is durable itself or not, and an older one proves less, so that more
    is written again. A promise in it that never became durable was never acted on, and this process makes its own before it acts.
    Only a log start behind the first segment's base would fall back.
    """
    for name in (CHECKPOINT_NAME, HORIZON_NAME) if anew else (HORIZON_NAME,):
        data = storage.load(name) if name in names else None
        if data is not None:
            with suppress(NoSpaceError):
                storage.replace(name, data)
    storage.sync_folder()


def _rewritten(storage: Storage, segment: Segment, position: int) -> list[Segment]:
    """The segment with everything from ``position`` on written again, as one segment or two."""
    try:
        return _split(storage, segment, position) if position else [_replaced(storage, segment)]
    except NoSpaceError:
        segment.file.rewrite(position)
        return [segment]


def _replaced(storage: Storage, segment: Segment) -> Segment:
    segment.file = _copy_in_place(storage, log_name(segment.base_offset), segment.file, segment.size_bytes)
    return segment


def _split(storage: Storage, segment: Segment, position: int) -> list[Segment]:
    base_offset = next(header.base_offset for _, header in segment.batches(position, position + 1))
    name = log_name(segment.base_offset)
    tail_name = f"{name}.{position}-{base_offset:020d}.tail"
    _copy(storage, segment.file, position, segment.size_bytes, tail_name)
    storage.remove(
        index_name(segment.base_offset)
    )  # one that did not fit, or this one's of before: it must not fit what is left
    file = _cut(storage, name, segment.file, position)
    storage.rename(tail_name, log_name(base_offset))
    storage.sync_folder()
    tail = Segment(base_offset, storage.open(log_name(base_offset)), base_offset)
    found = walk(tail)
    if found.fault:
        raise StorageError(
            f"{log_name(base_offset)}: the records cannot be read after the write: {found.fault}. Check the disk."
        )
    head = _beginning(segment, file, position, tail)
    seal(storage, head)
    return [head, tail]


def _beginning(segment: Segment, file: LogFile, position: int, tail: Segment) -> Segment:
    """Return the known part of a segment that was truncated at ``position``. ``tail``: the removed bytes."""
    whole = bisect_left(segment.entries, position, key=lambda entry: entry.position) - 1
    entry = segment.entries[whole]
    head = Segment(segment.base_offset, file, segment.base_offset, checked=segment.checked)
    head.first_timestamp_ns, head.max_timestamp_ns = segment.first_timestamp_ns, entry.max_timestamp_ns
    head.entries = segment.entries[:whole]
    head.epochs = [(epoch, start) for epoch, start in segment.epochs if start < entry.base_offset]
    head.size_bytes = position  # so that the walk over the headers sees its end
    for at, header in list(head.batches(entry.position, position)):
        head.note(header, at)
    head.record_count = segment.record_count - tail.record_count
    return head


def _cut(storage: Storage, name: str, file: LogFile, position: int) -> LogFile:
    """The file cut at ``position``, durably; one that can't be flushed any more is replaced by a copy."""
    try:
        file.truncate(position)
        return file
    except NoSpaceError:
        raise
    except StorageError:
        return _copy_in_place(storage, name, file, position)


def _copy_in_place(storage: Storage, name: str, file: LogFile, end: int) -> LogFile:
    """A new file with the first ``end`` bytes, flushed, under the old one's name."""
    _copy(storage, file, 0, end, name)
    file.close()
    return storage.open(name)


def _copy(storage: Storage, file: LogFile, start: int, end: int, name: str) -> None:
    """Bytes ``start`` to ``end`` as a new file ``name``: all of it, on the disk, or none. Raises StorageError."""
    temporary = f"{name}.tmp"
    copy = storage.create(temporary)
    try:
        for position in range(start, end, _COPY_BYTES):
            copy.append([file.read(position, min(_COPY_BYTES, end - position))])
        copy.sync()
    except StorageError:
        with suppress(StorageError):
            storage.remove(temporary)
        raise
    finally:
        copy.close()
    storage.rename(temporary, name)
    storage.sync_folder()
