"""Test the fields of leader notices, ISR change requests, high watermarks and the leader's snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.config import CommitPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata, PartitionState, PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.isr import new_high_watermark
from liftpy.core.replication.replica import ReplicaSnapshot
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, state


def leader(end: int = 5, hw: int = 2, *, start: int = 1, partition: PartitionMetadata | None = None, **config: Any) -> Stepped:
    """a leads in LeaderEpoch 4, from ``end`` on, in the partition's Epoch 9; its log begins at ``start`` with epoch 2."""
    stepped = Stepped("a", ReplicationConfig(**config)).opened(end, hw, ((2, start),), start)
    stepped.heard()
    stepped.told(partition or state(epoch=9, leader_epoch=4))
    notices = [effect for effect in stepped.out if isinstance(effect, do.SendNotice)]
    stepped.step(ev.ReplayFinished(end_offset=end))
    stepped.out = [*notices, *stepped.out]
    return stepped


# ---- notices -----------------------------------------------------------------------------------------------------------------
def test_new_leader_notice_is_repeated_to_followers_that_have_not_fetched() -> None:
    stepped = leader()
    stepped.fetch("b", 4, 2, awaits_more=True)
    stepped.told(state(epoch=10, leader_epoch=4), {"a": 1, "b": 1, "c": 1})
    before_ns = stepped.now_ns
    stepped.fire(ev.Deadline.NOTICE)
    assert stepped.only(do.SendNotice).replicas == ("c",)
    assert stepped.only(do.SendNotice).epoch == 10
    assert stepped.now_ns - before_ns <= S
    stepped.told(state(epoch=11, leader_epoch=4), {"a": 1, "b": 1})
    stepped.fire(ev.Deadline.NOTICE)
    assert not stepped.has(do.SendNotice)
    with pytest.raises(KeyError):
        stepped.fire(ev.Deadline.NOTICE)


def test_leader_sends_a_higher_high_watermark_to_each_idle_follower_once() -> None:
    """b takes a second answer to its fetch, c is of an older version and is sent a notice."""
    stepped = leader()
    stepped.fetch("b", 4, 2, awaits_more=True)
    stepped.fetch("c", 4, 2)
    assert stepped.replica.high_watermark == 4
    stepped.fire(ev.Deadline.NOTICE)
    assert stepped.only(do.SendHighWatermark) == do.SendHighWatermark(replica="b", leader_epoch=4)
    assert not stepped.has(do.SendNotice), "the answer to c's own fetch had it"
    stepped.publish()
    stepped.fetch("b", 5, 4, awaits_more=True)
    assert stepped.replica.high_watermark == 4
    stepped.fetch("c", 5, 4)
    assert stepped.replica.high_watermark == 5
    stepped.fire(ev.Deadline.NOTICE)
    assert [e for e in stepped.out if not isinstance(e, do.SetDeadline)] == [do.SendHighWatermark(replica="b", leader_epoch=4)]
    stepped.publish()
    stepped.fetch("c", 6, 4)
    stepped.fetch("b", 6, 4, awaits_more=True)
    stepped.fire(ev.Deadline.NOTICE)
    assert [e for e in stepped.out if not isinstance(e, do.SetDeadline)] == [
        do.SendHighWatermark(replica="b", leader_epoch=4),
        do.SendNotice(replicas=("c",), leader_epoch=4, epoch=9, epoch_start_offset=5, high_watermark=6, log_start_offset=1),
    ]


def test_leader_sends_the_high_watermark_with_the_next_records_or_shortly_after() -> None:
    """One fetch and one answer for each record, and no more, while the next comes within the time that word may take."""
    stepped = Stepped("a").leads()
    for follower in "bc":
        stepped.fetch(follower, -1, awaits_more=True)
    for offset in range(5):
        stepped.publish(1, flush=False)
        told = [effect.replica for effect in stepped.out if isinstance(effect, do.AnswerParkedFetch)]
        assert sorted(told) == ["b", "c"]
        stepped.step(ev.LogFlushed(end_offset=offset + 1))
        for follower in "bc":
            stepped.fetch(follower, offset, awaits_more=True)
        stepped.now_ns += 2_000_000 * 2 // 3
        if stepped.replica._shared.deadlines._at_ns[ev.Deadline.NOTICE] <= stepped.now_ns:
            stepped.step(ev.DeadlineReached(kind=ev.Deadline.NOTICE))
            assert not stepped.has(do.SendHighWatermark)
            assert stepped.replica._shared.deadlines._at_ns[ev.Deadline.NOTICE] > stepped.now_ns
    stepped.fire(ev.Deadline.NOTICE)
    assert {effect.replica for effect in stepped.out if isinstance(effect, do.SendHighWatermark)} == {"b", "c"}
    with pytest.raises(KeyError):
        stepped.fire(ev.Deadline.NOTICE)  # everybody knows all there is


# ---- HW ----------------------------------------------------------------------------------------------------------------------
@each(
    ("positions", "changes", "wanted"),
    [
        ({"a": 9, "b": 9, "c": None}, {}, 9),
        ({"a": 9, "b": 7, "c": 5}, {}, 7),
        ({"a": 9, "b": 5, "c": 5}, {}, 3),  # nothing of this epoch is held by a majority
        ({"a": 9, "b": 6, "c": 2}, {}, 6),
        ({"a": 9, "b": 6, "c": 2}, {"isr": ("a",)}, 3),
        ({"a": 5, "b": 5, "c": 5}, {"may_lead": ("a", "b", "c")}, 5),  # everyone who may be elected has all of it
        ({"a": 5, "b": 5, "c": 4}, {"may_lead": ("a", "b", "c")}, 4),
        ({"a": 5, "b": 5, "c": 4}, {"may_lead": ("a", "b"), "maximal_isr": ("a", "b")}, 5),
        ({"a": 5, "b": 5, "c": 4}, {"may_lead": ("a", "b"), "maximal_isr": ("a", "b", "c")}, 4),  # c may have become one
    ],
)
def test_quorum_high_watermark_is_the_highest_offset_on_a_majority_of_known_positions(
    positions: dict[str, int | None], changes: dict[str, tuple[str, ...]], wanted: int
) -> None:
    known: dict[str, Any] = {"replicas": ("a", "b", "c"), "isr": ("a", "b", "c"), "maximal_isr": ("a", "b", "c")}
    found = new_high_watermark(
        CommitPolicy.QUORUM, positions, min_isr=2, epoch_start_offset=6, high_watermark=3, **{**known, **changes}
    )
    assert found == wanted


@pytest.mark.parametrize(("isr", "high_watermark"), [("ab", 5), ("a", 2)])
def test_quorum_leader_below_min_isr_commits_no_record(isr: str, high_watermark: int) -> None:
    """All three may be elected, and a majority holds it; but too few count as members."""
    stepped = leader(partition=state(epoch=9, leader_epoch=4, isr="ab", policy=CommitPolicy.QUORUM))
    stepped.publish()
    stepped.told(state(epoch=10, leader_epoch=4, isr=isr, policy=CommitPolicy.QUORUM))
    for replica in "bc":
        stepped.fetch(replica, 5, 4)
    assert stepped.replica.high_watermark == high_watermark


# ---- the ISR -----------------------------------------------------------------------------------------------------------------
def test_leader_sends_nothing_to_a_removed_replica_and_drops_its_position() -> None:
    stepped = leader()
    for replica in "bc":
        stepped.fetch(replica, 4, 2, awaits_more=True)
    stepped.told(state(epoch=10, leader_epoch=4, isr="ab", replicas="ab"))
    stepped.publish()
    told = [effect.replica for effect in stepped.out if isinstance(effect, do.AnswerParkedFetch | do.NotifyReplica)]
    assert "c" not in told
    stepped.told(state(epoch=11, leader_epoch=4, isr="ab"))
    assert stepped.replica.snapshot(stepped.now_ns).followers[-1].position is None


# ---- what is shown -----------------------------------------------------------------------------------------------------------
def shown(stepped: Stepped) -> ReplicaSnapshot:
    return stepped.replica.snapshot(stepped.now_ns)


def held(**changes: Any) -> PartitionMetadata:
    fields: dict[str, Any] = {
        "partition": 3, "replicas": ("c", "a", "b"), "isr": ("c", "a"), "leader": "a", "leader_epoch": 4, "epoch": 9,
        "status": PartitionStatus.ONLINE,
    }  # fmt: skip
    partition = PartitionState(**{**fields, **changes})
    return PartitionMetadata(
        key=PartitionKey("orders", "uid-1", 3), config=StreamConfig(min_isr=2, commit_policy=CommitPolicy.ISR), state=partition
    )
