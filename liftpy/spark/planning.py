"""Which records a query reads: a pure function of what the partitions hold, the wanted start and end, and the options.

Holds R1 (nothing past HW), R5 and R8 (a range that is planned is there, or planning says what is missing), R9 (uid). Ranges
are end-exclusive and sorted by (stream, partition, start), so that a replayed micro-batch has the same tasks. How ranges are
cut into tasks is said in ``splitting``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError, DataLossError, OffsetOutOfRangeError
from liftpy.spark.offsets import EARLIEST, LATEST, Bounds, OffsetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """What one partition holds, as its leader answered.

    ``replicas``: node ids, preferred leader first. ``leader``: node id. ``leader_epoch``: the leader's. ``log_start_offset``:
    oldest offset kept, inclusive. ``end_offset``: HW + 1, exclusive. ``compacted``: offsets may have holes. ``starting_at``,
    ``ending_at``: first offset stamped at or after the wanted times, None when no time was asked for. ``end_epoch``: LeaderEpoch of
    the last committed record, 0: not known. ``cut_at``: an unclean election lost records that were read or planned: at most those
    below it are the same; None: not so. ``lost_ends``: ends, exclusive, of what was read or planned, that were lost.
    ``deletes_end``: exclusive: delete markers below it may be gone.
    """

    stream: str
    uid: str
    partition: int
    replicas: tuple[str, ...]
    leader: str
    leader_epoch: int
    log_start_offset: int
    end_offset: int
    compacted: bool = False
    starting_at: int | None = None
    ending_at: int | None = None
    end_epoch: int = 0
    cut_at: int | None = None
    lost_ends: tuple[int, ...] = ()
    deletes_end: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """(stream, partition)."""
        return self.stream, self.partition


MAX_PIECES = 1_000_000
"""Of one partition: each is a task."""

Views = Mapping[tuple[str, int], PartitionView]


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One task's work; all that ``read()`` knows, for it runs on another object in another process.

    ``start_offset`` inclusive, ``end_offset`` exclusive. ``leader_epoch``: none of its records has one above it, ``start_epoch``: none
    has one below it: those of the record at its end and of the one before it, where they are known (else the leader's, and 0), so
    that a record rewritten since by an unclean election shows. ``last``: (offset, LeaderEpoch) of the last record of the range that
    this one was cut from, epoch 0: not known. ``leader``, ``replicas``: who may serve.
    ``compacted``: there may be fewer records than offsets. ``moves_end``: the end moves to where the compaction of the replicas that
    answer has looked [R11], because nobody named it. ``planned_ns``: when a batch query was planned, ns since 1970; 0 in a
    streaming query, whose micro-batches are the same whenever they are planned.
    """

    stream: str
    uid: str
    partition: int
    start_offset: int
    end_offset: int
    leader_epoch: int
    leader: str
    replicas: tuple[str, ...]
    compacted: bool = False
    planned_ns: int = field(default=0, compare=False)
    start_epoch: int = 0
    last: tuple[int, int] = (-1, 0)
    moves_end: bool = False

    @property
    def record_count(self) -> int:
        """Upper bound of its records; exact unless the log was compacted."""
        return self.end_offset - self.start_offset

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition} [{self.start_offset}, {self.end_offset})"


def resolve_starts(spec: OffsetSpec, views: Views) -> Bounds:
    """(stream, partition) -> first offset to read, inclusive; OffsetOutOfRangeError for one that is past the committed end.

    One below the log start is for ``plan_ranges`` to judge.
    """
    starts = {
        key: _resolve(spec, key, view, view.log_start_offset, view.starting_at)
        for key, view in _covered(spec, views, "startingOffsets").items()
    }
    _check_committed(starts, views, "startingOffsets")
    return starts


def resolve_ends(spec: OffsetSpec, views: Views) -> Bounds:
    """(stream, partition) -> end, exclusive; OffsetOutOfRangeError for an end that is not committed yet [R1]."""
    ends = {
        key: _resolve(spec, key, view, view.end_offset, view.ending_at)
        for key, view in _covered(spec, views, "endingOffsets").items()
    }
    _check_committed(ends, views, "endingOffsets")
    return ends


def _check_committed(offsets: Bounds, views: Views, option: str) -> None:
    for key, offset in offsets.items():
        if offset > views[key].end_offset and offset not in views[key].lost_ends:
            raise OffsetOutOfRangeError(
                f"{option}: {offset} of {key[0]}/{key[1]} is past the committed end {views[key].end_offset} (exclusive); "
                "wait until it is committed, or use latest"
            )


def _resolve(spec: OffsetSpec, key: tuple[str, int], view: PartitionView, default: int, timed: int | None) -> int:
    if spec.timed:
        found = view.end_offset if timed is None else timed
        if spec.must_match and found >= view.end_offset:
            raise OffsetOutOfRangeError(
                f"no committed record of {key[0]}/{key[1]} is stamped at or after {spec.time_of(key)} ns: take an earlier time, or "
                "what comes next with startingOffsetsByTimestampStrategy = latest"
            )
        return found
    if spec.back_records:
        return max(view.log_start_offset, view.end_offset - spec.back_records)
    offset = {"earliest": EARLIEST, "latest": LATEST}.get(spec.word)
    offset = dict(spec.offsets).get(key, default) if offset is None else offset
    return view.log_start_offset if offset == EARLIEST else view.end_offset if offset == LATEST else offset


def _covered(spec: OffsetSpec, views: Views, option: str) -> Views:
    """``views``, if the offsets per partition name all of them and no other."""
    if not spec.offsets and not spec.times:
        return views
    named = {key for key, _ in spec.offsets or spec.times}
    if lacking := sorted(set(views) - named):
        also = "" if spec.times else " (-2 means earliest, -1 latest)"
        raise ConfigError(f"{option} must name every partition; missing: {_names(lacking)}{also}")
    if unknown := sorted(named - set(views)):
        raise ConfigError(f"{option} names what is not there or not read: {_names(unknown)}")
    return views


def _names(keys: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{stream}/{partition}" for stream, partition in keys)


def plan_ranges(views: Views, starts: Bounds, ends: Bounds, *, fail_on_data_loss: bool) -> tuple[list[PlannedRange], list[str]]:
    """The tasks that read ``starts`` (inclusive) to ``ends`` (exclusive), and what is lost, in words.

    With ``fail_on_data_loss`` a loss is DataLossError; without it the rest is read. Partitions of ``ends`` that ``starts`` does
    not name are read from the oldest record that is kept. Empty ranges make no task.
    """
    ranges: list[PlannedRange] = []
    losses: list[str] = []
    for key in sorted(ends):
        view = views.get(key)
        if view is None:
            if starts.get(key, 0) < ends[key]:
                losses.append(f"NOT_FOUND {key[0]}/{key[1]} is gone, with its offsets [{starts.get(key, 0)}, {ends[key]})")
            continue
        start, end = starts.get(key, min(view.log_start_offset, ends[key])), ends[key]
        if view.cut_at is not None and {start, end} & set(view.lost_ends):
            losses.append(cut_text(view))
            start, end = _around_cut(view.cut_at, start, end, planned=end in view.lost_ends)
        if start > end:
            raise ConfigError(f"the start {start} of {key[0]}/{key[1]} is behind its end {end}")
        kept, loss = _kept(view, start, end)
        losses += [loss] if loss else []
        if kept:
            ranges.append(kept)
    if losses and fail_on_data_loss:
        raise DataLossError(
            "; ".join(losses)
            + ". Start from what is kept (startingOffsets, new checkpoint), or read the rest with failOnDataLoss=false"
        )
    return ranges, losses


def before_cuts(starts: Bounds, views: Views) -> Bounds:
    """``starts``, where a record before one was lost from where the log that is there now begins to differ."""
    cuts = {key: views[key].cut_at for key, start in starts.items() if start in views[key].lost_ends}
    return starts | {key: min(starts[key], cut) for key, cut in cuts.items() if cut is not None}


def _around_cut(cut_at: int, start: int, end: int, *, planned: bool) -> tuple[int, int]:
    """What is read of [``start``, ``end``). Was it ``planned`` before records were lost, what is left of it; what is there in the place
    of the others is read by the first range that was chosen after, from where the new log begins."""
    return (start, max(start, min(end, cut_at))) if planned else (min(start, cut_at), end)


def cut_text(view: PartitionView) -> str:
    """What an unclean election did, in words."""
    return (
        f"{view.stream}/{view.partition}: records that were committed when they were read or planned are gone, an unclean election "
        f"lost them: at most those below {view.cut_at} are the same, what is there now is of LeaderEpoch {view.leader_epoch} or before"
    )


def with_epochs(ranges: list[PlannedRange], start_epochs: Bounds, end_epochs: Bounds) -> list[PlannedRange]:
    """``ranges`` with the LeaderEpochs at both ends, where they are known (and not 0): (stream, partition) -> that of the record before
    the start, and of the last one."""
    found = []
    for planned in ranges:
        key = (planned.stream, planned.partition)
        last = end_epochs.get(key, 0)
        found.append(
            replace(
                planned,
                start_epoch=start_epochs.get(key, 0),
                leader_epoch=last or planned.leader_epoch,
                last=(planned.end_offset - 1, last) if last else (-1, 0),
            )
        )
    return found


def with_moving_ends(ranges: list[PlannedRange], ending: OffsetSpec, views: Views) -> list[PlannedRange]:
    """``ranges``, which end at ``ending``, of which those of compacted partitions up to ``latest`` move their end [R11]: nobody named
    it. ``views``: of these ranges."""
    if ending.timed or ending.back_records:
        return ranges
    named = dict(ending.offsets)
    moving = {key for key, view in views.items() if view.compacted and named.get(key, LATEST) == LATEST}
    return [replace(one, moves_end=True) if (one.stream, one.partition) in moving else one for one in ranges]


def _kept(view: PartitionView, start: int, end: int) -> tuple[PlannedRange | None, str]:
    loss = ""
    first = max(start, view.log_start_offset)
    if first > start and start < end:
        loss = f"OFFSET_OUT_OF_RANGE {view.stream}/{view.partition}: offsets [{start}, {min(first, end)}) are gone, "
        loss += f"the log starts at {first}"
    if end > view.end_offset:
        loss = f"OFFSET_OUT_OF_RANGE {view.stream}/{view.partition}: offsets [{max(first, view.end_offset)}, {end}) were "
        loss += f"committed when the end was chosen, but the committed end is {view.end_offset}"
        end = view.end_offset
    if first >= end:
        return None, loss
    planned = PlannedRange(
        stream=view.stream,
        uid=view.uid,
        partition=view.partition,
        start_offset=first,
        end_offset=end,
        leader_epoch=view.leader_epoch,
        leader=view.leader,
        replicas=view.replicas,
        compacted=view.compacted,
    )
    return planned, loss


def check_pieces(ranges: list[PlannedRange], min_partitions: int, max_records: int = 0) -> None:
    """Raise ConfigError where one of ``ranges`` would be cut into more than MAX_PIECES."""
    for whole, count in zip(ranges, _counts(ranges, min_partitions, max_records), strict=True):
        if count > MAX_PIECES:
            raise ConfigError(f"{whole} would be cut into {count} pieces, more than {MAX_PIECES}: ask for larger ones")


def split_ranges(ranges: list[PlannedRange], min_partitions: int, max_records: int = 0) -> list[PlannedRange]:
    """``ranges`` cut evenly by offsets into at least ``min_partitions`` pieces, in proportion to their records, and into pieces of at
    most ``max_records``; unchanged where they suffice. 0: no such wish. ``splitting`` cuts at the borders of batches instead."""
    check_pieces(ranges, min_partitions, max_records)
    pieces: list[PlannedRange] = []
    for whole, wanted in zip(ranges, _counts(ranges, min_partitions, max_records), strict=True):
        count = min(wanted, whole.record_count)
        cuts = [whole.start_offset + whole.record_count * i // count for i in range(count + 1)]
        pieces += [replace(whole, start_offset=a, end_offset=b) for a, b in itertools.pairwise(cuts)]
    return pieces


def _counts(ranges: list[PlannedRange], min_partitions: int, max_records: int) -> list[int]:
    total = sum(r.record_count for r in ranges)
    wanted = min_partitions if min_partitions > len(ranges) else 0
    return [
        max(1, -(-wanted * r.record_count // total), -(-r.record_count // max_records) if max_records else 1) for r in ranges
    ]
