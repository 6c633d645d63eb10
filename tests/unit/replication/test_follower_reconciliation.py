"""Test that a follower reconciles its log before it fetches: truncation, reset, and records that it never truncates."""

from __future__ import annotations

from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline, RefusalReason
from tests.unit.replication.stepping import Stepped, idle, state


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
