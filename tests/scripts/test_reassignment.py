"""A replica moves to another node: learner, ISR member, leadership transfer, eviction, deletion, and failures in between.

A leader that does not know that its change of the replica set was made counts both sets: by ``quorum`` two of three are not enough when
there may be four. A node that was evicted, or whose copy was given up, deletes what it has, in the same process: what it told before
does not count when it is asked again [C12].

Shows C3, C8, C12, D3, D6, M11, L2.
"""

from __future__ import annotations

import pytest

from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage


def wanted(s: Stage, *replicas: str) -> None:
    """An operator's Reassign; without ``replicas`` its cancel."""
    request = pb.Reassign(stream=STREAM, partition=0, replicas=replicas, cancel=not replicas)
    response = s.command(pb.ControlRequest(reassign=request))
    assert response.error == pb.ControlResponse.OK, response.detail


def names_learner(s: Stage, node: str) -> None:
    """What the metadata leader's planner does."""
    request = pb.BeginCopy(stream=STREAM, partition=0, epoch=s.partition.epoch, node=node)
    response = s.command(pb.ControlRequest(beginCopy=request))
    assert response.error == pb.ControlResponse.OK, response.detail


def position(s: Stage, node: str) -> int | None:
    """Where the leader thinks that ``node`` is, inclusive; None: it does not know."""
    snapshot = s.replica(s.leader).replica.snapshot(s.cluster.clock.now_ns)
    return next((f.position for f in snapshot.followers if f.replica == node), None)


def has_moved(s: Stage, *replicas: str) -> bool:
    """Whether they are the replicas, all in sync, and nothing else is wanted."""
    return s.partition.replicas == replicas and s.isr == set(replicas) and not s.partition.target


def holds_nothing(s: Stage, node: str) -> bool:
    """Whether nothing of the partition is on its disk, nor runs there."""
    return s.cluster.replica(node) is None and not s.cluster.nodes[node].disk.folders


@pytest.mark.parametrize("quorum", [False, True])
@pytest.mark.parametrize("from_leader", [False, True])
def test_reassignment_to_another_node_copies_records_and_deletes_the_old_replica(quorum: bool, from_leader: bool) -> None:
    with Stage(nodes=4, quorum=quorum) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        goes = a if from_leader else c
        staying = tuple(node for node in (a, b, c) if node != goes)
        wanted(s, *staying, "n4")
        s.until(lambda: has_moved(s, *staying, "n4"))
        s.until(lambda: holds_nothing(s, goes))
        s.publish(2)
        assert s.ids("n4") == [1, 2, 3, 4, 5]


def test_reassignment_of_the_only_replica_moves_the_leadership() -> None:
    with Stage(nodes=2, factor=1, min_isr=1) as s:
        a = s.leader
        other = "n2" if a == "n1" else "n1"
        s.publish(3)
        wanted(s, other)
        s.until(lambda: has_moved(s, other))
        s.until(lambda: holds_nothing(s, a))
        s.publish(1)
        assert s.leader == other
        assert s.counted("planned transfer: move") == 1


@pytest.mark.parametrize("quorum", [False, True])
def test_reassignment_to_more_and_to_fewer_replicas_loses_no_record(quorum: bool) -> None:
    with Stage(nodes=5, quorum=quorum) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        wanted(s, a, b, c, "n4", "n5")
        s.until(lambda: has_moved(s, a, b, c, "n4", "n5"))
        s.publish(2)
        wanted(s, "n5", "n4")
        s.until(lambda: has_moved(s, "n5", "n4"), within_s=60)
        assert s.ids("n5") == [1, 2, 3, 4]


@pytest.mark.parametrize("dies", ["the learner", "the leader", "who goes"])
def test_reassignment_finishes_after_the_death_of_learner_leader_or_replica_to_remove(dies: str) -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        learner = s.hold("changeIsr", sender=a)
        wanted(s, a, b, "n4")
        s.until(lambda: s.partition.joining == "n4" and s.cluster.replica("n4") is not None)
        node = {"the learner": "n4", "the leader": a, "who goes": c}[dies]
        s.power_off(node)
        learner.drop()
        s.run(3)
        s.start(node)
        s.until(lambda: has_moved(s, a, b, "n4"), within_s=60)
        s.until(lambda: holds_nothing(s, c))


def test_reassignment_back_to_an_evicted_replica_with_its_old_log_copies_missing_records() -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.crash(c)
        wanted(s, a, b, "n4")
        s.until(lambda: has_moved(s, a, b, "n4"), within_s=60)
        s.publish(2)
        wanted(s, a, b, c)
        s.start(c)
        s.until(lambda: has_moved(s, a, b, c), within_s=60)
        assert s.ids(c) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("joined", [False, True])
def test_reassignment_that_is_cancelled_ends_with_the_old_replicas(joined: bool) -> None:
    with Stage(nodes=4) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        evicts = s.hold("changeIsr", sender=a)
        wanted(s, a, b, "n4")
        s.until(lambda: s.partition.joining == "n4")
        if joined:
            evicts.release()
            s.isolate(b)  # so that three complete copies are left only with the one that is to go
            s.until(lambda: "n4" in s.partition.replicas)
        wanted(s)
        evicts.drop()
        if joined:
            s.reconnect(b)
        s.until(lambda: has_moved(s, a, b, "n4" if joined else c), within_s=60)
        s.until(lambda: holds_nothing(s, c if joined else "n4"))


def test_reassignment_with_quorum_commits_only_with_majorities_of_both_replica_sets_until_confirmed() -> None:
    with Stage(nodes=4, quorum=True) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        asks = s.hold("changeIsr", sender=a)
        wanted(s, a, b, "n4")
        s.until(lambda: position(s, "n4") == 2)
        s.hold("changeIsr answer", "image", receiver=a)
        asks.release()
        s.until(lambda: "n4" in s.partition.replicas)
        s.isolate(c)
        s.isolate("n4")
        late = s.send()
        s.until(lambda: position(s, b) == 3)
        s.always(lambda: s.hw(a) == 2 and not late.acked, 0.5)


def test_reassignment_ignores_learner_positions_of_an_earlier_copy() -> None:
    with Stage(nodes=4, min_isr=1) as s:
        a, b, _ = s.leader, *s.followers
        s.publish(3)
        asks = s.hold("changeIsr", sender=a)
        wanted(s, a, b, "n4")
        s.until(lambda: s.partition.joining == "n4")
        s.until(lambda: position(s, "n4") == 2)
        image = s.hold("image", receiver=a)
        asks.drop()
        names_learner(s, "")
        s.until(lambda: holds_nothing(s, "n4"))
        back = s.hold("image", receiver="n4")  # it does not know yet that it is asked again, and holds nothing
        names_learner(s, "n4")
        image.drop()  # it hears of the newest state alone: of the copy that was given up it never hears
        s.run(3)  # its last proposal has timed out
        assert "n4" not in s.isr
        back.release()
        s.until(lambda: has_moved(s, a, b, "n4"))


def test_reassignment_evicts_no_replica_while_fewer_in_sync_replicas_than_wanted_remain() -> None:
    with Stage(nodes=4, min_isr=2) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.isolate(b)
        s.until(lambda: s.isr == {a, c})
        request = pb.Reassign(stream=STREAM, partition=0, replicas=(a, b))
        assert s.command(pb.ControlRequest(reassign=request)).error == pb.ControlResponse.OK
        s.always(lambda: c in s.isr, 5)
        s.reconnect(b)
        s.until(lambda: has_moved(s, a, b))
