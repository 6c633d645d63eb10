"""Test publishes at the leader of a paused partition, and its followers [A13]."""

from __future__ import annotations

from dataclasses import replace

import pytest

from liftpy.core.base.partition import PartitionMetadata, Pause
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.wire.rejections import RejectReason
from tests.unit.replication.stepping import S, Stepped, state

MS = S // 1000


def paused(until: Pause, isr: str = "abc", *, pauses: int = 1, epoch: int = 2, standby: bool = False) -> PartitionMetadata:
    held = state(isr=isr, leader_epoch=2, epoch=epoch)
    now = replace(held.state, pause=until, pauses=pauses)
    return replace(held, state=now, config=replace(held.config, failover_standby=standby))


def a_leader(until: Pause) -> Stepped:
    leader = Stepped("a").leads(paused(until))
    leader.fetch("b", -1)
    leader.fetch("c", -1)
    return leader


def publish(leader: Stepped, *, plain: bool = False, conditional: bool = False) -> int:
    leader.tokens += 1
    leader.step(
        ev.PublishesReceived(
            token=leader.tokens,
            record_count=1,
            size_bytes=10,
            received_wall_ns=0,
            plain_count=int(plain),
            conditional=conditional,
        )
    )
    return leader.tokens


def appended(leader: Stepped) -> list[int]:
    return [effect.token for effect in leader.out if isinstance(effect, do.AppendBatch)]


@pytest.mark.parametrize("conditional", [False, True])
def test_paused_leader_rejects_or_drops_publishes(conditional: bool) -> None:
    leader = a_leader(Pause.UNTIL_RESUMED)
    token = publish(leader, conditional=conditional)
    assert leader.sent() == [do.RejectPublishes(token=token, reason=RejectReason.PAUSED)]
    token = publish(leader, plain=True, conditional=conditional)
    assert leader.sent() == [do.DropPublishes(token=token, reason=RejectReason.PAUSED)]
    leader.now_ns += 30 * S
    token = publish(leader)
    assert leader.sent() == [do.DropPublishes(token=token, reason=RejectReason.PAUSED)], "without a lease nobody is told [A2]"


def test_paused_leader_appends_publishes_queued_before_the_pause() -> None:
    leader = Stepped("a").leads(state(isr="a", leader_epoch=2))
    token = publish(leader, plain=True)
    assert appended(leader) == []
    leader.told(paused(Pause.UNTIL_RESUMED, "a", epoch=3))
    refused = publish(leader, plain=True)
    assert leader.sent() == [do.DropPublishes(token=refused, reason=RejectReason.PAUSED)]
    leader.told(paused(Pause.UNTIL_RESUMED, "ab", epoch=4))
    assert appended(leader) == [token]


@pytest.mark.parametrize("until", [Pause.UNTIL_PUBLISH, Pause.UNTIL_PUBLISH_TO_ANY])
def test_partition_paused_until_publish_queues_a_publish_and_requests_the_resume(until: Pause) -> None:
    leader = a_leader(until)
    assert not leader.replica.takes_publishes()
    first = publish(leader)
    wake = do.WakePartition(leader_epoch=2, pause=until, pauses=1)
    assert leader.sent() == [wake]
    second = publish(leader, plain=True)
    assert leader.sent() == [], "once in a while"
    leader.now_ns += 250 * MS
    third = publish(leader)
    assert leader.sent() == [wake]
    leader.told(paused(Pause.ENDING, epoch=3))
    assert appended(leader) == [first, second, third]
    assert leader.only(do.WakePartition) == do.WakePartition(leader_epoch=2, pause=Pause.ENDING, pauses=1)
    leader.told(paused(Pause.NOT_PAUSED, epoch=4))
    assert not leader.has(do.WakePartition)
    assert leader.replica.takes_publishes()


def test_partition_paused_until_publish_queues_a_conditional_publish_only_as_the_first() -> None:
    """What is held before it would be appended between."""
    leader = a_leader(Pause.UNTIL_PUBLISH)
    first = publish(leader, conditional=True)
    second = publish(leader, conditional=True)
    assert leader.sent() == [do.RejectPublishes(token=second, reason=RejectReason.OVERLOADED)]
    third = publish(leader)
    leader.told(paused(Pause.ENDING, epoch=3))
    assert appended(leader) == [first, third]


def test_partition_paused_until_publish_is_not_resumed_without_a_publish() -> None:
    leader = a_leader(Pause.UNTIL_PUBLISH)
    for _ in range(3):
        leader.now_ns += 3 * S
        leader.heard()
        leader.fetch("b", -1)
        leader.fetch("c", -1)
        leader.fire(ev.Deadline.LAG)
        assert not leader.has(do.WakePartition)


@pytest.mark.parametrize("until", [Pause.UNTIL_PUBLISH, Pause.ENDING])
def test_resume_request_without_a_response_is_repeated(until: Pause) -> None:
    leader = a_leader(until)
    if until is Pause.UNTIL_PUBLISH:
        publish(leader)
    for _ in range(3):
        leader.now_ns += S
        leader.heard()
        leader.fetch("b", -1)
        leader.fetch("c", -1)
        leader.fire(ev.Deadline.LAG)
        assert leader.only(do.WakePartition).pause is until
        (again,) = [e.at_ns for e in leader.out if isinstance(e, do.SetDeadline) and e.kind is ev.Deadline.LAG]
        assert again is not None
        assert again - leader.now_ns <= 3 * S, "and looks soon, for something is under way"


def test_resume_request_without_a_lease_is_sent_when_the_lease_returns() -> None:
    leader = Stepped("a").leads(paused(Pause.UNTIL_PUBLISH))
    leader.now_ns += 30 * S
    leader.lease_ends()
    token = publish(leader, plain=True)
    assert leader.sent() == []
    leader.heard()
    assert leader.only(do.WakePartition).pauses == 1
    leader.told(paused(Pause.ENDING, epoch=3))
    assert appended(leader) == [token]


def test_publish_queued_by_a_pause_is_stored_when_an_operator_pauses_the_stream() -> None:
    leader = a_leader(Pause.UNTIL_PUBLISH)
    token = publish(leader)
    leader.told(paused(Pause.UNTIL_RESUMED, pauses=2, epoch=3))
    assert appended(leader) == [token]
    publish(leader)
    assert leader.only(do.RejectPublishes).reason is RejectReason.PAUSED


@pytest.mark.parametrize("until", list(Pause))
def test_followers_become_standbys_again_when_the_paused_leader_accepts_publishes(until: Pause) -> None:
    follower = Stepped("b").follows(paused(until, standby=True))
    assert follower.replica.is_standby is (until is Pause.NOT_PAUSED)


def test_paused_leader_answers_reads() -> None:
    leader = a_leader(Pause.UNTIL_RESUMED)
    assert leader.replica.may_serve_committed()
    assert leader.replica.may_answer_latest(leader.now_ns)
