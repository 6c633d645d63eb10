"""``stats``: statistics of streams over time, for each partition: rates, sizes, gaps, keys and subjects.

Threads of this process or executors read ranges like the source of Spark, and measure them (``RangeStats``). Each range returns only
a few sums.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.core.wire.batch import ByteArray
from liftpy.core.wire.batch_columns import BytesColumn, DictionaryColumn
from liftpy.core.wire.partitioner import hashes_of_column
from liftpy.errors import ConfigError
from liftpy.spark.catalog import Catalog
from liftpy.spark.offsets import OffsetSpec, check_spec_uids, known_positions, raise_to_start
from liftpy.spark.options import Access, Selection, SourceOptions
from liftpy.spark.pipelines.parallel import DEFAULT_TASKS, spread
from liftpy.spark.planning import MAX_PIECES, PlannedRange, plan_ranges, resolve_ends, resolve_starts, split_ranges
from liftpy.spark.process_connection import link_to
from liftpy.spark.range_reader import FetchRules, RangeReader, RetryingRequests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_RECORDS = 500_000
_NS_PER_S = 10**9
_SHOWN_SUBJECTS = 10
_MS, _S = 10**6, 10**9
WIDTHS_NS = (
    *(_MS, 10 * _MS, 100 * _MS, _S, 5 * _S, 15 * _S, 60 * _S, 300 * _S, 900 * _S, 3600 * _S, 21_600 * _S, 86_400 * _S),
    *(7 * 86_400 * _S, 28 * 86_400 * _S, 364 * 86_400 * _S, 3640 * 86_400 * _S),
)
"""Widths of buckets, each a multiple of the previous one. With the last one, 59 buckets cover all possible time."""
MAX_BUCKETS = 60
MAX_FIXED_BUCKETS = 2000
"""Maximum number of buckets of a given width."""
MAX_SUBJECTS = 1000
"""Number of subjects that are counted by name. All others count as one."""
OTHERS = "(others)"
_REGISTERS = 4096
_INDEX_BITS = 12
_RANK_BITS = 32 - _INDEX_BITS
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)
_SIZES = 32
_MOST_LINES = 12
"""Maximum number of partitions that a plot shows with one line each. With more, each stream is one line."""


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
    measures: RangeStats

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
        """Return the statistics of each stream, combined over all its partitions."""
        stream_stats: dict[str, PartitionStats] = {}
        for one in self.partitions:
            whole = stream_stats.get(one.stream)
            if whole is None:
                stream_stats[one.stream] = PartitionStats(one.stream, -1, _beside(one.measures))
            else:
                _add_partition_stats(whole.measures, one.measures)
        return list(stream_stats.values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
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
    tell: Callable[[int, int], None] | None = None,
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
        tell: Function that is called with the number of finished ranges and of all ranges. Default None.

    Returns:
        The report. Records that retention deletes during the run are listed in ``losses``.

    Raises:
        NotFoundError: No such stream, or an offset belongs to a deleted stream of this name.
        UnavailableError: The cluster did not answer in time.
        ConfigError: An argument is not allowed.

    Example:
        from liftpy.spark import Access, Selection, stats

        report = stats(Access(), Selection(streams=("orders",)))
        print([one.summary()["records"] for one in report.partitions])
    """
    if every_s and not WIDTHS_NS[0] <= every_s * _NS_PER_S <= WIDTHS_NS[-1]:
        raise ConfigError(
            f"every_s = {every_s} (--bucket) is outside 0.001..{WIDTHS_NS[-1] // _NS_PER_S}. Choose a value in this range."
        )
    width_ns = round(every_s * _NS_PER_S)
    options = SourceOptions(access=access, wanted=wanted, patience_s=patience_s)
    known = known_positions((starting, ending))
    views = Catalog(link_to(access), options).views(starting=starting, ending=ending, known=known)
    check_spec_uids((starting, ending), {view.stream: view.uid for view in views.values()})
    starts, ends = resolve_starts(starting, views), resolve_ends(ending, views)
    ends = raise_to_start(ends, starts)
    most = max((ends[key] - start for key, start in starts.items()), default=0)
    ranges, losses = plan_ranges(views, starts, ends, fail_on_data_loss=False)
    pieces = split_ranges(ranges, 0, max(PIECE_RECORDS, -(-most // MAX_PIECES) + 1))
    measure = partial(measure_range, access, width_ns, patience_s)
    totals = {
        key: PartitionStats(
            *key,
            RangeStats(start_offset=start, end_offset=start, width_ns=width_ns or WIDTHS_NS[0], is_fixed=bool(width_ns)),
        )
        for key, start in sorted(starts.items())
    }
    for planned in ranges:  # retention may have deleted the records before it
        totals[planned.stream, planned.partition].measures.start_offset = planned.start_offset
    for piece, measured in zip(pieces, spread(measure, pieces, spark=spark, tasks=tasks, tell=tell), strict=True):
        totals[piece.stream, piece.partition].measures.join(measured)
        losses += measured.losses.values()
    _as_wide(one.measures for one in totals.values())
    return StatsReport(list(totals.values()), losses)


def measure_range(access: Access, width_ns: int, patience_s: float, planned: PlannedRange) -> RangeStats:
    """Measure the records of the range ``planned``, in this process or in a Spark executor.

    ``width_ns``: width of a time bucket in nanoseconds, 0: it grows with the range. ``patience_s``: time limit without an answer, in
    seconds.
    """
    range_stats = RangeStats(
        start_offset=planned.start_offset,
        end_offset=planned.end_offset,
        width_ns=width_ns or WIDTHS_NS[0],
        is_fixed=bool(width_ns),
    )
    rules = FetchRules(patience_s=patience_s, fail_on_data_loss=False, note_loss=range_stats.note_loss)
    for pieces in RangeReader(link_to(access), planned, rules, [RetryingRequests]).read():
        for piece in one_by_one(pieces):
            range_stats.add(piece)
    range_stats.finish()
    return range_stats


def _as_wide(all_of_them: Iterable[RangeStats]) -> None:
    """Give the time buckets of all partitions one width, that of the widest, so that one plot can show them."""
    several = list(all_of_them)
    while several:
        widest = max(one.width_ns for one in several)
        for one in several:
            one.widen(widest)
        together = RangeStats(start_offset=0, end_offset=0, width_ns=widest, is_fixed=several[0].is_fixed)
        for one in several:
            for number in one.buckets:
                together.buckets.setdefault(number, Bucket())
        together.fit()
        if together.width_ns == widest:
            return
        several[0].widen(together.width_ns)


def _beside(one: RangeStats) -> RangeStats:
    joined_stats = RangeStats(
        start_offset=one.start_offset, end_offset=one.start_offset, width_ns=one.width_ns, is_fixed=one.is_fixed
    )
    joined_stats.first_ns = joined_stats.last_ns = one.first_ns
    _add_partition_stats(joined_stats, one)
    return joined_stats


def _add_partition_stats(whole: RangeStats, one: RangeStats) -> None:
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


# ---- one range -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sketch:
    """Estimator of the number of distinct entries (HyperLogLog). ``registers``: uint8[4096].

    The error is mostly within 1.6 %. Below some hundred entries, the result is exact or nearly exact.
    """

    registers: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(_REGISTERS, dtype=np.uint8))

    def add(self, hashes: NDArray[np.uint32]) -> None:
        index = (hashes >> np.uint32(_RANK_BITS)).astype(np.int64)
        rest = hashes & np.uint32((1 << _RANK_BITS) - 1)
        # frexp gives the exponent of the highest bit: the rank is the number of leading zeros of the rest, and one
        rank = (_RANK_BITS + 1 - np.frexp(rest.astype(np.float64))[1]).astype(np.uint8)
        np.maximum.at(self.registers, index, rank)

    def join(self, other: Sketch) -> None:
        np.maximum(self.registers, other.registers, out=self.registers)

    @property
    def count(self) -> int:
        """Estimated number of distinct entries."""
        zeros = int((self.registers == 0).sum())
        estimate = _ALPHA * _REGISTERS**2 / float(np.ldexp(1.0, -self.registers.astype(np.int64)).sum())
        if estimate <= 2.5 * _REGISTERS and zeros:
            estimate = _REGISTERS * math.log(_REGISTERS / zeros)
        elif estimate > 2**32 / 30:
            estimate = -(2**32) * math.log(max(1 - estimate / 2**32, 2**-32))
        return round(estimate)


@dataclass(slots=True)
class Bucket:
    """Sums over the records of one time bucket.

    ``key_bytes``, ``value_bytes``: sizes of keys and values. ``stored_bytes``: size of their batches. ``tombstones``: number of records
    with a null value. ``keys``, ``subjects``: estimators of the numbers of distinct keys and subjects.
    """

    records: int = 0
    tombstones: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    stored_bytes: int = 0
    keys: Sketch = field(default_factory=Sketch)
    subjects: Sketch = field(default_factory=Sketch)

    def join(self, other: Bucket) -> None:
        self.records += other.records
        self.tombstones += other.tombstones
        self.key_bytes += other.key_bytes
        self.value_bytes += other.value_bytes
        self.stored_bytes += other.stored_bytes
        self.keys.join(other.keys)
        self.subjects.join(other.subjects)


@dataclass(slots=True, kw_only=True)
class RangeStats:
    """Statistics of a range of one partition, from ``start_offset`` (inclusive) to ``end_offset`` (exclusive).

    It needs one pass and limited memory, and the result does not depend on the borders of the range. The time buckets are as
    wide as necessary, so that MAX_BUCKETS hold all records. Each width is a multiple of the previous one, so narrow buckets can
    be added up to wide ones.

    Attributes:
        buckets: Time buckets by their number, which is time // ``width_ns``.
        is_fixed: True if ``width_ns`` must not grow.
        missing: Number of offsets without a record.
        first_ns: Timestamp of the first record.
        last_ns: Timestamp of the last record.
        pause_ns: Longest time between two consecutive records, in nanoseconds.
        pause_at: Offset of the second of these two records. -1: there is no pause.
        first_at: Offset of the first record. -1: there is no record.
        back_steps: Number of records with an earlier timestamp than the record before.
        sizes: int64[32], number of values with 0, 1, 2-3, 4-7... bytes.
        largest: Size of the largest value, in bytes.
        subjects: Number of records per subject.
        losses: Text about records that retention deleted before they were read, by their first offset and their end. ``missing``
            does not count them.
    """

    start_offset: int
    end_offset: int
    width_ns: int = WIDTHS_NS[0]
    is_fixed: bool = False
    buckets: dict[int, Bucket] = field(default_factory=dict)
    missing: int = 0
    largest: int = 0
    first_ns: int = 0
    last_ns: int = 0
    pause_ns: int = 0
    pause_at: int = -1
    first_at: int = -1
    back_steps: int = 0
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_SIZES, dtype=np.int64))
    subjects: Counter[str] = field(default_factory=Counter)
    losses: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(bucket.records for bucket in self.buckets.values())

    def add(self, piece: BatchSlice) -> None:
        """Add the records of ``piece``, which follow the earlier ones."""
        stamps, count = piece.timestamps_ns(), piece.record_count
        self._note_times(stamps, piece.offsets())
        columns, window = piece.batch.columns, slice(piece.first_index, piece.end_index)
        values = _lengths(columns.values)[window]
        self.sizes += np.bincount(_powers(values), minlength=_SIZES)
        self.largest = max(self.largest, int(values.max(initial=0)))
        absent = ~columns.values.valid()[window] if columns.values.validity is not None else np.zeros(count, dtype=np.bool_)
        keys = None if columns.keys is None else _part(columns.keys, window)
        entries = np.zeros(count, dtype=np.uint32)
        if columns.subjects is not None:
            index = columns.subjects.index[window]
            self.count_subjects(_count_entries(columns.subjects, index))
            entries = hashes_of_column(_whole(columns.subjects.entries))[index]
        stored = piece.batch.header.size_bytes * count // piece.batch.record_count
        numbers = stamps // self.width_ns
        for number in np.unique(numbers).tolist():
            within = numbers == number
            bucket = self.buckets.setdefault(number, Bucket())
            records = int(within.sum())
            bucket.records += records
            bucket.tombstones += int(absent[within].sum())
            bucket.value_bytes += int(values[within].sum())
            bucket.stored_bytes += stored * records // count
            if columns.subjects is not None:
                bucket.subjects.add(np.unique(entries[within]))
            if keys is not None:
                there = within if keys.valid is None else within & keys.valid
                bucket.key_bytes += int(keys.lengths[there].sum())
                bucket.keys.add(hashes_of_column(keys)[there])
        self.fit()

    def _note_times(self, stamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        if self.first_at >= 0:
            stamps = np.concatenate(([self.last_ns], stamps))
        else:
            self.first_ns, self.first_at, offsets = int(stamps[0]), int(offsets[0]), offsets[1:]
        steps = np.diff(stamps)
        if len(steps):
            longest = int(steps.argmax())
            if steps[longest] > self.pause_ns:
                self.pause_ns, self.pause_at = int(steps[longest]), int(offsets[longest])
            self.back_steps += int((steps < 0).sum())
        self.last_ns = int(stamps[-1])

    def count_subjects(self, counts: Mapping[str, int]) -> None:
        """Add ``counts``, numbers of records by subject. At most MAX_SUBJECTS subjects are counted."""
        for name, count in counts.items():
            known = name in self.subjects or len(self.subjects) < MAX_SUBJECTS
            self.subjects[name if known else OTHERS] += count

    def join(self, later: RangeStats) -> None:
        """Add the statistics ``later`` of the range that follows in the same partition."""
        self.missing += later.missing
        self.end_offset = later.end_offset
        if later.records:
            if self.records:
                step = later.first_ns - self.last_ns
                self.back_steps += step < 0
                if step > self.pause_ns:
                    self.pause_ns, self.pause_at = step, later.first_at
            else:
                self.first_ns, self.first_at = later.first_ns, later.first_at
            if later.pause_ns > self.pause_ns:
                self.pause_ns, self.pause_at = later.pause_ns, later.pause_at
            self.back_steps += later.back_steps
            self.last_ns = later.last_ns
        self.largest = max(self.largest, later.largest)
        self.sizes = self.sizes + later.sizes
        self.count_subjects(later.subjects)
        self.widen(later.width_ns)
        later.widen(self.width_ns)
        for number, bucket in later.buckets.items():
            self.buckets.setdefault(number, Bucket()).join(bucket)
        self.fit()

    def widen(self, width_ns: int) -> None:
        """Widen the buckets to ``width_ns``, a multiple of their width. Do nothing if they have this width."""
        if width_ns <= self.width_ns:
            return
        narrow, factor = self.buckets, width_ns // self.width_ns
        self.buckets, self.width_ns = {}, width_ns
        for number, bucket in narrow.items():
            self.buckets.setdefault(number // factor, Bucket()).join(bucket)

    def fit(self) -> None:
        """Widen the time buckets until their number is within the limit. Raises ConfigError if the user has set the width."""
        while self.buckets and max(self.buckets) - min(self.buckets) >= (MAX_FIXED_BUCKETS if self.is_fixed else MAX_BUCKETS):
            if self.is_fixed:
                raise ConfigError(
                    f"The time range needs more than {MAX_FIXED_BUCKETS} buckets of {self.width_ns / _S:g} s. Use wider "
                    "buckets (--bucket) or a shorter range."
                )
            self.widen(WIDTHS_NS[WIDTHS_NS.index(self.width_ns) + 1])

    def note_loss(self, text: str, start_offset: int, end_offset: int) -> None:
        """Store that the records from ``start_offset`` (inclusive) to ``end_offset`` (exclusive) were deleted before they were read."""
        self.losses[start_offset, end_offset] = text

    def finish(self) -> None:
        """Calculate the number of missing offsets. Call it after the last record."""
        lost = reached = 0
        for start, end in sorted(self.losses):  # the reader may report a part of a loss again
            lost, reached = lost + max(0, end - max(start, reached)), max(end, reached)
        self.missing = self.end_offset - self.start_offset - self.records - lost

    def size_below(self, share: float) -> int:
        """Return a size that the given ``share`` of the values do not exceed.

        It is a power of two less one, or the largest size.
        """
        if not self.sizes.any():
            return 0
        power = int(np.searchsorted(np.cumsum(self.sizes), share * self.sizes.sum()))
        return min((1 << power) - 1, self.largest)


def _lengths(column: BytesColumn) -> NDArray[np.int64]:
    ends = column.ends.astype(np.int64)
    return ends - np.concatenate(([0], ends[:-1]))


def _count_entries(column: DictionaryColumn, index: NDArray[np.uint32]) -> dict[str, int]:
    names = [(entry or b"").decode("utf-8", "replace") for entry in column.entries.to_list()]
    counts = np.bincount(index, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count and name}


def _powers(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class of each size: 0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, and so on.

    The class is the number of binary digits of the size.
    """
    return np.minimum(np.frexp(sizes.astype(np.float64))[1], _SIZES - 1).astype(np.int64)


def _whole(column: BytesColumn) -> ByteArray:
    offsets = np.concatenate(([0], column.ends)).astype(np.int64)
    return ByteArray(offsets, column.data, None if column.validity is None else column.valid())


def _part(column: BytesColumn, window: slice) -> ByteArray:
    whole = _whole(column)
    valid = None if whole.valid is None else whole.valid[window]
    return ByteArray(whole.offsets[window.start : window.stop + 1], whole.data, valid)


# ---- plot ------------------------------------------------------------------------------------------------------------


def plot_problem() -> str:
    """Return why plots are not possible and what to do about it. '': they are possible."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed: pip install 'liftpy[spark]'"
    return ""


def save_plot(report: StatsReport, path: Path) -> None:
    """Draw ``report`` into the PNG file ``path``: four panels over time.

    matplotlib is imported only for this function, and needs no display. Raises ConfigError without matplotlib, or if the file
    cannot be written.
    """
    if problem := plot_problem():
        raise ConfigError(problem)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = report.partitions if len(report.partitions) <= _MOST_LINES else report.streams()
    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    (rate, size), (keys, values) = figure.subplots(2, 2)
    _over_time(rate, lines, "records/s", lambda row: row["records_s"])
    _over_time(size, lines, "MB/s (keys and values)", lambda row: row["bytes_s"] / 1e6)
    _over_time(keys, report.streams(), "distinct keys (lines), subjects (dashed)", lambda row: row["keys"])
    _over_time(keys, report.streams(), "", lambda row: row["subjects"], dashed=True)
    _sizes(values, report.streams())
    rate.legend(fontsize="small")
    figure.suptitle(
        f"{', '.join(one.stream for one in report.streams()) or 'nothing'}: buckets of {report.width_s:g} s, times in UTC"
    )
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise ConfigError(f"Cannot write the chart to {path}: {error}. Check the path (--plot).") from error


def _name(one: PartitionStats) -> str:
    return one.stream if one.partition < 0 else f"{one.stream}/{one.partition}"


def _over_time(
    axes: Any, lines: Sequence[PartitionStats], title: str, value: Callable[[dict[str, Any]], float], *, dashed: bool = False
) -> None:
    for number, one in enumerate(lines):
        series = one.series()
        times = [datetime.fromtimestamp(row["start_ns"] / 1e9, UTC) for row in series]
        style: dict[str, Any] = {"linestyle": "--"} if dashed else {"label": _name(one)}
        axes.step(times, [value(row) for row in series], where="post", marker=".", color=f"C{number % 10}", **style)
    if title:
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.tick_params(axis="x", rotation=30)


def _sizes(axes: Any, lines: Sequence[PartitionStats]) -> None:
    width = 0.8 / max(1, len(lines))
    most = max((int(one.measures.sizes.nonzero()[0].max(initial=0)) for one in lines), default=0)
    for number, one in enumerate(lines):
        axes.bar([power + number * width for power in range(most + 1)], one.measures.sizes[: most + 1], width, label=_name(one))
    axes.set_xticks(range(most + 1), [str(1 << power >> 1) for power in range(most + 1)], rotation=60, fontsize="small")
    axes.set_title("records by size of the value (bytes, at least)")
    axes.grid(alpha=0.3, axis="y")
