"""Test the log offsets of a replica, and the check for divergence from the leader [D7, R6]."""

from __future__ import annotations

import pytest

from liftpy.core.log.compaction_point import NEVER, Horizon
from liftpy.core.log.leader_epochs import EpochCache
from liftpy.core.replication.log_offsets import LogOffsets, OffsetCheck, OffsetCheckResult, check_offset
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


SAME, BEHIND = OffsetCheckResult(OffsetCheck.SAME), OffsetCheckResult(OffsetCheck.BEHIND)


def cut(end_offset: int) -> OffsetCheckResult:
    return OffsetCheckResult(OffsetCheck.CUT, end_offset)


def a_log(start: int = 10, end: int = 50) -> LogOffsets:
    """Epoch 2 from 10 (or ``start``), 5 from 30, 7 from 40."""
    log = LogOffsets()
    log.set_recovered(
        start, end, end - 1, tuple((epoch, max(at, start)) for epoch, at in ((2, 10), (5, 30), (7, 40)) if at < end)
    )
    return log


@each(
    ("last", "wanted"),
    [
        ((29, 2), SAME),
        ((30, 5), SAME),
        ((49, 7), SAME),
        ((9, 1), SAME),  # retention took it: nothing to compare
        ((30, 2), cut(30)),  # epoch 2 ended before it here
        ((29, 5), cut(29)),
        ((45, 5), cut(40)),
        ((45, 6), cut(40)),  # an epoch that never was on this log
        ((35, 7), cut(35)),
        ((20, 1), cut(10)),  # nothing of what was read is here
        ((50, 7), cut(50)),  # past the end of a leader's log
        ((80, 6), cut(40)),
    ],
)
def test_divergence_check_by_a_leader_with_a_lease_returns_the_truncation_offset(
    last: tuple[int, int], wanted: OffsetCheckResult
) -> None:
    assert check_offset(a_log(), last_offset=last[0], last_epoch=last[1], is_latest=True) == wanted


def test_divergence_check_by_a_replica_without_a_lease_returns_behind_not_truncation() -> None:
    log = a_log()
    for last_offset, last_epoch in ((45, 5), (80, 6), (20, 1), (50, 7), (49, 8)):
        assert check_offset(log, last_offset=last_offset, last_epoch=last_epoch, is_latest=False) == BEHIND
    assert check_offset(log, last_offset=45, last_epoch=7, is_latest=False) == SAME


def test_divergence_check_against_an_empty_leader_log_returns_truncation_to_zero() -> None:
    log = LogOffsets()
    log.set_recovered(0, 0, -1, ())
    assert check_offset(log, last_offset=3, last_epoch=2, is_latest=True) == cut(0)
