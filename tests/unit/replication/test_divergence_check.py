"""Test the check whether the last record of a reader is in the log of a replica [R6]."""

from __future__ import annotations

from liftpy.core.replication.log_offsets import EpochVerdict, LogOffsets, OffsetCheck, judge
from tests.each import each

SAME, BEHIND = EpochVerdict(OffsetCheck.SAME), EpochVerdict(OffsetCheck.BEHIND)


def cut(end_offset: int) -> EpochVerdict:
    return EpochVerdict(OffsetCheck.CUT, end_offset)


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
    last: tuple[int, int], wanted: EpochVerdict
) -> None:
    assert judge(a_log(), last_offset=last[0], last_epoch=last[1], is_latest=True) == wanted


def test_divergence_check_by_a_replica_without_a_lease_returns_behind_not_truncation() -> None:
    log = a_log()
    for last_offset, last_epoch in ((45, 5), (80, 6), (20, 1), (50, 7), (49, 8)):
        assert judge(log, last_offset=last_offset, last_epoch=last_epoch, is_latest=False) == BEHIND
    assert judge(log, last_offset=45, last_epoch=7, is_latest=False) == SAME


def test_divergence_check_against_an_empty_leader_log_returns_truncation_to_zero() -> None:
    log = LogOffsets()
    log.set_recovered(0, 0, -1, ())
    assert judge(log, last_offset=3, last_epoch=2, is_latest=True) == cut(0)
