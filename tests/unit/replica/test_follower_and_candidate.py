"""The follower: reconcile, fetch, checks, HW, idle sleep, back-off, reports. And the candidate."""

from __future__ import annotations

import pytest
from stepping import KEY, S, Stepped, state

from liftpy.config import ReplicationConfig
from liftpy.partition import PartitionStatus
from liftpy.replica import effects as do
from liftpy.replica import events as ev
from liftpy.replica.events import Deadline, RefusalReason


def idle(end: int = 3, config: ReplicationConfig | None = None) -> Stepped:
    """b follows a in epoch 1, has ``end`` records and sleeps."""
    follower = Stepped("b", config).follows()
    if end:
        follower.answered([(0, end - 1, 1)], -1)
        follower.step(ev.LogFlushed(end_offset=end))
    follower.answered([], end - 1)
    assert follower.replica.phase == "FOLLOWER_IDLE"
    return follower


def test_it_fetches_appends_flushes_and_only_then_acknowledges() -> None:
    follower = Stepped("b").follows()
    assert follower.only(do.SendFetch).offset == -1
    follower.answered([(0, 2, 1), (3, 4, 1)], 1)
    assert follower.sent() == [do.AppendFetched(token=1, last_offset=4, leader_high_watermark=1, leader_epoch=1)]
    assert follower.replica.high_watermark == -1, "HW waits for the flush"
    follower.step(ev.LogFlushed(end_offset=3))
    assert not follower.has(do.SendFetch)
    follower.step(ev.LogFlushed(end_offset=5))
    assert follower.replica.high_watermark == 1
    fetch = follower.only(do.SendFetch)
    assert (fetch.offset, fetch.offset_epoch) == (4, 1)


def test_the_watermark_is_never_above_its_own_log() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], 100)
    follower.step(ev.LogFlushed(end_offset=3))
    assert follower.replica.high_watermark == 2


@pytest.mark.parametrize(
    "spans",
    [
        [(1, 2, 1)],  # a gap in front
        [(0, 2, 1), (4, 5, 1)],  # a gap inside
        [(0, 2, 1), (2, 5, 1)],  # an overlap
        [(0, 2, 2)],  # an epoch that the leader can't have
        [(0, -1, 1)],
    ],
)
def test_a_wrong_answer_is_dropped_and_asked_for_again_after_a_pause(spans: list) -> None:
    follower = Stepped("b").follows()
    follower.answered(spans, 5)
    assert follower.has(do.DropFetched)
    assert follower.replica.log.log_end_offset == 0
    assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"
    follower.fire(Deadline.FETCH)
    assert follower.has(do.SendFetch)


def test_an_answer_to_another_request_is_not_used() -> None:
    follower = Stepped("b").follows()
    request = follower.only(do.SendFetch).request_id
    follower.answered([(0, 2, 1)], 5, request=request + 1)
    assert follower.only(do.DropFetched).why == "stale request"
    follower.answered([(0, 2, 1)], 5, request=request)
    assert follower.has(do.AppendFetched)
    follower.answered([(0, 2, 1)], 5, request=request)
    assert follower.only(do.DropFetched).why == "stale request", "a duplicate"


def test_it_sleeps_when_caught_up_and_a_notification_ends_the_sleep() -> None:
    follower = idle()
    follower.step(ev.WokenUp())
    assert follower.only(do.SendFetch).offset == 2


def test_while_it_sleeps_more_may_come_to_the_fetch_that_was_answered_with_nothing() -> None:
    follower = Stepped("b").follows()
    request = follower.only(do.SendFetch).request_id
    follower.answered([], -1, request=request)
    assert follower.replica.phase == "FOLLOWER_IDLE"
    follower.answered([], -1, request=request)
    assert not follower.sent(), "the empty answer twice says nothing"
    follower.answered([(0, 2, 1)], -1, request=request + 1)
    assert follower.only(do.DropFetched).why == "stale request"
    follower.answered([(0, 2, 1)], -1, request=request)
    assert follower.only(do.AppendFetched).last_offset == 2
    follower.answered([(0, 2, 1)], -1, request=request)
    assert follower.only(do.DropFetched).why == "stale request", "a duplicate"
    follower.step(ev.LogFlushed(end_offset=3))
    assert follower.only(do.SendFetch).offset == 2
    follower.answered([(3, 4, 1)], -1, request=request)
    assert follower.only(do.DropFetched).why == "stale request", "it waits for another answer now"


def test_a_second_answer_that_does_not_fit_ends_the_sleep_with_a_back_off() -> None:
    follower = Stepped("b").follows()
    request = follower.only(do.SendFetch).request_id
    follower.answered([], -1, request=request)
    follower.answered([(1, 2, 1)], -1, request=request)
    assert follower.only(do.DropFetched).why == "gap"
    assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"


def test_an_unreadable_second_answer_changes_nothing() -> None:
    follower = idle()
    follower.step(ev.RequestFailed(request_id=follower.replica._role._idle_request_id, reason="unreadable"))
    assert follower.replica.phase == "FOLLOWER_IDLE"


def test_a_second_answer_without_records_tells_of_hw_and_the_wait_goes_on() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], hw=-1)
    follower.step(ev.LogFlushed(end_offset=3))
    request = follower.only(do.SendFetch).request_id
    follower.answered([], hw=-1)
    assert follower.replica.phase == "FOLLOWER_IDLE"
    follower.answered([], hw=1, request=request)
    assert follower.sent() == [do.RaiseHighWatermark(high_watermark=1)], "nothing is asked for"
    follower.answered([], hw=7, request=request)
    assert follower.sent() == [do.RaiseHighWatermark(high_watermark=2)], "never above what is here"
    follower.answered([], hw=0, request=request)
    assert follower.sent() == [], "an old one"
    assert follower.replica.phase == "FOLLOWER_IDLE"
    follower.answered([(3, 3, 1)], hw=2, request=request)
    assert follower.has(do.AppendFetched), "the fetch can still be answered with more"


def test_a_second_answer_of_another_epoch_or_fetch_tells_nothing() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], hw=-1)
    follower.step(ev.LogFlushed(end_offset=3))
    request = follower.only(do.SendFetch).request_id
    follower.answered([], hw=-1)
    follower.step(ev.FetchAnswered(token=90, request_id=request, leader_epoch=9, high_watermark=2, spans=()))
    assert follower.sent() == []
    follower.answered([], hw=2, request=request - 1)
    assert follower.sent() == []
    assert follower.replica.phase == "FOLLOWER_IDLE"


def test_it_fetches_after_every_idle_wait() -> None:
    follower = idle()
    before = follower.now_ns
    follower.fire(Deadline.FETCH)
    assert follower.now_ns - before == S
    assert follower.has(do.SendFetch)


def test_a_wake_up_that_overtakes_its_empty_answer_is_not_lost() -> None:
    follower = Stepped("b").follows()
    request = follower.only(do.SendFetch).request_id
    follower.step(ev.WokenUp())
    assert not follower.has(do.SendFetch)
    follower.answered([], -1, request=request)
    assert follower.has(do.SendFetch)
    follower.answered([], -1)
    assert follower.replica.phase == "FOLLOWER_IDLE", "one wake-up is one fetch"


def test_a_wake_up_during_a_flush_is_not_lost() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], 0)
    follower.step(ev.WokenUp())
    follower.step(ev.LogFlushed(end_offset=3))
    assert follower.has(do.SendFetch)


def test_errors_back_off_and_never_lead_into_the_idle_sleep() -> None:
    follower = Stepped("b").follows()
    waits = []
    for _ in range(6):
        follower.step(ev.RequestFailed(request_id=follower.only(do.SendFetch).request_id, reason="no responders"))
        before = follower.now_ns
        follower.fire(Deadline.FETCH)
        waits.append((follower.now_ns - before) / S)
    assert waits[0] <= 0.05
    assert waits == sorted(waits) or waits[-1] > waits[0]
    assert max(waits) <= 1.0


def test_no_answer_is_a_failure_and_a_late_answer_is_not_used() -> None:
    follower = Stepped("b").follows()
    request = follower.only(do.SendFetch).request_id
    follower.fire(Deadline.REQUEST)
    assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"
    follower.answered([(0, 2, 1)], 5, request=request)
    assert follower.has(do.DropFetched)


def test_after_a_restart_it_reconciles_before_it_fetches() -> None:
    follower = Stepped("b").opened(14, 5, ((1, 0), (3, 10)))
    follower.told(state(leader_epoch=5))
    query = follower.only(do.SendEpochQuery)
    assert (query.asked_epoch, query.current_epoch) == (3, 5)
    assert not follower.has(do.SendFetch)
    follower.step(
        ev.NoticeReceived(leader="a", leader_epoch=5, epoch=1, epoch_start_offset=0, high_watermark=13, log_start_offset=0)
    )
    assert follower.replica.high_watermark == 5, "HW does not rise before the cut"
    query = follower.only(do.SendEpochQuery)
    follower.step(
        ev.EpochQueryAnswered(request_id=query.request_id, leader_epoch=2, last_offset=11, current_epoch=5, log_start_offset=0)
    )
    assert follower.only(do.CutLog).end_offset == 10
    assert not follower.has(do.SendFetch)
    follower.step(ev.LogCut(end_offset=10))
    query = follower.only(do.SendEpochQuery)
    assert query.asked_epoch == 1
    follower.step(
        ev.EpochQueryAnswered(request_id=query.request_id, leader_epoch=1, last_offset=7, current_epoch=5, log_start_offset=0)
    )
    follower.step(ev.LogCut(end_offset=8))
    fetch = follower.only(do.SendFetch)
    assert (fetch.offset, fetch.offset_epoch) == (7, 1)


def test_no_answer_never_cuts() -> None:
    follower = Stepped("b").opened(14, 5, ((1, 0),))
    follower.told(state(leader_epoch=5))
    for _ in range(5):
        follower.step(ev.RequestFailed(request_id=follower.only(do.SendEpochQuery).request_id, reason="no responders"))
        assert not follower.has(do.CutLog)
        follower.fire(Deadline.FETCH)
    assert follower.replica.log.log_end_offset == 14


def test_an_answer_of_another_epoch_is_not_used() -> None:
    follower = Stepped("b").opened(14, 5, ((1, 0),))
    follower.told(state(leader_epoch=5))
    follower.step(
        ev.EpochQueryAnswered(
            request_id=follower.only(do.SendEpochQuery).request_id,
            leader_epoch=1,
            last_offset=7,
            current_epoch=4,
            log_start_offset=0,
        )
    )
    assert not follower.has(do.CutLog)
    assert follower.replica.phase == "FOLLOWER_RECONCILE_BACKOFF"


def test_an_unflushed_tail_is_flushed_before_the_first_fetch() -> None:
    node = Stepped("a").leads()
    node.publish(3, flush=False)
    node.told(state("b", epoch=2, leader_epoch=3))
    node.step(
        ev.EpochQueryAnswered(
            request_id=node.only(do.SendEpochQuery).request_id,
            leader_epoch=2,
            last_offset=9,
            current_epoch=3,
            log_start_offset=0,
        )
    )
    assert not node.has(do.SendFetch)
    node.step(ev.LogFlushed(end_offset=3))
    assert node.only(do.SendFetch).offset == 2


def test_a_diverged_fetch_leads_back_to_reconciliation() -> None:
    follower = idle()
    follower.step(ev.WokenUp())
    follower.step(
        ev.FetchRefused(
            request_id=follower.only(do.SendFetch).request_id, reason=RefusalReason.DIVERGED, leader_epoch=1, log_start_offset=0
        )
    )
    follower.fire(Deadline.FETCH)
    assert follower.has(do.SendEpochQuery)


def test_behind_the_log_start_it_starts_afresh() -> None:
    follower = idle()
    follower.step(ev.WokenUp())
    follower.step(
        ev.FetchRefused(
            request_id=follower.only(do.SendFetch).request_id,
            reason=RefusalReason.BEFORE_LOG_START,
            leader_epoch=1,
            log_start_offset=40,
        )
    )
    assert follower.only(do.StartLogAfresh).start_offset == 40
    follower.step(ev.LogCut(end_offset=40))
    fetch = follower.only(do.SendFetch)
    assert (fetch.offset, fetch.offset_epoch) == (39, 0)
    follower.answered([(40, 44, 1)], 44)
    follower.step(ev.LogFlushed(end_offset=45))
    assert follower.replica.high_watermark == 44


def test_a_log_start_inside_its_own_log_is_no_reason_to_start_afresh() -> None:
    follower = idle()
    follower.step(ev.WokenUp())
    follower.step(
        ev.FetchRefused(
            request_id=follower.only(do.SendFetch).request_id,
            reason=RefusalReason.BEFORE_LOG_START,
            leader_epoch=1,
            log_start_offset=2,
        )
    )
    assert not follower.has(do.StartLogAfresh)


@pytest.mark.parametrize(("high_watermark", "log_start"), [(9, 0), (9, 5), (12, 0), (1 << 60, 1 << 60), (9, -5)])
def test_a_notice_wakes_and_changes_neither_the_log_nor_what_readers_see(high_watermark: int, log_start: int) -> None:
    """Nobody asked for it: it may be anybody's. What it says is asked for, and believed when the leader answers."""
    follower = Stepped("b").follows()
    follower.answered([(0, 9, 1)], -1)
    follower.step(ev.LogFlushed(end_offset=10))
    follower.answered([], 3)
    before = follower.replica.snapshot(follower.now_ns)
    follower.step(
        ev.NoticeReceived(
            leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=high_watermark, log_start_offset=log_start
        )
    )
    fetch = follower.only(do.SendFetch)
    assert [type(effect) for effect in follower.sent()] == [do.SendFetch]
    after = follower.replica.snapshot(follower.now_ns)
    assert (after.high_watermark, after.log_start_offset) == (before.high_watermark, before.log_start_offset) == (3, 0)
    follower.answered([], 7, request=fetch.request_id)
    assert follower.replica.high_watermark == 7


@pytest.mark.parametrize("high_watermark", [3, 2, -1])
def test_a_notice_without_news_is_no_reason_to_fetch(high_watermark: int) -> None:
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


def test_the_first_sign_of_a_leader_makes_the_follower_ask_anew_and_only_the_first() -> None:
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


def test_a_question_that_reached_only_the_leader_before_is_asked_again_when_the_new_one_speaks() -> None:
    follower = Stepped("b").opened(10, 5, ((1, 0),))
    follower.told(state(leader="c", leader_epoch=2))
    lost = follower.only(do.SendEpochQuery)
    follower.step(
        ev.NoticeReceived(leader="c", leader_epoch=2, epoch=1, epoch_start_offset=10, high_watermark=9, log_start_offset=0)
    )
    assert follower.only(do.SendEpochQuery).request_id > lost.request_id
    assert follower.replica.high_watermark == 5


def test_a_notice_of_another_epoch_is_ignored() -> None:
    follower = idle()
    follower.step(
        ev.NoticeReceived(leader="a", leader_epoch=2, epoch=9, epoch_start_offset=0, high_watermark=9, log_start_offset=5)
    )
    assert follower.out == []


def test_a_silent_leader_is_reported_again_and_again() -> None:
    follower = idle()
    follower.fire(Deadline.LEADER)
    report = follower.only(do.ReportLeader)
    assert report == do.ReportLeader(leader="a", leader_epoch=1, last_epoch=1, newest_offset=2, high_watermark=2)
    follower.fire(Deadline.LEADER)
    assert follower.has(do.ReportLeader)


def test_a_leader_that_answers_is_not_reported() -> None:
    follower = idle(config=ReplicationConfig(quiet_rounds=3))
    follower.fire(Deadline.FETCH)
    follower.answered([], 2)
    follower.fire(Deadline.LEADER)
    assert not follower.has(do.ReportLeader)


def test_a_follower_that_stood_still_does_not_blame_the_leader() -> None:
    follower = idle()
    follower.fire(Deadline.LEADER, late_s=20)
    assert not follower.has(do.ReportLeader)
    follower.fire(Deadline.LEADER)
    assert follower.has(do.ReportLeader)


def test_a_follower_outside_the_isr_reports_nobody() -> None:
    follower = Stepped("b").follows(state(isr="ac"))
    follower.fire(Deadline.LEADER)
    assert not follower.has(do.ReportLeader)


def test_a_new_epoch_of_the_same_leader_is_followed_anew() -> None:
    follower = idle()
    follower.told(state(leader_epoch=2, epoch=2))
    assert follower.has(do.SendEpochQuery)
    follower.told(state(leader_epoch=2, epoch=3, isr="ab"))
    assert follower.sent() == [], "another ISR is no reason to begin again"


def test_in_an_election_it_stops_fetching_and_tells_its_position() -> None:
    follower = idle()
    follower.told(state(leader="", status=PartitionStatus.ELECTION, epoch=2))
    assert follower.replica.role == "WAITING"
    assert follower.only(do.ReportLeader).newest_offset == 2
    follower.step(ev.WokenUp())
    assert follower.out == []


def proposed(epoch: int = 2, leader_epoch: int = 2) -> object:
    return state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="b", epoch=epoch, leader_epoch=leader_epoch)


def test_a_candidate_persists_replays_serves_and_appends_nothing() -> None:
    candidate = idle()
    candidate.told(proposed())  # type: ignore[arg-type]
    assert candidate.only(do.PersistLeaderEpoch).leader_epoch == 2
    candidate.fetch("c", 2, 1)
    assert candidate.has(do.SendFetchRefusal), "not before the epoch is durable"
    candidate.step(ev.LeaderEpochPersisted(leader_epoch=2))
    assert candidate.has(do.StartServing)
    assert candidate.only(do.ReplayLog).end_offset == 3
    candidate.fetch("c", 2, 1)
    assert candidate.has(do.SendFetchResponse)
    candidate.publish()
    assert candidate.sent() == [do.DropPublishes(token=candidate.tokens)]
    assert not candidate.has(do.RaiseHighWatermark)
    candidate.step(ev.ReplayProgressed(end_offset=1))
    candidate.fire(Deadline.PROMOTION)
    assert candidate.only(do.ReportPromotion) == do.ReportPromotion(
        leader_epoch=2, epoch=2, replayed_end_offset=1, newest_offset=2, finished=False
    )
    candidate.step(ev.ReplayFinished(end_offset=3))
    assert candidate.only(do.ReportPromotion).finished
    candidate.heard()
    candidate.told(state("b", isr="bc", epoch=3, leader_epoch=2))
    assert not candidate.has(do.OpenSubject), "a was alive a moment ago, and may still speak"
    candidate.step(ev.EpochQueryReceived(token=99, replica="a", asked_epoch=1, current_epoch=2, stream_uid=KEY.uid))
    assert candidate.has(do.OpenSubject), "a asks in the new epoch: it has stepped down"
    assert not candidate.has(do.CloseSubject), "it serves on"
    assert candidate.replica.role == "LEADER"
    candidate.publish(1)
    assert candidate.replica.high_watermark == 2
    candidate.fetch("c", 3)
    assert candidate.replica.high_watermark == 3


def test_a_new_leader_waits_for_the_lease_of_the_one_before_it_unless_that_has_ended() -> None:
    live = {"a": 1, "b": 1, "c": 1}
    for ends, opens_at_once in (({"b": 1, "c": 1}, True), ({**live, "a": 2}, True), (live, False)):
        candidate = idle()
        candidate.told(proposed())  # type: ignore[arg-type]
        candidate.step(ev.LeaderEpochPersisted(leader_epoch=2))
        candidate.step(ev.ReplayFinished(end_offset=3))
        candidate.told(state("b", isr="bc", epoch=3, leader_epoch=2), ends)
        assert candidate.has(do.OpenSubject) is opens_at_once
        if not opens_at_once:
            candidate.fetch("c", 2, 1)
            assert not candidate.has(do.RaiseHighWatermark)
            before = candidate.now_ns
            candidate.fire(Deadline.PROMOTION)
            assert candidate.has(do.OpenSubject)
            assert candidate.now_ns - before <= 1.5 * S


def test_a_candidate_that_is_passed_over_follows_the_next_one() -> None:
    candidate = idle()
    candidate.told(proposed())  # type: ignore[arg-type]
    candidate.step(ev.LeaderEpochPersisted(leader_epoch=2))
    candidate.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    assert candidate.has(do.CloseSubject)
    assert not candidate.has(do.SendEpochQuery), "c has to store its epoch first"
    candidate.told(state("c", isr="bc", epoch=4, leader_epoch=3))
    assert candidate.only(do.SendEpochQuery).leader == "c"
    candidate.told(state("c", isr="bc", epoch=5, leader_epoch=3))
    assert not candidate.has(do.SendEpochQuery), "it is asked already"


def test_a_candidate_does_not_go_back_to_an_older_epoch_after_a_restart() -> None:
    node = Stepped("b")
    node.step(ev.LogOpened(log_start_offset=0, log_end_offset=3, high_watermark=2, epochs=((1, 0),), persisted_epoch=2))
    node.told(state(leader_epoch=1, epoch=1))
    assert node.replica.role == "WAITING"


def test_a_cut_below_the_own_watermark_takes_it_along_after_an_unclean_election() -> None:
    follower = Stepped("b").opened(14, 12, ((1, 0),))
    follower.told(state(leader_epoch=5, unclean_elected=True))
    follower.step(
        ev.EpochQueryAnswered(
            request_id=follower.only(do.SendEpochQuery).request_id,
            leader_epoch=1,
            last_offset=7,
            current_epoch=5,
            log_start_offset=0,
        )
    )
    assert follower.replica.high_watermark == 7


def test_without_one_nothing_is_cut_that_is_known_to_be_committed() -> None:
    follower = Stepped("b").opened(14, 12, ((1, 0),))
    follower.told(state(leader_epoch=5))
    follower.step(
        ev.EpochQueryAnswered(
            request_id=follower.only(do.SendEpochQuery).request_id,
            leader_epoch=1,
            last_offset=11,
            current_epoch=5,
            log_start_offset=0,
        )
    )
    assert follower.only(do.ReportLeader).leader_lacks
    assert not follower.has(do.CutLog)
    assert follower.replica.log.log_end_offset == 14
    follower.step(ev.DeadlineReached(kind=ev.Deadline.FETCH), 2)
    follower.step(
        ev.EpochQueryAnswered(
            request_id=follower.only(do.SendEpochQuery).request_id,
            leader_epoch=1,
            last_offset=12,
            current_epoch=5,
            log_start_offset=0,
        )
    )
    assert follower.only(do.CutLog).end_offset == 13, "what lies above HW may go"


@pytest.mark.parametrize("waits", [True, False])
def test_a_connection_that_is_back_has_lost_what_was_asked_so_it_asks_again_without_waiting_for_a_time_out(waits: bool) -> None:
    follower = idle() if waits else Stepped("b").follows()
    follower.step(ev.DataPathChanged(is_up=False))
    follower.step(ev.DataPathChanged(is_up=True), 0.2)
    assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"
    follower.fire(Deadline.FETCH)
    assert follower.has(do.SendFetch)
    answered = Stepped("b").follows()
    answered.answered([(0, 2, 1)], -1)
    phase = answered.replica.phase
    answered.step(ev.DataPathChanged(is_up=True))
    assert answered.replica.phase == phase, "it asked for nothing that could be lost"


@pytest.mark.parametrize("end", [0, 3])
def test_a_follower_asks_a_candidate_only_after_a_while(end: int) -> None:
    follower = idle(end)
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    assert not follower.has(do.SendEpochQuery)
    assert not follower.has(do.SendFetch)
    follower.fire(Deadline.FETCH)  # its replay may take long: what it holds is fetched meanwhile
    assert follower.has(do.SendEpochQuery if end else do.SendFetch)
    follower.told(state("c", isr="bc", epoch=4, leader_epoch=3))
    assert not follower.has(do.SendEpochQuery)
    assert not follower.has(do.SendFetch)


def test_a_change_of_the_isr_does_not_shorten_a_back_off() -> None:
    follower = idle()
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    follower.told(state("c", isr="bc", epoch=4, leader_epoch=3))
    follower.step(ev.RequestFailed(request_id=follower.only(do.SendEpochQuery).request_id, reason="nobody listens"))
    follower.told(state("c", isr="b", epoch=5, leader_epoch=3))
    assert not follower.has(do.SendEpochQuery)


@pytest.mark.parametrize("end", [0, 3])
def test_a_notice_of_the_new_leader_ends_the_wait_as_its_leadership_does(end: int) -> None:
    follower = idle(end)
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    follower.step(
        ev.NoticeReceived(leader="c", leader_epoch=3, epoch=4, epoch_start_offset=end, high_watermark=-1, log_start_offset=0)
    )
    assert follower.has(do.SendEpochQuery if end else do.SendFetch), "an empty log has nothing to reconcile"
    assert not follower.has(do.SendFetch if end else do.SendEpochQuery)


def test_an_emptied_log_reports_the_epoch_of_what_it_has_dropped() -> None:
    """[C9]"""
    node = Stepped("b")
    node.step(ev.LogOpened(log_start_offset=10, log_end_offset=10, high_watermark=9, epochs=(), epoch_before_start=3))
    node.told(state(leader="", status=PartitionStatus.ELECTION, leader_epoch=4, epoch=2))
    report = node.only(do.ReportLeader)
    assert (report.last_epoch, report.newest_offset) == (3, 9)
    dropped = Stepped("b").opened(12, 9, ((2, 10),), start=10)
    dropped.told(state(leader_epoch=4))
    dropped.step(ev.LogStartMoved(log_start_offset=10))
    dropped.told(state(leader="", status=PartitionStatus.ELECTION, leader_epoch=4, epoch=2))
    assert dropped.only(do.ReportLeader).last_epoch == 2


def test_a_follower_below_its_horizon_asks_for_the_epoch_of_what_compaction_has_seen_and_then_for_its_own() -> None:
    for reached in (True, False):
        follower = Stepped("b").opened(end=6, hw=-1, epochs=((1, 0), (2, 4)))
        follower.step(ev.LogCompacted(end_offset=10, leader_epoch=3))
        follower.told(state(leader_epoch=5))
        first = follower.only(do.SendEpochQuery)
        assert (first.leader, first.asked_epoch, first.current_epoch) == ("a", 3, 5)
        answer = ev.EpochQueryAnswered(
            request_id=first.request_id, leader_epoch=3, last_offset=9 if reached else 8, current_epoch=5, log_start_offset=2
        )
        follower.step(answer)
        if reached:
            second = follower.only(do.SendEpochQuery)
            assert (second.asked_epoch, second.current_epoch) == (2, 5), "of its log's end"
            assert second.request_id != first.request_id
        else:
            assert follower.only(do.StartLogAfresh) == do.StartLogAfresh(start_offset=2)
