"""Test reads from the segment files of a replica on the same host."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.closest_replica import this_host
from liftpy.client.progress import RangeFiles
from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import MAX_FILES, FileSpan, spans_of
from liftpy.core.log.segment import log_name
from liftpy.errors import DataLossError, LiftError
from liftpy.spark import range_reader
from liftpy.spark.planning import PlannedRange
from liftpy.spark.process_connection import ProcessConnection
from liftpy.spark.range_reader import (
    FILES,
    NATS,
    FetchRules,
    LocalFiles,
    PipelinedRequests,
    RangeReader,
    RetryingRequests,
    counts,
    find_offered_files,
)
from sidecar.disk.files import DirectoryStorage
from tests.batches import build_batch
from tests.fake_node import FakeNode
from tests.open_files import open_files

RECORDS = 100
RULES = FetchRules(patience_s=3, files=True)


def a_batch(first: int, count: int = 10, epoch: int = 3) -> bytes:
    values = [b"%06d" % i + bytes(200) for i in range(first, first + count)]
    return build_batch(values, base_offset=first, leader_epoch=epoch, timestamp_ns=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "streams" / "orders-uid-orders" / "0"


@pytest.fixture
def log(folder: Path) -> Log:
    """100 records in batches of 10, two in each segment."""
    opened, _ = Log.open(DirectoryStorage(folder), StreamConfig(segment_bytes=5000))
    for first in range(0, RECORDS, 10):
        opened.append(a_batch(first))
    opened.raise_high_watermark(RECORDS - 1)
    assert len(opened.segments) == 5
    return opened


def planned(start: int = 0, end: int = RECORDS, epoch: int = 3) -> PlannedRange:
    return PlannedRange("orders", "uid-orders", 0, start, end, epoch, "n1", ("n1", "n2", "n3"))


def files(log: Log, folder: Path, start: int = 0, end: int = RECORDS) -> RangeFiles:
    return RangeFiles(this_host(), str(folder), tuple((s.base_offset, s.begin, s.end) for s in spans_of(log, start, end)))


def from_files(wanted: PlannedRange, told: RangeFiles) -> RangeReader:
    """Return a reader of these files alone."""
    nowhere: Any = SimpleNamespace()
    return RangeReader(nowhere, wanted, RULES, [partial(LocalFiles, find=lambda link, planned: told)])


def offsets(course: RangeReader) -> list[int]:
    return [int(offset) for pieces in course.read() for piece in pieces for offset in piece.offsets()]


def test_segment_file_ranges_of_an_offset_range_contain_files_and_byte_positions(log: Log) -> None:
    one = len(a_batch(0))
    assert spans_of(log, 0, 5) == spans_of(log, 3, 10) == [FileSpan(0, 0, one)]
    assert spans_of(log, 10, 20) == [FileSpan(0, one, 2 * one)]
    assert spans_of(log, 15, 41) == [FileSpan(0, one, 2 * one), FileSpan(20, 0, 2 * one), FileSpan(40, 0, one)]
    assert spans_of(log, 99, 100) == [FileSpan(80, one, 2 * one)]
    assert spans_of(log, 5, 5) == []


def test_segment_file_ranges_over_too_many_files_are_empty(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILES >= 256
    monkeypatch.setattr("liftpy.core.log.range_reads.MAX_FILES", 2)
    assert len(spans_of(log, 0, 40)) == 2
    assert spans_of(log, 0, 41) == []


@pytest.mark.parametrize("block_bytes", [200, 4000, 1 << 20])
def test_spark_local_file_read_returns_exactly_the_range(
    log: Log, folder: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "BLOCK_BYTES", block_bytes)
    for start, end in ((0, 100), (3, 57), (10, 20), (99, 100), (19, 21)):
        course = from_files(planned(start, end), files(log, folder, start, end))
        assert offsets(course) == list(range(start, end))
        assert course.position == end


def test_spark_local_file_read_returns_all_records_if_retention_deletes_files_during_the_read(log: Log, folder: Path) -> None:
    course = from_files(planned(), files(log, folder))
    pieces = course.read()
    found = [int(offset) for piece in next(pieces) for offset in piece.offsets()]
    log.drop_prefix(80)
    assert not (folder / log_name(20)).exists()
    found += [int(offset) for rest in pieces for piece in rest for offset in piece.offsets()]
    assert found == list(range(RECORDS))
    before = open_files(folder)
    assert offsets(from_files(planned(), files(log, folder, 80, 100))) == []  # what is gone is not there to begin with
    assert open_files(folder) == before


def spoil(folder: Path, name: str, at: int) -> None:
    data = bytearray((folder / name).read_bytes())
    data[at] ^= 1
    (folder / name).write_bytes(bytes(data))


def test_spark_local_file_read_stops_at_foreign_or_damaged_files(
    log: Log, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, one = files(log, folder), len(a_batch(0))
    shutil.copytree(folder, folder.parent.parent / "orders-u2" / "0")
    wrong = {
        "another stream's": replace(own, folder=str(folder.parent.parent / "orders-u2" / "0")),
        "another partition's": replace(own, folder=str(folder.parent / "1")),
        "not a whole path": replace(own, folder="orders-uid-orders/0"),
        "no such file": replace(own, spans=((7, 0, one),)),
        "inside a batch": replace(own, spans=((0, 5, one),)),
        "a file is missing": replace(own, spans=own.spans[1:]),
    }
    for what, told in wrong.items():
        course = from_files(planned(), told)
        assert offsets(course) == [], what
        assert course.position == 0
        assert "cannot read on in the files" in caplog.text
    spoil(folder, log_name(40), 200)
    assert offsets(from_files(planned(), own)) == list(range(40)), "a bit that fell over"
    os.truncate(folder / log_name(20), one + 50)
    assert offsets(from_files(planned(), own)) == list(range(30)), "a log that was cut"


def test_spark_local_file_read_stops_at_records_rewritten_after_planning(log: Log, folder: Path) -> None:
    log.truncate_to(60)
    log.append(a_batch(60, epoch=4))
    course = from_files(planned(0, 70), files(log, folder, 0, 70))
    assert offsets(course) == list(range(60))
    assert course.position == 60


@pytest.fixture
def there(node: FakeNode, log: Log, folder: Path) -> FakeNode:
    """Return a cluster with these records. Its node n2 is on this host."""
    served = node.add_stream("orders").partitions[0]
    served.leader_epoch = 3
    for first in range(0, RECORDS, 10):
        served.append(a_batch(first))
    node.files["n2"] = (this_host(), str(folder), log)
    node.files["n3"] = ("elsewhere/1", str(folder), log)
    return node


def read(
    link: ProcessConnection, rules: FetchRules = RULES, what: PlannedRange | None = None, strategies: Any = None
) -> tuple[list[int], int, int]:
    """Return (offsets, number of records from files, number of records over NATS)."""
    before = dict(counts)
    pieces = RangeReader(link, what or planned(), rules, strategies).read()
    found = [int(offset) for batch in pieces for piece in batch for offset in piece.offsets()]
    return found, counts[FILES] - before.get(FILES, 0), counts[NATS] - before.get(NATS, 0)


def test_spark_local_file_read_reads_the_segment_files_of_the_replica_on_its_host(
    link: ProcessConnection, there: FakeNode, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert read(link) == (list(range(RECORDS)), RECORDS, 0)
    assert "100 records from files of this host, 0 over NATS" in caplog.text
    there.asked.clear()
    assert read(link) == (list(range(RECORDS)), RECORDS, 0)
    assert there.asked == {"n2": 1}, "others are known to be elsewhere"


def test_spark_local_file_read_fetches_missing_records_over_nats(
    link: ProcessConnection, there: FakeNode, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / log_name(40)).rename(folder / "away")
    assert read(link) == (list(range(RECORDS)), 0, RECORDS), "all are opened at once, or none is read"
    (folder / "away").rename(folder / log_name(40))
    spoil(folder, log_name(40), 200)
    caplog.clear()
    assert read(link, replace(RULES, expects_files=True)) == (list(range(RECORDS)), 40, 60)
    assert [record.levelname for record in caplog.records if "60 over NATS" in record.message] == ["WARNING"]


def test_spark_local_file_read_is_not_used_for_the_leader_or_a_compacted_log(link: ProcessConnection, there: FakeNode) -> None:
    assert read(link, FetchRules(patience_s=3)) == (list(range(RECORDS)), 0, RECORDS)
    assert read(link, what=replace(planned(), compacted=True)) == (list(range(RECORDS)), 0, RECORDS)


def test_spark_local_file_read_is_not_used_for_a_replica_without_the_whole_range(
    link: ProcessConnection, there: FakeNode
) -> None:
    there.lagging["n2"] = 50
    assert find_offered_files(link, planned()) is None
    assert set(link.elsewhere) == {"n1", "n2", "n3"}
    link.elsewhere.clear()
    assert find_offered_files(link, planned(0, 51)) is not None
    assert find_offered_files(link, replace(planned(0, 51), uid="u2")) is None, "another stream of that name"


def test_spark_local_file_read_of_deleted_records_raises_data_loss(link: ProcessConnection, there: FakeNode, log: Log) -> None:
    log.drop_prefix(40)
    there.streams["orders"].partitions[0].log_start_offset = 40
    with pytest.raises(DataLossError, match=r"offsets \[0, 40\) were deleted"):
        read(link)
    with pytest.raises(LiftError):
        read(link, FetchRules(patience_s=3))


def test_spark_local_file_read_with_retention_before_opening_raises_data_loss(
    link: ProcessConnection, there: FakeNode, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    def then_retention(to: ProcessConnection, wanted: PlannedRange) -> RangeFiles | None:
        told = find_offered_files(to, wanted)
        log.drop_prefix(40)
        there.streams["orders"].partitions[0].log_start_offset = 40
        return told

    strategies = [partial(LocalFiles, find=then_retention), PipelinedRequests, RetryingRequests]
    with pytest.raises(DataLossError, match=r"offsets \[0, 40\) were deleted after planning"):
        read(link, strategies=strategies)
    assert "cannot read on in the files" in caplog.text, "its files were told and are gone"
    assert read(link, replace(RULES, fail_on_data_loss=False), planned(), strategies) == (list(range(40, RECORDS)), 0, 60)
