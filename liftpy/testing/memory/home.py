"""What the parts of a cluster in memory know of each other, so that none has to import what is made of it.

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
from liftpy.core.publish.log_state_budget import NodeDerived
from liftpy.core.publish.standby_buffer import NodeHeard
from liftpy.core.publish.state_transfer import StatePiece, StateQuestion
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeIntake
from liftpy.core.replication.reads import ReadBudget
from liftpy.core.replication.replica import Replica
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.inboxes import InboxRule
from liftpy.core.wire.subjects import Subjects
from liftpy.testing.memory.nats import Bus

Answered = Callable[[pb.ControlResponse], None]


class FellowReplica(Protocol):
    """A replica as the others of its partition see it."""

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle:
        """In a later turn of the loop, unless it is gone by then."""

    def feed(self, event: ev.Event) -> None:
        """An event for the core."""

    def asked_by(self, peer: FellowReplica, request_id: int) -> int:
        """A token of a question that ``peer`` asks."""

    def give_state(self, question: StateQuestion) -> StatePiece | None:
        """A piece of what it knows of records that are gone."""

    def arrived(self, request_id: int, leader_epoch: int, high_watermark: int, data: bytes) -> None:
        """An answer to its fetch."""


class HeldReplica(Protocol):
    """A replica as its publishers and readers see it."""

    key: PartitionKey
    subject: str
    log: Log
    replica: Replica
    failed: str

    @property
    def node(self) -> HomeNode:
        """That it is on."""

    def feed(self, event: ev.Event) -> None:
        """An event for the core."""

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle:
        """In a later turn of the loop, unless it is gone by then."""

    def now_ns(self) -> int:
        """Monotonic."""


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
        """Monotonic."""

    def wall_ns(self) -> int:
        """Since 1970."""

    def ask(self, request: pb.ControlRequest, answered: Answered) -> None:
        """Have the metadata group decide, in the loop's next turn."""

    def serving(self, key: PartitionKey) -> FellowReplica | None:
        """The replica that serves the others of its partition."""

    def serve(self, key: PartitionKey, peer: FellowReplica) -> None:
        """From now on it is ``peer``."""

    def serve_no_more(self, key: PartitionKey, peer: FellowReplica) -> None:
        """It is ``peer`` no more, if it was."""

    def replica_of(self, node_id: str, key: PartitionKey) -> FellowReplica | None:
        """That of another node, None where it has none."""

    def is_up(self, node_id: str) -> bool:
        """Whether a node runs."""
