"""Interfaces between the parts of an in-memory cluster, so that no module imports its owner.

``HomeNode`` is a node as its replicas see it, ``HeldReplica`` a replica as its publishers and readers see it, ``FellowReplica`` as
other replicas of the partition do. The classes are in ``node``, ``replica`` and ``peers``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.publish.log_state_part import NodeDerived
from liftpy.core.publish.standby import NodeHeard
from liftpy.core.publish.state_transfer import StatePiece, StateQuestion
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeIntake
from liftpy.core.replication.reads import ReadBudget
from liftpy.core.replication.replica import Replica
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.testing.memory.nats import Bus

Answered = Callable[[pb.ControlResponse], None]


class FellowReplica(Protocol):
    """A replica as the other replicas of its partition see it."""

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle:
        """Run ``callback`` in a later turn of the loop, unless the replica is closed by then."""

    def feed(self, event: ev.Event) -> None:
        """Feed an event to the core."""

    def asked_by(self, peer: FellowReplica, request_id: int) -> int:
        """Return a token for a request of ``peer``."""

    def give_state(self, question: StateQuestion) -> StatePiece | None:
        """Return a piece of its state of deleted records."""

    def answer_arrived(self, request_id: int, leader_epoch: int, high_watermark: int, data: bytes) -> None:
        """Handle an answer to its fetch."""


class HeldReplica(Protocol):
    """A replica as its publishers and readers see it."""

    key: PartitionKey
    subject: str
    log: Log
    replica: Replica
    failed: str

    @property
    def node(self) -> HomeNode:
        """Node of the replica."""

    def feed(self, event: ev.Event) -> None:
        """Feed an event to the core."""

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle:
        """Run ``callback`` in a later turn of the loop, unless the replica is closed by then."""

    def now_ns(self) -> int:
        """Return the monotonic time."""


class HomeNode(Protocol):
    """A node as its replicas see it."""

    node_id: str
    incarnation: int
    config: ReplicationConfig
    bus: Bus
    loop: asyncio.AbstractEventLoop
    subjects: Subjects
    inboxes: InboxRule
    intake: NodeIntake
    derived: NodeDerived
    heard: NodeHeard
    copy_pace: CatchupThrottle
    read_budget: ReadBudget
    counters: Counter[str]
    promises: dict[PartitionKey, int]
    """LeaderEpochs below which no leader is followed."""

    def now_ns(self) -> int:
        """Return the monotonic time."""

    def wall_ns(self) -> int:
        """Return the wall-clock time since 1970."""

    def ask(self, request: pb.ControlRequest, answered: Answered) -> None:
        """Let the metadata group decide in the next turn of the loop."""

    def serving_replica(self, key: PartitionKey) -> FellowReplica | None:
        """Return the replica that serves its partition on this node."""

    def serve(self, key: PartitionKey, peer: FellowReplica) -> None:
        """Register ``peer`` as the serving replica."""

    def serve_no_more(self, key: PartitionKey, peer: FellowReplica) -> None:
        """Unregister ``peer``, if it is registered."""

    def replica_of(self, node_id: str, key: PartitionKey) -> FellowReplica | None:
        """Return the replica on another node, None without one."""

    def is_up(self, node_id: str) -> bool:
        """Return whether a node runs."""
