"""Test ``stats``: results equal a count of each record for any split into pieces. Test its plot."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.core.wire.batch import ByteArray, RecordBatch, parse_batch
from liftpy.core.wire.filters import keep_records
from liftpy.core.wire.partitioner import hashes_of_column
from liftpy.errors import ConfigError, NotFoundError
from liftpy.spark.offsets import OffsetSpec
from liftpy.spark.options import Access, Selection
from liftpy.spark.pipelines import stats as stats_module
from liftpy.spark.pipelines.parallel import spread
from liftpy.spark.pipelines.stats import MAX_BUCKETS, WIDTHS_NS, RangeStats, Sketch, save_plot, stats
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition

S = 10**9
ORDERS = Selection(("orders",))


def some_batches(seed: int, count: int = 12) -> list[RecordBatch]:
    rng = random.Random(seed)
    found: list[RecordBatch] = []
    offset, now = 5, 1_700_000_000 * S
    for _ in range(count):
        size = rng.randint(1, 40)
        values = [None if rng.random() < 0.1 else bytes(rng.choice((0, 1, 7, 8, 100, 5000))) for _ in range(size)]
        keys = (
            [None if rng.random() < 0.2 else b"k%d" % rng.randint(0, 30) for _ in range(size)] if rng.random() < 0.8 else None
        )
        subjects = [rng.choice(("a", "b.c", "")) for _ in range(size)] if rng.random() < 0.7 else None
        stamps = [now + rng.randint(-S // 2, 90 * S) for _ in range(size)] if rng.random() < 0.5 else None
        sealed = build_batch(
            values, keys=keys, subjects=subjects, base_offset=offset, leader_epoch=1, timestamp_ns=now, timestamps_ns=stamps
        )
        batch = parse_batch(memoryview(sealed))
        mask = np.array([rng.random() < 0.9 for _ in range(size)])
        found.append(parse_batch(memoryview(keep_records(batch, mask))) if mask.any() and rng.random() < 0.3 else batch)
        offset, now = batch.next_offset, now + rng.randint(0, 120 * S)
    return found


def measured(batches: list[RecordBatch], start: int, end: int, **more: Any) -> RangeStats:
    found = RangeStats(start_offset=start, end_offset=end, **more)
    for batch in batches:
        piece = BatchSlice.between(batch, start, end)
        if piece is not None:
            found.add(piece)
    found.finish()
    return found


def test_spark_stats_lists_records_that_retention_deletes_during_the_run(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node.add_stream("orders").partitions[0]
    for first in range(0, 50, 10):
        log.append(build_batch([b"x"] * 10, base_offset=first, leader_epoch=1, timestamp_ns=S))
    answer = FakeNode.answer

    def answer_late(self: FakeNode, name: str, stream: str, number: int, request: Any) -> Any:
        if not request.boundsOnly:
            log.log_start_offset = 20
        return answer(self, name, stream, number, request)

    monkeypatch.setattr(FakeNode, "answer", answer_late)
    report = stats(access, ORDERS, patience_s=5.0)
    (one,) = report.partitions
    assert (one.measures.records, one.measures.missing) == (30, 0)
    assert len(report.losses) == 1
    assert "offsets [0, 20) were deleted" in report.losses[0]


def test_spark_stats_of_a_partition_without_its_first_records_count_all_offsets(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats_module, "PIECE_RECORDS", 100)
    log = node.add_stream("orders").partitions[0]
    log.compacted = True
    log.append(build_batch([b"x"] * 50, base_offset=250, leader_epoch=1, timestamp_ns=S))
    report = stats(access, ORDERS, patience_s=5.0)
    for one in (report.partitions[0].summary(), report.streams()[0].summary()):
        assert (one["start_offset"], one["end_offset"], one["records"], one["missing_offsets"]) == (0, 300, 50, 250)


def test_spark_stats_count_records_once_that_two_requests_report_as_deleted() -> None:
    """The reader asks again for a part of a range if an earlier answer was too small."""
    found = RangeStats(start_offset=0, end_offset=50)
    for start, end in ((10, 20), (5, 20), (5, 12), (30, 40)):
        found.note_loss("", start, end)
    found.finish()
    assert found.missing == 25


@pytest.mark.parametrize("seed", range(8))
def test_spark_stats_of_a_batch_equal_counts_made_record_by_record(seed: int) -> None:
    batches = some_batches(seed)
    start, end = batches[0].base_offset, batches[-1].next_offset
    records = [record for batch in batches for record in batch.records()]
    found = measured(batches, start, end)
    assert found.records == len(records)
    assert found.missing == end - start - len(records)
    assert found.subjects == Counter(record.subject for record in records if record.subject)
    assert (found.first_ns, found.last_ns) == (records[0].timestamp_ns, records[-1].timestamp_ns)
    steps = [(b.timestamp_ns - a.timestamp_ns, b.offset) for a, b in itertools.pairwise(records)]
    assert found.pause_ns == max(step for step, _ in steps)
    assert (found.pause_ns, found.pause_at) in steps
    assert found.back_steps == sum(step < 0 for step, _ in steps)
    sizes = [len(record.value or b"") for record in records]
    assert found.largest == max(sizes)
    assert found.sizes.tolist() == [sum(size.bit_length() == power for size in sizes) for power in range(32)]
    assert found.width_ns in WIDTHS_NS
    assert max(found.buckets) - min(found.buckets) < MAX_BUCKETS
    for number, bucket in found.buckets.items():
        own = [record for record in records if record.timestamp_ns // found.width_ns == number]
        assert bucket.records == len(own)
        assert bucket.tombstones == sum(record.value is None for record in own)
        assert bucket.value_bytes == sum(len(record.value or b"") for record in own)
        assert bucket.key_bytes == sum(len(record.key or b"") for record in own)
        assert bucket.keys.count == len({record.key for record in own if record.key is not None})


@pytest.mark.parametrize("seed", [*range(8), pytest.param(127, id="a pause before a gap")])
def test_spark_stats_of_pieces_of_any_size_sum_to_the_stats_of_the_whole(seed: int) -> None:
    batches, rng = some_batches(seed), random.Random(seed)
    start, end = batches[0].base_offset, batches[-1].next_offset
    cuts = sorted({start, end, *(rng.randint(start, end) for _ in range(4))})
    pieces = [measured(batches, a, b) for a, b in itertools.pairwise(cuts)]
    joined = RangeStats(start_offset=start, end_offset=start)
    for piece in pieces:
        joined.join(piece)
    whole = measured(batches, start, end)
    assert (joined.start_offset, joined.end_offset) == (start, end)
    for name in ("records", "missing", "largest", "first_ns", "last_ns", "pause_ns", "back_steps", "subjects", "width_ns"):
        assert getattr(joined, name) == getattr(whole, name), name
    records = [record for batch in batches for record in batch.records()]
    assert (joined.pause_ns, joined.pause_at) in [
        (b.timestamp_ns - a.timestamp_ns, b.offset) for a, b in itertools.pairwise(records)
    ]
    assert joined.sizes.tolist() == whole.sizes.tolist()
    for number, bucket in whole.buckets.items():
        other = joined.buckets[number]
        assert (bucket.records, bucket.value_bytes, bucket.keys.count) == (other.records, other.value_bytes, other.keys.count)


def test_spark_stats_bucket_width_option_sets_the_bucket_width() -> None:
    batches = some_batches(1)
    start, end = batches[0].base_offset, batches[-1].next_offset
    assert measured(batches, start, end, width_ns=7 * S, is_fixed=True).width_ns == 7 * S
    with pytest.raises(ConfigError, match=r"more than 2000 buckets of 0\.05 s"):
        measured(batches, start, end, width_ns=S // 20, is_fixed=True)


@pytest.mark.parametrize(("count", "within"), [(0, 0), (1, 0), (50, 0.03), (1000, 0.05), (200_000, 0.06)])
def test_spark_stats_estimate_the_number_of_distinct_keys(count: int, within: float) -> None:
    sketch = Sketch()
    for start in range(0, count, 50_000):
        hashes = hashes_of_column(ByteArray.of([b"key-%d" % i for i in range(start, min(count, start + 50_000))]))
        sketch.add(hashes)
        sketch.add(hashes)
    assert abs(sketch.count - count) <= within * count


def test_spark_stats_subjects_above_the_limit_are_counted_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "MAX_SUBJECTS", 2)
    found = RangeStats(start_offset=0, end_offset=0)
    found.count_subjects({"a": 1, "b": 2, "c": 3, "d": 4})
    assert found.subjects == {"a": 1, "b": 2, "(others)": 7}


# ---- streams ----------------------------------------------------------------------------------------------------------------
def fill(log: FakePartition, batches: int, *, step_s: float = 1.0, size: int = 100) -> None:
    for _ in range(batches):
        first = log.log_end_offset
        values = [bytes(i % 50) for i in range(size)]
        keys = [b"k%d" % (i % 10) for i in range(size)]
        at = 1_700_000_000 * S + int(first / size * step_s * S)
        log.append(build_batch(values, keys=keys, base_offset=first, leader_epoch=1, timestamp_ns=at, subjects=["s"] * size))


def test_spark_stats_contain_each_partition_and_the_whole_stream(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stats_module, "PIECE_RECORDS", 300)
    stream = node.add_stream("orders", partitions=3)
    fill(stream.partitions[0], 20)
    fill(stream.partitions[1], 10, step_s=30)
    report = stats(access, ORDERS)
    first, second, empty = (one.summary() for one in report.partitions)
    assert report.width_s == 5.0
    assert (first["records"], first["keys"], first["missing_offsets"], first["longest_pause_s"]) == (2000, 10, 0, 1.0)
    assert first["value_bytes"] == 20 * sum(i % 50 for i in range(100))
    assert (first["records_s"], first["peak_records_s"]) == (2000 / 19, 100.0)
    assert (first["value_p50"], first["value_p99"], first["value_largest"]) == (31, 49, 49)
    assert (second["records"], second["longest_pause_s"], second["largest_subjects"]) == (1000, 30.0, {"s": 1000})
    assert (empty["records"], empty["keys"], empty["records_s"]) == (0, 0, 0.0)
    series = report.partitions[1].series()
    assert len(series) == 55
    assert [row["records"] for row in series[:13]] == [100, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 100]
    whole = report.streams()[0].summary()
    assert (whole["records"], whole["keys"], whole["longest_pause_s"], whole["end_offset"]) == (3000, 10, 30.0, 3000)
    assert sum(row["records"] for row in report.streams()[0].series()) == 3000
    assert json.loads(json.dumps(report.to_json()))["streams"][0]["records"] == 3000


def test_spark_stats_of_an_offset_range_include_only_the_range(access: Access, node: FakeNode) -> None:
    fill(node.add_stream("orders").partitions[0], 10)
    some = stats(
        access, ORDERS, starting=OffsetSpec(offsets=((("orders", 0), 150),)), ending=OffsetSpec(offsets=((("orders", 0), 420),))
    )
    assert (some.partitions[0].summary()["records"], some.partitions[0].measures.start_offset) == (270, 150)
    assert stats(access, ORDERS, every_s=3.0).width_s == 3.0
    for wrong in (1e-9, 1e12, math.nan):
        with pytest.raises(ConfigError, match="every_s"):
            stats(access, ORDERS, every_s=wrong)
    with pytest.raises(NotFoundError, match="'none' does not exist"):
        stats(access, Selection(("none",)))


def test_spark_parallel_jobs_without_spark_run_in_threads_and_return_results_in_order() -> None:
    assert spread(lambda n: n * n, list(range(20)), spark=None, tasks=3) == [n * n for n in range(20)]
    assert spread(lambda n: n, [], spark=None) == []
    with pytest.raises(ConfigError, match="tasks"):
        spread(lambda n: n, [1], spark=None, tasks=65)


def test_spark_parallel_job_error_in_an_executor_is_raised_as_the_original_error() -> None:
    raised = type("PythonException", (Exception,), {"__module__": "pyspark.errors.exceptions.captured"})

    class Job:
        def parallelize(self, pieces: list[int], slices: int) -> Job:
            self.pieces = pieces
            assert slices == len(pieces)
            return self

        def map(self, work: Any) -> Job:
            self.work = work
            return self

        def collect(self) -> list[int]:
            try:
                return [self.work(piece) for piece in self.pieces]
            except Exception as error:  # as Spark does, which passes on a text
                raise raised(f"Job aborted\n{type(error).__module__}.{type(error).__name__}: {error}\n at x") from None

    def work(piece: int) -> int:
        if piece == 3:
            raise NotFoundError("it is gone")
        return piece

    spark: Any = SimpleNamespace(sparkContext=Job())
    assert spread(work, [1, 2], spark=spark) == [1, 2]
    with pytest.raises(NotFoundError, match=r"^it is gone$"):
        spread(work, [1, 3], spark=spark)


# ---- the plot ---------------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_spark_stats_plot_contains_each_partition(access: Access, node: FakeNode, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    stream = node.add_stream("orders", partitions=2)
    fill(stream.partitions[0], 20)
    report = stats(access, ORDERS)
    save_plot(report, tmp_path / "stats.png")
    drawn = (tmp_path / "stats.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) > 20_000
    with pytest.raises(ConfigError, match="Cannot write the chart to"):
        save_plot(report, tmp_path / "none" / "stats.png")
    node.add_stream("orders")
    save_plot(stats(access, ORDERS), tmp_path / "empty.png")
