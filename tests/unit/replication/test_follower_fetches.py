"""Test the fetches of a follower: checks, high watermark, idle waits, wake-ups and backoff."""

from __future__ import annotations

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from tests.unit.replication.stepping import S, Stepped, idle, state


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
    assert follower.has(do.SendFetch)


def test_follower_after_a_batch_fragment_sends_the_next_fetch_with_its_own_timeout() -> None:
    follower = Stepped("b").follows()
    first = follower.only(do.SendFetch)
    follower.step(ev.FetchPieceArrived(request_id=first.request_id, leader_epoch=1), after_s=1)
    at_ns = follower.now_ns + round(ReplicationConfig().fetch_timeout_s * S)
    asked = follower.only(do.SendFetch)
    assert [effect for effect in follower.out if getattr(effect, "kind", None) is Deadline.REQUEST] == [
        do.SetDeadline(kind=Deadline.REQUEST, at_ns=None),
        do.SetDeadline(kind=Deadline.REQUEST, at_ns=at_ns),
    ]
    assert asked.request_id > first.request_id
    assert (asked.offset, asked.leader) == (first.offset, "a")
    follower.answered([(0, 2, 1)], -1, request=first.request_id)
    assert follower.only(do.DropFetched).why == "stale request"
    follower.answered([(0, 2, 1)], -1, request=asked.request_id)
    assert follower.only(do.AppendFetched).last_offset == 2


def test_idle_follower_ignores_an_unreadable_second_response() -> None:
    follower = idle()
    follower.step(ev.RequestFailed(request_id=follower.replica._role._idle_request_id, reason="unreadable"))
    assert follower.replica.phase == "FOLLOWER_IDLE"


def test_idle_follower_raises_its_high_watermark_from_an_empty_second_response_to_one_fetch() -> None:
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


def test_idle_follower_ignores_a_second_response_of_another_epoch_or_fetch() -> None:
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


def test_follower_woken_before_its_empty_response_sends_one_fetch_after_the_response() -> None:
    follower = Stepped("b").follows()
    request = follower.only(do.SendFetch).request_id
    follower.step(ev.NotificationReceived())
    assert not follower.has(do.SendFetch)
    follower.answered([], -1, request=request)
    assert follower.has(do.SendFetch)
    follower.answered([], -1)
    assert follower.replica.phase == "FOLLOWER_IDLE", "one wake-up is one fetch"


def test_follower_woken_during_a_flush_sends_a_fetch() -> None:
    follower = Stepped("b").follows()
    follower.answered([(0, 2, 1)], 0)
    follower.step(ev.NotificationReceived())
    follower.step(ev.LogFlushed(end_offset=3))
    assert follower.has(do.SendFetch)


@pytest.mark.parametrize("waits", [True, False])
def test_follower_sends_a_fetch_at_once_after_a_reconnect(waits: bool) -> None:
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
def test_follower_of_a_candidate_sends_its_first_request_after_a_delay(end: int) -> None:
    follower = idle(end)
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    assert not follower.has(do.SendEpochQuery)
    assert not follower.has(do.SendFetch)
    follower.fire(Deadline.FETCH)  # its replay may take long: what it holds is fetched meanwhile
    assert follower.has(do.SendEpochQuery if end else do.SendFetch)
    follower.told(state("c", isr="bc", epoch=4, leader_epoch=3))
    assert not follower.has(do.SendEpochQuery)
    assert not follower.has(do.SendFetch)


def test_follower_backoff_is_not_shortened_by_an_isr_change() -> None:
    follower = idle()
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    follower.told(state("c", isr="bc", epoch=4, leader_epoch=3))
    follower.step(
        ev.RequestFailed(
            request_id=follower.only(do.SendEpochQuery).request_id,
            reason="No responders on this subject. Check that the nodes run: `liftpy health`.",
        )
    )
    follower.told(state("c", isr="b", epoch=5, leader_epoch=3))
    assert not follower.has(do.SendEpochQuery)


@pytest.mark.parametrize("end", [0, 3])
def test_follower_backoff_ends_with_a_notice_of_the_new_leader(end: int) -> None:
    follower = idle(end)
    follower.told(state("", status=PartitionStatus.CANDIDATE_FOUND, candidate="c", epoch=3, leader_epoch=3))
    follower.step(
        ev.NoticeReceived(leader="c", leader_epoch=3, epoch=4, epoch_start_offset=end, high_watermark=-1, log_start_offset=0)
    )
    assert follower.has(do.SendEpochQuery if end else do.SendFetch), "an empty log has nothing to reconcile"
    assert not follower.has(do.SendFetch if end else do.SendEpochQuery)
