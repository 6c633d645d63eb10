"""Test the spans of a traced batch and their limits."""

from __future__ import annotations

from typing import Any

from liftpy.config import NS_PER_S, AckPolicy
from liftpy.core.observe.trace_context import SPANS_PER_S, SpanBudget, SpanTree, TraceContext, traceparent
from liftpy.core.observe.tracing import ENDED, LINGER_NS, MOST_NS, MOST_OPEN, SLOW, NodeTraces, PartitionTraces
from tests.batches import build_batch

MS = 1_000_000
SENDER = TraceContext(7, 8, 1)
FOLLOWERS = frozenset(("n2", "n3"))
TRACED = build_batch([b"v"], headers=[[("traceparent", traceparent(SENDER))]])


class World:
    def __init__(self) -> None:
        self.now_ns = 1_000 * NS_PER_S
        self.wall_ns = 1_700_000_000 * NS_PER_S
        self.trees: list[SpanTree] = []
        self.node = NodeTraces("n1", self.trees.append, lambda: self.now_ns, lambda: self.wall_ns)
        self.traces = PartitionTraces(self.node, "orders", 3)

    def later(self, ns: int) -> None:
        self.now_ns += ns
        self.wall_ns += ns

    def append(self, offset: int = 10, batch: bytes = TRACED, **other: Any) -> None:
        said = {"flushed": False, "awaited": True, "followers": FOLLOWERS, "arrived_wall_ns": self.wall_ns - MS, **other}
        self.traces.appended(batch, offset, 5, 4, **said)

    def steps(self) -> dict[str, tuple[float, float]]:
        """Return span name -> (start, end) in ms since the arrival of the batch."""
        (tree,) = self.trees
        begun = tree.root.start_ns
        return {s.name: ((s.start_ns - begun) / MS, (s.end_ns - begun) / MS) for s in (tree.root, *tree.children)}


def test_batch_trace_has_one_span_per_step_with_start_and_end_time() -> None:
    world = World()
    world.append()
    for ms, step in (
        (1, lambda: world.traces.fetched("n2", 14, 4)),
        (2, lambda: world.traces.flushed(15)),
        (3, lambda: world.traces.committed(14)),
        (1, lambda: world.traces.acked(AckPolicy.ALL, 14)),
        (9, lambda: world.traces.fetched("n3", 20, 4)),
    ):
        assert not world.trees
        world.later(ms * MS)
        step()
    assert world.steps() == {
        "append orders/3": (0, 17), "flush": (1, 4), "replicate n2": (1, 2), "replicate n3": (1, 17), "commit": (1, 7), "ack": (7, 8),
    }  # fmt: skip
    (tree,) = world.trees
    assert (tree.parent, tree.links, tree.root.error) == (SENDER, (SENDER,), "")
    assert tree.root.attributes == {
        "messaging.system": "nats", "messaging.operation.name": "append", "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3", "messaging.batch.message_count": 5, "liftpy.offset": 10,
        "liftpy.leader_epoch": 4, "liftpy.node": "n1",
    }  # fmt: skip
    assert not world.traces.follows
    assert (world.node.open_count, world.node.open) == (0, {})


def test_batch_trace_ignores_events_before_the_end_offset_of_the_batch() -> None:
    world = World()
    world.append()
    world.traces.flushed(14)
    world.traces.committed(13)
    world.traces.acked(AckPolicy.ALL, 13)
    for replica, offset, epoch in (("n2", 13, 4), ("n2", 14, 3), ("n9", 14, 4)):
        world.traces.fetched(replica, offset, epoch)
    world.later(MOST_NS)
    world.node.export_due()
    assert list(world.steps()) == ["append orders/3"]
    assert world.trees[0].root.error == SLOW


def test_batch_trace_of_an_unsampled_batch_is_not_started() -> None:
    world = World()
    for batch in (build_batch([b"v"]), build_batch([b"v"], headers=[[("traceparent", traceparent(SENDER._replace(flags=0)))]])):
        world.append(batch=batch)
    assert not world.traces.follows
    assert world.node.budget.dropped == 0


def test_batch_trace_with_a_lagging_follower_ends_after_a_timeout() -> None:
    world = World()
    world.append(awaited=False, flushed=True)
    world.traces.fetched("n3", 14, 4)
    world.traces.committed(14)
    world.later(LINGER_NS - 1)
    world.node.export_due()
    assert not world.trees
    world.later(1)
    world.node.export_due()
    assert list(world.steps()) == ["append orders/3", "flush", "replicate n3", "commit"], "nobody waits for an ack"
    assert world.trees[0].root.error == ""


def test_batch_trace_ends_with_an_error_at_the_end_of_the_leadership() -> None:
    world = World()
    world.append(10)
    world.append(15)
    world.traces.flushed(20)
    world.traces.committed(14)
    world.traces.end_all()
    assert [tree.root.error for tree in world.trees] == ["", ENDED]
    assert not world.traces.follows


def test_batch_traces_per_node_are_limited_in_number() -> None:
    world = World()
    world.node.budget = SpanBudget(1e9)
    for number in range(MOST_OPEN + 3):
        world.append(10 + 5 * number)
    assert world.node.open_count == MOST_OPEN
    assert world.node.budget.dropped == 3 * 6, "append, flush, commit, ack, two followers"


def test_span_budget_allows_a_number_of_spans_per_second() -> None:
    budget, dropped = SpanBudget(), 0
    assert budget.takes(60, 0)
    assert budget.takes(40, 0)
    for now_ns, spans in ((0, 1), (NS_PER_S // 100 - 1, 1)):
        assert not budget.takes(spans, now_ns)
        dropped += spans
    assert budget.takes(1, NS_PER_S // 100 + 1)
    assert not budget.takes(101, 100 * NS_PER_S), "what was not used for long is not kept"
    assert budget.takes(100, 100 * NS_PER_S)
    assert budget.dropped == dropped + 101
    assert SPANS_PER_S == 100


def test_batch_trace_over_the_budget_is_dropped_and_counted() -> None:
    world = World()
    for number in range(20):
        world.append(10 + 5 * number, flushed=True)
        world.traces.committed(14 + 5 * number)
        world.traces.acked(AckPolicy.ALL, 14 + 5 * number)
    world.traces.fetched("n2", 1000, 4)
    world.traces.fetched("n3", 1000, 4)
    assert [tree.size for tree in world.trees] == [6] * 16
    assert world.node.budget.dropped == 4 * 6


def test_election_trace_lasts_until_the_new_leader_accepts_publishes() -> None:
    world = World()
    world.traces.role_is("FOLLOWER", False, 4)
    world.traces.role_is("LEADER", True, 4)
    assert not world.trees
    world.traces.role_is("CANDIDATE", False, 5)
    world.later(30 * MS)
    world.traces.role_is("LEADER", False, 5)
    world.later(20 * MS)
    world.traces.role_is("LEADER", True, 5)
    assert world.steps() == {"election orders/3": (0, 50)}
    assert world.trees[0].root.attributes["liftpy.leader_epoch"] == 5
    world.traces.role_is("CANDIDATE", False, 6)
    world.traces.role_is("FOLLOWER", False, 7)
    assert [tree.root.error for tree in world.trees] == ["", "it became FOLLOWER instead"]
