"""Test that a traced partition records its effects and events and behaves as without tracing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.observe.trace_context import SpanTree, TraceContext, traceparent
from liftpy.core.observe.tracing import NodeTraces, PartitionTraces
from liftpy.core.replication import effects as do
from liftpy.core.replication.events import FetchReceived, LogFlushed
from liftpy.core.replication.phases import LeaderPhase, RoleName
from liftpy.core.wire.batch import build_batch
from sidecar.partition.worker import TRACED_METHODS, TracedReplica

SENDER = TraceContext(7, 8, 1)
BATCH = build_batch([b"a", b"b"], headers=[[("traceparent", traceparent(SENDER))], None])


class Executing:
    """A worker whose effects are counted."""

    def __init__(self, traces: PartitionTraces) -> None:
        self.traces = traces
        self.done: Counter[str] = Counter()
        self.batch = BATCH
        self.acks = SimpleNamespace(count=3)
        self.log = SimpleNamespace(log_end_offset=10, flushed_end_offset=10)

    def followers(self) -> frozenset[str]:
        return frozenset(("n2",))

    def append_batch(self, effect: do.AppendBatch) -> bytes:
        self.done["append"] += 1
        if self.batch:
            self.acks.count += 1
            self.log.log_end_offset = effect.base_offset + 2
        return self.batch

    def send_acks(self, effect: do.SendAcks) -> None:
        self.done["acks"] += 1
        self.acks.count = 0

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        def act(effect: Any) -> None:
            self.done[name] += 1

        return act


class Partition:
    """A worker as far as it is traced."""

    def __init__(self) -> None:
        self.now_ns = 1000
        self.trees: list[SpanTree] = []
        self.stepped: list[Any] = []
        self.node = NodeTraces("n1", self.trees.append, lambda: self.now_ns, lambda: self.now_ns)
        self.traces = PartitionTraces(self.node, "orders", 3)
        self.executing = Executing(self.traces)
        self.replica: Any = SimpleNamespace(step=self.step)
        self.traced = TracedReplica(self.replica, self.traces)

    def step(self, event: Any, now_ns: int) -> list[Any]:
        self.stepped.append((event, now_ns))
        return ["an effect"]

    def do(self, effect: Any) -> None:
        TRACED_METHODS[type(effect)](self.executing, effect)


@pytest.fixture
def partition() -> Partition:
    return Partition()


def append(base_offset: int = 10) -> do.AppendBatch:
    return do.AppendBatch(token=1, base_offset=base_offset, leader_epoch=4, timestamp_ns=1)


def test_tracing_of_a_batch_creates_spans_from_append_to_ack(partition: Partition) -> None:
    partition.do(append())
    for at_ns, event in (
        (1100, LogFlushed(end_offset=12)),
        (
            1200,
            FetchReceived(
                token=0,
                replica="n2",
                offset=11,
                leader_epoch=4,
                offset_epoch=4,
                incarnation=1,
                request_id=1,
                max_bytes=1,
                stream_uid="u1",
            ),
        ),
    ):
        partition.now_ns = at_ns
        assert partition.traced.step(event, at_ns) == ["an effect"]
    partition.now_ns = 1300
    partition.do(do.RaiseHighWatermark(high_watermark=11))
    assert not partition.trees
    partition.now_ns = 1400
    partition.do(do.SendAcks(policy=AckPolicy.ALL, through_offset=11, leader_epoch=4))
    (tree,) = partition.trees
    assert [(span.name, span.end_ns) for span in tree.children] == [
        ("flush", 1100), ("replicate n2", 1200), ("commit", 1300), ("ack", 1400)
    ]  # fmt: skip
    assert tree.root.start_ns == 1
    assert (tree.parent, tree.root.attributes["messaging.batch.message_count"]) == (SENDER, 2)
    assert partition.executing.done == {"append": 1, "raise_high_watermark": 1, "acks": 1}
    assert [now_ns for _, now_ns in partition.stepped] == [1100, 1200]


def test_tracing_of_a_leadership_end_and_an_election_creates_spans(partition: Partition) -> None:
    partition.do(append())
    partition.do(do.DropPendingAcks())
    (tree,) = partition.trees
    assert tree.root.error
    partition.do(do.RoleChanged(role=RoleName.CANDIDATE, phase=LeaderPhase.LOG_REPLICATION, leader_epoch=5))
    partition.now_ns += 70
    partition.do(do.RoleChanged(role=RoleName.LEADER, phase=LeaderPhase.READY, leader_epoch=5))
    election = partition.trees[-1].root
    assert (election.name, election.end_ns - election.start_ns, election.error) == ("election orders/3", 70, "")
    assert partition.executing.done == {"append": 1, "drop_pending_acks": 1, "role_changed": 2}
