"""Test the plan of moves: its limits, how even the result is, and that it moves as little as possible."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from liftpy.core.metadata.placement import place
from liftpy.core.metadata.placement.facts import NodeFacts, PlacementRequest, Replicas
from liftpy.core.metadata.placement.rebalance import Key, MovePlan, plan_moves

Held = dict[Key, Replicas]


def cluster(ids: str, **more: Any) -> list[NodeFacts]:
    return [NodeFacts(node_id=node, **more) for node in ids]


def laid(nodes: list[NodeFacts], partitions: int, factor: int = 3, policy: str = "") -> Held:
    wanted = PlacementRequest(policy=policy, stream="s", partitions=partitions, replication_factor=factor)
    return {("s", number): replicas for number, replicas in enumerate(place(nodes, wanted).replicas)}


def followed(held: Held, plan: MovePlan, nodes: list[NodeFacts]) -> Held:
    """Return the assignment after all moves, applied one by one."""
    rack_of = {node.node_id: node.rack for node in nodes}
    now = dict(held)
    for move in plan.moves:
        before = now[move.stream, move.partition]
        assert move.out in before
        assert move.into not in before
        assert move.leads == (before[0] == move.out)
        after = tuple(move.into if node == move.out else node for node in before)
        assert len({rack_of[node] for node in after}) >= len({rack_of[node] for node in before})
        now[move.stream, move.partition] = after
    counts = Counter(node for replicas in now.values() for node in replicas)
    assert dict(plan.held) == {node.node_id: counts[node.node_id] for node in nodes}
    return now


def test_replica_move_plan_of_a_balanced_cluster_is_empty() -> None:
    nodes = cluster("abcd")
    assert plan_moves(nodes, laid(nodes, 24)).moves == ()
    assert plan_moves(nodes, {}).moves == ()
    assert plan_moves([], {}).moves == ()


def test_replica_move_plan_with_one_node_below_its_share_moves_only_to_this_node() -> None:
    """``a`` is empty, too, but holds its share of 4/7, rounded down."""
    nodes = [NodeFacts(node_id="a"), *cluster("bcd", weight=2)]
    held: Held = {("s", number): (node,) for number, node in enumerate("cbbc")}
    plan = plan_moves(nodes, held)
    assert [move.into for move in plan.moves] == ["d"]
    assert plan.fewest == 1


def test_replica_move_plan_gives_a_new_node_its_share_with_the_fewest_moves() -> None:
    nodes = cluster("abcd")
    held = laid(nodes[:3], 4)
    plan = plan_moves(nodes, held)
    assert (len(plan.moves), plan.fewest) == (3, 3)
    followed(held, plan, nodes)
    assert set(plan.held.values()) == {3}
    assert all(move.into == "d" and not move.leads for move in plan.moves), "who leads is moved last"


def test_replica_move_plan_moves_all_replicas_off_a_draining_node_and_no_others() -> None:
    nodes = cluster("abcde")
    held = laid(nodes, 20)
    plan = plan_moves(nodes, held, ["b"])
    followed(held, plan, nodes)
    assert (len(plan.moves), plan.fewest) == (12, 12)
    assert {move.out for move in plan.moves} == {"b"}
    assert [plan.held[node] for node in "acde"] == [15] * 4


def test_replica_move_plan_lists_replicas_that_no_other_node_can_host() -> None:
    nodes = cluster("abc")
    held = laid(nodes, 2)
    plan = plan_moves(nodes, held, ["c"])
    assert plan.moves == ()
    assert plan.stuck == (("s", 0), ("s", 1))


def test_replica_move_plan_after_changed_node_weights_has_replicas_in_proportion_to_the_weights() -> None:
    nodes = [*cluster("abc"), NodeFacts(node_id="d", weight=3)]
    held = laid(cluster("abcd"), 24, 1)
    plan = plan_moves(nodes, held)
    followed(held, plan, nodes)
    assert dict(plan.held) == {"a": 4, "b": 4, "c": 4, "d": 12}
    assert len(plan.moves) == plan.fewest == 6
    nodes[3] = NodeFacts(node_id="d", weight=0)
    assert dict(plan_moves(nodes, held).held) == {"a": 8, "b": 8, "c": 8, "d": 0}


def test_replica_move_plan_ignores_dead_nodes() -> None:
    nodes = [*cluster("abc"), NodeFacts(node_id="d", live=False), NodeFacts(node_id="e", live=False)]
    held = laid(cluster("abcd"), 12, 2)
    plan = plan_moves(nodes, held, ["e"])
    assert {"d", "e"}.isdisjoint({move.out for move in plan.moves} | {move.into for move in plan.moves})
    assert dict(plan_moves(nodes, held, ["d"]).held)["d"] == 0


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[NodeFacts], Held, list[str]]:
    count = draw(st.integers(1, 9))
    racks = draw(st.integers(1, 4))
    nodes = [
        NodeFacts(
            node_id=f"n{n}",
            rack=f"r{draw(st.integers(1, racks))}",
            weight=draw(st.sampled_from([0.0, 1.0, 1.0, 2.5])),
            live=draw(st.integers(0, 5)) > 0,
            budget=draw(st.sampled_from([0, 0, 4, 40])),
        )
        for n in range(count)
    ]
    ids = [node.node_id for node in nodes]
    factor = draw(st.integers(1, count))
    held = {("s", number): tuple(draw(st.permutations(ids))[:factor]) for number in range(draw(st.integers(0, 12)))}
    return nodes, held, draw(st.lists(st.sampled_from(ids), max_size=2))


@given(worlds(), st.randoms(use_true_random=False))
def test_replica_move_plan_has_only_valid_moves_and_worsens_no_node(
    world: tuple[list[NodeFacts], Held, list[str]], random: Any
) -> None:
    nodes, held, leaving = world
    before = Counter(node for replicas in held.values() for node in replicas)
    plan = plan_moves(nodes, held, leaving)
    followed(held, plan, nodes)
    shuffled = list(nodes)
    random.shuffle(shuffled)
    assert plan_moves(shuffled, held, leaving) == plan
    for node in nodes:
        name, now = node.node_id, plan.held[node.node_id]
        if not node.live and name not in leaving:
            assert now == before[name]
        if now > before[name]:
            assert node.live
            assert node.weight > 0
            assert name not in leaving
            assert not node.budget or now <= node.budget
        if name in leaving:
            assert now <= len(plan.stuck)


@given(st.integers(2, 9), st.integers(1, 60), st.data())
def test_replica_move_plan_without_racks_is_balanced_with_nearly_the_fewest_moves(
    count: int, partitions: int, data: st.DataObject
) -> None:
    nodes = [NodeFacts(node_id=f"n{n}") for n in range(count)]
    there = data.draw(st.integers(1, count))
    factor = data.draw(st.integers(1, max(1, there // 2)))
    held = laid(nodes[:there], partitions, factor)
    plan = plan_moves(nodes, held)
    followed(held, plan, nodes)
    assert max(plan.held.values()) - min(plan.held.values()) <= 1
    assert plan.fewest <= len(plan.moves) <= plan.fewest + count
