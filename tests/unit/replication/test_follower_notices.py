"""Test a follower that gets notices, has a silent leader, or takes part in an election."""

from __future__ import annotations

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline, RefusalReason
from tests.unit.replication.stepping import Stepped, idle, state


@pytest.mark.parametrize("high_watermark", [3, 2, -1])
def test_follower_notice_with_a_known_high_watermark_causes_no_fetch(high_watermark: int) -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 9, 1)], -1)
    follower.step(ev.LogFlushed(end_offset=10))
    follower.answered([], 3)
    follower.out.clear()
    follower.step(
        ev.NoticeReceived(
            leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=high_watermark, log_start_offset=3
        )
    )
    assert follower.out == []


def test_follower_repeats_its_pending_fetch_once_at_the_first_notice_of_its_leader() -> None:
    follower = Stepped("b").follows()
    lost = follower.only(do.SendFetch)
    follower.step(
        ev.NoticeReceived(leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=-1, log_start_offset=0)
    )
    again = follower.only(do.SendFetch)
    assert again.request_id > lost.request_id
    follower.step(
        ev.NoticeReceived(leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=-1, log_start_offset=0)
    )
    assert not follower.has(do.SendFetch), "the second one may be on its way"
    follower.fire(Deadline.REQUEST)
    follower.step(
        ev.NoticeReceived(leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=-1, log_start_offset=0)
    )
    assert not follower.has(do.SendFetch)


def test_follower_repeats_its_epoch_query_at_the_first_notice_of_a_new_leader() -> None:
    follower = Stepped("b").opened(10, 5, ((1, 0),))
    follower.told(state(leader="c", leader_epoch=2))
    lost = follower.only(do.SendEpochQuery)
    follower.step(
        ev.NoticeReceived(leader="c", leader_epoch=2, epoch=1, epoch_start_offset=10, high_watermark=9, log_start_offset=0)
    )
    assert follower.only(do.SendEpochQuery).request_id > lost.request_id
    assert follower.replica.high_watermark == 5


def test_follower_does_not_report_a_leader_that_answers() -> None:
    follower = idle(config=ReplicationConfig(idle_polls_before_quiet=3))
    follower.fire(Deadline.FETCH)
    follower.answered([], 2)
    follower.fire(Deadline.LEADER)
    assert not follower.has(do.ReportLeader)


@pytest.mark.parametrize(("leader_epoch", "reported"), [(1, False), (2, True)])
def test_follower_does_not_report_a_leader_that_rejects_its_fetch(leader_epoch: int, reported: bool) -> None:
    follower = idle()
    follower.fire(Deadline.FETCH)
    rejected = ev.FetchRefused(
        request_id=follower.only(do.SendFetch).request_id, reason=RefusalReason.NOT_A_REPLICA, leader_epoch=leader_epoch,
        log_start_offset=0,
    )  # fmt: skip
    follower.step(rejected)
    follower.fire(Deadline.LEADER)
    assert follower.has(do.ReportLeader) is reported


def test_follower_whose_process_was_paused_does_not_report_its_leader() -> None:
    follower = idle()
    follower.fire(Deadline.LEADER, late_s=20)
    assert not follower.has(do.ReportLeader)
    follower.fire(Deadline.LEADER)
    assert follower.has(do.ReportLeader)


def test_follower_outside_the_isr_reports_no_leader() -> None:
    follower = Stepped("b").follows(state(isr="ac"))
    follower.fire(Deadline.LEADER)
    assert not follower.has(do.ReportLeader)


def test_follower_reconciles_again_when_its_leader_has_a_new_epoch() -> None:
    follower = idle()
    follower.told(state(leader_epoch=2, epoch=2))
    assert follower.has(do.SendEpochQuery)
    follower.told(state(leader_epoch=2, epoch=3, isr="ab"))
    assert follower.sent() == [], "another ISR is no reason to begin again"


def test_follower_that_gets_an_empty_second_response_does_not_report_its_leader() -> None:
    follower = Stepped("b").follows()
    request = follower.only(do.SendFetch).request_id
    follower.answered([], -1)
    timeout_ns = follower.replica._shared.deadlines._at_ns[Deadline.LEADER] - follower.now_ns
    follower.now_ns += timeout_ns * 9 // 10
    follower.answered([], -1, request=request)
    follower.fire(Deadline.LEADER)
    assert not follower.has(do.ReportLeader)
    follower.fire(Deadline.LEADER)
    assert follower.has(do.ReportLeader), "nothing has come since"
