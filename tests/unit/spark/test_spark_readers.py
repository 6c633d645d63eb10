"""Test the driver side of the Spark readers without a JVM: offsets, the start of a query [R10], limits, AvailableNow, errors."""

from __future__ import annotations

import itertools
import json
import pickle
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from liftpy.core.wire.batch import build_filler, parse_batch
from liftpy.spark.catalog import Catalog
from liftpy.spark.failures import SourceError
from liftpy.spark.options import Access, Selection
from liftpy.spark.process_connection import ProcessConnection
from liftpy.spark.source import LiftDataSource, LiftReader, LiftStreamReader
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition

ALL = ReadAllAvailable()
EPOCH_1 = {"epochs": {"0": 1}}
Open = Callable[..., Any]


def append(log: FakePartition, count: int) -> None:
    first = log.log_end_offset
    log.append(build_batch([b"v%d" % i for i in range(first, first + count)], base_offset=first, leader_epoch=log.leader_epoch))


def streaming(source: LiftDataSource) -> LiftStreamReader:
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LiftStreamReader)
    return reader


def batch(source: LiftDataSource) -> LiftReader:
    reader = source.reader(source.schema())
    assert isinstance(reader, LiftReader)
    return reader


def ranges(partitions: list[Any]) -> list[tuple[int, int, int]]:
    return [(p.value.partition, p.value.start_offset, p.value.end_offset) for p in partitions]


def offsets(reader: LiftReader | LiftStreamReader, partitions: list[Any]) -> list[int]:
    """Read as Spark does: with another reader object and a pickled partition."""
    other = pickle.loads(pickle.dumps(type(reader)(reader.options)))
    return [i for p in pickle.loads(pickle.dumps(partitions)) for b in other.read(p) for i in b["offset"].to_pylist()]


def use_catalog(reader: LiftStreamReader, link: ProcessConnection, **arguments: Any) -> None:
    """Let the reader use a catalog with another clock or wait function."""
    reader._catalog = Catalog(link, reader.options, **arguments)


def wait_for_the_end_of_the_watch(reader: LiftStreamReader) -> None:
    while reader._open_catalog()._watched_views([]) is not None:
        time.sleep(0.002)


def without_start(end: dict[str, Any]) -> dict[str, Any]:
    """Return an end offset without the starts of partitions that were not read before, as in later micro-batches."""
    starts = ("began", "added")
    return {stream: {key: value for key, value in entries.items() if key not in starts} for stream, entries in end.items()}


def test_batch_query_returns_only_records_that_were_committed_at_planning(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 100)
    reader = batch(source(minPartitions="3"))
    plan = reader.partitions()
    append(log, 100)
    assert ranges(plan) == [(0, 0, 33), (0, 33, 66), (0, 66, 100)]  # of one batch
    assert offsets(reader, plan) == list(range(100))
    assert offsets(reader, plan) == list(range(100))


def keyed(log: FakePartition, value: bytes, *, epoch: int = 1) -> None:
    """Append one batch with ten keys."""
    first, keys = log.log_end_offset, [b"k%d" % i for i in range(10)]
    log.append(build_batch([value] * 10, keys=keys, base_offset=first, leader_epoch=epoch))


def rewrite_keys(log: FakePartition) -> None:
    """Write all keys again under another leader, and compact the log."""
    end = log.log_end_offset
    keyed(log, b"new", epoch=2)
    log.batches[:-1] = []
    filler = build_filler(0, end, 1, 1000)
    log.batches.insert(0, (parse_batch(memoryview(filler)).header, filler))
    log.leader_epoch, log.compacted_end = 2, log.log_end_offset
    append(log, 5)


@pytest.mark.parametrize("ending", [{}, {"endingOffsets": '{"orders": {"0": -1}}'}])
def test_batch_query_of_a_compacted_stream_up_to_latest_returns_every_key(
    ending: dict[str, str], source: Open, node: FakeNode
) -> None:
    log = node.add_stream("orders").partitions[0]
    log.compacted = True
    keyed(log, b"old")
    keyed(log, b"old")
    reader = batch(source(minPartitions="4", maxRecordsPerPartition="3", **ending))
    plan = reader.partitions()
    rewrite_keys(log)
    assert offsets(reader, plan) == list(range(20, 30)), "each key, and nothing past what compaction had looked at"


def test_batch_query_raises_tombstones_missed_if_compaction_deletes_unread_tombstones(
    source: Open, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node.add_stream("orders").partitions[0]
    log.compacted = True
    for _ in range(12):
        keyed(log, bytes(40_000))
    reader = batch(source())
    plan = reader.partitions()
    assert offsets(reader, plan) == list(range(120))
    answer = node.answer

    def drop_tombstones_behind_the_first(*question: Any) -> Any:
        found = answer(*question)
        if found[1]:
            log.deletes_end = 110
        return found

    monkeypatch.setattr(node, "answer", drop_tombstones_behind_the_first)
    with pytest.raises(SourceError, match=r"TOMBSTONES_MISSED.*orders/0.*Read again"):
        offsets(reader, plan)
    assert offsets(reader, plan) == list(range(120)), "the next reading begins behind them"


def test_batch_query_of_a_compacted_stream_up_to_an_offset_returns_no_later_records(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    log.compacted = True
    keyed(log, b"old")
    keyed(log, b"old")
    for ending in ({"endingOffsets": '{"orders": {"0": 20}}'}, {"endingTimestamp": "8000000000000"}):
        reader = batch(source(minPartitions="4", **ending))
        plan = reader.partitions()
        assert ranges(plan) == [(0, 0, 5), (0, 5, 10), (0, 10, 15), (0, 15, 20)]
        assert offsets(reader, plan) == list(range(20))
    rewrite_keys(log)
    assert offsets(reader, plan) == []


def test_batch_query_with_an_end_time_before_its_start_returns_no_records(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    for offset in range(10):
        log.append(build_batch([b"v"], base_offset=offset, leader_epoch=1, timestamp_ns=(1 + offset) * 10**9))
    at = json.dumps({"orders": {"0": 5}})
    for options, plan in (
        ({"startingOffsets": at, "endingTimestamp": "9000"}, [(0, 5, 8)]),
        ({"startingTimestamp": "2000", "endingOffsets": at}, [(0, 1, 5)]),
        ({"startingOffsets": at, "endingTimestamp": "3000"}, []),
        ({"startingTimestamp": "8000", "endingOffsets": at}, []),
        ({"startingTimestamp": "8000", "endingTimestamp": "3000"}, []),
    ):
        assert ranges(batch(source(**options)).partitions()) == plan


def test_streaming_query_returns_initial_and_latest_offsets_and_plans_the_range(source: Open, node: FakeNode) -> None:
    stream = node.add_stream("orders", partitions=2)
    append(stream.partitions[0], 100)
    reader = streaming(source(startingOffsets="earliest"))
    start = reader.initialOffset()
    assert start == {"orders": {"0": 0, "1": 0, "uid": "uid-orders"}}
    end = reader.latestOffset(start, ALL)
    assert end == {"orders": {"0": 100, "1": 0, "began": {"0": 0, "1": 0}, "epochs": {"0": 1}, "uid": "uid-orders"}}
    assert json.dumps(without_start(end)) == json.dumps(reader.reportLatestOffset())
    plan = reader.partitions(start, end)
    assert ranges(plan) == [(0, 0, 100)]
    assert offsets(reader, plan) == list(range(100))
    assert reader.partitions(end, end) == []


def rewrite(log: FakePartition, end_offset: int, epoch: int, count: int) -> None:
    """Simulate an unclean election: truncate the log at ``end_offset``, and append as the new leader."""
    while log.batches and log.batches[-1][0].next_offset > end_offset:
        log.batches.pop()
    log.leader_epoch, log.high_watermark = epoch, end_offset - 1
    if count:
        append(log, count)


@pytest.fixture
def cut_query(source: Open, node: FakeNode) -> tuple[FakePartition, Callable[..., LiftStreamReader], Any, Any]:
    """Return a log of three batches of ten records, and a query with a checkpoint at 10, 20 and 30."""
    log = node.add_stream("orders").partitions[0]
    for epoch in (1, 2, 2):
        log.leader_epoch = epoch
        append(log, 10)

    def restarted(**options: str) -> LiftStreamReader:
        return streaming(source(startingOffsets=json.dumps({"orders": {"0": 10}}), **options))

    first = restarted()
    start = without_start(first.latestOffset(first.initialOffset(), ReadMaxRows(10)))
    assert start == {"orders": {"0": 20, "epochs": {"0": 2}, "uid": "uid-orders"}}
    return log, restarted, start, first.latestOffset(start, ALL)


def test_streaming_query_offsets_contain_leader_epochs_and_stay_equal_without_new_records(source: Open, node: FakeNode) -> None:
    stream = node.add_stream("orders", partitions=2)
    append(stream.partitions[0], 10)
    stream.partitions[0].leader_epoch = 5
    append(stream.partitions[0], 10)
    reader = streaming(source(startingOffsets=json.dumps({"orders": {"0": 10, "1": 0}})))
    start = reader.initialOffset()
    assert start == {"orders": {"0": 10, "1": 0, "epochs": {"0": 1}, "uid": "uid-orders"}}
    end = without_start(reader.latestOffset(start, ALL))
    assert end == {"orders": {"0": 20, "1": 0, "epochs": {"0": 5}, "uid": "uid-orders"}}
    assert json.dumps(reader.latestOffset(end, ReadMaxRows(5))) == json.dumps(end)
    (planned,) = [p.value for p in reader.partitions(start, end)]
    assert (planned.start_epoch, planned.leader_epoch, planned.last) == (1, 5, (19, 5))
    old = {"orders": {"0": 10, "1": 0, "uid": "uid-orders"}}  # a checkpoint of before: it goes on, and has them from then on
    assert reader.latestOffset(old, ALL) == end
    assert offsets(reader, reader.partitions(old, end)) == list(range(10, 20))
    still = {"orders": {"0": 20, "1": 0, "uid": "uid-orders"}}
    assert json.dumps(reader.latestOffset(still, ALL)) == json.dumps(still), "nothing new, so no empty micro-batch"


@pytest.mark.parametrize("count", [0, 5, 40])
def test_streaming_query_restarted_after_an_unclean_election_raises_data_loss(cut_query: Any, count: int) -> None:
    log, restarted, start, end = cut_query
    rewrite(log, 10, 4, count)
    for ask in (lambda reader: reader.latestOffset(start, ALL), lambda reader: reader.partitions(start, end)):
        with pytest.raises(
            SourceError, match=r"^\[DATA_LOSS\] orders/0: .*an unclean election lost records .*Only records below offset 10 can"
        ):
            ask(restarted())


def test_streaming_query_after_an_unclean_election_that_lost_planned_records_raises_data_loss(cut_query: Any) -> None:
    log, restarted, start, end = cut_query
    rewrite(log, 20, 4, 40)
    assert restarted().latestOffset(start, ALL)["orders"]["0"] == 60
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\].*Only records below offset 20"):
        restarted().partitions(start, end)


def test_streaming_query_with_fail_on_data_loss_false_reads_the_log_after_an_unclean_election(
    cut_query: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log, restarted, start, end = cut_query
    rewrite(log, 10, 4, 5)
    reader = restarted(failOnDataLoss="false")
    assert reader.latestOffset(start, ALL) == start, "the new log is not as long yet"
    append(log, 40)
    later = restarted(failOnDataLoss="false")
    after = later.latestOffset(start, ALL)
    assert after == {"orders": {"0": 55, "epochs": {"0": 4}, "uid": "uid-orders"}}
    assert ranges(later.partitions(start, after)) == [(0, 10, 55)]
    assert "an unclean election lost records" in caplog.text
    assert later.partitions(start, end) == [], "of the micro-batch that was planned nothing is there"


def test_streaming_query_whose_planned_records_were_lost_raises_data_loss_without_waiting(cut_query: Any, source: Open) -> None:
    log, restarted, start, end = cut_query
    plan = restarted().partitions(start, end)
    rewrite(log, 10, 4, 5)
    with pytest.raises(
        SourceError, match=r"^\[DATA_LOSS\] orders/0 \[20, 30\): records were deleted after the query was planned"
    ):
        offsets(restarted(patience="0.5"), plan)
    rewrite(log, 20, 6, 30)
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\]"):
        offsets(restarted(), plan)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startingOffsets": "-30"},
        {"startingOffsets": "-1m"},
        {"startingOffsets": json.dumps({"orders": {"0": -1}})},
        {"startingTimestamp": "4000000000000"},
        {"startingOffsetsByTimestamp": json.dumps({"orders": {"0": 4_000_000_000_000}})},
    ],
)
@pytest.mark.parametrize("measures", [True, False])
def test_streaming_query_before_its_first_commit_keeps_its_start_offset_while_records_arrive(
    source: Open, node: FakeNode, options: dict[str, str], measures: bool
) -> None:
    node.measures = measures  # False: the LeaderEpoch of the record before the start is unknown
    log = node.add_stream("orders").partitions[0]
    append(log, 100)
    reader = streaming(source(**options))
    start = reader.initialOffset()
    first = start["orders"]["0"]
    append(log, 50)
    end = reader.latestOffset(start, ReadMaxRows(20))
    append(log, 50)
    assert reader.initialOffset() == start, "Spark asks again when it plans micro-batch 0"
    assert ranges(reader.partitions(reader.initialOffset(), end)) == [(0, first, first + 20)]
    append(log, 200)
    for _ in range(2):  # restarts before micro-batch 0 is committed: Spark has only its end
        again = streaming(source(**options))
        assert ranges(again.partitions(again.initialOffset(), end)) == [(0, first, first + 20)]
    after = again.latestOffset(end, ReadMaxRows(20))
    assert ranges(again.partitions(end, after)) == [(0, first + 20, first + 40)]


def test_streaming_query_repeating_its_first_batch_after_retention_raises_data_loss(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 50)
    append(log, 50)
    reader = streaming(source(startingOffsets="earliest"))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    append(log, 50)
    for log.log_start_offset, kept in ((50, [(0, 50, 100)]), (120, [])):
        again = streaming(source(startingOffsets="earliest"))
        with pytest.raises(SourceError, match=r"^\[DATA_LOSS\] OFFSET_OUT_OF_RANGE orders/0: offsets \[0, "):
            again.partitions(again.initialOffset(), end)
        rest = streaming(source(startingOffsets="earliest", failOnDataLoss="false"))
        assert ranges(rest.partitions(rest.initialOffset(), end)) == kept


def test_streaming_query_without_new_records_after_its_first_batch_plans_no_range(source: Open, node: FakeNode) -> None:
    stream = node.add_stream("orders", partitions=2)
    append(stream.partitions[0], 100)
    reader = streaming(source(startingOffsets="earliest"))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    for same in (reader, streaming(source(startingOffsets="earliest"))):
        assert json.dumps(same.latestOffset(end, ALL)) == json.dumps(end), "another text would be a micro-batch"
        assert same.partitions(end, end) == [], "a batch without news, as a watermark or another source brings"
    append(stream.partitions[1], 5)
    reader = streaming(source(startingOffsets="earliest"))
    after = reader.latestOffset(end, ALL)
    assert ranges(reader.partitions(end, after)) == [(1, 0, 5)]
    assert "began" not in after["orders"]


def test_streaming_query_task_ranges_start_at_batch_boundaries(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    for _ in range(10):
        append(log, 10)
    plan = batch(source(minPartitions="3")).partitions()
    assert ranges(plan) == [(0, 0, 30), (0, 30, 60), (0, 60, 100)]
    assert offsets(batch(source()), plan) == list(range(100))
    assert ranges(batch(source(maxRecordsPerPartition="45")).partitions()) == [(0, 0, 40), (0, 40, 80), (0, 80, 100)]
    node.measures = False
    assert ranges(batch(source(minPartitions="3")).partitions()) == [(0, 0, 33), (0, 33, 66), (0, 66, 100)]


def test_streaming_query_with_byte_and_record_limits_ends_at_the_lower_limit(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    for _ in range(10):
        append(log, 10)
    size = len(log.batches[-1][1])
    reader = streaming(source(startingOffsets="earliest", maxBytesPerTrigger=str(3 * size + 5)))
    assert reader.getDefaultReadLimit() == ReadMaxBytes(3 * size + 5)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxBytes(3 * size + 5))["orders"]["0"] == 30
    assert reader.latestOffset(start, ALL)["orders"]["0"] == 100
    both = streaming(source(startingOffsets="earliest", maxBytesPerTrigger=str(3 * size + 5), maxOffsetsPerTrigger="25"))
    assert both.getDefaultReadLimit() == ReadMaxRows(25)
    assert both.latestOffset(start, ReadMaxRows(25))["orders"]["0"] == 25
    assert both.latestOffset(start, ReadMaxRows(50))["orders"]["0"] == 30


def test_streaming_query_with_a_byte_limit_continues_after_retention_has_deleted_its_start(
    source: Open, node: FakeNode
) -> None:
    log = node.add_stream("orders").partitions[0]
    for _ in range(10):
        append(log, 10)
    limit = ReadMaxBytes(3 * len(log.batches[-1][1]) + 5)
    start = streaming(source(startingOffsets="earliest")).initialOffset()
    for log_start, end_offset in ((20, 50), (100, 100)):
        log.log_start_offset = log_start
        end = streaming(source()).latestOffset(start, limit)
        assert end["orders"]["0"] == end_offset
        with pytest.raises(SourceError, match=r"^\[DATA_LOSS\]"):
            streaming(source()).partitions(start, end)
        expected = [(0, log_start, end_offset)] if log_start < end_offset else []
        assert ranges(streaming(source(failOnDataLoss="false")).partitions(start, end)) == expected


def test_streaming_query_that_loses_records_without_an_error_uses_its_limits_for_the_remaining_records(
    source: Open, node: FakeNode, link: ProcessConnection
) -> None:
    log = node.add_stream("orders").partitions[0]
    for _ in range(20):
        append(log, 50)
    start = streaming(source(startingOffsets="earliest")).initialOffset()
    log.log_start_offset = 800
    size = len(log.batches[-1][1])
    for limit, end_offset in ((ReadMaxRows(20), 820), (ReadMaxBytes(size), 850)):
        end = streaming(source(failOnDataLoss="false")).latestOffset(start, limit)
        assert ranges(streaming(source(failOnDataLoss="false")).partitions(start, end)) == [(0, 800, end_offset)]
    waits = streaming(source(failOnDataLoss="false", minOffsetsPerTrigger="100"))
    use_catalog(waits, link, clock=itertools.count(step=10).__next__)
    first = waits.latestOffset(start, ReadMaxRows(20))
    log.log_start_offset = 950
    assert waits.latestOffset(first, ALL) == first, "50 records remain"


def test_streaming_query_reads_added_partitions_from_their_first_record(
    source: Open, node: FakeNode, link: ProcessConnection
) -> None:
    stream = node.add_stream("orders")
    append(stream.partitions[0], 100)
    reader = streaming(source())
    use_catalog(reader, link, clock=itertools.count(step=10).__next__)  # what is known is too old
    start = reader.initialOffset()
    append(stream.partitions[0], 30)
    stream.partitions.append(FakePartition())
    append(stream.partitions[1], 60)
    read: list[tuple[int, int, int]] = []
    for _ in range(3):
        end = reader.latestOffset(start, ReadMaxRows(30))
        plan = reader.partitions(start, end)
        assert sum(end_ - first for _, first, end_ in ranges(plan)) == 30
        read += ranges(plan)
        start = end
    assert start == {"orders": {"0": 130, "1": 60, "epochs": {"0": 1, "1": 1}, "uid": "uid-orders"}}
    assert sorted(read) == [(0, 100, 110), (0, 110, 120), (0, 120, 130), (1, 0, 20), (1, 20, 40), (1, 40, 60)]
    assert reader.latestOffset(start, ALL) == start


def test_streaming_query_with_deleted_records_in_an_added_partition_raises_data_loss(source: Open, node: FakeNode) -> None:
    stream = node.add_stream("orders")
    append(stream.partitions[0], 10)
    start = streaming(source()).initialOffset()
    stream.partitions.append(added := FakePartition())
    append(added, 60)
    end = streaming(source()).latestOffset(start, ALL)
    added.log_start_offset = 20
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\] OFFSET_OUT_OF_RANGE orders/1: offsets \[0, 20\) were deleted"):
        streaming(source()).partitions(start, end)
    assert ranges(streaming(source(failOnDataLoss="false")).partitions(start, end)) == [(1, 20, 60)]
    assigned = Selection(("orders",), partitions=(("orders", 0), ("orders", 1)))  # the user has added it, perhaps after years
    reader = LiftStreamReader(replace(streaming(source()).options, wanted=assigned))
    assert ranges(reader.partitions(start, end)) == [(1, 20, 60)]


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize(
    ("option", "known"), [("subscribe", 1), ("subscribe", 0), ("subscribepattern", 1), ("subscribepattern", 0)]
)
def test_streaming_query_plans_partitions_that_the_answering_controller_does_not_know_yet(
    access: Access, node: FakeNode, loss: str, option: str, known: int
) -> None:
    stream = node.add_stream("orders", partitions=2)
    for log in stream.partitions:
        append(log, 10)
    given = {"nats": access.servers, "namespace": access.namespace, option: "orders", "failondataloss": loss, "patience": "3"}
    start = {"orders": {"0": 10, "uid": "uid-orders"}}
    end = streaming(LiftDataSource(given)).latestOffset(start, ALL)
    node.partitions_known["orders"] = known
    reader = streaming(LiftDataSource(given))
    assert ranges(reader.partitions(start, end)) == [(1, 0, 10)]
    assert offsets(reader, reader.partitions(start, end)) == list(range(10))


def test_spark_source_reads_assigned_partitions_that_the_answering_controller_does_not_know_yet(
    access: Access, node: FakeNode
) -> None:
    append(node.add_stream("orders", partitions=2).partitions[1], 10)
    node.partitions_known["orders"] = 1
    given = {"nats": access.servers, "namespace": access.namespace, "assign": '{"orders": [1]}'}
    assert ranges(batch(LiftDataSource(given)).partitions()) == [(1, 0, 10)]


@pytest.mark.parametrize("option", ["stream", "subscribepattern"])
def test_spark_batch_reads_partitions_that_the_answering_controller_does_not_know_yet(
    source: Open, node: FakeNode, option: str
) -> None:
    for log in node.add_stream("orders", partitions=2).partitions:
        append(log, 10)
    node.partitions_known["orders"] = 1
    given = {name: value for name, value in source().options.items() if name != "stream"}
    reader = batch(LiftDataSource({**given, option: "orders"}))
    assert ranges(reader.partitions()) == [(0, 0, 10), (1, 0, 10)]


def test_streaming_query_starts_at_the_end_of_partitions_that_the_answering_controller_does_not_know_yet(
    source: Open, node: FakeNode
) -> None:
    """Otherwise the query takes the partition for an added one, and reads its records from offset 0 on."""
    for log in node.add_stream("orders", partitions=2).partitions:
        append(log, 10)
    node.partitions_known["orders"] = 1
    start = streaming(source()).initialOffset()["orders"]
    assert (start["0"], start["1"]) == (10, 10)


@pytest.mark.parametrize("option", ["stream", "subscribepattern"])
def test_spark_batch_without_a_majority_of_controllers_reads_the_partitions_that_one_describes(
    source: Open, node: FakeNode, option: str, caplog: pytest.LogCaptureFixture
) -> None:
    append(node.add_stream("orders").partitions[0], 10)
    node.controllers = "minority"
    given = {name: value for name, value in source().options.items() if name != "stream"}
    reader = batch(LiftDataSource({**given, option: "orders", "patience": "1"}))
    assert ranges(reader.partitions()) == [(0, 0, 10)]
    assert "partitions may be old" in caplog.text


@pytest.mark.parametrize("controllers", ["minority", "silent"])
@pytest.mark.parametrize("option", ["stream", "subscribepattern"])
def test_streaming_query_continues_without_a_majority_of_controllers(
    source: Open, node: FakeNode, link: ProcessConnection, controllers: str, option: str
) -> None:
    append(log := node.add_stream("orders").partitions[0], 10)
    given = {name: value for name, value in source().options.items() if name != "stream"}
    reader = streaming(LiftDataSource({**given, option: "orders", "patience": "1"}))
    use_catalog(reader, link, clock=itertools.count(0, 10).__next__)  # each call lists the partitions again
    start = reader.initialOffset()
    node.controllers = controllers
    append(log, 10)
    assert reader.latestOffset(start, ALL)["orders"]["0"] == 20


def test_streaming_query_offsets_never_decrease_after_a_leader_change(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 100)
    reader = streaming(source())
    start = reader.initialOffset()
    log.high_watermark = 60
    assert streaming(source()).latestOffset(start, ALL) == start


def test_available_now_query_reads_only_records_committed_before_its_start(
    source: Open, node: FakeNode, link: ProcessConnection
) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 100)
    reader = streaming(source(startingOffsets="earliest"))
    use_catalog(reader, link, clock=itertools.count().__next__)  # no answer is ever fresh enough
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    append(log, 100)
    assert reader.reportLatestOffset()["orders"]["0"] == 200
    end = reader.latestOffset(start, ReadMaxRows(80))
    assert end["orders"]["0"] == 80
    assert reader.latestOffset(end, ReadMaxRows(80))["orders"]["0"] == 100
    last = {"orders": {"0": 100, "uid": "uid-orders"}}
    assert reader.latestOffset(last, ReadMaxRows(80)) == last


@pytest.mark.parametrize("count", [0, 5, 40])
def test_available_now_query_after_an_unclean_election_that_lost_read_records_raises_data_loss(
    cut_query: Any, count: int
) -> None:
    log, restarted, start, _ = cut_query
    rewrite(log, 10, 4, count)
    reader = restarted()
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\] orders/0: .*unclean election lost records"):
        reader.latestOffset(start, ALL)


def test_available_now_query_leaves_out_records_that_an_unclean_election_lost_during_the_run(
    source: Open, node: FakeNode
) -> None:
    log = node.add_stream("orders").partitions[0]
    for _ in range(3):
        append(log, 10)
    reader = streaming(source(startingOffsets="earliest", failOnDataLoss="false"))
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(start, ReadMaxRows(10))
    rewrite(log, 20, 4, 40)
    wait_for_the_end_of_the_watch(reader)  # until the driver knows of the election
    second = reader.latestOffset(first, ReadMaxRows(10))
    assert ranges(reader.partitions(first, second)) == [(0, 10, 20)]
    last = reader.latestOffset(second, ReadMaxRows(10))
    assert last["orders"]["0"] == 30
    assert reader.partitions(second, last) == [], "the log has other records there"


@pytest.mark.parametrize("limit", [ReadMaxRows(20), ReadMaxBytes(400)])
@pytest.mark.parametrize("is_recreated", [False, True])
def test_available_now_query_with_a_limit_continues_without_a_stream_that_is_deleted_during_the_run(
    access: Access, node: FakeNode, link: ProcessConnection, limit: Any, is_recreated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a1", "a2"):
        for log in node.add_stream(name, uid=f"old-{name}", partitions=2).partitions:
            append(log, 25)
            append(log, 25)
    given = {"nats": access.servers, "namespace": access.namespace, "subscribepattern": "a.*", "startingoffsets": "earliest"}
    lossy, strict = (
        streaming(LiftDataSource({**given, "failondataloss": loss, "patience": "3"})) for loss in ("false", "true")
    )
    for reader in (lossy, strict):
        use_catalog(reader, link, clock=itertools.count(step=10).__next__)
        reader.prepareForTriggerAvailableNow()
    end = start = lossy.initialOffset()
    del node.streams["a1"]
    if is_recreated:
        append(node.add_stream("a1", uid="new").partitions[0], 30)
    read: list[tuple[str, int, int, int]] = []
    while (later := lossy.latestOffset(end, limit)) != end:
        tasks = [one.value for one in lossy.partitions(end, later)]
        read += [(one.stream, one.partition, one.start_offset, one.end_offset) for one in tasks]
        end = later
    assert {one[0] for one in read} == {"a2"}
    assert sum(last - first for *_, first, last in read) == 100
    assert "a1" in caplog.text
    with pytest.raises(SourceError, match=r"^\[(DATA_LOSS|NOT_FOUND)\] .*a1.* deleted"):
        strict.partitions(start, strict.latestOffset(start, limit))


def test_streaming_query_without_new_records_sends_at_most_one_request_per_second(
    source: Open, node: FakeNode, link: ProcessConnection
) -> None:
    append(node.add_stream("orders").partitions[0], 100)
    reader, now = streaming(source()), [1000.0]
    use_catalog(reader, link, clock=lambda: now[0])
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    asked = sum(node.asked.values())
    for _ in range(80):
        reader.latestOffset(start, ALL)
        reader.reportLatestOffset()
    assert sum(node.asked.values()) == asked
    now[0] += 1.0
    reader.latestOffset(start, ALL)
    assert sum(node.asked.values()) > asked


def test_streaming_query_repeated_micro_batch_waits_for_a_new_leader(
    source: Open, node: FakeNode, link: ProcessConnection
) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 100)
    log.high_watermark = 60
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        log.high_watermark = 99

    start, end = ({"orders": {"0": offset, "uid": "uid-orders"}} for offset in (40, 100))
    reader = streaming(source())
    use_catalog(reader, link, wait=wait)
    assert offsets(reader, reader.partitions(start, end)) == list(range(40, 100))
    assert waits


def test_streaming_query_with_a_log_end_below_the_committed_offset_raises_data_loss(source: Open, node: FakeNode) -> None:
    append(node.add_stream("orders").partitions[0], 50)
    start, end = ({"orders": {"0": offset, "uid": "uid-orders"}} for offset in (40, 100))
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\] .*offsets \[50, 100\) were committed"):
        streaming(source(patience="0.3")).partitions(start, end)


@pytest.mark.parametrize("loss", ["true", "false"])
def test_streaming_query_with_a_leader_that_cannot_commit_planned_records_raises_unavailable(
    source: Open, node: FakeNode, loss: str
) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 100)
    start, end = ({"orders": {"0": offset, **EPOCH_1, "uid": "uid-orders"}} for offset in (40, 100))
    log.high_watermark = 60
    with pytest.raises(SourceError, match=r"^\[UNAVAILABLE\] .*orders/0"):
        streaming(source(patience="0.3", failOnDataLoss=loss)).partitions(start, end)


def test_spark_query_of_a_recreated_stream_raises_not_found_in_planning_and_reading(source: Open, node: FakeNode) -> None:
    append(node.add_stream("orders", uid="first").partitions[0], 50)
    reader = streaming(source(startingOffsets="earliest"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    plan = reader.partitions(start, end)
    append(node.add_stream("orders", uid="second").partitions[0], 50)
    refused = pytest.raises(SourceError, match=r"^\[NOT_FOUND\] .*deleted and created again")
    with refused:
        offsets(reader, plan)
    wait_for_the_end_of_the_watch(reader)  # until that is told, planning is as before, and reading is refused
    with refused:
        reader.partitions(start, end)
    with refused:
        streaming(source()).latestOffset(start, ALL)
    with refused:
        batch(source(startingOffsets=json.dumps(start))).partitions()


def test_spark_query_with_on_recreated_earliest_reads_a_recreated_stream_from_its_first_record(
    source: Open, access: Access, node: FakeNode, link: ProcessConnection, caplog: pytest.LogCaptureFixture
) -> None:
    append(node.add_stream("a1", uid="first").partitions[0], 50)
    append(node.add_stream("a2").partitions[0], 20)
    given = {"nats": access.servers, "namespace": access.namespace, "subscribepattern": "a.*"}
    for taken in ({"onrecreated": "earliest"}, {"failondataloss": "false"}):
        append(node.add_stream("a1", uid="first").partitions[0], 50)
        reader = streaming(LiftDataSource({**given, "startingoffsets": "earliest", **taken}))
        use_catalog(reader, link, clock=itertools.count(step=10).__next__)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(35))
        assert without_start(end) == {"a1": {"0": 25, **EPOCH_1, "uid": "first"}, "a2": {"0": 10, **EPOCH_1, "uid": "uid-a2"}}
        append(node.add_stream("a1", uid="second").partitions[0], 30)
        caplog.clear()
        gone = reader.partitions(start, end)  # what was planned of the first is lost; the other stream is read
        assert [(p.value.stream, p.value.start_offset, p.value.end_offset) for p in gone] == [("a2", 0, 10)]
        assert "The query lost offsets [0, 25) from offset 0 of a1/0 (uid first) on" in caplog.text
        last = reader.latestOffset(end, ALL)
        assert without_start(last) == {"a1": {"0": 30, **EPOCH_1, "uid": "second"}, "a2": {"0": 20, **EPOCH_1, "uid": "uid-a2"}}
        caplog.clear()
        taken_now = reader.partitions(end, last)
        assert [(p.value.uid, p.value.start_offset, p.value.end_offset) for p in taken_now] == [
            ("second", 0, 30),
            ("uid-a2", 10, 20),
        ]
        assert "The query lost all records from offset 25 of a1/0 (uid first) on" in caplog.text
        assert without_start(reader.latestOffset(end, ReadMaxRows(20))) == {
            "a1": {"0": 15, **EPOCH_1, "uid": "second"},
            "a2": {"0": 15, **EPOCH_1, "uid": "uid-a2"},
        }


def test_spark_micro_batch_below_the_minimum_record_count_is_delayed_up_to_max_trigger_delay(
    source: Open, node: FakeNode, link: ProcessConnection
) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 10)
    now = [1000.0]
    reader = streaming(source(startingOffsets="earliest", minOffsetsPerTrigger="50", maxTriggerDelay="30s"))
    use_catalog(reader, link, clock=itertools.count(step=10).__next__)
    reader._clock = lambda: now[0]
    first = reader.latestOffset(reader.initialOffset(), ALL)
    assert first["orders"]["0"] == 10  # the first one never waits
    append(log, 49)
    assert reader.latestOffset(first, ALL) == first
    now[0] += 29.9
    assert reader.latestOffset(first, ALL) == first
    append(log, 1)
    second = reader.latestOffset(first, ALL)
    assert second["orders"]["0"] == 60
    append(log, 1)
    now[0] += 29.9
    assert reader.latestOffset(second, ALL) == second
    now[0] += 0.2
    third = reader.latestOffset(second, ALL)
    assert third["orders"]["0"] == 61
    now[0] += 40
    assert reader.latestOffset(third, ALL) == third  # nothing is there: no micro-batch to wait after
    append(log, 1)
    assert reader.latestOffset(third, ALL)["orders"]["0"] == 62
    append(log, 1)
    assert reader.latestOffset(third, ALL) == third
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(third, ALL)["orders"]["0"] == 63  # a run that ends with what is there waits for nothing


def test_batch_query_with_a_plan_older_than_five_minutes_logs_the_age(
    source: Open, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    append(node.add_stream("orders").partitions[0], 10)
    reader = batch(source())
    plan = reader.partitions()
    assert offsets(reader, plan) == list(range(10))
    assert "was planned" not in caplog.text
    plan[0].value = replace(plan[0].value, planned_ns=plan[0].value.planned_ns - 400 * 10**9)
    assert offsets(reader, plan) == list(range(10))
    assert re.search(r"was planned 4\d\d s ago, when its DataFrame first ran", caplog.text)


def test_spark_query_of_a_stream_deleted_after_planning_raises_not_found(source: Open, node: FakeNode) -> None:
    append(node.add_stream("orders").partitions[0], 10)
    reader = batch(source(patience="0.3"))
    plan = reader.partitions()
    del node.streams["orders"]
    with pytest.raises(SourceError, match=r"^\[NOT_FOUND\] Stream orders was deleted after orders/0 \[0, 10\) was planned"):
        offsets(reader, plan)


def test_spark_query_in_a_namespace_without_nodes_raises_no_responders(access: Access, spark_nats: str) -> None:
    given = {"nats": spark_nats, "namespace": "elsewhere", "stream": "orders", "patience": "0.3"}
    with pytest.raises(SourceError, match=r"^\[NO_RESPONDERS\] NATS answers at .*, but no node of namespace 'elsewhere'"):
        batch(LiftDataSource(given)).partitions()


def test_spark_patience_option_limits_the_connection_time() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        given = {"nats": f"nats://127.0.0.1:{nobody.getsockname()[1]}", "stream": "orders", "patience": "0.3"}
        begun = time.monotonic()
        with pytest.raises(SourceError, match=r"^\[UNAVAILABLE\]"):
            batch(LiftDataSource(given)).partitions()
        assert time.monotonic() - begun < 8  # 10 s for the connection alone without it


def test_spark_query_starts_and_ends_at_the_checkpoint_offset_of_another_query(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 10)
    first = streaming(source(startingOffsets="earliest"))
    position = json.dumps(first.latestOffset(first.initialOffset(), ALL))
    assert "began" in position
    append(log, 5)
    assert ranges(batch(source(startingOffsets=position)).partitions()) == [(0, 10, 15)]
    assert ranges(batch(source(endingOffsets=position)).partitions()) == [(0, 0, 10)]


def test_streaming_query_with_a_start_below_the_log_start_raises_data_loss(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 100)
    log.log_start_offset = 20
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\]"):
        streaming(source(startingOffsets='{"orders": {"0": 5}}')).initialOffset()


def test_spark_query_with_a_user_schema_returns_only_its_columns(source: Open, node: FakeNode) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    append(node.add_stream("orders").partitions[0], 3)
    own = types.StructType().add("offset", "long").add("value", "binary")
    reader = source().reader(own)
    assert [b.schema.names for p in reader.partitions() for b in reader.read(p)] == [["offset", "value"]]
    with pytest.raises(SourceError, match="must have the types of"):
        source().reader(types.StructType().add("offset", "string"))


def test_spark_source_with_several_streams_returns_records_of_all_streams(source: Open, access: Access, node: FakeNode) -> None:
    for name in ("a", "b"):
        append(node.add_stream(name).partitions[0], 10)
    given = {"nats": access.servers, "namespace": access.namespace, "subscribe": "b,a"}
    reader = batch(LiftDataSource(given))
    assert [(p.value.stream, p.value.end_offset) for p in reader.partitions()] == [("a", 10), ("b", 10)]


def test_spark_source_with_assigned_partitions_reads_only_these_partitions(access: Access, node: FakeNode) -> None:
    for log in node.add_stream("a", partitions=3).partitions:
        append(log, 10)
    given = {"nats": access.servers, "namespace": access.namespace, "assign": '{"a": [0, 2]}'}
    assert ranges(batch(LiftDataSource(given)).partitions()) == [(0, 0, 10), (2, 0, 10)]
    with pytest.raises(SourceError, match="partitions that do not exist: a/3"):
        batch(LiftDataSource({**given, "assign": '{"a": [0, 3]}'})).partitions()


def test_streaming_query_with_a_pattern_reads_new_streams_from_their_first_record(
    access: Access, node: FakeNode, link: ProcessConnection
) -> None:
    append(node.add_stream("a1").partitions[0], 10)
    given = {"nats": access.servers, "namespace": access.namespace, "subscribepattern": "a.*"}
    reader = streaming(LiftDataSource(given))
    use_catalog(reader, link, clock=itertools.count(step=10).__next__)
    start = reader.initialOffset()
    append(node.add_stream("a2").partitions[0], 5)
    append(node.add_stream("b").partitions[0], 5)
    end = reader.latestOffset(start, ALL)
    assert without_start(end) == {"a1": {"0": 10, **EPOCH_1, "uid": "uid-a1"}, "a2": {"0": 5, **EPOCH_1, "uid": "uid-a2"}}
    assert [(p.value.stream, p.value.start_offset, p.value.end_offset) for p in reader.partitions(start, end)] == [("a2", 0, 5)]


@pytest.mark.parametrize(
    ("pattern", "streams"),
    [(".*", ["orders"]), ("[_a-z]+", ["orders"]), ("_.*", ["_events", "_groups"]), ("_groups", ["_groups"])],
)
def test_spark_source_pattern_selects_internal_streams_only_if_it_begins_with_an_underscore(
    access: Access, node: FakeNode, pattern: str, streams: list[str]
) -> None:
    for name in ("_events", "_groups", "orders"):
        append(node.add_stream(name).partitions[0], 5)
    given = {"nats": access.servers, "namespace": access.namespace, "subscribepattern": pattern}
    assert [p.value.stream for p in batch(LiftDataSource(given)).partitions()] == streams


def test_streaming_query_with_a_pattern_repeats_its_first_micro_batch_of_streams_that_came_later(
    access: Access, node: FakeNode, link: ProcessConnection
) -> None:
    given = {"nats": access.servers, "namespace": access.namespace, "subscribepattern": "a.*"}
    reader = streaming(LiftDataSource(given))
    use_catalog(reader, link, clock=itertools.count(step=10).__next__)
    start = reader.initialOffset()
    assert start == {}
    log = node.add_stream("a1").partitions[0]
    append(log, 25)
    append(log, 25)
    end = reader.latestOffset(start, ALL)
    assert ranges(reader.partitions(start, end)) == [(0, 0, 50)]
    append(log, 50)
    again = streaming(LiftDataSource(given))
    assert ranges(again.partitions(again.initialOffset(), end)) == [(0, 0, 50)]
    after = again.latestOffset(end, ALL)
    assert ranges(again.partitions(end, after)) == [(0, 50, 100)]
    log.log_start_offset = 25
    last = streaming(LiftDataSource(given))
    with pytest.raises(SourceError, match=r"^\[DATA_LOSS\] OFFSET_OUT_OF_RANGE a1/0: offsets \[0, 25\) were deleted"):
        last.partitions(last.initialOffset(), end)


@pytest.mark.parametrize(
    "given", [{"startingOffsets": '{"orders": {"0": 5}}'}, {"startingOffsetsByTimestamp": '{"orders": {"0": 0}}'}]
)
def test_streaming_query_repeats_its_first_micro_batch_after_partitions_were_added(
    source: Open, node: FakeNode, given: dict[str, str]
) -> None:
    """Spark asks for the start again, although the checkpoint has it. The user named the partitions of that time."""
    stream = node.add_stream("orders")
    append(stream.partitions[0], 30)
    reader = streaming(source(**given))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    planned = ranges(reader.partitions(start, end))
    stream.partitions.append(FakePartition())
    append(stream.partitions[1], 7)
    again = streaming(source(**given))
    assert ranges(again.partitions(again.initialOffset(), end)) == planned
    after = again.latestOffset(end, ALL)
    assert ranges(again.partitions(end, after)) == [(1, 0, 7)]
    new = streaming(source(**given))
    with pytest.raises(SourceError, match=r"must name every partition\. Missing: orders/1"):
        new.latestOffset(new.initialOffset(), ALL)


@pytest.mark.parametrize("log_start", [0, 25])
def test_streaming_query_repeating_its_first_micro_batch_of_a_new_stream_after_retention_raises_data_loss(
    access: Access, node: FakeNode, log_start: int
) -> None:
    append(node.add_stream("a1").partitions[0], 10)
    start = {"a1": {"0": 10, **EPOCH_1, "uid": "uid-a1"}}
    log = node.add_stream("a2").partitions[0]
    for _ in range(3):
        append(log, 25)
    log.log_start_offset = log_start
    given = {"nats": access.servers, "namespace": access.namespace, "subscribepattern": "a.*"}
    reader = streaming(LiftDataSource(given))
    end = reader.latestOffset(start, ALL)
    plan = reader.partitions(start, end)
    assert ranges(plan) == ranges(streaming(LiftDataSource(given)).partitions(start, end)) == [(0, log_start, 75)]
    log.log_start_offset = 50
    with pytest.raises(
        SourceError, match=rf"^\[DATA_LOSS\] OFFSET_OUT_OF_RANGE a2/0: offsets \[{log_start}, 50\) were deleted"
    ):
        streaming(LiftDataSource(given)).partitions(start, end)
    may_lose = streaming(LiftDataSource({**given, "failondataloss": "false"}))
    assert ranges(may_lose.partitions(start, end)) == [(0, 50, 75)]
    assert json.dumps(may_lose.latestOffset(end, ALL)) == json.dumps(end), "another text would be a micro-batch"
    append(log, 5)
    after = streaming(LiftDataSource(given)).latestOffset(end, ALL)
    assert after["a2"] == {"0": 80, **EPOCH_1, "uid": "uid-a2"}


def test_spark_format_liftpy_resolves_to_the_default_source_of_the_module() -> None:
    import pyspark_liftpy

    assert pyspark_liftpy.DefaultSource is LiftDataSource
    assert pyspark_liftpy.DefaultSource.name() == "liftpy"
    assert not hasattr(pyspark_liftpy, "Nothing")


def test_spark_query_with_an_outdated_leader_epoch_in_its_offsets_raises_data_loss(cut_query: Any, source: Open) -> None:
    log, _, start, _ = cut_query
    given = json.dumps(start)
    assert ranges(batch(source(startingOffsets=given)).partitions()) == [(0, 20, 30)]
    assert streaming(source(startingOffsets=given)).initialOffset() == start
    wrong = json.dumps({"orders": {"0": 20, "epochs": {"0": 1}}})  # also where the stream's uid is not given
    for text, count in ((wrong, 20), (given, 0), (given, 5), (given, 20)):
        if text is given:
            rewrite(log, 10, 4, count)
        for option, open_it in (("startingOffsets", batch), ("endingOffsets", batch), ("startingOffsets", streaming)):
            reader = open_it(source(**{option: text}))
            with pytest.raises(SourceError, match=r"^\[DATA_LOSS\].*unclean election lost records"):
                _ = reader.partitions() if isinstance(reader, LiftReader) else reader.initialOffset()
    may_lose = source(startingOffsets=given, failOnDataLoss="false")
    assert ranges(batch(may_lose).partitions()) == [(0, 10, 30)], "all of what came in the place of what is lost"
    assert streaming(may_lose).initialOffset() == {"orders": {"0": 10, "epochs": {"0": 1}, "uid": "uid-orders"}}
    assert ranges(batch(source(endingOffsets=given, failOnDataLoss="false")).partitions()) == [(0, 0, 10)]
