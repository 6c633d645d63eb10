"""Test each field of the planner's proposals, its memory of earlier ones, and its next check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata.controller.reassignment_planner import PLAN_EVERY_NS, REPEAT_AFTER_NS, ReassignmentPlanner
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.reassignment_progress import Phase, movement_of, movements, yield_replica_changes
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.small_images import a_partition, a_stream, an_image

GRACE_NS = 300 * NS_PER_S
MOVES: dict[str, Any] = {"target": ("a", "b", "d"), "moved_for": MoveReason.DRAINED}


def image_of(*partitions: PartitionState, nodes: str = "abcd", fenced: str = "", leaving: str = "") -> ClusterImage:
    image = an_image(a_stream(*partitions), nodes, fenced)
    for node_id in leaving:
        image = replace(image, nodes=image.nodes.set(node_id, replace(image.nodes[node_id], leaving=True)))
    return image


def changed(image: ClusterImage, number: int, **fields: Any) -> ClusterImage:
    """Return a changed image with the next index."""
    stream = image.streams["s"]
    return image.with_partition(stream, replace(stream.partitions[number], **fields))


def node(image: ClusterImage, node_id: str, **fields: Any) -> ClusterImage:
    return replace(image, nodes=image.nodes.set(node_id, replace(image.nodes[node_id], **fields)))


def many(count: int, **fields: Any) -> list[PartitionState]:
    return [a_partition(partition=number, **fields) for number in range(count)]


class Planner:
    """Provide a planner that leads from time 0."""

    def __init__(self, image: ClusterImage, **config: Any) -> None:
        self.moving = ReassignmentPlanner(ReplicationConfig(**config))
        self.now_ns = 0
        self.image = image
        self.moving.lead(image, 0)

    def look(self, image: ClusterImage | None = None, *, after_ns: int = PLAN_EVERY_NS) -> list[Any]:
        self.now_ns += after_ns
        if image is not None:
            self.image = image
            self.moving.image_changed(image, self.now_ns)
        return self.moving.take_due(self.now_ns)

    def numbers(self, image: ClusterImage | None = None, *, after_ns: int = PLAN_EVERY_NS) -> list[tuple[str, int]]:
        return [(type(message).__name__, message.partition) for message in self.look(image, after_ns=after_ns)]


# ---- what is proposed ----------------------------------------------------------------------------------------------------
def test_reassignment_planner_begin_copy_proposal_has_the_partition_the_epoch_and_the_target_node() -> None:
    planner = Planner(image_of(a_partition(), a_partition(partition=1, epoch=9, target=("a", "b", "d"))))
    assert planner.look() == [pb.BeginCopy(stream="s", uid="u1", partition=1, epoch=9, node="d")]
    assert planner.moving.counters == {"copies_started": 1}


def test_reassignment_planner_aborts_a_copy_to_a_removed_or_draining_node() -> None:
    for image in (
        image_of(a_partition(joining="d", copy_epoch=6, **MOVES), leaving="cd"),
        image_of(a_partition(joining="d", copy_epoch=6, **MOVES), nodes="abc", leaving="c"),
    ):
        planner = Planner(image)
        assert planner.look() == [pb.BeginCopy(stream="s", uid="u1", partition=0, epoch=6)]
        assert planner.moving.counters == {"copies_cancelled_node_unavailable": 1}


def test_reassignment_planner_cancels_a_move_after_its_reason_ended() -> None:
    for more in ({}, {"joining": "d", "copy_epoch": 6}):
        planner = Planner(image_of(a_partition(**MOVES, **more)))
        # nobody is drained, and c runs
        assert planner.look() == [pb.Reassign(stream="s", uid="u1", partition=0, cancel=True, epoch=6)]
        assert planner.moving.counters == {"moves_cancelled_no_reason": 1}
        assert planner.look(after_ns=REPEAT_AFTER_NS - NS_PER_S) == []
        assert planner.moving.counters == {"moves_cancelled_no_reason": 1}
    for why in (MoveReason.BY_HAND, MoveReason.REBALANCED, MoveReason.FACTOR):
        assert Planner(image_of(a_partition(target=("a", "b", "d"), moved_for=why))).look() != [
            pb.Reassign(stream="s", uid="u1", partition=0, cancel=True, epoch=6)
        ]


@pytest.mark.parametrize("gone", [{"fenced": "c"}, {"leaving": "c"}, {"nodes": "abd"}])
def test_reassignment_planner_continues_a_move_while_the_replica_to_remove_is_missing(gone: dict[str, Any]) -> None:
    isr = ("a", "b") if "leaving" not in gone else ("a", "b", "c")
    planner = Planner(image_of(a_partition(isr=isr, **MOVES), **gone))
    assert planner.look() == [pb.BeginCopy(stream="s", uid="u1", partition=0, epoch=6, node="d")]


def test_reassignment_planner_replaces_a_removed_target_node_and_keeps_the_other_targets() -> None:
    for why in (MoveReason.DRAINED, MoveReason.REPLACED, MoveReason.FACTOR):
        moves = {"target": ("d", "b", "a"), "moved_for": why}
        planner = Planner(image_of(a_partition(**moves), nodes="abcde", leaving="cd"))
        assert planner.look() == [
            pb.Reassign(stream="s", uid="u1", partition=0, replicas=["e", "b", "a"], movedFor=int(why), epoch=6)  # type: ignore[arg-type]
        ]
    for why in (MoveReason.BY_HAND, MoveReason.REBALANCED):
        planner = Planner(image_of(a_partition(target=("d", "b", "a"), moved_for=why), nodes="abcde", leaving="d"))
        assert planner.look() == [pb.Reassign(stream="s", uid="u1", partition=0, cancel=True, epoch=6)]
        assert planner.moving.counters == {"moves_cancelled_node_unavailable": 1}


def test_reassignment_planner_moves_leaderships_of_a_drained_node_before_its_replicas() -> None:
    image = image_of(
        a_partition(), a_partition(partition=1), a_partition(partition=2, leader="b"),
        a_partition(partition=3, isr=("a", "b"), incomplete=("b",)), leaving="a",
    )  # fmt: skip
    planner = Planner(image)
    assert planner.look() == [
        pb.ElectLeader(stream="s", uid="u1", partition=0, node="c"),
        pb.ElectLeader(stream="s", uid="u1", partition=1, node="b"),
        pb.Reassign(stream="s", uid="u1", partition=2, replicas=["d", "b", "c"], movedFor=pb.DRAINED, epoch=6),
        pb.Reassign(stream="s", uid="u1", partition=3, replicas=["d", "b", "c"], movedFor=pb.DRAINED, epoch=6),
    ]
    assert planner.moving.counters == {"leaderships_moved_from_drained_nodes": 2, "targets: drain": 2}


def test_reassignment_planner_replaces_dead_nodes_before_drained_ones_and_the_longest_dead_first() -> None:
    ones = [a_partition(partition=n, replicas=(r,), isr=(r,), leader=r) for n, r in enumerate("abcd")]
    image = image_of(*ones, nodes="abcdef", fenced="b", leaving="a")
    planner = Planner(image, max_copies=1)
    assert planner.numbers() == [("Reassign", 0)], "b is down, and may come back"
    both = node(image, "c", fenced=True)
    assert planner.numbers(both, after_ns=GRACE_NS // 2) == [("Reassign", 0)]
    found = planner.look(after_ns=GRACE_NS)
    assert [(m.partition, m.movedFor) for m in found] == [(1, pb.REPLACED), (2, pb.REPLACED)], "room for two, AHEAD of one copy"
    assert planner.moving.counters == {"targets: drain": 2, "targets: a node is down": 2}


def test_reassignment_planner_replaces_dead_nodes_in_the_order_of_their_failure() -> None:
    ones = [a_partition(partition=n, replicas=(r, "c"), isr=("c",), leader="c") for n, r in enumerate("aabb")]
    image = image_of(*ones, nodes="abcdef", fenced="b")
    planner = Planner(image, max_copies=1)
    planner.look(node(image, "a", fenced=True))
    assert planner.numbers(after_ns=GRACE_NS) == [("Reassign", 2), ("Reassign", 3)]


def test_reassignment_planner_with_a_grace_period_of_zero_replaces_no_node() -> None:
    planner = Planner(image_of(a_partition(), fenced="c"), replacement_grace_s=0)
    assert planner.look(after_ns=GRACE_NS * 100) == []
    assert planner.moving.next_deadline_ns() is None


def test_reassignment_planner_sets_no_target_for_a_moving_or_leaderless_partition() -> None:
    image = image_of(
        a_partition(leader="b"), a_partition(partition=1, status=PartitionStatus.ELECTION, leader=""),
        a_partition(partition=2, leader="b", joining="d", copy_epoch=6),
        a_partition(partition=3, leader="b", target=("b", "c"), moved_for=MoveReason.FACTOR), leaving="a",
    )  # fmt: skip
    assert Planner(image).numbers() == [("Reassign", 0)]


def test_reassignment_planner_picks_a_replacement_with_the_fewest_replicas_in_another_rack() -> None:
    def of_racks(image: ClusterImage, racks: str) -> ClusterImage:
        for node_id, rack in zip(sorted(image.nodes), racks, strict=True):
            image = node(image, node_id, rack=rack)
        return image

    # b and c go together: their racks count for nobody any more
    both = of_racks(image_of(a_partition(), nodes="abcde", leaving="bc"), "xyzzy")
    assert [tuple(m.replicas) for m in Planner(both).look()] == [("a", "d", "e")]
    # one can take a place: c stays where it is until another one comes
    one = image_of(a_partition(), nodes="abcd", leaving="bc")
    assert [tuple(m.replicas) for m in Planner(one).look()] == [("a", "d", "c")]
    # e holds nothing, d a replica
    least = image_of(a_partition(leader="b"), a_partition(partition=1, replicas=("d",), isr=("d",), leader="d"), nodes="abcde")
    assert [tuple(m.replicas) for m in Planner(node(least, "a", leaving=True)).look()] == [("e", "b", "c")]
    # c waits for d, which is drained too; a holds the partition, though the target does not name it
    waits = image_of(a_partition(target=("b", "c", "d"), moved_for=MoveReason.FACTOR), nodes="abcd", leaving="d")
    assert Planner(waits).look() == []
    # what comes to a node counts as held already: d gets three, e has one
    coming = [a_partition(partition=n, target=("a", "b", "d")) for n in range(3)]
    there = [a_partition(partition=3, replicas=("e",), isr=("e",), leader="e"), a_partition(partition=4)]
    image = image_of(*coming, *there, nodes="abcde", leaving="b")
    found = [m for m in Planner(image).look() if isinstance(m, pb.Reassign) and m.partition == 4]
    assert [tuple(m.replicas) for m in found] == [("a", "e", "c")]


def test_reassignment_planner_begins_no_copy_to_a_dead_node() -> None:
    planner = Planner(image_of(a_partition(**MOVES), fenced="d", leaving="c"))
    assert planner.look() == [], "within its grace it may come back"
    assert planner.numbers(node(planner.image, "d", fenced=False)) == [("BeginCopy", 0)]


# ---- bounds --------------------------------------------------------------------------------------------------------------
def test_reassignment_planner_transfers_at_most_sixteen_leaderships_of_a_drained_node_at_once() -> None:
    image = image_of(*many(20), leaving="a")
    planner = Planner(image)
    assert planner.numbers() == [("ElectLeader", n) for n in range(16)], (
        "the other four are not moved before they are led elsewhere"
    )
    for number in range(16):
        image = changed(image, number, status=PartitionStatus.CANDIDATE_FOUND, leader="", candidate="b", epoch=7)
    assert planner.numbers(image, after_ns=REPEAT_AFTER_NS * 2) == []
    for number in range(3):
        image = changed(image, number, status=PartitionStatus.ONLINE, leader="b", candidate="", epoch=8)
    found = planner.numbers(image, after_ns=REPEAT_AFTER_NS * 2)
    assert [number for kind, number in found if kind == "ElectLeader"] == [16, 17, 18]
    assert [number for kind, number in found if kind == "Reassign"] == [0, 1, 2]


LEADS: dict[str, Any] = {"leader": "b", "moved_for": MoveReason.LEADERSHIPS}


def test_reassignment_planner_rebalances_at_most_sixteen_leaderships_at_once() -> None:
    image = image_of(*many(20, **LEADS))
    planner = Planner(image)
    first = planner.look()
    assert first == [pb.ElectLeader(stream="s", uid="u1", partition=n, node="a") for n in range(16)]
    assert planner.moving.counters == {"leaderships_rebalanced": 16}
    under_way = image
    for number in range(16):
        under_way = changed(under_way, number, leader="", candidate="a", status=PartitionStatus.CANDIDATE_FOUND, epoch=7)
    assert planner.look(under_way) == []
    led = under_way
    for number in range(3):
        led = changed(
            led, number, leader="a", candidate="", status=PartitionStatus.ONLINE, epoch=8, moved_for=MoveReason.BY_HAND
        )
    assert planner.numbers(led) == [("ElectLeader", n) for n in (16, 17, 18)]
    drained = Planner(image_of(*many(20, **LEADS), leaving="b"))
    assert drained.numbers() == [("ElectLeader", n) for n in range(16)], "of a node that is drained, and once each"


@pytest.mark.parametrize(
    "more",
    [{"isr": ("b", "c")}, {"incomplete": ("a",)}, {"status": PartitionStatus.ELECTION, "leader": ""}, {"leader": "a"},
     {"moved_for": MoveReason.REBALANCED}],
)  # fmt: skip
def test_reassignment_planner_transfers_no_leadership_until_the_preferred_replica_is_electable(more: dict[str, Any]) -> None:
    planner = Planner(image_of(a_partition(**{**LEADS, **more})))
    assert planner.look() == []
    waits = more.get("leader") != "a" and "moved_for" not in more
    assert (planner.moving.next_deadline_ns() is not None) == waits


def test_reassignment_planner_cancels_a_leadership_move_to_a_removed_or_drained_node() -> None:
    for gone in ({"leaving": "a"}, {"nodes": "bcd"}):
        planner = Planner(image_of(a_partition(**LEADS, isr=("b", "c")), **gone))  # type: ignore[arg-type]
        assert planner.look() == [pb.Reassign(stream="s", uid="u1", partition=0, cancel=True, epoch=6)]
        assert planner.moving.counters == {"moves_cancelled_node_unavailable": 1}
    down = Planner(image_of(a_partition(**LEADS, isr=("b", "c")), fenced="a"), replacement_grace_s=60)
    assert down.look() == [], "it may come back"


def test_reassignment_planner_counts_proposed_copies_in_its_limit() -> None:
    ones = [a_partition(partition=n, replicas=(r,), isr=(r,), leader=r, epoch=n, target=("e",)) for n, r in enumerate("aabbcc")]
    image = image_of(*ones, nodes="abcde")
    planner = Planner(image, max_copies=3, max_copies_per_node=3)
    assert planner.numbers() == [("BeginCopy", n) for n in (0, 1, 2)]
    image = changed(image, 0, joining="e", copy_epoch=10, epoch=10)
    assert planner.numbers(image) == [], "one is there, two were asked for"
    image = changed(image, 0, joining="", copy_epoch=0, epoch=11, replicas=("e",), target=(), leader="e", isr=("e",))
    assert planner.numbers(image) == [("BeginCopy", 3)]
    assert planner.numbers(after_ns=REPEAT_AFTER_NS) == [("BeginCopy", n) for n in (1, 2, 3)], (
        "they were lost: again, no others"
    )


@pytest.mark.parametrize(
    ("per_node", "target", "count"), [(1, ("c",), 1), (2, ("c",), 2), (2, ("d",), 2), (3, ("c",), 3), (9, ("c",), 4)]
)
def test_reassignment_planner_limits_copies_per_leader_and_per_target_node(
    per_node: int, target: tuple[str, ...], count: int
) -> None:
    from_one = [a_partition(partition=n, replicas=("a",), isr=("a",), target=("bcde"[n],)) for n in range(4)]
    assert len(Planner(image_of(*from_one, nodes="abcde"), max_copies_per_node=per_node).look()) == count
    into_one = [a_partition(partition=n, replicas=(r,), isr=(r,), leader=r, target=("f",)) for n, r in enumerate("abcd")]
    assert len(Planner(image_of(*into_one, nodes="abcdef"), max_copies_per_node=per_node).look()) == count
    under_way = [replace(from_one[0], joining="b", copy_epoch=6), *from_one[1:]]
    assert len(Planner(image_of(*under_way, nodes="abcde"), max_copies_per_node=per_node).look()) == count - 1


def test_reassignment_planner_sets_move_targets_for_twice_as_many_partitions_as_concurrent_copies() -> None:
    image = image_of(*many(9, leader="b", isr=("b", "c")), leaving="a")
    assert len(Planner(image, max_copies=2).look()) == 4
    waits = [replace(p, **MOVES) if p.partition < 3 else p for p in image.streams["s"].partitions]
    found = Planner(image_of(*waits, leaving="ac"), max_copies=2).numbers()
    assert [kind for kind, _ in found].count("Reassign") == 1


# ---- what it knows of before ---------------------------------------------------------------------------------------------
def test_reassignment_planner_proposes_nothing_after_resigning() -> None:
    image = image_of(a_partition(**MOVES), leaving="c")
    planner = Planner(image)
    planner.moving.resign()
    assert planner.moving.next_deadline_ns() is None
    assert planner.look() == []
    assert planner.look(changed(image, 0, epoch=7)) == []
    assert planner.moving.next_deadline_ns() is None
    planner.moving.lead(image, planner.now_ns)
    assert planner.moving.next_deadline_ns() == planner.now_ns
    assert planner.numbers() == [("BeginCopy", 0)]
    planner.moving.lead(image, planner.now_ns)
    assert planner.numbers() == [("BeginCopy", 0)], "what it asked for as another leader may be lost: it is asked again"


def test_reassignment_planner_of_a_new_metadata_leader_has_no_state_of_an_earlier_term() -> None:
    image = image_of(*many(20), nodes="abcde", leaving="a", fenced="e")
    planner = Planner(image, max_copies=1)
    assert [kind for kind, _ in planner.numbers()].count("ElectLeader") == 16
    for number in range(16):
        image = changed(image, number, status=PartitionStatus.ELECTION, leader="", epoch=7)
    planner.moving.lead(image, planner.now_ns)
    assert [kind for kind, _ in planner.numbers()].count("ElectLeader") == 4
    copies = image_of(a_partition(**MOVES), a_partition(partition=1, **MOVES), leaving="c")
    planner = Planner(copies, max_copies=1)
    assert planner.numbers() == [("BeginCopy", 0)]
    planner.moving.lead(changed(copies, 0, epoch=7), planner.now_ns)
    assert planner.numbers() == [("BeginCopy", 1)], "the oldest now; no copy of the leadership before stands in its way"
    planner = Planner(image_of(a_partition(), fenced="c"))
    planner.moving.resign()
    planner.now_ns = GRACE_NS
    planner.moving.lead(image_of(a_partition(), fenced="c"), GRACE_NS)
    assert planner.look() == [], "since when c is down counts from now"
    assert planner.moving.next_deadline_ns() == 2 * GRACE_NS


def test_reassignment_planner_check_includes_every_stream_changed_since_the_last_check() -> None:
    streams = [replace(a_stream(), name=name, uid=f"u-{name}", subject=name) for name in ("x", "y")]
    image = an_image(None, "abcd").with_streams(streams)
    planner = Planner(image)
    assert planner.look() == []
    for epoch, name in enumerate(("y", "x"), 7):
        held = image.streams[name]
        image = image.with_partition(held, replace(held.partitions[0], target=("a", "b", "d"), epoch=epoch))
        planner.moving.image_changed(image, planner.now_ns)
    assert [message.stream for message in planner.look()] == ["y", "x"], "the oldest first"


def test_reassignment_planner_without_a_target_node_after_the_grace_period_repeats_the_check() -> None:
    planner = Planner(image_of(a_partition(), nodes="abc", fenced="c"))
    planner.look()
    planner.look(after_ns=GRACE_NS)
    assert planner.moving.next_deadline_ns() == planner.now_ns + REPEAT_AFTER_NS, "no node may take it: another one may come"


def test_reassignment_planner_checks_again_after_a_quarter_second_only_if_the_image_changed() -> None:
    image = image_of(a_partition())
    planner = Planner(image)
    assert planner.moving.next_deadline_ns() == 0
    assert planner.look(after_ns=5) == []
    assert planner.moving.next_deadline_ns() is None
    planner.moving.image_changed(replace(image, index=99), 6)
    assert planner.moving.next_deadline_ns() is None, "nodes and streams are as they were"
    planner.moving.image_changed(image := changed(image, 0, epoch=7), 7)
    assert planner.moving.next_deadline_ns() == 5 + PLAN_EVERY_NS
    planner.moving.image_changed(node(image, "a", weight=2.0), PLAN_EVERY_NS)
    assert planner.moving.next_deadline_ns() == 5 + PLAN_EVERY_NS
    assert planner.moving.take_due(4 + PLAN_EVERY_NS) == []
    assert planner.moving.next_deadline_ns() == 5 + PLAN_EVERY_NS, "it was too early"
    planner = Planner(image := image_of(a_partition(), fenced="c"))
    planner.look(after_ns=GRACE_NS - PLAN_EVERY_NS // 2)
    assert planner.moving.next_deadline_ns() == GRACE_NS
    planner.moving.image_changed(changed(image, 0, epoch=7), planner.now_ns)
    assert planner.moving.next_deadline_ns() == GRACE_NS, "the grace ends before that"


def test_reassignment_planner_checks_every_five_seconds_while_a_move_is_pending() -> None:
    drops = a_partition(replicas=("a", "b", "d", "c"), isr=("a", "b", "d", "c"), **MOVES)
    for image in (
        image_of(a_partition(**MOVES), fenced="d", leaving="c"),
        image_of(a_partition(joining="d", copy_epoch=6, **MOVES), leaving="c"),
        image_of(drops, leaving="c"),
        image_of(a_partition(), nodes="abc", leaving="c"),
    ):
        planner = Planner(image)
        planner.look()
        assert planner.moving.next_deadline_ns() == planner.now_ns + REPEAT_AFTER_NS
    planner = Planner(image_of(a_partition(), leaving="d"))
    planner.look()
    assert planner.moving.next_deadline_ns() is None, "it holds nothing"


def test_reassignment_planner_next_check_is_at_the_end_of_the_grace_period_of_a_dead_node() -> None:
    image = image_of(a_partition(), nodes="abcde", fenced="ce")
    planner = Planner(image)
    planner.look(after_ns=10)
    assert planner.moving.next_deadline_ns() == GRACE_NS
    image = node(image, "b", fenced=True)
    planner.look(image, after_ns=NS_PER_S)
    assert planner.moving.next_deadline_ns() == GRACE_NS, "the first"
    image = node(image, "c", fenced=False)
    planner.look(image, after_ns=NS_PER_S)
    assert planner.moving.next_deadline_ns() == GRACE_NS + 10 + NS_PER_S
    image = node(image, "c", fenced=True)
    planner.look(image, after_ns=NS_PER_S)
    image = node(image, "b", fenced=False)
    planner.look(image, after_ns=NS_PER_S)
    assert planner.moving.next_deadline_ns() == GRACE_NS + 10 + 3 * NS_PER_S, "it went down anew"


def test_reassignment_planner_removes_ended_moves_of_a_changed_stream_from_its_memory() -> None:
    image = image_of(*many(2, **MOVES), leaving="c")
    planner = Planner(image, max_copies=1)
    assert planner.numbers() == [("BeginCopy", 0)]
    image = changed(image, 0, target=(), moved_for=MoveReason.BY_HAND, leader="b", replicas=("a", "b", "d"), epoch=7)
    assert planner.numbers(image) == [("BeginCopy", 1)]
    image = image.without_stream("s")
    assert planner.look(image, after_ns=REPEAT_AFTER_NS) == []
    assert (planner.moving._waiting, planner.moving._names) == ({}, {})
    assert planner.moving.next_deadline_ns() is None


# ---- what moves, as people and placement see it --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, []),
        (MOVES, [("d", 1), ("c", -1)]),
        ({"joining": "d", "copy_epoch": 6} | MOVES, [("c", -1)]),
        ({"target": ("e", "d")}, [("e", 1), ("d", 1), ("a", -1), ("b", -1), ("c", -1)]),
        ({"joining": "d", "copy_epoch": 6}, []),
        ({"joining": "d", "copy_epoch": 6, "target": ("a", "b", "e")}, [("e", 1), ("c", -1), ("d", -1)]),
    ],
)
def test_reassignment_counts_current_replicas_and_target_nodes_as_replicas_to_come(
    more: dict[str, Any], found: list[tuple[str, int]]
) -> None:
    assert list(yield_replica_changes(a_partition(**more))) == found


@pytest.mark.parametrize(
    ("more", "phase", "into", "out"),
    [
        (MOVES, Phase.WAITS, "d", "c"),
        ({"joining": "d", "copy_epoch": 6} | MOVES, Phase.COPIES, "d", "c"),
        ({"replicas": ("a", "b", "d", "c")} | MOVES, Phase.DROPS, "", "c"),
        ({"target": ("a", "b")}, Phase.DROPS, "", "c"),
        ({"target": ("a", "b", "c", "d")}, Phase.WAITS, "d", ""),
        ({"target": ("d", "e", "c")}, Phase.WAITS, "d", "a"),
    ],
)
def test_reassignment_report_of_a_replica_has_the_phase_and_both_nodes(
    more: dict[str, Any], phase: Phase, into: str, out: str
) -> None:
    found = movement_of(a_stream(), a_partition(**more))
    assert found is not None
    assert (found.stream, found.uid, found.partition, found.phase, found.into, found.out) == ("s", "u1", 0, phase, into, out)
    assert (found.replicas, found.target) == (more.get("replicas", ("a", "b", "c")), more["target"])


def test_reassignment_report_of_a_leadership_has_both_nodes() -> None:
    image = image_of(a_partition(**LEADS))
    (found,) = movements(image)
    assert (found.phase, found.into, found.out, found.target, found.why) == (
        Phase.LEADS, "a", "b", (), "rebalance of leaderships",
    )  # fmt: skip
    assert movements(image_of(a_partition(moved_for=MoveReason.LEADERSHIPS))) == []


def test_reassignment_reports_are_sorted_by_stream_and_partition() -> None:
    assert movement_of(a_stream(), a_partition()) is None
    streams = [replace(a_stream(*many(3, **MOVES)), name=name, uid=f"u-{name}", subject=name) for name in ("z", "b")]
    image = an_image(None, "abcd").with_streams(streams)
    assert [(m.stream, m.partition, m.why) for m in movements(image)] == [(name, n, "drain") for name in "bz" for n in range(3)]
