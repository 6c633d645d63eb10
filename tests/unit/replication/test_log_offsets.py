"""Test the offsets that a replica tracks of its log: end, flushed end, high watermark and epochs [D7]."""

from __future__ import annotations

import pytest

from liftpy.core.log.compaction_point import NEVER, Horizon
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.replication.log_offsets import LogOffsets
from liftpy.errors import InvariantError
from tests.each import each


def mirror(end: int = 10, flushed: int = 10, hw: int = 5) -> LogOffsets:
    return LogOffsets(0, end, flushed, hw, EpochCache([(1, 0), (3, 6)]))


def test_log_offsets_ignore_a_flush_started_before_a_truncation() -> None:
    log = mirror(flushed=4)
    log.was_truncated(6)
    log.flushed(10)
    assert log.flushed_end_offset == 6
    log.append(3, 4)
    assert (log.flushed_end_offset, log.is_flushed) == (6, False)
    log.flushed(5)
    assert log.flushed_end_offset == 6, "it never falls"


def test_log_offsets_of_an_emptied_log_have_no_compaction_horizon() -> None:
    for cut in (lambda log: log.was_truncated(0), lambda log: log.reset(20)):
        log = mirror()
        log.compacted(Horizon(8, 3))
        cut(log)
        assert log.is_empty
        assert log.horizon == NEVER
    log = mirror()
    log.compacted(Horizon(8, 3))
    log.was_truncated(9)
    assert log.horizon == Horizon(8, 3)
    with pytest.raises(InvariantError):
        log.was_truncated(10)


@each("end", [8, 9, 10])
@each(("flushed", "hw"), [(10, 9), (10, 7), (9, 8), (6, 5)])
def test_log_offsets_truncation_lowers_flushed_end_and_high_watermark(end: int, flushed: int, hw: int) -> None:
    log = LogOffsets(0, 10, flushed, hw, EpochCache([(1, 0), (3, 6)]))
    log.truncate(end)
    assert (log.log_end_offset, log.flushed_end_offset, log.high_watermark) == (end, min(flushed, end), min(hw, end - 1))
