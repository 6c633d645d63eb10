"""Test streaming queries with long polls at the leaders: they notice each change without a request per micro-batch."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from liftpy.spark.catalog import Catalog
from liftpy.spark.failures import SourceError
from liftpy.spark.offsets import StreamOffsets
from liftpy.spark.options import SourceOptions
from liftpy.spark.process_connection import ProcessConnection
from tests.fake_node import FakeNode
from tests.unit.spark.test_spark_readers import ALL, Open, append, ranges, rewrite, streaming
from tests.until import block_until


def test_spark_offset_watch_of_a_streaming_query_reports_new_records_without_polling(source: Open, node: FakeNode) -> None:
    stream = node.add_stream("orders", partitions=2)
    append(stream.partitions[0], 10)
    reader = streaming(source(startingOffsets="earliest"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    block_until(lambda: sum(node.asked.values()) >= 6)  # both wait
    asked = sum(node.asked.values())
    append(stream.partitions[0], 10)
    block_until(lambda: reader.latestOffset(end, ALL) != end)
    later = reader.latestOffset(end, ReadMaxRows(7))
    assert later == {"orders": {"0": 17, "1": 0, "epochs": {"0": 1}, "uid": "uid-orders"}}
    assert ranges(reader.partitions(end, later)) == [(0, 10, 17)]
    assert json.dumps(reader.reportLatestOffset()["orders"]["0"]) == "20"
    assert sum(node.asked.values()) - asked <= 3, "its own questions alone, a second each: nobody asks for each micro-batch"
    restarted = streaming(source(startingOffsets="earliest"))
    assert ranges(restarted.partitions(end, later)) == [(0, 10, 17)], "who knows nothing asks"


@pytest.mark.parametrize("limit", [{"maxBytesPerTrigger": "1"}, {"minPartitions": "2"}])
def test_spark_offset_watch_of_a_stream_that_was_just_recreated_returns_its_beginning(
    source: Open, node: FakeNode, limit: dict[str, str]
) -> None:
    """The watch does not know the new stream yet when the source asks its leader for the size of a range."""
    log = node.add_stream("orders").partitions[0]
    for _ in range(3):
        append(log, 10)
    reader = streaming(source(startingOffsets="earliest", onRecreated="earliest", **limit))
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    reader.latestOffset(start, reader.getDefaultReadLimit())
    log = node.add_stream("orders", uid="again").partitions[0]
    for _ in range(3):
        append(log, 10)
    begins: list[int] = []
    while not begins:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        begins, start = [begin for _, begin, _ in ranges(reader.partitions(start, end))], end
    assert (start["orders"]["uid"], begins[0]) == ("again", 0)


@pytest.mark.parametrize("limit", [{"maxBytesPerTrigger": "1"}, {"minPartitions": "2"}])
def test_spark_offset_watch_of_a_stream_that_was_just_recreated_with_fewer_partitions_returns_its_beginning(
    source: Open, node: FakeNode, monkeypatch: pytest.MonkeyPatch, limit: dict[str, str]
) -> None:
    """No node answers the request for the size of the range in the missing partition."""
    answer = FakeNode.answer

    def answer_if_there(self: FakeNode, node: str, name: str, number: int, request: Any) -> Any:
        assert number < len(self.streams[name].partitions), "an error in the callback leaves the request without an answer"
        return answer(self, node, name, number, request)

    monkeypatch.setattr(FakeNode, "answer", answer_if_there)
    log = node.add_stream("orders", partitions=2).partitions[1]
    for _ in range(3):
        append(log, 10)
    reader = streaming(source(startingOffsets="earliest", onRecreated="earliest", patience="0.5", **limit))
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    reader.latestOffset(start, reader.getDefaultReadLimit())
    append(node.add_stream("orders", uid="again").partitions[0], 10)
    begins: list[int] = []
    while not begins:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        begins, start = [begin for _, begin, _ in ranges(reader.partitions(start, end))], end
    assert (start["orders"]["uid"], begins) == ("again", [0, 5] if "minPartitions" in limit else [0])


def test_spark_offset_watch_of_a_recreated_or_truncated_stream_ends_the_query_with_an_error(
    source: Open, node: FakeNode
) -> None:
    log = node.add_stream("orders").partitions[0]
    for _ in range(3):
        append(log, 10)
    reader = streaming(source(startingOffsets="earliest"))
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(20))
    assert reader.latestOffset(start, ReadMaxRows(5))["orders"]["0"] == 25
    rewrite(log, 10, 4, 40)

    def refused() -> str:
        try:
            reader.latestOffset(start, ALL)
        except SourceError as error:
            return error.code
        return ""

    block_until(lambda: refused() == "DATA_LOSS")
    node.add_stream("orders", "another")
    block_until(lambda: refused() == "NOT_FOUND")


def test_spark_offset_watch_polls_nodes_that_do_not_support_long_polls(source: Open, node: FakeNode) -> None:
    node.waits = False
    log = node.add_stream("orders").partitions[0]
    reader = streaming(source(startingOffsets="earliest"))
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL)["orders"]["0"] == 0
    append(log, 5)
    block_until(lambda: reader.latestOffset(start, ALL)["orders"]["0"] == 5)


def test_spark_offset_watch_after_a_log_truncation_requests_the_offsets_again(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 10)
    reader = streaming(source(startingOffsets="earliest", failOnDataLoss="false"))
    start = reader.latestOffset(reader.initialOffset(), ALL)
    rewrite(log, 0, 4, 40)
    restarted = streaming(source(failOnDataLoss="false"))
    assert restarted.latestOffset(start, ALL)["orders"]["0"] == 40
    assert restarted._open_catalog()._watched_views([]) is None


def test_spark_offset_watch_requests_planned_offsets_that_are_not_yet_reported(source: Open, node: FakeNode) -> None:
    node.waits = False
    log = node.add_stream("orders").partitions[0]
    append(log, 10)
    reader = streaming(source(startingOffsets="earliest"))
    reader.latestOffset(reader.initialOffset(), ALL)
    catalog = reader._open_catalog()
    append(log, 40)
    ended, none = StreamOffsets({("orders", 0): 50}, {"orders": "uid-orders"}), StreamOffsets({}, {})
    assert catalog.views_reaching(ended, none)["orders", 0].end_offset == 50


def test_spark_catalog_after_a_recent_listing_finds_a_recreated_stream(link: ProcessConnection, node: FakeNode) -> None:
    append(node.add_stream("a1", uid="first").partitions[0], 10)
    catalog = Catalog(link, SourceOptions.parse({"subscribePattern": "a.*"}), clock=itertools.count(step=0.001).__next__)
    assert {view.uid for view in catalog.views().values()} == {"first"}
    append(node.add_stream("a1", uid="second").partitions[0], 5)
    assert [(view.uid, view.end_offset) for view in catalog.views().values()] == [("second", 5)]


def test_streaming_query_offset_contains_the_leader_epoch_of_the_record_before_the_offset(source: Open, node: FakeNode) -> None:
    log = node.add_stream("orders").partitions[0]
    append(log, 10)
    start = {"orders": {"0": 10, "epochs": {"0": 1}, "uid": "uid-orders"}}
    append(log, 20)
    log.leader_epoch = 3
    append(log, 10)
    reader = streaming(source())
    for rows, epoch in ((15, 1), (25, 3), (30, 3)):
        found = reader.latestOffset(start, ReadMaxRows(rows))
        assert found == {"orders": {"0": 10 + rows, "epochs": {"0": epoch}, "uid": "uid-orders"}}
