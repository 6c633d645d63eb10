"""Interfaces between the parts of a simulated cluster, so that no module imports its owner.

``World`` is the cluster as its machines, checkers and clients see it. ``Machine``, ``Life`` and ``Copy`` are a node's
machine, one process on
it, and one replica in that process. ``Witness`` observes them, and ``Story`` records the history. The classes are in
``cluster``,
``process``, ``sim_replica``, ``checkers`` and ``trace``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.metadata.controller.request_batcher import Answer
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.message_decoder import RawMessage
from liftpy.core.publish.standby import FailoverBacklog
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.quiescence import CombinedFetches
from liftpy.core.replication.replica import Replica
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.simulation.replica.clock import Clock, MachineClock, SimTimer
from tests.simulation.replica.disk import Disk
from tests.simulation.replica.ghost import PartitionGhost
from tests.simulation.replica.group import SimGroup
from tests.simulation.replica.messages import Ack, EpochRequest, FetchRequest, Publish
from tests.simulation.replica.network import Network
from tests.simulation.replica.plan import Plan


class Copy(Protocol):
    """One replica of a partition and its log."""

    host: str
    node_id: str
    key: PartitionKey
    subject: str
    log: Log
    replica: Replica
    failed: str
    known_index: int
    """Index of the image of which the replica was told last."""

    @property
    def process(self) -> Life:
        """Process of the replica."""

    @property
    def cluster(self) -> World:
        """Cluster of the replica."""

    @property
    def is_busy(self) -> bool:
        """True if core and log are not in step yet."""

    def now_ns(self) -> int:
        """Monotonic, on its machine's clock."""

    def later(self, delay_ns: int, callback: Callable[[], None]) -> SimTimer:
        """Call ``callback`` in its process while it runs."""

    def transfer_leadership(self, effect: do.TransferLeadership) -> None:
        """Request a transfer of the leadership."""

    def feed(self, event: ev.Event) -> None:
        """An event for the core."""


class Life(Protocol):
    """One process of a node."""

    node_id: str
    config: ReplicationConfig
    disk: Disk
    derived: NodeStateMemory
    incarnation: int
    lost_data: bool
    dead: bool
    paused: bool
    image: ClusterImage
    update_delay_ns: int
    intake: NodeInflight
    lease: Lease
    room: MemoryBudget
    quiet: CombinedFetches
    confirmed: set[int]

    @property
    def cluster(self) -> World:
        """Cluster of the process."""

    @property
    def node(self) -> Machine:
        """Machine of the process."""

    @property
    def host(self) -> str:
        """Name of its machine."""

    @property
    def replicas(self) -> Mapping[PartitionKey, Copy]:
        """Replicas by partition."""

    @property
    def copy_limit(self) -> CatchupThrottle:
        """Copy throttle of its learners."""

    @property
    def serves_all(self) -> bool:
        """True if every log that it has opened has its replica."""

    def begin(self) -> None:
        """Open the logs, register."""

    def learn_all(self) -> None:
        """Let all replicas learn of all changes now."""

    def run(self, callback: Callable[[], None], *, timer: bool = False) -> None:
        """Run ``callback`` now or after the pause."""

    def pause(self, *, suspended: bool) -> None:
        """Pause the process or suspend its host."""

    def resume(self, timers_first: bool) -> None:
        """Everything that waited comes at once."""

    def now_ns(self) -> int:
        """Monotonic, on its machine's clock."""

    def at(self, at_ns: int, callback: Callable[[], None]) -> SimTimer:
        """Return a timer of its event loop."""

    def later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the delay."""

    def time_of_age_ns(self) -> int:
        """Wall time for the age of records on it. 0 while its clock is in doubt."""

    def stamp_ns(self) -> int:
        """Return the wall time that records get which are led on it."""

    def repair(self) -> None:
        """A log is damaged: it comes back to recover it."""

    def promise(self, key: PartitionKey, leader_epoch: int) -> None:
        """Promise durably to follow no older epoch."""

    def propose(self, key: PartitionKey, request: pb.ControlRequest, on_answer: Answer) -> None:
        """Propose to the metadata group."""


class Machine(Protocol):
    """A machine, its disk, and the process on it."""

    node_id: str
    host: str
    disk: Disk
    clock: MachineClock
    awaits_more: bool
    nonces: set[int]
    asks_first: bool
    wall_offset_ns: int
    lost_data: bool
    flipped: bool
    went_back: bool

    @property
    def process(self) -> Life | None:
        """Running process, or None."""

    @property
    def up(self) -> bool:
        """True if a process runs."""

    def start(self) -> None:
        """Start a process."""

    def restart(self) -> None:
        """Stop the process. Its supervisor restarts it."""

    def crash(self, *, power: bool) -> None:
        """Kill the process. ``power``: unflushed data is lost, too."""


class AgesWitness(Protocol):
    """Checker of ages."""

    def told_ages(self, machine: Machine, told_ns: int, peers: Sequence[str]) -> None:
        """Check the wall time for ages, 0: none. ``peers``: nodes that it may ask."""


class Witness(Protocol):
    """Interface of the checkers for the checked parts."""

    ghosts: dict[PartitionKey, PartitionGhost]

    @property
    def clocks(self) -> AgesWitness:
        """Checker of wall clocks."""

    def opened(self, replica: Copy) -> None:
        """A process opened its log."""

    def appended(self, replica: Copy, data: bytes | memoryview, *, led: bool) -> None:
        """Batches are in the log."""

    def cut(self, replica: Copy, *, afresh: bool = False) -> None:
        """Note a truncation or a new log."""

    def newest_is_newest(self, replica: Copy) -> None:
        """Check the log before housekeeping."""

    def prefix_dropped(self, replica: Copy) -> None:
        """The log start moved."""

    def before_effect(self, replica: Copy, effect: do.Effect) -> None:
        """Check an effect before it is carried out."""

    def after_step(self, replica: Copy, event: ev.Event) -> None:
        """Everything that an event caused has been."""

    def role_changed(self, replica: Copy, effect: do.RoleChanged) -> None:
        """Check another role or phase."""

    def fetch_accepted(self, replica: Copy, request: FetchRequest) -> None:
        """A leader counts a fetch."""

    def quiet_fetch_confirmed(self, replica: Copy, follower: str, end_offset: int) -> None:
        """Check a confirmed waiting fetch."""

    def epoch_answered(self, replica: Copy, request: EpochRequest, effect: do.SendEpochAnswer) -> None:
        """A leader answers where an epoch ends."""

    repeated: set[int]
    expected: dict[int, tuple[int, int]]
    follows: dict[int, int]

    def answered_again(self, replica: Copy, message_id: int, offset: int, effect: do.SendAcks) -> None:
        """Check the ack of a repeated message."""

    def rejected(self, replica: Copy, message_id: int) -> None:
        """Check a rejection."""

    def answered(self, replica: Copy, publish: Publish, ack: Ack, effect: do.SendAcks | None) -> None:
        """Check an answer to a publisher."""

    def acknowledged(self, replica: Copy, acked: list[tuple[int, int]], effect: do.SendAcks) -> None:
        """Check positive acks."""

    def taken_over(self, replica: Copy, heard: Sequence[RawMessage], taken: FailoverBacklog, buffer_start: int) -> None:
        """Check a takeover of the standby buffer since the log end ``buffer_start`` (exclusive)."""

    def deletes(self, process: Life, key: PartitionKey) -> None:
        """Check the deletion of a partition that moved away."""

    def disk_lost(self) -> None:
        """Note that a fault removed flushed data of a disk."""

    def others_hold_all(self, node_id: str) -> bool:
        """Return whether a node's disk may be lost."""

    def is_the_last(self, node_id: str) -> bool:
        """Return whether data could be lost with this node."""

    def held_only_on(self, host: str) -> list[PartitionGhost]:
        """Return the partitions that are lost with the disk of this machine."""

    def ghost(self, key: PartitionKey) -> PartitionGhost:
        """Return the ghost state of one partition."""

    def chain_at(self, replica: Copy, offset: int) -> int | None:
        """Return the digest of a replica's log through ``offset``."""

    def lost_by_command(self, key: PartitionKey) -> bool:
        """Return whether records may be gone, as an operator has commanded."""


class Story(Protocol):
    """Interface of the trace."""

    def step(self, replica: Copy, event: ev.Event, effects: list[do.Effect]) -> None:
        """Add an event of a replica and its effects."""


class World(Protocol):
    """Interface of the cluster."""

    plan: Plan
    seed: int
    config: ReplicationConfig
    stream_configs: dict[str, StreamConfig]
    min_isr: int
    commit_by_quorum: bool
    candidates_fail: bool
    counters: Counter[str]
    clock: Clock
    network: Network
    group: SimGroup
    publishes: dict[int, tuple[str, int]]
    leader_of_epoch: dict[tuple[PartitionKey, int], str]
    make_disk: Callable[[str], Disk]

    @property
    def trace(self) -> Story | None:
        """Trace, if there is one."""

    @property
    def checkers(self) -> Witness:
        """Checkers of the cluster."""

    @property
    def nodes(self) -> Mapping[str, Machine]:
        """Machines by node id."""

    @property
    def machines(self) -> Sequence[Machine]:
        """All machines, with twins."""

    @property
    def twin_ids(self) -> Collection[str]:
        """Nodes of which there are two."""

    def acting(self, node_id: str) -> Machine:
        """Return the machine whose process the metadata group knows as that node."""

    def begin(self, process: Life) -> None:
        """A process has been started."""

    def ended(self, machine: Machine, *, power: bool) -> None:
        """Note the end of a process. ``power``: unflushed data of its host is lost, too."""

    def stands_still(self, process: Life, *, still: bool) -> None:
        """Note that a process is paused or resumed."""

    def about_to_register(self, machine: Machine) -> None:
        """Prepare the registration of a process."""

    def stale_image(self, index: int) -> ClusterImage:
        """Return an image that a newly registered process may know."""

    def draw_nonce(self) -> int:
        """Return a nonce for a starting process."""

    def new_id(self, publisher: str, number: int) -> int:
        """Return an id that no message has had."""
