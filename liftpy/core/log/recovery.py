"""Opens a partition directory: keeps valid data, truncates a torn tail, quarantines damage [S1, S3, S5-S7].

Valid data is made durable before it is served [S4, S12].

1. Files of an interrupted replacement are deleted, an interrupted split is completed, and the checkpoint is read.
2. Sealed segments use their index if it fits. The last segment, and those without a fitting index, are read completely.
3. A fault in the last segment is a torn tail, and is truncated, if nothing good follows and the faulty batch is incomplete.
Any other fault is damage: the segment and all later ones are quarantined, and the report names the missing offsets. The
replica then leaves the ISR and fetches them again.
4. After an unclean stop, data that is not proven durable is written again (``prove``). Then sealed segments get their
missing index.
5. The high watermark is limited to the log [D7]. If the checkpoint is above the log, committed records are missing, and
the report says so.

Quarantined files are kept until the replica has the records again: ``<name>.log.damaged-<n>`` for damaged segments,
``<name>.log.behind-<n>`` for good ones after them. ``delete_quarantined_files`` deletes them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from liftpy.core.log.compaction_point import HORIZON_NAME
from liftpy.core.log.segment import Segment, SegmentContents, base_offsets, index_name, log_name, walk
from liftpy.core.log.small_files import (
    CHECKPOINT_NAME,
    EPOCHS_NAME,
    STATE_PREFIX,
    Checkpoint,
    decode_checkpoint,
    decode_index,
    encode_checkpoint,
    encode_index,
)
from liftpy.core.log.storage import LogFile, Storage
from liftpy.errors import NoSpaceError, StorageError

MAX_QUARANTINED_FILES = 3
"""Number of damaged segments that ``delete_quarantined_files`` leaves as evidence. They are those with the highest offsets."""
DAMAGED, BEHIND = "damaged", "behind"
_NAME = re.compile(rf"\d+\.log\.({DAMAGED}|{BEHIND})-\d+")
_COPY_BYTES = 8 * 1024 * 1024
_VALID_PART = ".valid"
"""Suffix of the file with the valid part of a damaged segment, until the damaged one is renamed."""
FLUSH_FAILED_NAME = "flush-failed"
"""Name of the small file that marks a failed flush. Its text is the error, for operators.

The rewriting of data does not rely on it, because the disk may not have stored it. With it, a start distrusts all logs if it
also finds damage.
"""
_TAIL = re.compile(r"(\d{20}\.log)\.(\d+)-(\d{20})\.tail")


def quarantine(storage: Storage, base_offset: int, why: str) -> None:
    """Quarantine the segment at ``base_offset``: rename its file and remove its index.

    ``why``: DAMAGED for a damaged segment, BEHIND for a valid one after it.
    """
    storage.remove(index_name(base_offset))
    storage.rename(log_name(base_offset), _quarantine_name(storage, base_offset, why))
    storage.sync_folder()


def _quarantine_name(storage: Storage, base_offset: int, why: str) -> str:
    """Return an unused name for the quarantined segment at ``base_offset``."""
    names = set(storage.names())
    name = f"{log_name(base_offset)}.{why}"
    number = next(n for n in range(len(names) + 1) if f"{name}-{n}" not in names)
    return f"{name}-{number}"


def quarantined_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the file ``names`` that are quarantined segments, sorted."""
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def incomplete_quarantines(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the file ``names`` that are the valid part of a segment whose quarantine a crash has interrupted.

    The segment itself is quarantined already. The next recovery completes the quarantine.
    """
    found = set(names)
    parts = (name for name in found if name.endswith(_VALID_PART))
    return tuple(sorted(n for n in parts if (segment := n.removesuffix(_VALID_PART)) not in found and base_offsets([segment])))


def delete_quarantined_files(storage: Storage) -> tuple[str, ...]:
    """Remove quarantined files, except the last ``MAX_QUARANTINED_FILES`` damaged segments. Return the removed names."""
    names = quarantined_names(storage.names())
    damaged = [name for name in names if f".{DAMAGED}-" in name]
    removed = tuple(name for name in names if name not in damaged[-MAX_QUARANTINED_FILES:])
    for name in removed:
        storage.remove(name)
    if removed:
        storage.sync_folder()
    return removed


@dataclass(frozen=True, slots=True)
class Damage:
    """A quarantined segment. ``first_offset``: first missing offset (inclusive). ``fault``: description of the damage."""

    name: str
    first_offset: int
    position: int
    fault: str
    is_confined: bool = False
    """True if bytes have changed in place (``SegmentContents``). Then no end of a file is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """Findings of recovery when a log is opened.

    ``cut_bytes``: size of the incomplete end that was truncated. ``walked_bytes``: number of bytes that were read. ``damage``:
    quarantined segments.
    """

    cut_bytes: int = 0
    walked_bytes: int = 0
    rebuilt_indexes: int = 0
    damage: tuple[Damage, ...] = ()
    checkpoint_found: bool = True
    lost_committed: bool = False
    """True if the high watermark of the checkpoint was above the log end. This node has then lost committed records."""

    quarantined_files: tuple[str, ...] = ()
    """Quarantined files in the directory. This start or an earlier one has renamed them."""

    lost_flushed: bool = False
    """True if a cleanly closed log was truncated, ends too early, or lacks its first or last file.

    A crash cannot cause this, so flushed records are lost.
    """

    rewritten_bytes: int = 0
    """Number of bytes that were written again, because they were not proven to be on the disk."""

    flush_failed: str = ""
    """Error of a flush that failed before, until ``forget_failed_flush``. '': no flush failed, or the disk did not store the mark."""

    @property
    def must_leave_isr(self) -> bool:
        """True if this replica may lack records that it has acknowledged, so that it must leave the ISR."""
        return bool(self.damage) or self.lost_committed or self.lost_flushed

    @property
    def is_confined(self) -> bool:
        """True if the log is damaged, and this says nothing about the other logs on the disk."""
        return bool(self.damage) and all(damage.is_confined for damage in self.damage)


@dataclass(slots=True)
class RecoveryResult:
    """Result of recovery: the segments of a directory, in ascending order and without gaps between them."""

    segments: list[Segment]
    checkpoint: Checkpoint
    report: OpenReport
    storage: Storage
    log_start_offset: int = 0
    """Inclusive lower bound of the log start. It is above the checkpoint's if a full disk had no room for the new checkpoint."""

    small_files: dict[str, bytes] = field(default_factory=dict)
    """Small files that exist and that a log also reads: ``leader-epochs`` and ``compaction-horizon``."""

    has_states: bool = False
    """True if the directory has checkpoints of derived state."""

    @property
    def is_complete(self) -> bool:
        """True if a log can be opened with this result without changing a file of the directory."""
        return bool(self.segments) and not self.segments[-1].sealed and not self.report.lost_committed


def recover(
    storage: Storage,
    *,
    clean: bool = False,
    clean_end_offset: int = 0,
    before_loss: Callable[[], None] = lambda: None,
) -> RecoveryResult:
    """Recover the directory ``storage`` so that its log can be used. Return the segments and the findings.

    Args:
        storage: Directory of the partition.
        clean: True if the log was closed cleanly. Damage at its end then happened after the close.
        clean_end_offset: Log end offset at that close. The high watermark of the checkpoint may be below it, because records
            that this replica has acknowledged to its leader may be committed without its knowledge. 0: not known.
        before_loss: Called before damage is quarantined or truncated, because a later recovery may find a short log without
            damage.

    Raises:
        StorageError: The disk failed. Error of ``before_loss``.
        UnknownFormatError: Data has the format of another version.
    """
    names = storage.names()
    if any(name.endswith((".tmp", ".tail", _VALID_PART)) for name in names):
        for name in names:
            if name.endswith(".tmp"):
                storage.remove(name)
        finish_splits(storage, names)
        _finish_quarantine(storage, names)
        names = storage.names()
    flush_failed = failed_flush(storage) if FLUSH_FAILED_NAME in names else ""
    stored_checkpoint = decode_checkpoint(storage.load(CHECKPOINT_NAME)) if CHECKPOINT_NAME in names else None
    checkpoint = stored_checkpoint or Checkpoint()
    bases = base_offsets(names)
    log_start_offset = max(checkpoint.log_start_offset, bases[0] if bases else 0)
    lost_file = clean and _lacks_file(storage, names, bases, stored_checkpoint)
    if lost_file:
        before_loss()
    if log_start_offset > checkpoint.log_start_offset:  # only the first file proves it, and the file may be damaged [D26]
        raised = replace(checkpoint, log_start_offset=log_start_offset)
        with suppress(NoSpaceError):
            storage.replace(CHECKPOINT_NAME, encode_checkpoint(raised))
            checkpoint = raised
    _remove_stray_indexes(storage, names, bases)
    segments, walked, rebuilt, cut, damage = _segments(storage, bases, checkpoint.log_start_offset, clean, before_loss)
    if segments and segments[-1].next_offset < checkpoint.log_start_offset:
        for segment in reversed(segments):  # a crash interrupted `Log.reset` before the old segments were removed
            segment.file.close()
            _remove_segment(storage, segment.base_offset)
        segments = []
    rewritten_bytes = 0
    if names and (not clean or flush_failed):
        segments, rewritten_bytes = prove(storage, segments, checkpoint, names, flush_failed=bool(flush_failed))
    for segment in segments[:-1]:
        if not segment.sealed:
            seal_segment(storage, segment)
    log_end_offset = segments[-1].next_offset if segments else log_start_offset
    ends_early = clean and not damage and log_end_offset < clean_end_offset
    if ends_early:
        before_loss()
    report = OpenReport(
        cut_bytes=cut,
        walked_bytes=walked,
        rebuilt_indexes=rebuilt,
        damage=tuple(damage),
        quarantined_files=quarantined_names(storage.names() if damage else names),
        checkpoint_found=stored_checkpoint is not None,
        lost_committed=checkpoint.high_watermark >= log_end_offset,
        lost_flushed=lost_file or ends_early or (clean and cut > 0),
        rewritten_bytes=rewritten_bytes,
        flush_failed=flush_failed,
    )
    has_states = any(name.startswith(STATE_PREFIX) for name in names)
    small_files = {name: storage.load(name) for name in (EPOCHS_NAME, HORIZON_NAME) if name in names}
    return RecoveryResult(
        segments,
        checkpoint,
        report,
        storage,
        log_start_offset,
        {name: data for name, data in small_files.items() if data},
        has_states,
    )


def _lacks_file(storage: Storage, names: Collection[str], bases: list[int], stored: Checkpoint | None) -> bool:
    """Return whether a cleanly closed log lacks its first or its last file.

    A clean close stores the log start, so the first file does not begin above it. The last file is not sealed, so it has no
    index. ``stored``: checkpoint of the log, None: it is missing. ``bases``: base offsets of the segments.
    """
    if stored is not None and (not bases or bases[0] > stored.log_start_offset):
        return True
    if not bases:
        return False
    sealed = _from_index(storage, bases[-1]) if index_name(bases[-1]) in names else None
    if sealed is not None:
        sealed.file.close()
    return sealed is not None


def _remove_stray_indexes(storage: Storage, names: Iterable[str], bases: list[int]) -> None:
    """Remove index files that belong to no sealed segment.

    A crash during a removal of segments leaves them. ``bases``: base offsets of the segments. The last one is not sealed.
    """
    wanted = {index_name(base) for base in bases[:-1]}
    for name in names:
        if name.endswith(".index") and name not in wanted:
            storage.remove(name)


def _segments(
    storage: Storage, bases: list[int], log_start_offset: int, clean: bool, before_loss: Callable[[], None]
) -> tuple[list[Segment], int, int, int, list[Damage]]:
    segments: list[Segment] = []
    walked = rebuilt = cut = 0
    damage: list[Damage] = []
    for number, base in enumerate(bases):
        if segments and base < segments[-1].next_offset:
            # compaction merged this segment into the previous one, and a crash came before it removed the file
            _remove_segment(storage, base)
            continue
        last = number == len(bases) - 1
        if not last and bases[number + 1] <= log_start_offset:
            _remove_segment(storage, base)  # retention moved the log start, and a crash came before it removed the file
            continue
        segment = None if last else _from_index(storage, base)
        gap = bool(segments) and base != segments[-1].next_offset
        if segment is None:
            segment, contents = _open_and_scan(storage, base)
            walked += segment.file.size_bytes
            rebuilt += not last
            torn = (
                contents.fault
                and not contents.changed_in_place
                and (last or _is_torn(storage, base, bases[number + 1 :], clean))
            )
            if clean and torn:
                before_loss()
            if torn:
                _remove_segments(storage, bases[number + 1 :])
                last = True
                cut += segment.file.size_bytes - contents.end
                segment.file.truncate(contents.end)
            elif contents.fault and not gap:
                found = Damage(log_name(base), segment.next_offset, contents.end, contents.fault, contents.changed_in_place)
                damage.append(found)
                before_loss()
                prefix = _quarantine_segment(storage, segment, contents, bases[number + 1 :])
                segments += [prefix] if prefix is not None else []
                break
        if gap:
            segment.file.close()
        if gap and _is_torn(storage, segments[-1].base_offset, bases[number:], clean):
            _remove_segments(storage, bases[number:])
            break
        if gap:
            fault = f"the segment before it ends at offset {segments[-1].next_offset}"
            damage.append(Damage(log_name(base), segments[-1].next_offset, 0, fault))
            before_loss()
            _quarantine_behind(storage, [base, *bases[number + 1 :]])
            break
        segments.append(segment)
        if last:
            break
    return segments, walked, rebuilt, cut, damage


def _from_index(storage: Storage, base: int) -> Segment | None:
    """Return the sealed segment with base offset ``base``, from its index file.

    None: there is no index, or it does not fit the segment file [S6].
    """
    summary = decode_index(storage.load(index_name(base)))
    if summary is None or summary.base_offset != base:
        return None
    file = storage.open(log_name(base))
    if summary.size_bytes == file.size_bytes:
        return Segment.from_summary(file, summary)
    file.close()
    return None


def _open_and_scan(storage: Storage, base: int) -> tuple[Segment, SegmentContents]:
    segment = Segment(base, storage.open(log_name(base)), base)
    return segment, walk(segment)


def _is_torn(storage: Storage, base: int, behind: list[int], clean: bool) -> bool:
    """Return whether the segment ``base`` was not flushed completely before a crash, so that its end may be truncated.

    That is so if the segments ``behind`` it have no complete batch.
    """
    if clean or decode_index(storage.load(index_name(base))) is not None:
        return False
    for later in behind:
        segment, contents = _open_and_scan(storage, later)
        segment.file.close()
        if contents.end or contents.changed_in_place:
            return False
    return True


def _remove_segments(storage: Storage, bases: list[int]) -> None:
    """Remove the segments with the base offsets ``bases``, newest first, so that a crash leaves no gap."""
    for base in reversed(bases):
        _remove_segment(storage, base)


def _remove_segment(storage: Storage, base: int) -> None:
    storage.remove(index_name(base))
    storage.remove(log_name(base))
    storage.sync_folder()


def _quarantine_segment(storage: Storage, segment: Segment, contents: SegmentContents, later: list[int]) -> Segment | None:
    """Quarantine a damaged segment and all ``later`` ones. Return a segment with its valid part. None: no part is valid.

    The valid part becomes a new file. If the disk has no room for it, the damaged part does, and the file is truncated.
    ``contents``: result of reading the damaged segment. ``later``: base offsets of the segments after it.
    """
    _quarantine_behind(storage, later)
    name = log_name(segment.base_offset)
    if contents.end:
        try:
            _copy(storage, segment.file, 0, contents.end, name + _VALID_PART)
        except NoSpaceError:
            _truncate_damage(storage, segment, contents)
            return segment
    segment.file.close()
    quarantine(storage, segment.base_offset, DAMAGED)
    if not contents.end:
        return None
    storage.rename(name + _VALID_PART, name)
    storage.sync_folder()
    return _open_and_scan(storage, segment.base_offset)[0]


def _truncate_damage(storage: Storage, segment: Segment, contents: SegmentContents) -> None:
    """Truncate a damaged segment at its first fault. First copy the rest into a quarantined file.

    Raises NoSpaceError if the disk has no room for the rest, and valid batches follow the fault. Without such batches, the rest
    is lost.
    """
    try:
        _copy(
            storage,
            segment.file,
            contents.end,
            segment.file.size_bytes,
            _quarantine_name(storage, segment.base_offset, DAMAGED),
        )
    except NoSpaceError:
        if contents.valid_behind:
            raise
    storage.remove(index_name(segment.base_offset))
    storage.sync_folder()
    segment.file.truncate(contents.end)


def _finish_quarantine(storage: Storage, names: Iterable[str]) -> None:
    """Complete the quarantine of a damaged segment, if a crash interrupted it. ``names``: files in the directory."""
    for name in names:
        damaged = name.removesuffix(_VALID_PART)
        if name == damaged:
            continue
        if damaged in names:
            storage.remove(name)  # the damaged segment has not been renamed, so recovery finds it again
        else:
            storage.rename(name, damaged)
            storage.sync_folder()


def _quarantine_behind(storage: Storage, bases: list[int]) -> None:
    """Quarantine the valid segments after a damaged one, newest first, so that a crash leaves no gap. ``bases``: base offsets."""
    for base in reversed(bases):
        quarantine(storage, base, BEHIND)


# ---- proof of durability ---------------------------------------------------------------------------------------------


def mark_failed_flush(storage: Storage, error: Exception) -> None:
    """Store in the directory that a flush failed with ``error``, for the next start. If that fails too, ignore it."""
    with suppress(StorageError):
        storage.replace(FLUSH_FAILED_NAME, str(error).encode())


def failed_flush(storage: Storage) -> str:
    """Return the error text of a flush that failed before this start. '': no flush failed."""
    mark = storage.load(FLUSH_FAILED_NAME)
    return "" if mark is None else mark.decode(errors="replace") or "a flush failed"


def forget_failed_flush(storage: Storage) -> None:
    """Remove the mark of a failed flush. The metadata group must know by then which replicas may lack records.

    Until then, each start must find the mark: with it, damage in any log makes all replicas incomplete. Raises StorageError.
    """
    storage.remove(FLUSH_FAILED_NAME)
    storage.sync_folder()


def finish_splits(storage: Storage, names: Iterable[str]) -> None:
    """Complete the split of a segment into two files, if a crash interrupted it. ``names``: files in the directory."""
    for name in names:
        match = _TAIL.fullmatch(name)
        if match is not None:
            _cut(storage, match[1], storage.open(match[1]), int(match[2])).close()
            storage.rename(name, log_name(int(match[3])))
            storage.sync_folder()


def prove(
    storage: Storage, segments: list[Segment], checkpoint: Checkpoint, names: Collection[str], *, flush_failed: bool = False
) -> tuple[list[Segment], int]:
    """Make the recovered segments and the file names durable: write data again that is not proven to be on disk [S1, S4, S12].

    After a kill, unflushed data may be only in the page cache. After a failed flush, Linux marks the pages clean, and the next
    ``fdatasync`` succeeds without writing. So only this counts as durable:

    - a sealed segment whose checksummed index fits (the index is written after the flush),
    - data at or below the high watermark of the checkpoint.

    All other data is copied into a new file, which is flushed and replaces the old one. A file with a proven beginning is split
    there (``_split``), so that only data since the last checkpoint is copied. If the disk has no room, the bytes are written
    again in place.

    Args:
        storage: Directory of the partition.
        segments: Recovered segments, ascending.
        checkpoint: Checkpoint as read. It may not be durable.
        names: Names of the files in the directory.
        flush_failed: True if there is a mark of a failed flush.

    Returns:
        The segments, and the number of bytes that were written again.

    Raises:
        StorageError: The disk failed.
    """
    proven_end_offset = checkpoint.high_watermark + 1
    positions = [_proven_position(segment, proven_end_offset) for segment in segments]
    doubtful = [s for s, position in zip(segments, positions, strict=True) if position < s.size_bytes]
    if (
        len(doubtful) > 1
    ):  # otherwise the name of a later segment may become durable before the bytes of an earlier one, which looks like damage
        for segment in doubtful:
            with suppress(StorageError):
                segment.file.sync()
    proved: list[Segment] = []
    for segment, position in zip(segments, positions, strict=True):
        proved += [segment] if position == segment.size_bytes else _rewrite(storage, segment, position)
    base_offset = segments[0].base_offset if segments else 0
    _make_names_durable(storage, names, anew=flush_failed or checkpoint.log_start_offset > base_offset)
    return proved, sum(s.size_bytes for s in segments) - sum(positions)


def seal_segment(storage: Storage, segment: Segment) -> None:
    """Write the index file of a segment that is durable. If the disk is full, write nothing, because the index can be rebuilt."""
    with suppress(NoSpaceError):
        storage.replace(index_name(segment.base_offset), encode_index(segment.summary()))
    segment.sealed = True
    segment.file.seal()


def _proven_position(segment: Segment, proven_end_offset: int) -> int:
    """Return the position up to which the data of ``segment`` is certainly on disk.

    An index or the checkpoint proves it. ``proven_end_offset``: offset (exclusive) that the checkpoint proves.
    """
    if segment.sealed or proven_end_offset >= segment.next_offset:
        return segment.size_bytes
    return segment.locate(proven_end_offset) if proven_end_offset > segment.base_offset else 0


def _make_names_durable(storage: Storage, names: Collection[str], *, anew: bool) -> None:
    """Make the small files durable that recovery relies on. Their current content may be only in the page cache.

    ``anew``: True to write the checkpoint again, too. This is slow with thousands of logs, and an older checkpoint only makes
    recovery write more data again. But the log start must not fall back to an older value. So the caller sets ``anew`` if the
    log start is above the base offset of the first segment, and after a failed flush.
    """
    for name in (CHECKPOINT_NAME, HORIZON_NAME) if anew else (HORIZON_NAME,):
        data = storage.load(name) if name in names else None
        if data is not None:
            with suppress(NoSpaceError):
                storage.replace(name, data)
    storage.sync_folder()


def _rewrite(storage: Storage, segment: Segment, position: int) -> list[Segment]:
    """Write the bytes of the segment from ``position`` on again, so that they are durable. Return the result as one segment or two."""
    try:
        return _split(storage, segment, position) if position else [_replace_by_copy(storage, segment)]
    except NoSpaceError:
        segment.file.rewrite(position)
        return [segment]


def _replace_by_copy(storage: Storage, segment: Segment) -> Segment:
    segment.file = _copy_in_place(storage, log_name(segment.base_offset), segment.file, segment.size_bytes)
    return segment


def _split(storage: Storage, segment: Segment, position: int) -> list[Segment]:
    """Split a segment file at ``position`` P, where a batch of offset o begins. A crash may interrupt it at any step.

    1. The rest is written to ``<o>.log.tmp``, flushed, and renamed to ``<base>.log.<P>-<o>.tail``.
    2. ``<base>.log`` is truncated at P.
    3. The tail is renamed to ``<o>.log``. ``finish_splits`` completes 2 and 3 after a crash.
    """
    base_offset = next(header.base_offset for _, header in segment.batches(position, position + 1))
    name = log_name(segment.base_offset)
    tail_name = f"{name}.{position}-{base_offset:020d}.tail"
    _copy(storage, segment.file, position, segment.size_bytes, tail_name)
    storage.remove(index_name(segment.base_offset))  # an old index of either file: it must not fit the remaining bytes
    file = _cut(storage, name, segment.file, position)
    storage.rename(tail_name, log_name(base_offset))
    storage.sync_folder()
    tail = Segment(base_offset, storage.open(log_name(base_offset)), base_offset)
    contents = walk(tail)
    if contents.fault:
        raise StorageError(
            f"{log_name(base_offset)}: the records cannot be read after the write: {contents.fault}. Check the disk."
        )
    head = _head_of(segment, file, position, tail)
    seal_segment(storage, head)
    return [head, tail]


def _head_of(segment: Segment, file: LogFile, position: int, tail: Segment) -> Segment:
    whole = bisect_left(segment.entries, position, key=lambda entry: entry.position) - 1
    entry = segment.entries[whole]
    head = Segment(segment.base_offset, file, segment.base_offset, checked=segment.checked)
    head.first_timestamp_ns, head.max_timestamp_ns = segment.first_timestamp_ns, entry.max_timestamp_ns
    head.entries = segment.entries[:whole]
    head.epochs = [(epoch, start) for epoch, start in segment.epochs if start < entry.base_offset]
    head.size_bytes = position  # the scan of the headers ends there
    for at, header in list(head.batches(entry.position, position)):
        head.note(header, at)
    head.record_count = segment.record_count - tail.record_count
    return head


def _cut(storage: Storage, name: str, file: LogFile, position: int) -> LogFile:
    """Truncate ``file`` durably at ``position``, and return it. If a flush of the file has failed, return a copy that replaces it."""
    try:
        file.truncate(position)
        return file
    except NoSpaceError:
        raise
    except StorageError:
        return _copy_in_place(storage, name, file, position)


def _copy_in_place(storage: Storage, name: str, file: LogFile, end: int) -> LogFile:
    _copy(storage, file, 0, end, name)
    file.close()
    return storage.open(name)


def _copy(storage: Storage, file: LogFile, start: int, end: int, name: str) -> None:
    """Copy the bytes ``start`` to ``end`` of ``file`` into a new durable file ``name``.

    Raises StorageError. In that case there is no new file. If the copy is larger than the free space, nothing is written, because
    running partitions need this space, and the caller may try again and again.
    """
    size_bytes, free_bytes = end - start, storage.free_bytes()
    if size_bytes > free_bytes:
        raise NoSpaceError(
            f"Cannot write {name}: it needs {size_bytes} bytes, but {free_bytes} bytes are free. Free space on the disk."
        )
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
