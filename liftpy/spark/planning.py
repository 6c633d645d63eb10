"""Plans the ranges of a query from the state of its partitions, its start, its end and its options. Pure.

Invariants: R1 (no range goes past the high watermark), R5 and R8 (a planned range exists, or planning reports the
missing part), R9 (uid). Ranges have exclusive ends and are sorted by (stream, partition, start), so that a repeated
micro-batch has equal tasks.

A range is divided where a batch begins, because otherwise two tasks would both fetch the batch. A micro-batch that is
limited by bytes also ends where a batch begins. The leaders report these offsets (``liftpy.core.log.range_reads``).
They depend only on the range, the options and the answer, which is equal on each replica at any time. So a repeated
micro-batch has equal tasks. Compacted partitions, whose batches change, are divided evenly by offsets.

Worked example: partition 0 has 900 MB in batches of 10 MB, partition 1 has 100 MB, minPartitions = 5. The shares of 5
by size are 4.5 and 0.5. They are rounded up, so that there are never fewer tasks than requested: 5 and 1. Partition 0
is divided at the last batches that begin at or before 180, 360, 540 and 720 MB. Partition 1 is not divided.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import crc32c

from liftpy.client.progress import RangeFacts
from liftpy.errors import ConfigError, DataLossError, OffsetOutOfRangeError
from liftpy.spark.offsets import EARLIEST, LATEST, Bounds, OffsetSpec, in_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """State of one partition, from the answer of its leader.

    Attributes:
        replicas: Node ids, preferred leader first.
        leader: Id of the leader's node.
        leader_epoch: LeaderEpoch of the leader.
        log_start_offset: Oldest offset that is kept, inclusive.
        end_offset: HW + 1, exclusive.
        compacted: True if offsets may be missing.
        starting_at: First offset with a timestamp at or after the requested start time. None: no time was requested.
        ending_at: First offset with a timestamp at or after the requested end time. None: no time was requested.
        end_epoch: LeaderEpoch of the last committed record. 0: not known.
        cut_at: Offset below which planned or read records may be unchanged after an unclean election. None: none was lost.
        lost_ends: Ends (exclusive) of read or planned ranges that were lost.
        deletes_end: Offset (exclusive) below which delete markers may be gone.
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
        return self.stream, self.partition


MAX_PIECES = 1_000_000
"""Maximum number of ranges of one partition. Each is a task."""

Views = Mapping[tuple[str, int], PartitionView]


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """Range of records that one task reads. It has everything that ``read()`` needs, because that runs in another process.

    ``start_epoch`` and ``leader_epoch`` show if an unclean election has replaced records since the range was planned.

    Attributes:
        start_offset: First offset, inclusive.
        end_offset: End of the range, exclusive.
        leader_epoch: Highest LeaderEpoch of its records: that of the last record, or of the leader if that is not
            known.
        leader: Id of the leader's node.
        replicas: Nodes that may serve the range.
        compacted: True if there may be fewer records than offsets.
        planned_ns: Time at which a batch query was planned, ns since 1970. 0 in a streaming query, whose micro-batches
            do not
            depend on that time.
        start_epoch: Lowest LeaderEpoch of its records: that of the record before the range. 0: not known.
        last: (offset, LeaderEpoch) of the last record of the whole planned range that this one is a part of. Epoch 0:
            not known.
        moves_end: True if the query has no end. The read then continues to the offset up to which the answering
            replicas
            have compacted [R11].
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
        """Upper bound of the number of records. It is exact unless the log was compacted."""
        return self.end_offset - self.start_offset

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition} [{self.start_offset}, {self.end_offset})"


def resolve_starts(spec: OffsetSpec, views: Views) -> Bounds:
    """Return the first offset to read of each partition, inclusive. ``spec``: start of the query.

    Raises OffsetOutOfRangeError for an offset past the committed end. ``plan_ranges`` checks offsets below the log start.
    """
    starts = {
        key: _resolve(spec, key, view, view.log_start_offset, view.starting_at)
        for key, view in _check_coverage(spec, views, "startingOffsets").items()
    }
    _check_committed(starts, views, "startingOffsets")
    return starts


def resolve_ends(spec: OffsetSpec, views: Views) -> Bounds:
    """Return the end offset of each partition, exclusive. ``spec``: end of the query.

    Raises OffsetOutOfRangeError for an end that is not committed yet [R1].
    """
    ends = {
        key: _resolve(spec, key, view, view.end_offset, view.ending_at)
        for key, view in _check_coverage(spec, views, "endingOffsets").items()
    }
    _check_committed(ends, views, "endingOffsets")
    return ends


def _check_committed(offsets: Bounds, views: Views, option: str) -> None:
    for key, offset in offsets.items():
        if offset > views[key].end_offset and offset not in views[key].lost_ends:
            raise OffsetOutOfRangeError(
                f"{option}: offset {offset} of {key[0]}/{key[1]} is beyond the committed end {views[key].end_offset} "
                "(exclusive). Wait until it is committed, or use latest."
            )


def _resolve(spec: OffsetSpec, key: tuple[str, int], view: PartitionView, default: int, timed: int | None) -> int:
    if spec.timed:
        timed_offset = view.end_offset if timed is None else timed
        if spec.must_match and timed_offset >= view.end_offset:
            raise OffsetOutOfRangeError(
                f"No committed record of {key[0]}/{key[1]} has a time of {spec.time_of(key)} ns or later. Use an "
                "earlier time, or set startingOffsetsByTimestampStrategy = latest."
            )
        return timed_offset
    if spec.back_records:
        return max(view.log_start_offset, view.end_offset - spec.back_records)
    offset = {"earliest": EARLIEST, "latest": LATEST}.get(spec.word)
    offset = dict(spec.offsets).get(key, default) if offset is None else offset
    return view.log_start_offset if offset == EARLIEST else view.end_offset if offset == LATEST else offset


def _check_coverage(spec: OffsetSpec, views: Views, option: str) -> Views:
    """Return ``views``. Raise ConfigError if the user's offsets or times do not name exactly the partitions in ``views``.

    ``option``: name of the option, for the error text.
    """
    if not spec.offsets and not spec.times:
        return views
    named = {key for key, _ in spec.offsets or spec.times}
    if lacking := sorted(key for key in set(views) - named if key[0] not in spec.open_streams):
        also = "" if spec.times else " (-2 means earliest, -1 latest)"
        raise ConfigError(f"{option} must name every partition. Missing: {_names(lacking)}{also}")
    if unknown := sorted(named - set(views)):
        raise ConfigError(f"{option} names partitions that do not exist or are not read: {_names(unknown)}. Remove them.")
    return views


def named_views(spec: OffsetSpec, views: Views) -> Views:
    """Return those of the partitions in ``views`` that the user's offsets or times name. If they name none, return all.

    The key ``others`` names all partitions of its stream.
    """
    named = {key for key, _ in spec.offsets or spec.times}
    return {key: view for key, view in views.items() if key in named or key[0] in spec.open_streams} or views


def _names(keys: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{stream}/{partition}" for stream, partition in keys)


def plan_ranges(views: Views, starts: Bounds, ends: Bounds, *, fail_on_data_loss: bool) -> tuple[list[PlannedRange], list[str]]:
    """Return (ranges to read, texts about lost records) of a query from ``starts`` (inclusive) to ``ends`` (exclusive).

    With ``fail_on_data_loss``, a loss raises DataLossError. Without it, the remaining records are read. Partitions of ``ends`` that
    ``starts`` does not name are read from the oldest record that is kept. Empty ranges are left out.
    """
    ranges: list[PlannedRange] = []
    losses: list[str] = []
    for key in sorted(ends):
        view = views.get(key)
        if view is None:
            if starts.get(key, 0) < ends[key]:
                losses.append(
                    f"NOT_FOUND {key[0]}/{key[1]}: offsets [{starts.get(key, 0)}, {ends[key]}) were planned, but the partition was "
                    "deleted, or the options of the query do not select it anymore"
                )
            continue
        start, end = starts.get(key, min(view.log_start_offset, ends[key])), ends[key]
        if view.cut_at is not None and {start, end} & set(view.lost_ends):
            losses.append(cut_text(view))
            if end in view.lost_ends:  # it was planned before records were lost
                end = max(start, min(end, view.cut_at))
            else:
                start = min(start, view.cut_at)
        if start > end:
            raise ConfigError(
                f"The start {start} of {key[0]}/{key[1]} is after its end {end}. Use an earlier start or a later end."
            )
        remaining_range, loss = _remaining_range(view, start, end)
        losses += [loss] if loss else []
        if remaining_range:
            ranges.append(remaining_range)
    if losses and fail_on_data_loss:
        raise DataLossError(
            "; ".join(losses)
            + (
                ". Start from existing records (startingOffsets with a new checkpoint), or read the others with "
                "failOnDataLoss=false."
            )
        )
    return ranges, losses


def before_cuts(starts: Bounds, views: Views) -> Bounds:
    """Return ``starts``, with earlier starts for partitions in which records before the start were lost.

    These starts move back to the first offset at which the log differs.
    """
    cuts = {key: views[key].cut_at for key, start in starts.items() if start in views[key].lost_ends}
    return starts | {key: min(starts[key], cut) for key, cut in cuts.items() if cut is not None}


def cut_text(view: PartitionView) -> str:
    """Return a text for the user about the records of a partition that an unclean election has lost."""
    return (
        f"{view.stream}/{view.partition}: an unclean election lost records that were committed when they were read or planned. "
        f"Only records below offset {view.cut_at} can be unchanged. The log now has LeaderEpoch {view.leader_epoch}"
    )


def with_epochs(ranges: list[PlannedRange], start_epochs: Bounds, end_epochs: Bounds) -> list[PlannedRange]:
    """Return ``ranges`` with the lowest and the highest LeaderEpoch that their records may have.

    ``start_epochs``, ``end_epochs``: LeaderEpoch of the record before the start or the end of each partition.
    """
    ranges_with_epochs = []
    for planned in ranges:
        key = (planned.stream, planned.partition)
        last = end_epochs.get(key, 0)
        ranges_with_epochs.append(
            replace(
                planned,
                start_epoch=start_epochs.get(key, 0),
                leader_epoch=last or planned.leader_epoch,
                last=(planned.end_offset - 1, last) if last else (-1, 0),
            )
        )
    return ranges_with_epochs


def with_moving_ends(ranges: list[PlannedRange], ending: OffsetSpec, views: Views) -> list[PlannedRange]:
    """Return ``ranges``, with moving ends for compacted partitions whose end ``ending`` is ``latest`` [R11].

    A moving end lets the read continue to the offset up to which the log is compacted.
    """
    if ending.timed or ending.back_records:
        return ranges
    named = dict(ending.offsets)
    moving = {key for key, view in views.items() if view.compacted and named.get(key, LATEST) == LATEST}
    return [replace(one, moves_end=True) if (one.stream, one.partition) in moving else one for one in ranges]


def _remaining_range(view: PartitionView, start: int, end: int) -> tuple[PlannedRange | None, str]:
    loss = ""
    first = max(start, view.log_start_offset)
    if first > start and start < end:
        loss = f"OFFSET_OUT_OF_RANGE {view.stream}/{view.partition}: offsets [{start}, {min(first, end)}) were deleted, "
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
    """Raise ConfigError if a range would be split into more than MAX_PIECES pieces.

    ``min_partitions``: minimum number of tasks. ``max_records``: maximum number of records of a task, 0: no limit.
    """
    for whole, count in zip(ranges, _counts(ranges, min_partitions, max_records), strict=True):
        if count > MAX_PIECES:
            raise ConfigError(
                f"{whole} would be divided into {count} tasks, but at most {MAX_PIECES} are possible. Decrease "
                "minPartitions, or increase maxRecordsPerPartition."
            )


def split_ranges(ranges: list[PlannedRange], min_partitions: int, max_records: int = 0) -> list[PlannedRange]:
    """Split ``ranges`` evenly by offsets into at least ``min_partitions`` pieces.

    ``max_records``: maximum number of records of a piece. 0: no limit.
    """
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


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Request for facts about the offsets from ``start`` to ``end`` (exclusive) of a partition.

    The answer has the size of the range. With a step, it also has batch boundaries.
    """

    key: tuple[str, int]
    uid: str
    start: int
    end: int
    every_bytes: int = 0
    every_records: int = 0


Measure = Callable[[Sequence[RangeRequest]], list[RangeFacts]]
"""Function that returns an answer to each request, in the order of the requests."""


def epochs_before(offsets: Bounds, uids: Mapping[str, str], measure: Measure) -> Bounds:
    """Return the LeaderEpoch of the record before each offset in ``offsets``. Partitions whose LeaderEpoch is unknown are missing.

    ``measure``: function that requests the facts from the leaders.
    """
    requests = [RangeRequest(key, uids[key[0]], offset, offset) for key, offset in offsets.items() if offset > 0]
    facts = measure(requests) if requests else []
    return {question.key: known.end_epoch for question, known in zip(requests, facts, strict=True) if known.end_epoch}


def about(planned: PlannedRange, start: int | None = None, *, every_bytes: int = 0, every_records: int = 0) -> RangeRequest:
    """Return a request for the size of the range ``planned``, from the offset ``start`` (None: its first offset) on.

    ``every_bytes``, ``every_records``: distance of the batch borders to return. 0: none.
    """
    begin = planned.start_offset if start is None else start
    return RangeRequest((planned.stream, planned.partition), planned.uid, begin, planned.end_offset, every_bytes, every_records)


def split_at_borders(ranges: list[PlannedRange], min_partitions: int, max_records: int, measure: Measure) -> list[PlannedRange]:
    """Split ``ranges`` at batch borders into at least ``min_partitions`` pieces of about equal size in bytes.

    ``max_records``: maximum number of records of a piece, 0: no limit. ``measure``: function that returns sizes and borders of ranges.
    """
    check_pieces(ranges, min_partitions, max_records)
    pieces = ranges
    if min_partitions > len(ranges):
        pieces = _by_bytes(ranges, min_partitions, measure)
    if max_records:
        pieces = _by_records(pieces, max_records, measure)
    return pieces


def _by_bytes(ranges: list[PlannedRange], wanted: int, measure: Measure) -> list[PlannedRange]:
    sizes = [facts.size_bytes for facts in measure([about(planned) for planned in ranges])]
    by_size = all(size and not planned.compacted for size, planned in zip(sizes, ranges, strict=True))
    weights = sizes if by_size else [planned.record_count for planned in ranges]
    total = sum(weights)
    counts = [min(-(-wanted * weight // total), r.record_count) for weight, r in zip(weights, ranges, strict=True)]
    cuts: list[list[int]] = [[] for _ in ranges]
    waiting = [(i, r.start_offset, sizes[i]) for i, r in enumerate(ranges) if counts[i] > 1 and by_size]
    while waiting:
        steps = [-(-size // (counts[i] - len(cuts[i]))) for i, _, size in waiting]
        questions = [about(ranges[i], start, every_bytes=step) for (i, start, _), step in zip(waiting, steps, strict=True)]
        more = []
        for (i, _, size), facts in zip(waiting, measure(questions), strict=True):
            room = counts[i] - 1 - len(cuts[i])
            cuts[i] += facts.borders[:room]
            if facts.borders and len(facts.borders) < room:  # an answer is bounded
                more.append((i, facts.borders[-1], size - facts.positions[-1]))
        waiting = more
    pieces = []
    for whole, own, count in zip(ranges, cuts, counts, strict=True):
        pieces += split_ranges(_cut(whole, own), count)  # again where there are fewer batches than pieces
    return pieces


def _by_records(ranges: list[PlannedRange], most: int, measure: Measure) -> list[PlannedRange]:
    cuts: list[list[int]] = [[] for _ in ranges]
    waiting = [(i, r.start_offset) for i, r in enumerate(ranges) if r.record_count > most and not r.compacted]
    while waiting:
        answers = measure([about(ranges[i], start, every_records=most) for i, start in waiting])
        more = []
        for (i, _), facts in zip(waiting, answers, strict=True):
            cuts[i] += facts.borders
            if facts.borders and ranges[i].end_offset - facts.borders[-1] > most:
                more.append((i, facts.borders[-1]))
        waiting = more
    pieces = [piece for whole, own in zip(ranges, cuts, strict=True) for piece in _cut(whole, own)]
    return split_ranges(pieces, 0, most)


def _cut(whole: PlannedRange, cuts: list[int]) -> list[PlannedRange]:
    marks = [whole.start_offset, *cuts, whole.end_offset]
    return [replace(whole, start_offset=a, end_offset=b) for a, b in itertools.pairwise(marks)]


def end_within_bytes(limit_bytes: int, starts: Bounds, ends: Bounds, uids: Mapping[str, str], measure: Measure) -> Bounds:
    """Return ends at or below ``ends`` so that a micro-batch has at most ``limit_bytes``, but at least one batch.

    ``measure``: function that returns the sizes of ranges. Each end is the beginning of a batch. The limit is divided evenly, but no
    partition gets more than it has. A partition whose first batch is larger than its part gets this batch if there is room. The
    partitions take turns to be the first one, which always gets a batch.
    """
    waiting = [key for key in sorted(ends) if ends[key] > starts.get(key, ends[key])]
    requests = [RangeRequest(key, uids[key[0]], starts[key], ends[key]) for key in waiting]
    facts = measure(requests)
    sizes = {key: range_facts.size_bytes for key, range_facts in zip(waiting, facts, strict=True)}
    if sum(sizes.values()) <= limit_bytes:
        return dict(ends)
    level = _level(limit_bytes, list(sizes.values()))
    parts = {key: (ends[key], sizes[key]) for key in waiting if sizes[key] <= level}
    steps = [replace(question, every_bytes=max(level, 1)) for question in requests if question.key not in parts]
    firsts = []
    for question, range_facts in zip(steps, measure(steps), strict=True):
        if range_facts.borders and range_facts.positions[0] <= level:
            parts[question.key] = range_facts.borders[0], range_facts.positions[0]
        else:
            firsts.append(replace(question, every_bytes=1))
    for question, range_facts in zip(firsts, measure(firsts) if firsts else [], strict=True):
        whole = question.end, sizes[question.key]
        parts[question.key] = (range_facts.borders[0], range_facts.positions[0]) if range_facts.borders else whole
    taken_ends: Bounds = {}
    left = limit_bytes
    for key in in_turn(waiting, crc32c.crc32c(repr([starts[key] for key in waiting]).encode())):
        end, size = parts[key]
        if size <= left or not taken_ends:
            taken_ends[key], left = end, left - size
    return {key: taken_ends.get(key, starts.get(key, end)) for key, end in ends.items()}


def _level(limit: int, sizes: list[int]) -> int:
    """Return the largest number that limits each of ``sizes`` so that their total is at most ``limit``.

    Sizes below the number keep their value, as in water filling.
    """
    left = limit
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return left
