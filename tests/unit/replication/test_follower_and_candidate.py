"""Test the fetches of a follower, and what a candidate waits for."""

from __future__ import annotations

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice, RefusalReason
from liftpy.core.wire.rejections import RejectReason
from tests.unit.replication.stepping import KEY, S, Stepped, idle, state


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
def test_follower_drops_an_invalid_fetch_response_and_retries_after_a_backoff(spans: list) -> None:
    follower = Stepped("b").follows()
    follower.answered(spans, 5)
    assert follower.has(do.DropFetched)
    assert follower.replica.log.log_end_offset == 0
    assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"
    follower.fire(Deadline.FETCH)
    assert follower.has(FetchRequest)


def test_follower_after_a_batch_fragment_sends_the_next_fetch_with_its_own_timeout() -> None:
    follower = Stepped("b").follows()
    first = follower.only(FetchRequest)
    follower.step(ev.FetchPieceArrived(request_id=first.request_id, leader_epoch=1), after_s=1)
    at_ns = follower.now_ns + round(ReplicationConfig().fetch_timeout_s * S)
    asked = follower.only(FetchRequest)
    assert [effect for effect in follower.out if getattr(effect, "kind", None) is Deadline.REQUEST] == [
        do.SetDeadline(kind=Deadline.REQUEST, at_ns=None),
        do.SetDeadline(kind=Deadline.REQUEST, at_ns=at_ns),
    ]
    assert asked.request_id > first.request_id
    assert asked.offset == first.offset
    follower.answered([(0, 2, 1)], -1, request=first.request_id)
    assert follower.only(do.DropFetched).why == "stale request"
    follower.answered([(0, 2, 1)], -1, request=asked.request_id)
    assert follower.only(do.AppendFetched).last_offset == 2


def test_follower_retries_soon_again_after_a_batch_fragment_from_its_leader() -> None:
    follower = Stepped("b").follows()

    def fail_ns() -> int:
        request = follower.only(FetchRequest)
        follower.step(ev.RequestFailed(request_id=request.request_id, reason="no responders"))
        delay_ns = follower.deadlines[Deadline.FETCH] - follower.now_ns
        follower.fire(Deadline.FETCH)
        return delay_ns

    first_ns, *_, last_ns = [fail_ns() for _ in range(5)]
    assert last_ns > 4 * first_ns
    follower.step(ev.FetchPieceArrived(request_id=follower.only(FetchRequest).request_id, leader_epoch=1))
    assert fail_ns() < 2 * first_ns


def test_idle_follower_ignores_an_unreadable_second_response() -> None:
    follower = idle()
    follower.step(ev.RequestFailed(request_id=follower.role._idle_request_id, reason="unreadable"))
    assert follower.replica.phase == "FOLLOWER_IDLE"


def test_idle_follower_raises_its_high_watermark_from_an_empty_second_response_to_one_fetch() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], hw=-1)
    follower.step(ev.LogFlushed(end_offset=3))
    request = follower.only(FetchRequest).request_id
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


def test_idle_follower_ignores_a_second_response_of_another_epoch_or_fetch() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], hw=-1)
    follower.step(ev.LogFlushed(end_offset=3))
    request = follower.only(FetchRequest).request_id
    follower.answered([], hw=-1)
    follower.step(ev.FetchAnswered(token=90, request_id=request, leader_epoch=9, high_watermark=2, spans=()))
    assert follower.sent() == []
    follower.answered([], hw=2, request=request - 1)
    assert follower.sent() == []
    assert follower.replica.phase == "FOLLOWER_IDLE"


def test_follower_woken_before_its_empty_response_sends_one_fetch_after_the_response() -> None:
    follower = Stepped("b").follows()
    request = follower.only(FetchRequest).request_id
    follower.step(ev.NotificationReceived())
    assert not follower.has(FetchRequest)
    follower.answered([], -1, request=request)
    assert follower.has(FetchRequest)
    follower.answered([], -1)
    assert follower.replica.phase == "FOLLOWER_IDLE", "one wake-up is one fetch"


def test_follower_woken_during_a_flush_sends_a_fetch() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], 0)
    follower.step(ev.NotificationReceived())
    follower.step(ev.LogFlushed(end_offset=3))
    assert follower.has(FetchRequest)


@pytest.mark.parametrize("waits", [True, False])
def test_follower_sends_a_fetch_at_once_after_a_reconnect(waits: bool) -> None:
    follower = idle() if waits else Stepped("b").follows()
    follower.step(ev.DataPathChanged(is_up=False))
    follower.step(ev.DataPathChanged(is_up=True), 0.2)
    assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"
    follower.fire(Deadline.FETCH)
    assert follower.has(FetchRequest)
    answered = Stepped("b").follows()
    answered.answered([(0, 2, 1)], -1)
    phase = answered.replica.phase
    answered.step(ev.DataPathChanged(is_up=True))
    assert answered.replica.phase == phase, "it asked for nothing that could be lost"


@pytest.mark.parametrize("end", [0, 3])
def test_follower_of_a_candidate_sends_its_first_request_after_a_delay(end: int) -> None:
    follower = idle(end)
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    assert not follower.has(EpochQuery)
    assert not follower.has(FetchRequest)
    follower.fire(Deadline.FETCH)  # its replay may take long: what it holds is fetched meanwhile
    assert follower.has(EpochQuery if end else FetchRequest)
    follower.told(state("c", isr="bc", epoch=4, leader_epoch=3))
    assert not follower.has(EpochQuery)
    assert not follower.has(FetchRequest)


def test_follower_backoff_is_not_shortened_by_an_isr_change() -> None:
    follower = idle()
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    follower.told(state("c", isr="bc", epoch=4, leader_epoch=3))
    follower.step(
        ev.RequestFailed(
            request_id=follower.only(EpochQuery).request_id,
            reason="No responders on this subject. Check that the nodes run: `liftpy health`.",
        )
    )
    follower.told(state("c", isr="b", epoch=5, leader_epoch=3))
    assert not follower.has(EpochQuery)


def test_follower_that_truncated_its_newest_epoch_fetches_with_the_epoch_before_it() -> None:
    follower = Stepped("b").opened(10, 5, ((1, 0), (3, 6)))
    follower.told(state(leader_epoch=4))
    query = follower.only(EpochQuery)
    assert query.requested_epoch == 3
    follower.step(
        EpochAnswer(token=1, request_id=query.request_id, leader_epoch=1, last_offset=5, current_epoch=4, log_start_offset=0)
    )
    end_offset = follower.only(do.TruncateLog).end_offset
    follower.step(ev.LogTruncated(end_offset=end_offset))
    request = follower.only(FetchRequest)
    assert (end_offset, request.offset, request.offset_epoch) == (6, 5, 1)


@pytest.mark.parametrize("end", [0, 3])
def test_follower_backoff_ends_with_a_notice_of_the_new_leader(end: int) -> None:
    follower = idle(end)
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    follower.step(
        LeaderNotice(leader="c", leader_epoch=3, epoch=4, epoch_start_offset=end, high_watermark=-1, log_start_offset=0)
    )
    assert follower.has(EpochQuery if end else FetchRequest), "an empty log has nothing to reconcile"
    assert not follower.has(FetchRequest if end else EpochQuery)


def proposed(epoch: int = 2, leader_epoch: int = 2) -> object:
    return state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="b", epoch=epoch, leader_epoch=leader_epoch)


def test_candidate_appends_no_publish_before_its_epoch_is_durable_and_its_log_is_replayed() -> None:
    candidate = idle()
    candidate.told(proposed())  # type: ignore[arg-type]
    assert candidate.only(do.PersistLeaderEpoch).leader_epoch == 2
    candidate.fetch("c", 2, 1)
    assert candidate.has(FetchRefusal), "not before the epoch is durable"
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
    candidate.step(EpochQuery(token=99, replica="a", request_id=1, requested_epoch=1, current_epoch=2, stream_uid=KEY.uid))
    assert candidate.has(do.OpenSubject), "a asks in the new epoch: it has stepped down"
    assert not candidate.has(do.CloseSubject), "it serves on"
    assert candidate.replica.role == "LEADER"
    candidate.publish(1)
    assert candidate.replica.high_watermark == 2
    candidate.fetch("c", 3)
    assert candidate.replica.high_watermark == 3


def test_candidate_answers_fetches_only_when_its_epoch_and_log_are_durable() -> None:
    """Flushes of before, and answers about another epoch, are no word of this one."""
    candidate = idle()
    candidate.told(proposed(leader_epoch=3))  # type: ignore[arg-type]
    candidate.step(ev.LogFlushed(end_offset=3))
    assert candidate.sent() == [], "the log alone"
    candidate.step(ev.LeaderEpochPersisted(leader_epoch=2))
    assert candidate.sent() == [], "another epoch"
    candidate.step(ev.LeaderEpochPersisted(leader_epoch=3))
    assert candidate.sent()[:2] == [do.StartServing(), do.ReplayLog(end_offset=3)]
    candidate.step(ev.LogFlushed(end_offset=3))
    assert candidate.sent() == [], "once"


# ---- what each role answers ------------------------------------------------------------------------------------------------
def query(stepped: Stepped, asked: int = 1, current: int = 2, uid: str = KEY.uid) -> do.Effect:
    (answer,) = stepped.step(
        EpochQuery(token=9, replica="c", request_id=9, requested_epoch=asked, current_epoch=current, stream_uid=uid)
    )
    return answer


def candidate() -> Stepped:
    stepped = idle()
    stepped.told(proposed())  # type: ignore[arg-type]
    return stepped


def refusal(reason: RefusalReason, leader_epoch: int, token: int = 9) -> FetchRefusal:
    return FetchRefusal(token=token, request_id=token, reason=reason, leader_epoch=leader_epoch, log_start_offset=0)


def test_candidate_answers_epoch_queries_when_its_epoch_is_durable() -> None:
    stepped = candidate()
    assert query(stepped) == refusal(RefusalReason.NOT_LEADER, 2)
    stepped.step(ev.LeaderEpochPersisted(leader_epoch=1))
    assert query(stepped) == refusal(RefusalReason.NOT_LEADER, 2), "that was another one"
    stepped.step(ev.LeaderEpochPersisted(leader_epoch=2))
    assert query(stepped) == EpochAnswer(
        token=9, request_id=9, leader_epoch=1, last_offset=2, current_epoch=2, log_start_offset=0
    )
    assert query(stepped, asked=0) == EpochAnswer(
        token=9, request_id=9, leader_epoch=0, last_offset=-1, current_epoch=2, log_start_offset=0
    )
    assert query(stepped, current=1) == refusal(RefusalReason.STALE_EPOCH, 2)
    assert query(stepped, uid="another") == refusal(RefusalReason.WRONG_STREAM, 2)
    assert isinstance(query(stepped, uid=""), EpochAnswer), "who names none is of an older version"


@pytest.mark.parametrize("role", ["waiting", "follower", "stopped"])
def test_replica_without_a_leader_role_rejects_fetches_and_drops_responses(role: str) -> None:
    stepped = idle()
    if role == "waiting":
        stepped.told(state("", status=PartitionStatus.OFFLINE, epoch=2))
    elif role == "stopped":
        stepped.step(ev.StopRequested())
    assert stepped.replica.role.value.lower() == role
    assert query(stepped, current=1) == refusal(RefusalReason.NOT_LEADER, 1)
    assert stepped.fetch("c", 2, 1) == [refusal(RefusalReason.NOT_LEADER, 1, stepped.tokens)]
    stepped.publish()
    assert stepped.out == [do.DropPublishes(token=stepped.tokens)]
    if role != "follower":
        span = ev.BatchSpan(base_offset=3, last_offset=4, leader_epoch=1)
        answer = ev.FetchAnswered(token=5, request_id=1, leader_epoch=1, high_watermark=4, spans=(span,))
        assert stepped.step(answer) == [do.DropFetched(token=5, why="not following")]
        assert stepped.step(ev.FetchAnswered(token=5, request_id=1, leader_epoch=1, high_watermark=4, spans=())) == []


# ---- an election -------------------------------------------------------------------------------------------------------------
def election(isr: str, leader: str, epoch: int = 2) -> list[do.Effect]:
    stepped = idle()
    stepped.told(state(leader, isr, status=PartitionStatus.ELECTION, epoch=epoch))
    return stepped.sent()


def test_electable_replica_reports_its_log_end_once_per_election() -> None:
    report = do.ReportLeader(leader="", leader_epoch=1, last_epoch=1, newest_offset=2, high_watermark=2, leader_lacks=False)
    assert election("abc", "") == [report]
    assert election("ac", "") == [], "it may lack what was committed"
    assert election("abc", "b") == [], "it led itself: nobody accuses it"
    stepped = idle()
    stepped.told(state("", status=PartitionStatus.ELECTION, epoch=2))
    stepped.told(state("", status=PartitionStatus.ELECTION, epoch=3))
    assert not stepped.has(do.ReportLeader)
    stepped.told(state("", status=PartitionStatus.ELECTION, epoch=4, leader_epoch=2))
    assert stepped.has(do.ReportLeader), "another one"


# ---- a log that has failed ---------------------------------------------------------------------------------------------------
def failed(stepped: Stepped, *, no_space: bool = False, token: int = 0) -> list[do.Effect]:
    return stepped.step(ev.StorageFailed(reason="broken", no_space=no_space, token=token))


def test_leader_with_a_full_disk_rejects_publishes_only_with_a_lease() -> None:
    for no_space, told in (
        (True, do.RejectPublishes(token=50, reason=RejectReason.NO_SPACE)),
        (False, do.DropPublishes(token=50)),
    ):
        stepped = Stepped("a").leads()
        for replica in "bc":
            stepped.fetch(replica, -1)
        failed(stepped, no_space=no_space, token=50)
        assert stepped.replica.phase == "broken"
        assert told in stepped.out
        publish = ev.PublishesReceived(token=50, record_count=1, size_bytes=1, received_wall_ns=0)
        assert stepped.step(publish) == [told]
        assert stepped.step(publish, after_s=1.5) == [do.DropPublishes(token=50)], "the lease is over"
        stepped.heard()
        assert stepped.step(publish) == [told]
        stepped.told(state("b", epoch=9, leader_epoch=3))
        assert stepped.step(publish) == [do.DropPublishes(token=50)], "another one leads"
