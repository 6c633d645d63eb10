"""Test how a log opens after a clean stop, a kill and a power cut [D7, S4, S6, S7]."""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log import small_files
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import recover
from liftpy.core.log.segment import index_name, log_name
from liftpy.core.log.small_files import CHECKPOINT_NAME, Checkpoint
from liftpy.core.log.storage import MemoryStorage
from tests.unit.log.small_logs import filled


@pytest.mark.parametrize(("hw", "lost"), [(16, False), (17, False), (18, True)])
def test_log_open_with_checkpoint_above_the_log_reports_lost_committed_records(hw: int, lost: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.replace(CHECKPOINT_NAME, small_files.encode_checkpoint(Checkpoint(hw, 0, 0)))
    log, report = Log.open(storage, StreamConfig(), clean=True)
    assert report.lost_committed is lost
    assert report.must_leave_isr is lost
    assert log.high_watermark == min(hw, 17)


def test_log_open_high_watermark_is_never_below_the_log_start() -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    log.drop_prefix(12)
    log.close()
    storage.remove(CHECKPOINT_NAME)
    again, report = Log.open(storage, StreamConfig(), clean=True)
    assert not report.checkpoint_found
    assert again.log_start_offset == 12
    assert again.high_watermark >= again.log_start_offset - 1


@pytest.mark.parametrize("clean", [True, False])
def test_log_open_with_a_torn_tail_after_a_clean_stop_reports_lost_flushed_data(clean: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.files[log_name(12)].data += b"torn"
    _, report = Log.open(storage, StreamConfig(), clean=clean)
    assert report.cut_bytes == 4
    assert report.lost_flushed is clean
    assert report.must_leave_isr is clean


@pytest.mark.parametrize("wrong", ["longer", "shorter", "another base"])
def test_log_open_ignores_an_index_that_does_not_match_its_segment(wrong: str) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    if wrong == "longer":
        storage.files[log_name(0)].data += b"more"
    elif wrong == "shorter":
        del storage.files[log_name(0)].data[-1:]
    else:
        storage.files[index_name(0)] = storage.files[index_name(6)]
    report = recover(storage, clean=True).report
    assert report.walked_bytes > 0
    assert report.rebuilt_indexes + len(report.damage) > 0
