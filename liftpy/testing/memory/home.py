"""Interfaces between the parts of an in-memory cluster, so that modules do not import each other.

``HomeNode``: methods of a node that its replicas call. ``ReplicaEndpoint``: methods of a replica that its publishers and
readers call. ``FellowReplica``: methods that other replicas of the partition call. The classes are in ``node``,
``replica`` and ``peers``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.standby import NodeStandbyMemory
from liftpy.core.publish.state_transfer import StatePiece, StatePieceRequest
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.reads import ReadBudget
from liftpy.core.replication.replica import Replica
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.testing.memory.nats import Bus

Answered = Callable[[pb.ControlResponse], None]


class FellowReplica(Protocol):
    """Methods of a replica that the other replicas of its partition call."""

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle:
        """Run ``callback`` in a later turn of the event loop, after at least ``delay_ns`` nanoseconds.

        If the replica is closed by then, ``callback`` does not run.
        """

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the state machine of the replica."""

    def asked_by(self, peer: FellowReplica, request_id: int) -> int:
        """Store that the replica ``peer`` has sent the request ``request_id``. Return a token for the answer."""

    def read_state(self, question: StatePieceRequest) -> StatePiece | None:
        """Return the requested piece of the replica's state of producers and message ids. None: not ready.

        The state includes that of deleted records.
        """

    def answer_arrived(self, request_id: int, leader_epoch: int, high_watermark: int, data: bytes) -> None:
        """Process the answer of the leader to the fetch ``request_id`` of this replica. ``data``: whole batches."""


class ReplicaEndpoint(Protocol):
    """Methods of a replica that its publishers and readers call."""

    key: PartitionKey
    subject: str
    log: Log
    replica: Replica
    failed: str

    @property
    def node(self) -> HomeNode: ...

    def feed(self, event: ev.Event) -> None: ...

    def later(self, callback: Callable[[], None], delay_ns: int = 0) -> asyncio.Handle: ...

    def now_ns(self) -> int: ...


class HomeNode(Protocol):
    """Methods of a node that its replicas call."""

    node_id: str
    incarnation: int
    config: ReplicationConfig
    bus: Bus
    loop: asyncio.AbstractEventLoop
    subjects: Subjects
    inboxes: InboxRule
    intake: NodeInflight
    lease: Lease
    derived: NodeStateMemory
    heard: NodeStandbyMemory
    copy_pace: CatchupThrottle
    read_budget: ReadBudget
    counters: Counter[str]
    promises: dict[PartitionKey, int]
    """Partition -> lowest LeaderEpoch of a leader that the replica may still follow."""

    def now_ns(self) -> int: ...

    def wall_ns(self) -> int: ...

    def ask(self, request: pb.ControlRequest, answered: Answered) -> None:
        """Send a request to the metadata group. It decides in the next turn of the event loop and then calls ``answered``."""

    def serving_replica(self, key: PartitionKey) -> FellowReplica | None:
        """Return the replica of any node that serves the partition as leader or candidate. None: there is none."""

    def serve(self, key: PartitionKey, peer: FellowReplica) -> None:
        """Register ``peer`` as the replica that serves the partition as leader or candidate."""

    def serve_no_more(self, key: PartitionKey, peer: FellowReplica) -> None:
        """Unregister ``peer`` as the replica that serves the partition. Do nothing if another one is registered."""

    def replica_of(self, node_id: str, key: PartitionKey) -> FellowReplica | None:
        """Return the replica of the partition on the node ``node_id``. None: there is none."""

    def is_up(self, node_id: str) -> bool: ...
