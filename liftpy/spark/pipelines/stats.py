"""``stats``: statistics of streams over time: rates, sizes, gaps, keys, subjects, for each partition.

Ranges are read as Spark's source reads them and measured where they are read (``measures``), in threads here or by executors: what
travels is a few sums for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from liftpy.client.batch_view import one_by_one
from liftpy.errors import ConfigError
from liftpy.spark.catalog import Catalog
from liftpy.spark.failures import coded
from liftpy.spark.offsets import OffsetSpec, never_back
from liftpy.spark.options import Access, Selection, SourceOptions
from liftpy.spark.pipelines.parallel import DEFAULT_TASKS, spread
from liftpy.spark.pipelines.range_figures import WIDTHS_NS, Bucket, Measures
from liftpy.spark.planning import MAX_PIECES, PlannedRange, plan_ranges, resolve_ends, resolve_starts, split_ranges
from liftpy.spark.process_connection import link_to
from liftpy.spark.retrying_fetch import FetchRules, fetch_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_RECORDS = 500_000
_NS_PER_S = 10**9
_SHOWN_SUBJECTS = 10


@dataclass(slots=True)
class PartitionStats:
    """Statistics of one partition, or of a whole stream (``partition`` -1).

    Attributes:
        stream: Name of the stream.
        partition: Number of the partition.
        measures: The measured values.
    """

    stream: str
    partition: int
    measures: Measures

    @property
    def span_s(self) -> float:
        """Time between the first and the last record, in seconds."""
        return max(0, self.measures.last_ns - self.measures.first_ns) / _NS_PER_S

    def series(self) -> list[dict[str, Any]]:
        """Return one row per time bucket, also for empty buckets."""
        numbers, width_s = self.measures.buckets, self.measures.width_ns / _NS_PER_S
        if not numbers:
            return []
        return [
            _row(number * self.measures.width_ns, width_s, numbers.get(number, Bucket()))
            for number in range(min(numbers), max(numbers) + 1)
        ]

    def summary(self) -> dict[str, Any]:
        """Return all totals as plain values.

        ``records_s`` is the average rate, ``peak_records_s`` the rate in the busiest bucket.
        """
        m, series = self.measures, self.series()
        total = Bucket()
        for bucket in m.buckets.values():
            total.join(bucket)
        width_s = m.width_ns / _NS_PER_S
        return {
            "stream": self.stream,
            "partition": self.partition,
            "start_offset": m.start_offset,
            "end_offset": m.end_offset,
            "records": total.records,
            "tombstones": total.tombstones,
            "key_bytes": total.key_bytes,
            "value_bytes": total.value_bytes,
            "stored_bytes": total.stored_bytes,
            "first_ns": m.first_ns,
            "last_ns": m.last_ns,
            "records_s": total.records / max(self.span_s, width_s) if total.records else 0.0,
            "peak_records_s": max((row["records_s"] for row in series), default=0.0),
            "value_p50": m.size_below(0.5),
            "value_p99": m.size_below(0.99),
            "value_largest": m.largest,
            "keys": total.keys.count,
            "subjects": len(m.subjects),
            "largest_subjects": dict(m.subjects.most_common(_SHOWN_SUBJECTS)),
            "missing_offsets": m.missing,
            "longest_pause_s": m.pause_ns / _NS_PER_S,
            "longest_pause_before": m.pause_at if m.pause_ns else -1,
            "back_steps": m.back_steps,
        }


def _row(start_ns: int, width_s: float, bucket: Bucket) -> dict[str, Any]:
    return {
        "start_ns": start_ns,
        "records": bucket.records,
        "records_s": bucket.records / width_s,
        "bytes_s": (bucket.key_bytes + bucket.value_bytes) / width_s,
        "stored_bytes": bucket.stored_bytes,
        "tombstones": bucket.tombstones,
        "keys": bucket.keys.count,
        "subjects": bucket.subjects.count,
    }


@dataclass(slots=True)
class StatsReport:
    """Statistics of several partitions.

    Attributes:
        partitions: Statistics per partition, with equal bucket widths.
        losses: Records that retention deleted before they could be read, as text.
    """

    partitions: list[PartitionStats]
    losses: list[str]

    @property
    def width_s(self) -> float:
        """Width of a time bucket, in seconds."""
        return max((one.measures.width_ns for one in self.partitions), default=WIDTHS_NS[0]) / _NS_PER_S

    def streams(self) -> list[PartitionStats]:
        """Return the statistics of each stream over all its partitions."""
        found: dict[str, PartitionStats] = {}
        for one in self.partitions:
            whole = found.get(one.stream)
            if whole is None:
                found[one.stream] = PartitionStats(one.stream, -1, _beside(one.measures))
            else:
                _join_beside(whole.measures, one.measures)
        return list(found.values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "width_s": self.width_s,
            "partitions": [{**one.summary(), "series": one.series()} for one in self.partitions],
            "streams": [{**one.summary(), "series": one.series()} for one in self.streams()],
            "losses": self.losses,
        }


def stats(
    access: Access,
    wanted: Selection,
    *,
    starting: OffsetSpec = OffsetSpec("earliest"),  # noqa: B008  # frozen
    ending: OffsetSpec = OffsetSpec("latest"),  # noqa: B008
    every_s: float = 0.0,
    spark: SparkSession | None = None,
    patience_s: float = 30.0,
    tasks: int = DEFAULT_TASKS,
) -> StatsReport:
    """Measure the committed records of some streams: rates, sizes, keys, gaps.

    Args:
        access: How to reach the cluster.
        wanted: Streams and partitions.
        starting: Where to start, inclusive. Default: earliest.
        ending: Where to stop, exclusive. Default: latest.
        every_s: Width of a time bucket, in seconds. Default 0: 60 buckets over the whole range.
        spark: Run in the executors of this session. Default None: in this process.
        patience_s: Time without any answer until an error, in seconds. Default 30.
        tasks: Number of tasks that run at once.

    Returns:
        The report. Records that retention deletes during the run are listed in ``losses``.

    Raises:
        NotFoundError: No such stream.
        UnavailableError: The cluster did not answer in time.
        ConfigError: An argument is not allowed.

    Example:
        from liftpy.spark import Access, Selection, stats

        report = stats(Access(), Selection(streams=("orders",)))
        print([one.summary()["records"] for one in report.partitions])
    """
    width_ns = round(every_s * _NS_PER_S)
    if every_s and not WIDTHS_NS[0] <= width_ns <= WIDTHS_NS[-1]:
        raise ConfigError(
            f"every_s = {every_s} (--bucket) is outside 0.001..{WIDTHS_NS[-1] // _NS_PER_S}. Choose a value in this range."
        )
    with coded():
        options = SourceOptions(access=access, wanted=wanted, patience_s=patience_s)
        views = Catalog(link_to(access), options).views(starting=starting, ending=ending)
        starts, ends = resolve_starts(starting, views), resolve_ends(ending, views)
        ends = never_back(ends, starts)
        most = max((ends[key] - start for key, start in starts.items()), default=0)
        ranges, losses = plan_ranges(views, starts, ends, fail_on_data_loss=False)
        pieces = split_ranges(ranges, 0, max(PIECE_RECORDS, -(-most // MAX_PIECES) + 1))
        measure = partial(measure_range, access, width_ns, patience_s)
        found = {
            key: PartitionStats(
                *key, Measures(start_offset=start, end_offset=start, width_ns=width_ns or WIDTHS_NS[0], is_fixed=bool(width_ns))
            )
            for key, start in sorted(starts.items())
        }
        for piece, measured in zip(pieces, spread(measure, pieces, spark=spark, tasks=tasks), strict=True):
            one = found[piece.stream, piece.partition].measures
            if not one.records:
                one.start_offset = piece.start_offset
            one.join(measured)
    _as_wide(one.measures for one in found.values())
    return StatsReport(list(found.values()), losses)


def measure_range(access: Access, width_ns: int, patience_s: float, planned: PlannedRange) -> Measures:
    """Measure one range, in this process or in an executor."""
    found = Measures(
        start_offset=planned.start_offset,
        end_offset=planned.end_offset,
        width_ns=width_ns or WIDTHS_NS[0],
        is_fixed=bool(width_ns),
    )
    for pieces in fetch_range(link_to(access), planned, FetchRules(patience_s=patience_s, fail_on_data_loss=False)):
        for piece in one_by_one(pieces):
            found.add(piece)
    found.finish()
    return found


def _as_wide(all_of_them: Iterable[Measures]) -> None:
    """Buckets of all partitions as wide as the widest, so that they can be put side by side, and fit together."""
    several = list(all_of_them)
    while several:
        widest = max(one.width_ns for one in several)
        for one in several:
            one.widen(widest)
        together = Measures(start_offset=0, end_offset=0, width_ns=widest, is_fixed=several[0].is_fixed)
        for one in several:
            for number in one.buckets:
                together.buckets.setdefault(number, Bucket())
        together.fit()
        if together.width_ns == widest:
            return
        several[0].widen(together.width_ns)


def _beside(one: Measures) -> Measures:
    made = Measures(start_offset=one.start_offset, end_offset=one.start_offset, width_ns=one.width_ns, is_fixed=one.is_fixed)
    made.first_ns = made.last_ns = one.first_ns
    _join_beside(made, one)
    return made


def _join_beside(whole: Measures, one: Measures) -> None:
    """Add another partition of the same stream, which is beside ``whole``, not after it."""
    if one.records:
        whole.first_ns = min(whole.first_ns, one.first_ns) if whole.records else one.first_ns
        whole.last_ns = max(whole.last_ns, one.last_ns)
    whole.start_offset, whole.end_offset = 0, whole.end_offset - whole.start_offset + one.end_offset - one.start_offset
    whole.missing += one.missing
    whole.largest = max(whole.largest, one.largest)
    whole.pause_ns = max(whole.pause_ns, one.pause_ns)
    whole.back_steps += one.back_steps
    whole.sizes = whole.sizes + one.sizes
    whole.count_subjects(one.subjects)
    for number, bucket in one.buckets.items():
        whole.buckets.setdefault(number, Bucket()).join(bucket)
