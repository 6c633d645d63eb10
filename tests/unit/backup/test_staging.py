"""Logs made of pieces: byte for byte, where they end, and nothing of a damaged backup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from liftpy.config import StreamConfig
from liftpy.core.backup.manifest import PartitionCopy, StreamCopy
from liftpy.core.backup.pieces import cut_batch, end_of, first_leader_epoch
from liftpy.core.log.inspect import inspect
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import RecordBatch, build_batch, build_filler, parse_batch, split_batches
from liftpy.errors import ConfigError, CorruptionError
from sidecar.backup.staging import NOWHERE, LogDigest, StagedLog, Until, stage
from sidecar.cli.backup import until_of
from sidecar.disk.files import FolderStorage
from tests.unit.backup.stored import THIRD, copied, log_of, two_backups

SMALL = StreamConfig(segment_bytes=4096)


def staged(tmp_path: Path, copy: PartitionCopy, until: Until = NOWHERE) -> tuple[StagedLog, list[RecordBatch], Log]:
    store = two_backups(tmp_path / "store")[0]
    folder = tmp_path / "log"
    done = stage(store, copy, SMALL, folder, until, lambda path: None)
    assert not inspect(FolderStorage(folder)).faults
    log, _ = Log.open(FolderStorage(folder), SMALL)
    found: list[RecordBatch] = []
    position = log.log_start_offset
    while position < log.log_end_offset:
        found += split_batches(b"".join(log.read(position, 1 << 20).chunks))
        position = found[-1].next_offset
    return done, found, log


def bytes_of(batches: list[RecordBatch]) -> bytes:
    return b"".join(batch.view for batch in batches)


def test_a_log_is_what_its_pieces_are(tmp_path: Path) -> None:
    copy = two_backups(tmp_path / "store")[2].streams[0].partitions[0]
    done, found, log = staged(tmp_path, copy)
    assert bytes_of(found) == bytes_of(log_of(10))
    assert (done.start, done.end, done.records) == (0, 100, 100)
    assert log.high_watermark == 99
    assert log.epochs.entries == ((3, 0), (4, 40), (5, 80))
    digest = LogDigest()
    for batch in log_of(10):
        digest.add(batch)
    assert done.digest == digest.hexdigest()
    assert done.size_bytes == digest.size_bytes


def test_what_retention_had_taken_stays_away(tmp_path: Path) -> None:
    """The first piece begins below the log start: the batch that holds it is the first."""
    old = two_backups(tmp_path / "store")[2].streams[0].partitions[0]
    done, found, log = staged(tmp_path, replace(old, start=25))
    assert (done.start, log.log_start_offset, found[0].base_offset) == (20, 20, 20)
    assert bytes_of(found) == bytes_of(log_of(10)[2:])


def test_an_empty_log_keeps_its_start(tmp_path: Path) -> None:
    done, found, log = staged(tmp_path, PartitionCopy(partition=0, start=70, high_watermark=69))
    assert (done.start, done.end, log.log_end_offset, found) == (70, 70, 70, [])


@pytest.mark.parametrize(("last", "whole"), [(46, 4), (49, 5), (50, 5), (0, 0), (98, 9), (99, 10), (500, 10)])
def test_until_an_offset(tmp_path: Path, last: int, whole: int) -> None:
    """Only the last batch is another, and holds the same records."""
    copy = two_backups(tmp_path / "store")[2].streams[0].partitions[0]
    done, found, log = staged(tmp_path, copy, Until(offset=last))
    assert log.log_end_offset == done.end == min(last + 1, 100)
    assert bytes_of(found[:whole]) == bytes_of(log_of(10)[:whole])
    assert [value for batch in found for value in batch.values()] == [b"%d" % n for n in range(done.end)]


def test_until_a_time_ends_there_whatever_the_clocks_said_later(tmp_path: Path) -> None:
    """A new leader's clock may be behind: what it wrote comes later all the same."""
    stamps = (100, 300, 200)
    data = [build_batch([b"a", b"b"], base_offset=2 * n, leader_epoch=1, timestamp_ns=at) for n, at in enumerate(stamps)]
    store = two_backups(tmp_path / "store")[0]
    copy = copied(store, THIRD, split_batches(b"".join(data)))
    done = stage(store, copy, SMALL, tmp_path / "log", Until(time_ns=250), lambda path: None)
    assert (done.start, done.end, done.records) == (0, 2, 2)


def test_until_a_time_ends_before_the_first_record_of_it() -> None:
    stamped = [100, 200, 150, 300]
    batch = parse_batch(build_batch([b"a", b"b", b"c", b"d"], base_offset=10, timestamps_ns=stamped, timestamp_ns=100))
    assert end_of(batch, None, 150) == 11
    assert end_of(batch, None, 100) == 10
    assert end_of(batch, None, 301) is None
    assert end_of(batch, 12, 300) == 13
    assert end_of(batch, 13, None) is None
    assert end_of(batch, 3, None) == 10, "it ends before this batch"
    assert end_of(parse_batch(build_filler(5, 9, 2, 400)), None, 100) is None, "nobody published a filler"


def test_a_cut_batch_keeps_what_is_below() -> None:
    batch = parse_batch(
        build_batch(
            [b"a", None, b"c"], keys=[b"k", b"k", None], headers=[(("h", b"1"),), None, None], subjects=["s.a", "s.b", "s.a"],
            offset_deltas=[0, 2, 5], base_offset=20, leader_epoch=7, timestamp_ns=9, producer_id=5, base_sequence=3, producer_epoch=1,
        )
    )  # fmt: skip
    cut = cut_batch(batch, 24)
    assert cut is not None
    assert list(cut.records()) == list(batch.records())[:2]
    assert (cut.next_offset, cut.leader_epoch, cut.header.producer_id, cut.header.base_sequence) == (24, 7, 5, 3)
    assert cut_batch(batch, 20) is None
    gap = cut_batch(parse_batch(build_filler(5, 9, 2, 400)), 7)
    assert gap is not None
    assert (gap.base_offset, gap.next_offset, gap.record_count) == (5, 7, 0)
    assert not np.any(gap.offsets())


def test_nothing_is_made_of_a_damaged_piece_which_is_named(tmp_path: Path) -> None:
    store, _, two = two_backups(tmp_path / "store")
    copy = two.streams[0].partitions[0]
    path = copy.pieces[-1].file.path
    file = tmp_path / "store" / path
    wrong = bytearray(file.read_bytes())
    wrong[100] ^= 1
    file.write_bytes(wrong)
    for until in (NOWHERE, Until(offset=3)):
        with pytest.raises(CorruptionError, match=path):
            stage(store, copy, SMALL, tmp_path / f"log{until.offset}", until, lambda _: None)


def test_first_leader_epoch_is_above_the_backup_and_the_cluster(tmp_path: Path) -> None:
    two = two_backups(tmp_path)[2]
    assert first_leader_epoch(two, 1) > two.leader_epoch
    assert first_leader_epoch(two, 10_000) > 10_000
    later = replace(two, leader_epoch=2, streams=(StreamCopy(name="o", uid="1-1", partitions=two.streams[0].partitions),))
    assert first_leader_epoch(later, 1) > two.streams[0].partitions[0].epoch > later.leader_epoch, (
        "a record's own counts as well"
    )


def test_until_is_read_from_a_command_line() -> None:
    assert until_of(None) == NOWHERE
    assert until_of("17") == Until(offset=17)
    assert until_of("2026-01-31T12:00:00") == Until(time_ns=1769860800 * 10**9)
    for wrong in ("end", "tomorrow"):
        with pytest.raises(ConfigError):
            until_of(wrong)
