"""Test a leader: fetches, the ISR, acks, and notices to followers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftpy.config import AckPolicy, CommitPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata, PartitionState, PartitionStatus
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.events import Deadline
from liftpy.core.replication.isr import IsrChange, new_high_watermark, quorum_high_watermark
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice, RefusalReason
from liftpy.core.replication.replica import ReplicaSnapshot
from liftpy.core.wire.rejections import RejectReason
from tests.each import each
from tests.unit.replication.stepping import KEY, S, Stepped, state


def acks(leader: Stepped) -> list[tuple[AckPolicy, int]]:
    return [(e.policy, e.through_offset) for e in leader.out if isinstance(e, do.SendAcks)]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"leader_epoch": 1}, RefusalReason.STALE_EPOCH),
        ({"leader_epoch": 0}, RefusalReason.STALE_EPOCH),
        ({"incarnation": 2}, RefusalReason.STALE_INCARNATION),
        ({"replica": "x"}, RefusalReason.NOT_A_REPLICA),
        ({"stream_uid": "uid-0"}, RefusalReason.WRONG_STREAM),
        ({"offset_epoch": 1}, RefusalReason.DIVERGED),
        ({"offset": 7}, RefusalReason.DIVERGED),
    ],
)
def test_invalid_fetch_is_rejected_and_changes_no_follower_position(other: dict, reason: RefusalReason) -> None:
    leader = Stepped("a").leads()
    leader.publish(5)
    leader.fetch("c", 4)
    leader.fetch("b", 1)
    leader.fetch(**{"replica": "b", "offset": 4, **other})
    assert leader.only(FetchRefusal).reason is reason
    assert leader.replica.high_watermark == 1


def test_fetch_behind_the_log_start_is_rejected_with_the_log_start() -> None:
    leader = Stepped("a")
    leader.opened(20, 19, ((1, 10),), start=10)
    leader.heard()
    leader.told(state(leader_epoch=2))
    for offset, offset_epoch, refused in ((4, 1, True), (9, 1, True), (9, 0, False), (8, 0, True), (12, 1, False)):
        leader.fetch("b", offset, offset_epoch)
        assert leader.has(FetchRefusal) is refused, offset
    leader.fetch("b", 4, 1)
    assert leader.only(FetchRefusal) == FetchRefusal(
        token=leader.tokens,
        request_id=leader.tokens,
        reason=RefusalReason.BEFORE_LOG_START,
        leader_epoch=2,
        log_start_offset=10,
    )


def test_epoch_query_of_another_leader_epoch_is_rejected() -> None:
    leader = Stepped("a").leads(end=5, hw=3)
    leader.publish(2)
    for asked, epoch, last in ((1, 1, 4), (2, 2, 6), (9, 2, 6), (0, 0, -1)):
        leader.step(EpochQuery(token=1, replica="b", request_id=7, requested_epoch=asked, current_epoch=2, stream_uid=KEY.uid))
        assert leader.only(EpochAnswer) == EpochAnswer(
            token=1, request_id=7, leader_epoch=epoch, last_offset=last, current_epoch=2, log_start_offset=0
        )
    leader.step(EpochQuery(token=1, replica="b", request_id=7, requested_epoch=1, current_epoch=1, stream_uid=KEY.uid))
    assert leader.only(FetchRefusal).reason is RefusalReason.STALE_EPOCH


def test_leader_with_an_empty_log_or_epoch_answers_epoch_queries_with_the_end_offset() -> None:
    empty = Stepped("a").leads()
    empty.step(EpochQuery(token=1, replica="b", request_id=7, requested_epoch=1, current_epoch=2, stream_uid=KEY.uid))
    assert empty.only(EpochAnswer) == EpochAnswer(
        token=1, request_id=7, leader_epoch=0, last_offset=-1, current_epoch=2, log_start_offset=0
    )
    empty_epoch = Stepped("a").leads(end=5)
    empty_epoch.step(EpochQuery(token=1, replica="b", request_id=7, requested_epoch=2, current_epoch=2, stream_uid=KEY.uid))
    assert empty_epoch.only(EpochAnswer) == EpochAnswer(
        token=1, request_id=7, leader_epoch=1, last_offset=4, current_epoch=2, log_start_offset=0
    )


@pytest.mark.parametrize("policy", CommitPolicy)
def test_leader_may_reject_publishes_while_no_successor_can_have_them(policy: CommitPolicy) -> None:
    """A restarted ISR member may still get records of an earlier leader until it fetches. A quorum election does not need it."""
    leader = Stepped("a").leads(state(leader_epoch=2, policy=policy))
    assert not leader.replica.may_reject_publishes(leader.now_ns)
    leader.publish(1)
    for follower in "bc":
        leader.fetch(follower, 0)
    assert leader.replica.high_watermark == 0
    assert leader.replica.may_reject_publishes(leader.now_ns)
    leader.told(state(leader_epoch=2, epoch=2, policy=policy), {"a": 1, "b": 1, "c": 2})
    assert leader.replica.may_reject_publishes(leader.now_ns) is (policy is CommitPolicy.QUORUM)
    leader.fetch("c", 0, incarnation=2)
    assert leader.replica.may_reject_publishes(leader.now_ns)


def test_leader_wakes_an_idle_follower_once_per_idle_wait() -> None:
    leader = Stepped("a").leads()
    leader.fetch("b", -1)
    assert leader.has(do.SendFetchResponse), "of an older version: it is answered with nothing at once"
    leader.publish(1, flush=False)
    assert leader.only(do.NotifyReplica).replica == "b", "its flush runs beside this one"
    leader.publish(1, flush=False)
    assert not leader.has(do.NotifyReplica)
    leader.fetch("b", 1)
    leader.publish(1, flush=False)
    assert leader.has(do.NotifyReplica)


def test_waiting_fetch_is_answered_when_records_arrive() -> None:
    leader = Stepped("a").leads()
    leader.fetch("b", -1, awaits_more=True, max_bytes=500)
    assert leader.only(do.ParkFetch).replica == "b"
    assert not leader.has(do.SendFetchResponse)
    leader.publish(2, flush=False)
    assert leader.only(do.AnswerParkedFetch) == do.AnswerParkedFetch(replica="b", from_offset=0, max_bytes=500, leader_epoch=2)
    assert not leader.has(do.NotifyReplica)
    leader.publish(1, flush=False)
    assert not leader.has(do.AnswerParkedFetch), "one for one fetch"
    leader.fetch("b", 1, awaits_more=True)
    assert leader.only(do.SendFetchResponse).from_offset == 2
    assert not leader.has(do.ParkFetch), "this answer is not empty"


@pytest.mark.parametrize("other", [{"incarnation": 0}, {"request_id": 1}, {"incarnation": 0, "offset": -1, "offset_epoch": 0}])
def test_waiting_fetch_repeated_by_another_sender_is_answered_only_to_the_follower(other: dict) -> None:
    leader = Stepped("a").leads()
    leader.fetch("b", -1, request_id=1, awaits_more=True)
    leader.fetch(**{"replica": "b", "offset": -1, "request_id": 1, "awaits_more": True, **other})
    assert not leader.has(do.ParkFetch), "the answer is for the follower's own reply subject"
    leader.publish(1, flush=False)
    assert leader.only(do.AnswerParkedFetch).replica == "b"


def test_waiting_fetch_of_a_fenced_follower_is_dropped() -> None:
    leader = Stepped("a").leads()
    leader.fetch("b", -1, awaits_more=True)
    leader.told(state(leader_epoch=2), live={"a": 1, "c": 1})
    leader.fetch("b", -1, awaits_more=True)
    assert leader.has(do.SendFetchResponse)
    leader.publish(1, flush=False)
    assert not leader.has(do.AnswerParkedFetch)


def test_fenced_follower_leaves_the_isr_at_once() -> None:
    leader = Stepped("a").leads()
    leader.told(state(leader_epoch=2, epoch=2), {"a": 1, "b": 1})
    assert leader.only(do.ProposeIsr).isr == frozenset("ab")


def test_follower_that_refetches_acknowledged_records_leaves_the_isr_at_once() -> None:
    leader = Stepped("a").leads()
    leader.publish(3)
    leader.fetch("b", 2)
    leader.fetch("c", 2)
    assert leader.replica.high_watermark == 2
    leader.fetch("b", 1)
    assert leader.only(do.ProposeIsr).isr == frozenset("ac")


def test_quorum_follower_below_the_high_watermark_stays_in_the_isr() -> None:
    leader = Stepped("a").leads(state(policy=CommitPolicy.QUORUM, leader_epoch=2))
    leader.publish(3)
    leader.fetch("b", 2)
    leader.fetch("c", 1)
    assert leader.replica.high_watermark == 2
    assert not leader.has(do.ProposeIsr)


def test_isr_changes_are_proposed_one_at_a_time_with_a_delay_after_a_rejection() -> None:
    leader = Stepped("a", ReplicationConfig(lease_s=1.5)).leads(state(isr="ab", leader_epoch=2))
    leader.fetch("c", -1)
    assert leader.has(do.ProposeIsr)
    leader.fetch("c", -1)
    assert not leader.has(do.ProposeIsr)
    leader.step(ev.IsrChangeAnswered(epoch=1, accepted=False))
    leader.fetch("c", -1)
    assert not leader.has(do.ProposeIsr)
    leader.now_ns += S
    leader.fetch("c", -1)
    assert leader.has(do.ProposeIsr)


def test_leader_whose_process_was_paused_does_not_remove_followers_from_the_isr() -> None:
    leader = Stepped("a").leads()
    leader.now_ns += 20 * S
    leader.heard()
    leader.step(ev.DeadlineReached(kind=Deadline.LAG))
    assert not leader.has(do.ProposeIsr)


def test_replica_ignores_an_older_partition_state() -> None:
    leader = Stepped("a").leads(state(leader_epoch=2, epoch=5))
    leader.told(state("b", epoch=4, leader_epoch=1))
    assert leader.replica.role == "LEADER"


def test_leader_sends_no_rejection_while_an_isr_member_may_follow_the_previous_leader() -> None:
    leader = Stepped("a").leads(state(isr="ab", leader_epoch=2, min_isr=3))
    assert not leader.replica.may_reject_publishes(leader.now_ns)
    leader.publish(flush=False)
    assert leader.has(do.AppendBatch)
    leader.fetch("b", -1)
    assert leader.replica.may_reject_publishes(leader.now_ns)
    leader.publish()
    assert leader.only(do.RejectPublishes).reason is RejectReason.BELOW_MIN_ISR
    leader.told(state(isr="ab", leader_epoch=2, min_isr=3, epoch=2), live={"a": 1, "b": 2, "c": 1})
    assert not leader.replica.may_reject_publishes(leader.now_ns), "b has started again"


def test_isr_change_without_a_response_is_repeated_after_the_session_timeout() -> None:
    leader = Stepped("a").leads()
    leader.told(state(leader_epoch=2, epoch=5), {"a": 1, "b": 1})
    asked = leader.only(do.ProposeIsr)
    assert asked.isr == frozenset("ab")
    deadlines = leader.replica._shared.deadlines
    assert deadlines._at_ns[ev.Deadline.ISR_CHANGE] == leader.now_ns + 2 * S
    leader.heard()
    assert not leader.has(do.ProposeIsr), "one at a time"
    leader.fire(ev.Deadline.ISR_CHANGE)
    leader.heard()
    leader.fire(ev.Deadline.LAG)
    assert leader.only(do.ProposeIsr) == asked
    assert deadlines._at_ns[ev.Deadline.ISR_CHANGE] == leader.now_ns + 2 * S


def test_idle_leader_sends_nothing_at_a_heartbeat() -> None:
    leader = Stepped("a", ReplicationConfig()).leads()
    leader.now_ns += S // 4
    assert leader.heard() == []


def test_stopped_leader_unsubscribes_and_ignores_metadata_changes() -> None:
    leader = Stepped("a").leads()
    leader.step(ev.StopRequested())
    assert leader.has(do.CloseSubject)
    assert leader.replica.role == "STOPPED"
    leader.told(state(epoch=9, leader_epoch=9))
    assert leader.replica.role == "STOPPED"


# ---- request ids that are not the follower's --------------------------------------------------------------------------------
BASE = 10**18


@pytest.mark.parametrize("forged", [2**63 - 1, BASE + 3600 * S, 1])
def test_fetch_beyond_the_log_end_commits_no_record_and_the_next_fetch_is_accepted(forged: int) -> None:
    leader = Stepped("a").leads()
    leader.fetch("b", -1, request_id=BASE)
    leader.fetch("c", -1, request_id=BASE)
    leader.publish(3)
    for replica in ("b", "c"):
        leader.fetch(replica, 2, request_id=forged)
        assert leader.only(FetchRefusal).reason is RefusalReason.UNKNOWN
    assert leader.replica.high_watermark == -1
    leader.now_ns += S
    leader.fetch("b", 2, request_id=BASE + S)
    leader.fetch("c", 1, request_id=BASE + S)
    assert leader.replica.high_watermark == 1


def test_forged_first_fetch_blocks_the_real_follower_for_less_than_ten_seconds() -> None:
    leader = Stepped("a").leads()
    leader.fetch("b", -1, request_id=2**63 - 1)
    leader.publish(1)
    leader.fetch("c", 0, request_id=BASE + leader.now_ns)
    start_ns = leader.now_ns
    while leader.replica.high_watermark < 0:
        leader.now_ns += S
        leader.heard()
        leader.fetch("b", 0, request_id=BASE + leader.now_ns)
        assert leader.now_ns - start_ns < 10 * S
    leader.now_ns += S
    leader.publish(1)
    leader.fetch("b", 1, request_id=BASE + leader.now_ns)
    leader.fetch("c", 1, request_id=BASE + leader.now_ns)
    assert leader.replica.high_watermark == 1


def test_follower_request_ids_grow_at_least_with_its_clock() -> None:
    follower = Stepped("b").follows(state(leader="a"))
    fetch = follower.only(FetchRequest).request_id
    follower.now_ns += 100 * S
    follower.step(ev.RequestFailed(request_id=fetch, reason="unreadable"))
    follower.fire(Deadline.FETCH)
    assert 100 * S <= follower.only(FetchRequest).request_id - fetch < 200 * S


def test_duplicate_of_an_uncommitted_record_is_acked_at_the_commit_of_that_record() -> None:
    leader = Stepped("a").leads()
    leader.publish(3)
    leader.fetch("b", 2)
    leader.fetch("c", 2)
    leader.step(ev.DuplicateReceived(last_offset=1))
    assert acks(leader) == [(AckPolicy.LEADER, 2), (AckPolicy.ALL, 2)]
    leader.step(ev.DuplicateReceived(last_offset=2))
    assert acks(leader) == [(AckPolicy.LEADER, 2), (AckPolicy.ALL, 2)]
    leader.publish(2, flush=False)
    leader.step(ev.DuplicateReceived(last_offset=4))
    assert acks(leader) == []
    leader.step(ev.LogFlushed(end_offset=5))
    assert acks(leader) == [(AckPolicy.LEADER, 4)]
    leader.step(ev.DuplicateReceived(last_offset=4))
    assert acks(leader) == [(AckPolicy.LEADER, 4)]
    leader.fetch("b", 4)
    leader.fetch("c", 4)
    assert acks(leader) == [(AckPolicy.ALL, 4)]


def test_duplicate_of_a_record_of_an_earlier_leader_is_acked_after_its_commit() -> None:
    leader = Stepped("a").leads(end=5, hw=2)
    leader.step(ev.DuplicateReceived(last_offset=2))
    assert (AckPolicy.ALL, 2) in acks(leader)
    leader.step(ev.DuplicateReceived(last_offset=4))
    assert AckPolicy.ALL not in [policy for policy, _ in acks(leader)]
    leader.fetch("b", 4, 1)
    leader.fetch("c", 4, 1)
    assert acks(leader) == [(AckPolicy.ALL, 4)]


def test_duplicate_is_acked_only_with_a_lease() -> None:
    leader = Stepped("a").leads()
    leader.publish(3)
    leader.fetch("b", 2)
    leader.fetch("c", 2)
    leader.lease_ends()
    leader.step(ev.DuplicateReceived(last_offset=1))
    assert acks(leader) == []
    leader.heard()
    assert acks(leader) == [(AckPolicy.LEADER, 2), (AckPolicy.ALL, 2)]
    follower = Stepped("b").opened()
    assert follower.step(ev.DuplicateReceived(last_offset=1)) == []


def leader(end: int = 5, hw: int = 2, *, start: int = 1, partition: PartitionMetadata | None = None, **config: Any) -> Stepped:
    """a leads in LeaderEpoch 4, from ``end`` on, in the partition's Epoch 9; its log begins at ``start`` with epoch 2."""
    stepped = Stepped("a", ReplicationConfig(**config)).opened(end, hw, ((2, start),), start)
    stepped.heard()
    stepped.told(partition or state(epoch=9, leader_epoch=4))
    notices = [effect for effect in stepped.out if isinstance(effect, LeaderNotice)]
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
    assert stepped.only(LeaderNotice).replicas == ("c",)
    assert stepped.only(LeaderNotice).epoch == 10
    assert stepped.now_ns - before_ns <= S
    stepped.told(state(epoch=11, leader_epoch=4), {"a": 1, "b": 1})
    stepped.fire(ev.Deadline.NOTICE)
    assert not stepped.has(LeaderNotice)
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
    assert not stepped.has(LeaderNotice), "the answer to c's own fetch had it"
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
        LeaderNotice(
            replicas=("c",), leader="a", leader_epoch=4, epoch=9, epoch_start_offset=5, high_watermark=6, log_start_offset=1
        ),
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
        if stepped.deadlines[ev.Deadline.NOTICE] <= stepped.now_ns:
            stepped.step(ev.DeadlineReached(kind=ev.Deadline.NOTICE))
            assert not stepped.has(do.SendHighWatermark)
            assert stepped.deadlines[ev.Deadline.NOTICE] > stepped.now_ns
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
        ({"a": 9, "b": 6, "c": 2}, {"isr_count": 1}, 3),
        ({"a": 5, "b": 5, "c": 5}, {"maximal_electable": ("a", "b", "c")}, 5),  # everyone who may be elected has all of it
        ({"a": 5, "b": 5, "c": 4}, {"maximal_electable": ("a", "b", "c")}, 4),
        ({"a": 5, "b": 5, "c": 4}, {"maximal_electable": ("a", "b")}, 5),
    ],
)
def test_quorum_high_watermark_is_the_highest_offset_on_a_majority_of_known_positions(
    positions: dict[str, int | None], changes: dict[str, Any], wanted: int
) -> None:
    known: dict[str, Any] = {"replicas": ("a", "b", "c"), "isr_count": 3, "min_isr": 2}
    assert quorum_high_watermark(positions, epoch_start_offset=6, high_watermark=3, **{**known, **changes}) == wanted


@each(("joins", "wanted"), [(False, 5), (True, 4)])
def test_quorum_high_watermark_with_an_unanswered_isr_change_counts_the_new_member(joins: bool, wanted: int) -> None:
    metadata, change = state(isr="ab", policy=CommitPolicy.QUORUM), IsrChange()
    metadata = replace(metadata, state=replace(metadata.state, incomplete=("c",)))
    if joins:
        change.record_attempt(frozenset("abc"))
    assert new_high_watermark(metadata, change, {"a": 5, "b": 5, "c": 4}, 6, 3) == wanted


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
