"""Test that a follower reconciles its log before it fetches: truncation, reset, and records that it never truncates."""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline, RefusalReason
from tests.unit.replication.stepping import Stepped, idle, state


def test_restarted_follower_sends_an_epoch_query_before_its_first_fetch() -> None:
    follower = Stepped("b").opened(14, 5, ((1, 0), (3, 10)))
    follower.told(state(leader_epoch=5))
    query = follower.only(do.SendEpochQuery)
    assert (query.requested_epoch, query.current_epoch) == (3, 5)
    assert not follower.has(do.SendFetch)
    follower.step(
        ev.NoticeReceived(leader="a", leader_epoch=5, epoch=1, epoch_start_offset=0, high_watermark=13, log_start_offset=0)
    )
    assert follower.replica.high_watermark == 5, "HW does not rise before the cut"
    query = follower.only(do.SendEpochQuery)
    follower.step(
        ev.EpochQueryAnswered(request_id=query.request_id, leader_epoch=2, last_offset=11, current_epoch=5, log_start_offset=0)
    )
    assert follower.only(do.TruncateLog).end_offset == 10
    assert not follower.has(do.SendFetch)
    follower.step(ev.LogTruncated(end_offset=10))
    query = follower.only(do.SendEpochQuery)
    assert query.requested_epoch == 1
    follower.step(
        ev.EpochQueryAnswered(request_id=query.request_id, leader_epoch=1, last_offset=7, current_epoch=5, log_start_offset=0)
    )
    follower.step(ev.LogTruncated(end_offset=8))
    fetch = follower.only(do.SendFetch)
    assert (fetch.offset, fetch.offset_epoch) == (7, 1)


def test_follower_without_an_epoch_query_response_never_truncates() -> None:
    follower = Stepped("b").opened(14, 5, ((1, 0),))
    follower.told(state(leader_epoch=5))
    for _ in range(5):
        follower.step(ev.RequestFailed(request_id=follower.only(do.SendEpochQuery).request_id, reason="no responders"))
        assert not follower.has(do.TruncateLog)
        follower.fire(Deadline.FETCH)
    assert follower.replica.log.log_end_offset == 14


def test_follower_ignores_an_epoch_query_response_of_another_leader_epoch() -> None:
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
    assert not follower.has(do.TruncateLog)
    assert follower.replica.phase == "FOLLOWER_RECONCILE_BACKOFF"


def test_follower_flushes_its_unflushed_records_before_the_first_fetch() -> None:
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


def test_follower_whose_fetch_is_rejected_as_diverged_sends_an_epoch_query() -> None:
    follower = idle()
    follower.step(ev.NotificationReceived())
    follower.step(
        ev.FetchRefused(
            request_id=follower.only(do.SendFetch).request_id, reason=RefusalReason.DIVERGED, leader_epoch=1, log_start_offset=0
        )
    )
    follower.fire(Deadline.FETCH)
    assert follower.has(do.SendEpochQuery)


def test_follower_behind_the_leaders_log_start_resets_its_log() -> None:
    follower = idle()
    follower.step(ev.NotificationReceived())
    follower.step(
        ev.FetchRefused(
            request_id=follower.only(do.SendFetch).request_id,
            reason=RefusalReason.BEFORE_LOG_START,
            leader_epoch=1,
            log_start_offset=40,
        )
    )
    assert follower.only(do.ResetLog).start_offset == 40
    follower.step(ev.LogTruncated(end_offset=40))
    fetch = follower.only(do.SendFetch)
    assert (fetch.offset, fetch.offset_epoch) == (39, 0)
    follower.answered([(40, 44, 1)], 44)
    follower.step(ev.LogFlushed(end_offset=45))
    assert follower.replica.high_watermark == 44


def test_follower_truncates_below_its_high_watermark_after_an_unclean_election() -> None:
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


def test_follower_without_an_unclean_election_never_truncates_committed_records() -> None:
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
    assert not follower.has(do.TruncateLog)
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
    assert follower.only(do.TruncateLog).end_offset == 13, "what lies above HW may go"


def test_replica_with_an_emptied_log_reports_the_epoch_of_its_deleted_records() -> None:
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


def test_follower_with_a_compacted_log_first_queries_the_epoch_of_its_compaction_horizon() -> None:
    for reached in (True, False):
        follower = Stepped("b").opened(end=6, hw=-1, epochs=((1, 0), (2, 4)))
        follower.step(ev.LogCompacted(end_offset=10, leader_epoch=3))
        follower.told(state(leader_epoch=5))
        first = follower.only(do.SendEpochQuery)
        assert (first.leader, first.requested_epoch, first.current_epoch) == ("a", 3, 5)
        answer = ev.EpochQueryAnswered(
            request_id=first.request_id, leader_epoch=3, last_offset=9 if reached else 8, current_epoch=5, log_start_offset=2
        )
        follower.step(answer)
        if reached:
            second = follower.only(do.SendEpochQuery)
            assert (second.requested_epoch, second.current_epoch) == (2, 5), "of its log's end"
            assert second.request_id != first.request_id
        else:
            assert follower.only(do.ResetLog) == do.ResetLog(start_offset=2)
