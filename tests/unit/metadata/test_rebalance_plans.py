"""Test the plans of a rebalance: replicas, leaderships and sizes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from liftpy.core.metadata.placement import place
from liftpy.core.metadata.placement.facts import NodeFacts, PlacementRequest, Replicas
from liftpy.core.metadata.placement.rebalance import Key, MovePlan, plan_leaderships, plan_moves, plan_sizes

Held = dict[Key, Replicas]
GB = 1 << 30


def cluster(ids: str, **more: Any) -> list[NodeFacts]:
    return [NodeFacts(node_id=node, **more) for node in ids]


def held_by(*replicas: str) -> Held:
    return {("s", number): tuple(nodes) for number, nodes in enumerate(replicas)}


def test_leadership_plan_of_the_documented_example_has_the_documented_moves() -> None:
    held = held_by("ab", "ab", "ab", "ab", "bc")
    plan = plan_leaderships(cluster("abc"), held)
    assert (dict(plan.led), plan.fewest) == ({"a": 2, "b": 2, "c": 1}, 2)
    assert len(plan.transfers) == 3
    assert plan.targets(held)["s", 4] == ("c", "b")


def test_size_plan_moves_no_bytes_to_a_node_at_its_share() -> None:
    """Node c already has as many partitions as it can open."""
    nodes = [*cluster("ab"), NodeFacts(node_id="c", budget=1)]
    held = held_by(*"aaaaaabbbc")
    sizes = dict(zip(held, [30] * 9 + [0], strict=True))
    plan = plan_sizes(nodes, held, sizes)
    assert (plan.moves, plan.held_bytes) == ((), {"a": 180, "b": 90, "c": 0})
    free = plan_sizes(cluster("abc"), held, sizes)
    assert (free.moved_bytes, free.held_bytes) == (90, {"a": 90, "b": 90, "c": 90})


def test_leadership_plan_moves_one_leadership_to_a_node_below_its_share() -> None:
    plan = plan_leaderships(cluster("abc"), held_by("ac", "ac", "bc", "bc"))
    assert (sorted(plan.led.values()), plan.led["c"], plan.fewest) == ([1, 1, 2], 1, 1)
    assert [transfer.into for transfer in plan.transfers] == ["c"]


def test_leadership_plan_of_a_balanced_cluster_is_empty() -> None:
    assert plan_leaderships(cluster("abc"), held_by("abc", "bca", "cab")).transfers == ()
    assert plan_leaderships([], {}).transfers == ()


def test_leadership_plan_assigns_leaderships_by_weight_and_none_to_draining_or_dead_nodes() -> None:
    nodes = [
        NodeFacts(node_id="a", leaving=True),
        NodeFacts(node_id="b", weight=3),
        NodeFacts(node_id="c"),
        NodeFacts(node_id="d", live=False),
    ]
    plan = plan_leaderships(nodes, held_by(*["abcd"] * 4, *["dcba"] * 4))
    assert dict(plan.led) == {"a": 0, "b": 6, "c": 2, "d": 0}
    assert len(plan.transfers) == plan.fewest == 8


@given(st.data())
def test_leadership_plan_balances_the_leaders_if_the_replica_placement_allows(data: st.DataObject) -> None:
    ids = "abcdef"[: data.draw(st.integers(1, 6))]
    nodes = [
        NodeFacts(node_id=n, weight=data.draw(st.sampled_from([1.0, 1.0, 2.0])), live=data.draw(st.integers(0, 9)) > 0)
        for n in ids
    ]
    held = {
        ("s", n): tuple(data.draw(st.permutations(ids)))[: data.draw(st.integers(1, len(ids)))]
        for n in range(data.draw(st.integers(0, 14)))
    }
    plan = plan_leaderships(nodes, held)
    led = Counter(replicas[0] for replicas in (held | plan.targets(held)).values())
    assert {n: led[n] for n in ids} == dict(plan.led)
    for transfer in plan.transfers:
        replicas = held[transfer.stream, transfer.partition]
        assert (replicas[0], transfer.out in replicas, transfer.into in replicas) == (transfer.out, True, True)
        assert nodes[ids.index(transfer.into)].live
    equal = all(node.live and node.weight == 1 for node in nodes) and all(
        len(replicas) == len(ids) for replicas in held.values()
    )
    if equal:
        assert max(led.values(), default=0) - min((led[n] for n in ids), default=0) <= 1
        assert len(plan.transfers) == plan.fewest


def test_size_plan_of_the_documented_example_has_the_documented_moves() -> None:
    held = held_by("a", "a", "a", "b")
    plan = plan_sizes(cluster("ab"), held, dict(zip(held, (10 * GB, 6 * GB, 2 * GB, 4 * GB), strict=True)))
    assert [(move.partition, move.out, move.into) for move in plan.moves] == [(1, "a", "b")]
    assert (plan.moved_bytes, dict(plan.held_bytes)) == (6 * GB, {"a": 12 * GB, "b": 10 * GB})
    assert dict(plan.targets) == {("s", 1): ("b",)}
    assert 6 * GB < plan.fewest_bytes < 7 * GB


def test_size_plan_ignores_unknown_sizes_and_small_differences() -> None:
    held = held_by("a", "a", "a", "b", "b", "b")
    even = dict.fromkeys(held, 100)
    assert plan_sizes(cluster("ab"), held, even | {("s", 0): 101}).moves == ()
    assert plan_sizes(cluster("ab"), held, {}).moves == ()
    moves = plan_sizes(cluster("abc"), held, even).moves
    assert len(moves) == 2
    assert {move.into for move in moves} == {"c"}


def test_size_plan_within_the_tolerance_is_empty() -> None:
    for above in (2, 3):
        held = held_by(*["a"] * (100 + above), *["b"] * (100 - above))
        plan = plan_sizes(cluster("ab"), held, dict.fromkeys(held, 1))
        assert (len(plan.moves), plan.moved_bytes, plan.fewest_bytes) == ((0, 0, 0) if above == 2 else (1, 1, 1))
        assert dict(plan.held_bytes) == ({"a": 102, "b": 98})


def test_size_plan_moves_followers_before_leaders() -> None:
    held = held_by("ab", "ba", "ab", "ba")
    plan = plan_sizes(cluster("abc"), held, dict.fromkeys(held, 30))
    assert [(move.out, move.into, move.leads) for move in plan.moves] == [("a", "c", False), ("b", "c", False)]
    assert dict(plan.held_bytes) == {"a": 90, "b": 90, "c": 60}


@given(st.data())
def test_size_plan_never_increases_the_difference_of_bytes_between_nodes(data: st.DataObject) -> None:
    ids = "abcde"
    nodes = [
        NodeFacts(
            node_id=n,
            rack=data.draw(st.sampled_from("xy")),
            leaving=data.draw(st.integers(0, 9)) == 0,
            budget=data.draw(st.sampled_from([0, 8])),
        )
        for n in ids
    ]
    rack_of = {node.node_id: node.rack for node in nodes}
    held = {
        ("s", n): tuple(data.draw(st.permutations(ids)))[: data.draw(st.integers(1, 3))]
        for n in range(data.draw(st.integers(0, 20)))
    }
    sizes = {key: data.draw(st.integers(0, 1000)) for key in held}
    plan = plan_sizes(nodes, held, sizes)
    now = dict(held)
    moved = 0
    for move in plan.moves:
        before = now[move.stream, move.partition]
        assert (move.out in before, move.into in before) == (True, False)
        assert not any(node.leaving for node in nodes if node.node_id in (move.into, move.out))
        after = tuple(move.into if n == move.out else n for n in before)
        assert len({rack_of[n] for n in after}) >= len({rack_of[n] for n in before})
        assert move.leads == (held[move.stream, move.partition][0] == move.out) or before != held[move.stream, move.partition]
        now[move.stream, move.partition] = after
        moved += sizes[move.stream, move.partition]
    assert (moved, now) == (plan.moved_bytes, {**held, **plan.targets})

    def spread(of: Held) -> float:
        takers = [node.node_id for node in nodes if not node.leaving]
        on = Counter(dict.fromkeys(takers, 0))
        for key, replicas in of.items():
            on.update({n: sizes[key] for n in replicas if n in takers})
        mean = sum(on.values()) / max(1, len(takers))
        return max((abs(count - mean) for count in on.values()), default=0.0)

    assert spread(now) <= spread(held) + 1e-6


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
