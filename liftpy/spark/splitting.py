"""Where ranges are cut into tasks, and a micro-batch ends: by bytes, at the borders of record batches. Pure.

Who reads a range in parts gets a batch that lies across a border twice, once for each part. So ranges are cut where a batch begins, as
the partition's leader says (``liftpy.log.borders``): a function of the range, the options and that answer, which is the same on each
replica and each time, so that a micro-batch that is run again has the same tasks. Compacted partitions, whose batches change, and those
of older nodes, which do not say, are cut evenly by offsets.

Worked example: partition 0 has 900 MB in batches of 10 MB, partition 1 100 MB, minPartitions = 5. Shares of 5 by size are 4.5 and 0.5,
rounded up, so that there are never fewer than were asked for: 5 and 1. Partition 0 is cut at the last batches that begin at or before
180, 360, 540 and 720 MB; partition 1 is not cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from liftpy.client.ranges import RangeFacts
from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError
from liftpy.spark.offsets import Bounds
from liftpy.spark.planning import PlannedRange, check_pieces, split_ranges


@dataclass(frozen=True, slots=True)
class RangeQuestion:
    """About [``start``, ``end``) of partition ``key`` of the stream with ``uid``: how large it is and, with a step, where its batches
    begin."""

    key: tuple[str, int]
    uid: str
    start: int
    end: int
    every_bytes: int = 0
    every_records: int = 0


Measure = Callable[[Sequence[RangeQuestion]], list[RangeFacts]]
"""An answer to each question, in their order."""


def epochs_before(offsets: Bounds, uids: Mapping[str, str], measure: Measure) -> Bounds:
    """(stream, partition) -> LeaderEpoch of the record before an offset, which must be kept and committed; 0 where it is not known."""
    asked = [RangeQuestion(key, uids[key[0]], offset, offset) for key, offset in offsets.items() if offset > 0]
    return {question.key: facts.end_epoch for question, facts in zip(asked, measure(asked) if asked else [], strict=True)}


def about(planned: PlannedRange, start: int | None = None, *, every_bytes: int = 0, every_records: int = 0) -> RangeQuestion:
    """What to ask of ``planned``, or of what it has from ``start`` on."""
    begin = planned.start_offset if start is None else start
    return RangeQuestion(
        (planned.stream, planned.partition), planned.uid, begin, planned.end_offset, every_bytes, every_records
    )


def split_at_borders(ranges: list[PlannedRange], min_partitions: int, max_records: int, measure: Measure) -> list[PlannedRange]:
    """``ranges`` cut into at least ``min_partitions`` pieces, in proportion to their bytes, and into pieces of at most ``max_records``;
    unchanged, and nobody asked, where they suffice. 0: no such wish.

    A batch is cut in two only where that is the only way: fewer batches than pieces, or one with more than ``max_records``.
    """
    check_pieces(ranges, min_partitions, max_records)
    pieces = ranges
    if min_partitions > len(ranges):
        pieces = _by_bytes(ranges, min_partitions, measure)
    if max_records:
        pieces = _by_records(pieces, max_records, measure)
    return pieces


def _by_bytes(ranges: list[PlannedRange], wanted: int, measure: Measure) -> list[PlannedRange]:
    sizes = [facts.size_bytes or 0 for facts in measure([about(planned) for planned in ranges])]
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
    """Ends at or below ``ends`` that together take at most ``limit_bytes``, each where a batch begins; one batch at least if any.

    Partitions share evenly, but none gets more than it has; what no batch fits in goes to those that have most waiting. Raises
    ConfigError where nodes are too old to say how large a range is.
    """
    waiting = [key for key in sorted(ends) if ends[key] > starts.get(key, ends[key])]
    asked = [RangeQuestion(key, uids[key[0]], starts[key], ends[key]) for key in waiting]
    facts = measure(asked)
    if any(found.size_bytes is None for found in facts):
        raise ConfigError("maxBytesPerTrigger needs nodes that tell sizes: upgrade them all, or use maxOffsetsPerTrigger")
    sizes = {key: found.size_bytes or 0 for key, found in zip(waiting, facts, strict=True)}
    if sum(sizes.values()) <= limit_bytes:
        return dict(ends)
    level = _level(limit_bytes, list(sizes.values()))
    taken = {key: ends[key] for key in waiting if sizes[key] <= level}
    left = limit_bytes - sum(sizes[key] for key in taken)
    steps = [replace(question, every_bytes=max(level, 1)) for question in asked if question.key not in taken]
    firsts = []
    for question, found in zip(steps, measure(steps), strict=True):
        if found.borders and found.positions[0] <= level:
            taken[question.key], left = found.borders[0], left - found.positions[0]
        else:
            firsts.append(replace(question, every_bytes=1))
    firsts.sort(key=lambda question: (-sizes[question.key], question.key))
    for question, found in zip(firsts, measure(firsts) if firsts else [], strict=True):
        size = found.positions[0] if found.borders else sizes[question.key]
        if size <= left or not taken:
            taken[question.key], left = found.borders[0] if found.borders else question.end, left - size
    return {key: taken.get(key, starts.get(key, end)) for key, end in ends.items()}


def _level(limit: int, sizes: list[int]) -> int:
    """What each gets of ``limit`` if all get the same, and none more than its size."""
    left = limit
    for number, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - number)
        if size > share:
            return share
        left -= size
    return left
