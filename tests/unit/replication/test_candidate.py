"""Test the candidate role: it persists its epoch, replays, and waits for the lease of the leader before it."""

from __future__ import annotations

import pytest

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from tests.unit.replication.stepping import KEY, Stepped, idle, state


def proposed(epoch: int = 2, leader_epoch: int = 2) -> object:
    return state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="b", epoch=epoch, leader_epoch=leader_epoch)


def test_candidate_appends_no_publish_before_its_epoch_is_durable_and_its_log_is_replayed() -> None:
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
    candidate.step(ev.EpochQueryReceived(token=99, replica="a", requested_epoch=1, current_epoch=2, stream_uid=KEY.uid))
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
        ev.EpochQueryReceived(token=9, replica="c", requested_epoch=asked, current_epoch=current, stream_uid=uid)
    )
    return answer


def candidate() -> Stepped:
    stepped = idle()
    stepped.told(proposed())  # type: ignore[arg-type]
    return stepped


def refusal(reason: ev.RefusalReason, leader_epoch: int, token: int = 9) -> do.SendFetchRefusal:
    return do.SendFetchRefusal(token=token, reason=reason, leader_epoch=leader_epoch, log_start_offset=0)


def test_candidate_answers_epoch_queries_when_its_epoch_is_durable() -> None:
    stepped = candidate()
    assert query(stepped) == refusal(ev.RefusalReason.NOT_LEADER, 2)
    stepped.step(ev.LeaderEpochPersisted(leader_epoch=1))
    assert query(stepped) == refusal(ev.RefusalReason.NOT_LEADER, 2), "that was another one"
    stepped.step(ev.LeaderEpochPersisted(leader_epoch=2))
    assert query(stepped) == do.SendEpochAnswer(token=9, leader_epoch=1, last_offset=2, current_epoch=2, log_start_offset=0)
    assert query(stepped, asked=0) == do.SendEpochAnswer(
        token=9, leader_epoch=0, last_offset=-1, current_epoch=2, log_start_offset=0
    )
    assert query(stepped, current=1) == refusal(ev.RefusalReason.STALE_EPOCH, 2)
    assert query(stepped, uid="another") == refusal(ev.RefusalReason.WRONG_STREAM, 2)
    assert isinstance(query(stepped, uid=""), do.SendEpochAnswer), "who names none is of an older version"


@pytest.mark.parametrize("role", ["waiting", "follower", "stopped"])
def test_replica_without_a_leader_role_rejects_fetches_and_drops_responses(role: str) -> None:
    stepped = idle()
    if role == "waiting":
        stepped.told(state("", status=PartitionStatus.OFFLINE, epoch=2))
    elif role == "stopped":
        stepped.step(ev.StopRequested())
    assert stepped.replica.role.value.lower() == role
    assert query(stepped, current=1) == refusal(ev.RefusalReason.NOT_LEADER, 1)
    assert stepped.fetch("c", 2, 1) == [refusal(ev.RefusalReason.NOT_LEADER, 1, stepped.tokens)]
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
        (True, do.RejectPublishes(token=50, reason=do.RejectReason.NO_SPACE)),
        (False, do.DropPublishes(token=50)),
    ):
        stepped = Stepped("a").leads()
        for replica in "bc":
            stepped.fetch(replica, -1)
        failed(stepped, no_space=no_space, token=50)
        assert told in stepped.out
        publish = ev.PublishesReceived(token=50, record_count=1, size_bytes=1, received_wall_ns=0)
        assert stepped.step(publish) == [told]
        assert stepped.step(publish, after_s=1.5) == [do.DropPublishes(token=50)], "the lease is over"
        stepped.heard()
        assert stepped.step(publish) == [told]
        stepped.told(state("b", epoch=9, leader_epoch=3))
        assert stepped.step(publish) == [do.DropPublishes(token=50)], "another one leads"
