"""Test read-only streams, and how long a leader queues publishes that it cannot commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionMetadata, Pause
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.isr import standby_successor
from liftpy.core.replication.lease import missed_by_all_nodes
from liftpy.core.wire.rejections import RejectReason
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, state


def with_settings(held: PartitionMetadata, **settings: object) -> PartitionMetadata:
    return replace(held, config=replace(held.config, **settings))  # type: ignore[arg-type]


def publish(leader: Stepped, *, plain: bool) -> int:
    leader.tokens += 1
    count = 1 if plain else 0
    leader.step(ev.PublishesReceived(token=leader.tokens, record_count=1, size_bytes=10, received_wall_ns=0, plain_count=count))
    return leader.tokens


def test_read_only_stream_rejects_or_drops_publishes() -> None:
    leader = Stepped("a").leads()
    leader.fetch("b", -1)
    leader.fetch("c", -1)
    publish(leader, plain=False)
    assert leader.has(do.AppendBatch)
    leader.told(with_settings(state(leader_epoch=2), read_only=True))
    token = publish(leader, plain=False)
    assert leader.sent() == [do.RejectPublishes(token=token, reason=RejectReason.READ_ONLY)]
    token = publish(leader, plain=True)
    assert leader.sent() == [do.DropPublishes(token=token, reason=RejectReason.READ_ONLY)]
    leader.told(state(leader_epoch=2))
    publish(leader, plain=True)
    assert leader.has(do.AppendBatch), "and takes all again"
    leader.told(with_settings(state(leader_epoch=2), read_only=True))
    leader.now_ns += 30 * S
    token = publish(leader, plain=False)
    assert leader.sent() == [do.DropPublishes(token=token, reason=RejectReason.READ_ONLY)], (
        "without a lease nobody is told [A2]"
    )


def short(min_isr_hold_timeout_s: float) -> Stepped:
    return Stepped("a").leads(with_settings(state(isr="a", leader_epoch=2), min_isr_hold_timeout_s=min_isr_hold_timeout_s))


def looked(leader: Stepped) -> list[do.Effect]:
    leader.heard()
    leader.fire(ev.Deadline.LAG)
    return [effect for effect in leader.sent() if isinstance(effect, do.DropPublishes | do.RejectPublishes)]


def test_publishes_queued_too_long_below_min_isr_are_dropped_in_order() -> None:
    leader = short(10.0)
    first = publish(leader, plain=True)
    leader.now_ns += 4 * S
    second = publish(leader, plain=True)
    assert leader.sent() == []
    leader.now_ns = 110 * S - 1
    third = publish(leader, plain=True)
    leader.step(ev.DeadlineReached(kind=ev.Deadline.LAG))
    assert not leader.has(do.DropPublishes)
    leader.now_ns = 110 * S
    assert looked(leader) == [do.DropPublishes(token=first, reason=RejectReason.BELOW_MIN_ISR)]
    leader.told(with_settings(state(isr="ab", leader_epoch=2, epoch=2), min_isr_hold_timeout_s=10.0))
    kept = [effect.token for effect in leader.out if isinstance(effect, do.AppendBatch)]
    assert kept == [second, third]


def test_queued_publishes_do_not_expire_without_a_timeout_setting_or_with_a_full_isr() -> None:
    leader = short(0.0)
    publish(leader, plain=True)
    leader.now_ns += 3600 * S
    assert looked(leader) == []
    held = Stepped("a").leads(with_settings(state(leader_epoch=2), min_isr_hold_timeout_s=1.0))
    assert looked(held) == []


def test_publishes_queued_too_long_by_a_pause_are_rejected_or_dropped() -> None:
    """The metadata group has no majority: who waits is told, what is plain is dropped."""
    leader = Stepped("a").leads(with_settings(state(leader_epoch=2), min_isr_hold_timeout_s=10.0))
    for follower in "bc":
        leader.fetch(follower, -1)
    paused = state(leader_epoch=2, epoch=2)
    paused = replace(paused, state=replace(paused.state, pause=Pause.UNTIL_PUBLISH, pauses=1))
    leader.told(with_settings(paused, min_isr_hold_timeout_s=10.0))
    first, second = publish(leader, plain=True), publish(leader, plain=False)
    leader.now_ns += 10 * S - 1
    assert looked(leader) == []
    leader.now_ns += 1
    leader.heard()
    leader.fire(ev.Deadline.LAG)
    refused = [effect for effect in leader.sent() if isinstance(effect, do.DropPublishes | do.RejectPublishes)]
    assert [(effect.token, effect.reason) for effect in refused] == [
        (first, RejectReason.PAUSED),
        (second, RejectReason.PAUSED),
    ]
    assert isinstance(refused[0], do.DropPublishes)


# ---- missed publishes ------------------------------------------------------------------------------------------------------
@each(
    ("isr", "live", "asked", "successor"),
    [
        ("abc", "abc", {"b": 5, "c": 7}, "c"),
        ("abc", "abc", {"b": 7, "c": 5}, "b"),
        ("abc", "abc", {"b": 7, "c": 7}, "b"),
        ("ab", "abc", {"b": 5, "c": 7}, "b"),
        ("abc", "ab", {"b": 5, "c": 7}, "b"),
        ("abc", "abc", {"a": 9, "b": 5}, "b"),
        ("a", "abc", {"b": 5, "c": 7}, ""),
        ("abc", "a", {"b": 5, "c": 7}, ""),
    ],
)
def test_leader_that_missed_publishes_chooses_the_isr_member_that_fetched_last(
    isr: str, live: str, asked: dict[str, int], successor: str
) -> None:
    assert standby_successor("a", frozenset(isr), dict.fromkeys(live, 1), asked) == successor


@pytest.mark.parametrize(
    ("known", "before", "after", "all_have"), [(1, "x", "y", True), (1, "x", "x", False), (2, "x", "y", False)]
)
def test_missed_publishes_count_as_missed_by_all_replicas_only_if_the_only_nats_server_restarted(
    known: int, before: str, after: str, all_have: bool
) -> None:
    assert missed_by_all_nodes(known, before, after) is all_have


def test_leader_that_missed_publishes_chooses_a_successor_only_with_failover_standby() -> None:
    standby = StreamConfig(failover_standby=True)
    stepped = Stepped("a").leads(replace(state(leader_epoch=2), config=standby))
    for follower in "cb":
        stepped.now_ns += S
        stepped.fetch(follower, -1)
    assert stepped.replica.standby_successor() == "b"
    stepped.now_ns += S
    stepped.fetch("c", -1)
    assert stepped.replica.standby_successor() == "c"
    stepped.told(replace(state(epoch=3, leader_epoch=2), config=StreamConfig()))
    assert stepped.replica.standby_successor() == "", "nobody stands by"
    assert Stepped("b").opened().replica.standby_successor() == ""
