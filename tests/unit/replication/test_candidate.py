"""Test the candidate role: it persists its epoch, replays, and waits for the lease of the leader before it."""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from tests.unit.replication.stepping import KEY, idle, state


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
