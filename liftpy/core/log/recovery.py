"""Opens a partition directory: keeps valid data, truncates a torn tail, quarantines damage [S1, S3, S5-S7].

Valid data is made durable before it is served [S4, S12].

1. Files of an interrupted replacement are deleted, an interrupted split is completed (``rewrite_unflushed.py``), and
the checkpoint is read.
2. Sealed segments use their index if it fits. Others are read completely, the last one always.
3. A fault in the last segment with nothing good after it is a torn tail, and is truncated. Any other fault is damage:
the segment and all later ones are quarantined, and the report names the missing offsets. The replica then leaves the
ISR and fetches them again.
4. After an unclean stop, data that is not proven durable is written again. Then sealed segments get their missing
index.
5. The high watermark is limited to the log [D7]. If the checkpoint is above the log, committed records are missing, and
the report says so.

Quarantined files are kept until the replica holds the records again: ``<name>.log.damaged-<n>`` for damaged segments,
``<name>.log.behind-<n>`` for good ones after them. ``drop_set_aside`` deletes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from liftpy.core.log.compaction_point import HORIZON_NAME
from liftpy.core.log.rewrite_unflushed import FLUSH_FAILED_NAME, failed_flush, finish_splits, prove, seal
from liftpy.core.log.segment import Segment, Walk, index_name, log_name, walk
from liftpy.core.log.small_files import CHECKPOINT_NAME, EPOCHS_NAME, STATE_PREFIX, Checkpoint, decode_checkpoint, decode_index
from liftpy.core.log.storage import Storage

DAMAGED_KEPT = 3
"""Damaged segments that ``drop_set_aside`` leaves as evidence, those of the highest offsets."""
DAMAGED, BEHIND = "damaged", "behind"
_NAME = re.compile(rf"\d+\.log\.({DAMAGED}|{BEHIND})-\d+")


def set_aside(storage: Storage, base_offset: int, why: str) -> None:
    """Rename the segment at ``base_offset``; its index goes. ``why``: DAMAGED or BEHIND."""
    storage.remove(index_name(base_offset))
    taken = set(storage.names())
    name = f"{log_name(base_offset)}.{why}"
    number = next(n for n in range(len(taken) + 1) if f"{name}-{n}" not in taken)
    storage.rename(log_name(base_offset), f"{name}-{number}")
    storage.sync_folder()


def names_set_aside(names: Iterable[str]) -> tuple[str, ...]:
    """Return the quarantined files among ``names``, sorted."""
    return tuple(sorted(name for name in names if _NAME.fullmatch(name)))


def drop_set_aside(storage: Storage) -> tuple[str, ...]:
    """Remove what is not needed any more, but for the last ``DAMAGED_KEPT`` damaged segments; return the names removed."""
    names = names_set_aside(storage.names())
    damaged = [name for name in names if f".{DAMAGED}-" in name]
    removed = tuple(name for name in names if name not in damaged[-DAMAGED_KEPT:])
    for name in removed:
        storage.remove(name)
    if removed:
        storage.sync_folder()
    return removed


_COPY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """A segment that was set aside. ``first_offset``: inclusive, the first one missing; ``fault``: what was found."""

    name: str
    first_offset: int
    position: int
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReport:
    """Result of opening a log. ``cut_bytes``: size of a torn tail. ``walked_bytes``: bytes read. ``damage``: quarantined
    parts.
    """

    cut_bytes: int = 0
    walked_bytes: int = 0
    rebuilt_indexes: int = 0
    damage: tuple[Damage, ...] = ()
    checkpoint_found: bool = True
    lost_committed: bool = False
    """The checkpoint's HW was above the log: records that were committed are gone here."""

    set_aside: tuple[str, ...] = ()
    """Files in the folder that were set aside, now or earlier."""

    lost_flushed: bool = False
    """The tail of a log that had been closed in good order was cut: no crash tears that, so what was flushed is gone."""

    rewritten_bytes: int = 0
    """What was not proven to be on the disk, and was written again."""

    flush_failed: str = ""
    """A flush of this log has failed since it was opened last, and why; '' when none has, or the disk did not take the mark."""

    @property
    def must_leave_isr(self) -> bool:
        """Whether this replica may miss records that it acknowledged."""
        return bool(self.damage) or self.lost_committed or self.lost_flushed


@dataclass(slots=True)
class Recovered:
    """Segments of an opened directory, in ascending order and without gaps between them."""

    segments: list[Segment]
    checkpoint: Checkpoint
    report: OpenReport
    storage: Storage
    small_files: dict[str, bytes] = field(default_factory=dict)
    """What a log reads besides: ``leader-epochs`` and ``compaction-horizon``, those that are there."""

    has_states: bool = False
    """Whether there are checkpoints of derived state."""

    @property
    def is_complete(self) -> bool:
        """Whether opening the log on it touches no file any more."""
        return bool(self.segments) and not self.segments[-1].sealed and not self.report.lost_committed


def recover(storage: Storage, *, clean: bool = False) -> Recovered:
    """Recover a directory so that its log can continue, and report what was found.

    ``clean``: the log was closed in good order, so that a tail that is cut now was damaged since.
    """
    names = storage.names()
    if any(name.endswith((".tmp", ".tail")) for name in names):
        for name in names:
            if name.endswith(".tmp"):
                storage.remove(name)
        finish_splits(storage, names)
        names = storage.names()
    flush_failed = failed_flush(storage) if FLUSH_FAILED_NAME in names else ""
    found = decode_checkpoint(storage.load(CHECKPOINT_NAME)) if CHECKPOINT_NAME in names else None
    checkpoint = found or Checkpoint()
    bases = sorted(int(n[:-4]) for n in names if n.endswith(".log") and n[:-4].isdigit())
    _remove_stray_indexes(storage, names, bases)
    segments, walked, rebuilt, cut, damage = _segments(storage, bases, checkpoint.log_start_offset, clean)
    if segments and segments[-1].next_offset < checkpoint.log_start_offset:
        for segment in reversed(segments):  # a fresh start (`Log.start_afresh`) died before it removed what was there
            segment.file.close()
            _remove_segment(storage, segment.base_offset)
        segments = []
    rewritten_bytes = 0
    if names and (not clean or flush_failed):
        segments, rewritten_bytes = prove(storage, segments, checkpoint, names, flush_failed=bool(flush_failed))
    for segment in segments[:-1]:
        if not segment.sealed:
            seal(storage, segment)
    if flush_failed:
        storage.remove(FLUSH_FAILED_NAME)
        storage.sync_folder()
    log_end_offset = segments[-1].next_offset if segments else checkpoint.log_start_offset
    report = OpenReport(
        cut_bytes=cut,
        walked_bytes=walked,
        rebuilt_indexes=rebuilt,
        damage=tuple(damage),
        set_aside=names_set_aside(storage.names() if damage else names),
        checkpoint_found=found is not None,
        lost_committed=checkpoint.high_watermark >= log_end_offset,
        lost_flushed=clean and cut > 0,
        rewritten_bytes=rewritten_bytes,
        flush_failed=flush_failed,
    )
    has_states = any(name.startswith(STATE_PREFIX) for name in names)
    small_files = {name: storage.load(name) for name in (EPOCHS_NAME, HORIZON_NAME) if name in names}
    return Recovered(
        segments, checkpoint, report, storage, {name: data for name, data in small_files.items() if data}, has_states
    )


def _remove_stray_indexes(storage: Storage, names: Iterable[str], bases: list[int]) -> None:
    """Remove indexes without a segment. A crash during a removal leaves them."""
    wanted = {index_name(base) for base in bases}
    for name in names:
        if name.endswith(".index") and name not in wanted:
            storage.remove(name)


def _segments(
    storage: Storage, bases: list[int], log_start_offset: int, clean: bool
) -> tuple[list[Segment], int, int, int, list[Damage]]:
    segments: list[Segment] = []
    walked = rebuilt = cut = 0
    damage: list[Damage] = []
    for number, base in enumerate(bases):
        if segments and base < segments[-1].next_offset:
            _remove_segment(storage, base)  # merged into the one before by compaction, which died before it removed the file
            continue
        last = number == len(bases) - 1
        if not last and bases[number + 1] <= log_start_offset:
            _remove_segment(storage, base)  # retention had moved the start and died before it removed the file
            continue
        segment = None if last else _from_index(storage, base)
        if segment is None:
            segment, found = _walked(storage, base)
            walked += segment.file.size_bytes
            rebuilt += not last
            torn = found.fault and not found.valid_behind and (last or _is_torn(storage, base, bases[number + 1 :], clean))
            if torn:
                _remove_segments(storage, bases[number + 1 :])
                last = True
                cut += segment.file.size_bytes - found.end
                segment.file.truncate(found.end)
            elif found.fault:
                damage.append(Damage(log_name(base), segment.next_offset, found.end, found.fault))
                kept = _set_aside(storage, segment, found, bases[number + 1 :])
                segments += [kept] if kept is not None else []
                break
        gap = bool(segments) and segment.base_offset != segments[-1].next_offset
        if gap:
            segment.file.close()
        if gap and _is_torn(storage, segments[-1].base_offset, bases[number:], clean):
            _remove_segments(storage, bases[number:])
            break
        if gap:
            fault = f"the segment before it ends at offset {segments[-1].next_offset}"
            damage.append(Damage(log_name(base), segments[-1].next_offset, 0, fault))
            _set_behind_aside(storage, [base, *bases[number + 1 :]])
            break
        segments.append(segment)
        if last:
            break
    return segments, walked, rebuilt, cut, damage


def _from_index(storage: Storage, base: int) -> Segment | None:
    """A sealed segment by its index, if that fits the file; an index is never believed against its segment [S6]."""
    summary = decode_index(storage.load(index_name(base)))
    if summary is None or summary.base_offset != base:
        return None
    file = storage.open(log_name(base))
    if summary.size_bytes == file.size_bytes:
        return Segment.from_summary(file, summary)
    file.close()
    return None


def _walked(storage: Storage, base: int) -> tuple[Segment, Walk]:
    segment = Segment(base, storage.open(log_name(base)), base)
    return segment, walk(segment)


def _is_torn(storage: Storage, base: int, behind: list[int], clean: bool) -> bool:
    """Return whether a segment that ends too early was never flushed completely, and the segments behind it are empty."""
    if clean or decode_index(storage.load(index_name(base))) is not None:
        return False
    for later in behind:
        segment, found = _walked(storage, later)
        segment.file.close()
        if found.end or found.valid_behind:
            return False
    return True


def _remove_segments(storage: Storage, bases: list[int]) -> None:
    """Remove segments, newest first, so that a crash leaves no gap."""
    for base in reversed(bases):
        _remove_segment(storage, base)


def _remove_segment(storage: Storage, base: int) -> None:
    storage.remove(index_name(base))
    storage.remove(log_name(base))
    storage.sync_folder()


def _set_aside(storage: Storage, segment: Segment, found: Walk, later: list[int]) -> Segment | None:
    """Copy the valid part of a damaged segment into a new file. Quarantine the damaged segment and all later ones."""
    _set_behind_aside(storage, later)
    name = f"{log_name(segment.base_offset)}.tmp"
    kept = storage.create(name)
    for position in range(0, found.end, _COPY_BYTES):
        kept.append([segment.file.read(position, min(_COPY_BYTES, found.end - position))])
    kept.sync()
    kept.close()
    segment.file.close()
    set_aside(storage, segment.base_offset, DAMAGED)
    if not found.end:
        storage.remove(name)
        storage.sync_folder()
        return None
    storage.rename(name, log_name(segment.base_offset))
    storage.sync_folder()
    return _walked(storage, segment.base_offset)[0]


def _set_behind_aside(storage: Storage, bases: list[int]) -> None:
    """Quarantine segments, newest first, so that a crash leaves no gap."""
    for base in reversed(bases):
        set_aside(storage, base, BEHIND)
