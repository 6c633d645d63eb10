"""Test a follower that gets notices, has a silent leader, or takes part in an election."""

from __future__ import annotations

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from liftpy.core.replication.fetch_assembly import FetchAssembly
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice, RefusalReason
from liftpy.core.wire.chunking import Piece
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, idle, state


@pytest.mark.parametrize("high_watermark", [3, 2, -1])
def test_follower_notice_with_a_known_high_watermark_causes_no_fetch(high_watermark: int) -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 9, 1)], -1)
    follower.step(ev.LogFlushed(end_offset=10))
    follower.answered([], 3)
    follower.out.clear()
    follower.step(
        LeaderNotice(
            leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=high_watermark, log_start_offset=3
        )
    )
    assert follower.out == []


def test_follower_repeats_its_pending_fetch_once_at_the_first_notice_of_its_leader() -> None:
    follower = Stepped("b").follows()
    lost = follower.only(FetchRequest)
    follower.step(
        LeaderNotice(leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=-1, log_start_offset=0)
    )
    again = follower.only(FetchRequest)
    assert again.request_id > lost.request_id
    follower.step(
        LeaderNotice(leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=-1, log_start_offset=0)
    )
    assert not follower.has(FetchRequest), "the second one may be on its way"
    follower.fire(Deadline.REQUEST)
    follower.step(
        LeaderNotice(leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=-1, log_start_offset=0)
    )
    assert not follower.has(FetchRequest)


def test_follower_repeats_its_epoch_query_at_the_first_notice_of_a_new_leader() -> None:
    follower = Stepped("b").opened(10, 5, ((1, 0),))
    follower.told(state(leader="c", leader_epoch=2))
    lost = follower.only(EpochQuery)
    follower.step(
        LeaderNotice(leader="c", leader_epoch=2, epoch=1, epoch_start_offset=10, high_watermark=9, log_start_offset=0)
    )
    assert follower.only(EpochQuery).request_id > lost.request_id
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
    rejected = FetchRefusal(
        request_id=follower.only(FetchRequest).request_id, reason=RefusalReason.NOT_A_REPLICA, leader_epoch=leader_epoch,
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
    assert follower.has(EpochQuery)
    follower.told(state(leader_epoch=2, epoch=3, isr="ab"))
    assert follower.sent() == [], "another ISR is no reason to begin again"


def test_follower_that_gets_an_empty_second_response_does_not_report_its_leader() -> None:
    follower = Stepped("b").follows()
    request = follower.only(FetchRequest).request_id
    follower.answered([], -1)
    timeout_ns = follower.deadlines[Deadline.LEADER] - follower.now_ns
    follower.now_ns += timeout_ns * 9 // 10
    follower.answered([], -1, request=request)
    follower.fire(Deadline.LEADER)
    assert not follower.has(do.ReportLeader)
    follower.fire(Deadline.LEADER)
    assert follower.has(do.ReportLeader), "nothing has come since"


# ---- what a follower accepts -----------------------------------------------------------------------------------------------
def following(end: int = 5) -> Stepped:
    """At offset ``end``, with a fetch under way in epoch 1 of leader a."""
    follower = Stepped("b")
    follower.opened(end, end - 1, ((1, 0),) if end else ())
    follower.told(state())
    if end:
        query = follower.only(EpochQuery)
        follower.step(
            EpochAnswer(request_id=query.request_id, leader_epoch=1, last_offset=end - 1, current_epoch=1, log_start_offset=0)
        )
    assert follower.has(FetchRequest)
    return follower


@each("reason", list(RefusalReason))
def test_follower_ignores_a_fetch_rejection_of_another_epoch(reason: RefusalReason) -> None:
    follower = following()
    request = follower.only(FetchRequest).request_id
    follower.step(FetchRefusal(request_id=request, reason=reason, leader_epoch=7, log_start_offset=100))
    assert not any(isinstance(effect, do.TruncateLog | do.ResetLog) for effect in follower.out)
    assert follower.replica.log.log_end_offset == 5
    waits_on = reason is RefusalReason.UNKNOWN
    assert follower.replica.phase == ("FOLLOWER_FETCH" if waits_on else "FOLLOWER_FETCH_BACKOFF")


def test_follower_accepts_the_response_to_a_fetch_after_rejections_of_its_repetitions() -> None:
    follower = following()
    request = follower.only(FetchRequest).request_id
    for _ in range(3):
        follower.step(FetchRefusal(request_id=request, reason=RefusalReason.UNKNOWN, leader_epoch=1, log_start_offset=0))
    follower.answered([(5, 5, 1)], 4, request)
    assert follower.only(do.AppendFetched).last_offset == 5


def test_follower_accepts_the_response_of_its_leader_after_a_rejection_of_an_earlier_leader() -> None:
    follower = following()
    request = follower.only(FetchRequest).request_id
    follower.step(FetchRefusal(request_id=request, reason=RefusalReason.STALE_EPOCH, leader_epoch=0, log_start_offset=0))
    follower.answered([(5, 5, 1)], 4, request)
    assert follower.only(do.AppendFetched).last_offset == 5


@pytest.mark.parametrize(("log_start", "afresh"), [(3, False), (4, False), (5, True), (9, True)])
def test_follower_resets_its_log_only_if_the_leader_log_starts_after_its_end(log_start: int, afresh: bool) -> None:
    follower = following(5)
    follower.step(
        FetchRefusal(
            request_id=follower.only(FetchRequest).request_id,
            reason=RefusalReason.BEFORE_LOG_START,
            leader_epoch=1,
            log_start_offset=log_start,
        )
    )
    assert follower.has(do.ResetLog) is afresh


@pytest.mark.parametrize(("sender", "epoch", "heard"), [("a", 1, True), ("c", 1, False), ("a", 2, False)])
def test_follower_ignores_a_notice_of_another_sender_or_leader_epoch(sender: str, epoch: int, heard: bool) -> None:
    follower = following()
    follower.now_ns += 3 * S
    notice = LeaderNotice(
        leader=sender, leader_epoch=epoch, epoch=1, epoch_start_offset=0, high_watermark=4, log_start_offset=0
    )  # fmt: skip
    follower.step(notice)
    assert (follower.role._leader_contact_ns == follower.now_ns) is heard  # type: ignore[attr-defined]


@pytest.mark.parametrize(("offset", "named"), [(0, 5), (4, 5), (5, 5), (7, 7)])
def test_follower_reports_damage_only_at_an_offset_that_it_lacks(offset: int, named: int) -> None:
    follower = following(5)
    follower.step(ev.RequestFailed(request_id=follower.only(FetchRequest).request_id, reason="crc", bad_offset=offset))
    follower.fire(ev.Deadline.FETCH)
    assert follower.only(FetchRequest).bad_offset == named


def test_fetch_assembly_restarts_at_another_leader_epoch_offset_or_after_damage() -> None:
    assembly = FetchAssembly()

    def asks(epoch: int, offset: int, bad: int | None = None) -> int:
        return assembly.fetch_sent(
            FetchRequest(
                replica="b",
                offset=offset,
                leader_epoch=epoch,
                offset_epoch=0,
                incarnation=1,
                request_id=1,
                max_bytes=100,
                stream_uid="u1",
                bad_offset=bad,
            )
        ).position

    assert asks(1, 4) == 0
    assembly.add_piece(Piece(1, 6, 0, memoryview(b"abc")))
    assert asks(1, 4) == 3, "it goes on"
    assert asks(2, 4) == 0, "another leader's batch may be another"
    for other in ((2, 5, None), (2, 5, 5)):
        assembly.add_piece(Piece(1, 6, 0, memoryview(b"abc")))
        assert asks(*other) == 0


def candidate(epoch: int = 3) -> Stepped:
    made = Stepped("b").opened(4, 3, ((1, 0),))
    made.told(state(leader="", candidate="b", status=PartitionStatus.CANDIDATE_FOUND, leader_epoch=2, epoch=epoch))
    return made


def test_candidate_repeats_its_promotion_report_for_each_new_epoch_and_periodically() -> None:
    made = candidate()
    made.step(ev.LeaderEpochPersisted(leader_epoch=2))
    made.step(ev.ReplayFinished(end_offset=4))
    assert made.only(do.ReportPromotion).finished
    for epoch in (4, 5):
        made.told(state(leader="", candidate="b", status=PartitionStatus.CANDIDATE_FOUND, leader_epoch=2, epoch=epoch))
        assert made.only(do.ReportPromotion).epoch == epoch
    for _ in range(3):
        made.fire(ev.Deadline.PROMOTION)
        assert made.has(do.ReportPromotion)


def test_persisted_leader_epochs_never_decrease() -> None:
    follower = Stepped("b").opened()
    follower.told(state())
    follower.step(ev.LeaderEpochPersisted(leader_epoch=7))
    follower.step(ev.LeaderEpochPersisted(leader_epoch=5))
    follower.told(state(leader="c", leader_epoch=6, epoch=9))
    assert follower.replica.state.leader_epoch == 1, "it has promised to follow nobody below 7"
    follower.told(state(leader="c", leader_epoch=7, epoch=10))
    assert follower.replica.state.leader_epoch == 7


# ---- reconciliation --------------------------------------------------------------------------------------------------------
def test_follower_flushes_its_unflushed_records_before_the_first_fetch() -> None:
    node = Stepped("a").leads()
    node.publish(3, flush=False)
    node.told(state("b", epoch=2, leader_epoch=3))
    node.step(
        EpochAnswer(
            request_id=node.only(EpochQuery).request_id,
            leader_epoch=2,
            last_offset=9,
            current_epoch=3,
            log_start_offset=0,
        )
    )
    assert not node.has(FetchRequest)
    node.step(ev.LogFlushed(end_offset=3))
    assert node.only(FetchRequest).offset == 2


def test_follower_after_a_fetch_rejected_as_diverged_sends_an_epoch_query() -> None:
    follower = idle()
    follower.step(ev.NotificationReceived())
    follower.step(
        FetchRefusal(
            request_id=follower.only(FetchRequest).request_id, reason=RefusalReason.DIVERGED, leader_epoch=1, log_start_offset=0
        )
    )
    follower.fire(Deadline.FETCH)
    assert follower.has(EpochQuery)
