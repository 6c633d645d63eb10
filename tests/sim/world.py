"""What the parts of a simulated cluster know of each other, so that none has to import what is made of it.

``World`` is the cluster, as its machines, checkers and clients see it; ``Machine``, ``Life`` and ``Copy`` are a node's machine, one
process on it, and one replica in that; ``Witness`` is who is told what they do, and ``Story`` who writes it down. The classes are in
``cluster``, ``process``, ``sim_replica``, ``checkers`` and ``trace``.
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
from liftpy.core.publish.log_state_budget import NodeDerived
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.message_decoder import RawMessage
from liftpy.core.publish.standby_replay import FailoverBacklog
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeIntake
from liftpy.core.replication.quiescence import QuietFetches
from liftpy.core.replication.replica import Replica
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.sim.clock import Clock, MachineClock, SimTimer
from tests.sim.disk import Disk
from tests.sim.ghost import PartitionGhost
from tests.sim.group import SimGroup
from tests.sim.messages import Ack, EpochRequest, FetchRequest, Publish
from tests.sim.network import Network
from tests.sim.plan import Plan


class Copy(Protocol):
    """One replica of a partition, and its log."""

    host: str
    node_id: str
    key: PartitionKey
    subject: str
    log: Log
    replica: Replica
    failed: str

    @property
    def process(self) -> Life:
        """That it lives in."""

    @property
    def cluster(self) -> World:
        """That it is a part of."""

    @property
    def is_busy(self) -> bool:
        """Whether core and log are not in step yet."""

    def now_ns(self) -> int:
        """Monotonic, on its machine's clock."""

    def later(self, delay_ns: int, callback: Callable[[], None]) -> SimTimer:
        """In its process, when that runs."""

    def step_aside(self, effect: do.StepAside) -> None:
        """Ask for another leader."""

    def feed(self, event: ev.Event) -> None:
        """An event for the core."""


class Life(Protocol):
    """One process of a node."""

    node_id: str
    config: ReplicationConfig
    disk: Disk
    derived: NodeDerived
    incarnation: int
    lost_data: bool
    dead: bool
    paused: bool
    image: ClusterImage
    intake: NodeIntake
    room: MemoryBudget
    quiet: QuietFetches
    confirmed: set[int]

    @property
    def cluster(self) -> World:
        """That it is a part of."""

    @property
    def node(self) -> Machine:
        """That it runs on."""

    @property
    def host(self) -> str:
        """Of its machine."""

    @property
    def replicas(self) -> Mapping[PartitionKey, Copy]:
        """By partition."""

    @property
    def copy_pace(self) -> CatchupThrottle:
        """Of its learners."""

    @property
    def serves_all(self) -> bool:
        """Whether every log that it has opened has its replica."""

    def begin(self) -> None:
        """Open the logs, register."""

    def run(self, callback: Callable[[], None], *, timer: bool = False) -> None:
        """Now, or when the pause ends."""

    def pause(self, *, suspended: bool) -> None:
        """It stands still, or its host sleeps."""

    def resume(self, timers_first: bool) -> None:
        """Everything that waited comes at once."""

    def now_ns(self) -> int:
        """Monotonic, on its machine's clock."""

    def at(self, at_ns: int, callback: Callable[[], None]) -> SimTimer:
        """A timer of its event loop."""

    def later(self, delay_ns: int, callback: Callable[[], None]) -> None:
        """The same, from now on."""

    def time_of_age_ns(self) -> int:
        """The wall time by which ages are told on it, 0 while its clock is in doubt."""

    def stamp_ns(self) -> int:
        """The wall time that records get which are led on it."""

    def repair(self) -> None:
        """A log is damaged: it comes back to recover it."""

    def promise(self, key: PartitionKey, leader_epoch: int) -> None:
        """To follow nobody older, durably."""

    def propose(self, key: PartitionKey, request: pb.ControlRequest, on_answer: Answer) -> None:
        """To the metadata group."""


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
        """That runs on it now."""

    @property
    def up(self) -> bool:
        """Whether one does."""

    def start(self) -> None:
        """Start one."""

    def restart(self) -> None:
        """It ends, and its supervisor starts it again."""

    def crash(self, *, power: bool) -> None:
        """It is gone at once; with ``power`` what was not flushed, too."""


class AgesWitness(Protocol):
    """What looks at how ages are told."""

    def told_ages(self, machine: Machine, told_ns: int, peers: Sequence[str]) -> None:
        """By that wall time, 0: by none, with those that it may ask."""


class Witness(Protocol):
    """The checkers, as those see them whom they watch."""

    ghosts: dict[PartitionKey, PartitionGhost]

    @property
    def clocks(self) -> AgesWitness:
        """Of wall clocks."""

    def opened(self, replica: Copy) -> None:
        """A process opened its log."""

    def appended(self, replica: Copy, data: bytes | memoryview, *, led: bool) -> None:
        """Batches are in the log."""

    def cut(self, replica: Copy, *, afresh: bool = False) -> None:
        """The log was cut, or begun afresh."""

    def newest_is_newest(self, replica: Copy) -> None:
        """Housekeeping comes to the log."""

    def prefix_dropped(self, replica: Copy) -> None:
        """The log start moved."""

    def before_effect(self, replica: Copy, effect: do.Effect) -> None:
        """It is about to be carried out."""

    def after_step(self, replica: Copy, event: ev.Event) -> None:
        """Everything that an event caused has been."""

    def role_changed(self, replica: Copy, effect: do.RoleChanged) -> None:
        """Another role or phase."""

    def fetch_accepted(self, replica: Copy, request: FetchRequest) -> None:
        """A leader counts a fetch."""

    def quiet_fetch_confirmed(self, replica: Copy, follower: str, end_offset: int) -> None:
        """A leader counts one that waits."""

    def epoch_answered(self, replica: Copy, request: EpochRequest, effect: do.SendEpochAnswer) -> None:
        """A leader answers where an epoch ends."""

    repeated: set[int]
    expected: dict[int, tuple[int, int]]
    follows: dict[int, int]

    def answered_again(self, replica: Copy, message_id: int, offset: int, effect: do.SendAcks) -> None:
        """It is told to be stored already."""

    def rejected(self, replica: Copy, message_id: int) -> None:
        """A publisher is told no."""

    def answered(self, replica: Copy, publish: Publish, ack: Ack, effect: do.SendAcks | None) -> None:
        """A publisher is told something."""

    def acknowledged(self, replica: Copy, acked: list[tuple[int, int]], effect: do.SendAcks) -> None:
        """Publishers are told yes."""

    def taken_over(self, replica: Copy, heard: Sequence[RawMessage], taken: FailoverBacklog, begun_at: int) -> None:
        """A new leader has sorted what it heard while it stood by, since its log ended at ``begun_at``, exclusive."""

    def deletes(self, process: Life, key: PartitionKey) -> None:
        """A node deletes what it holds of a partition that moved away."""

    def disk_lost(self) -> None:
        """A fault takes away what a disk had flushed."""

    def others_hold_all(self, node_id: str) -> bool:
        """Whether a node's disk may be lost."""

    def is_the_last(self, node_id: str) -> bool:
        """Whether something may be gone for good with it."""

    def ghost(self, key: PartitionKey) -> PartitionGhost:
        """Of one partition."""

    def chain_at(self, replica: Copy, offset: int) -> int | None:
        """The digest of a replica's log through ``offset``."""

    def lost_by_command(self, key: PartitionKey) -> bool:
        """Whether records may be gone, as an operator has commanded."""


class Story(Protocol):
    """The trace."""

    def step(self, replica: Copy, event: ev.Event, effects: list[do.Effect]) -> None:
        """An event of a replica and what came of it."""


class World(Protocol):
    """The cluster."""

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
        """Who writes down what happens."""

    @property
    def checkers(self) -> Witness:
        """Who watch."""

    @property
    def nodes(self) -> Mapping[str, Machine]:
        """By node id."""

    @property
    def machines(self) -> Sequence[Machine]:
        """All that run processes of nodes, twins included."""

    @property
    def twin_ids(self) -> Collection[str]:
        """Nodes of which there are two."""

    def acting(self, node_id: str) -> Machine:
        """The one whose process the metadata group knows as that node."""

    def begin(self, process: Life) -> None:
        """A process has been started."""

    def ended(self, machine: Machine, *, power: bool) -> None:
        """A process is gone, with ``power`` what its host had not flushed, too."""

    def stands_still(self, process: Life, *, still: bool) -> None:
        """A process is paused, or goes on."""

    def about_to_register(self, machine: Machine) -> None:
        """Its process is about to."""

    def stale_image(self, index: int) -> ClusterImage:
        """What a process that has just registered may know."""

    def draw_nonce(self) -> int:
        """What a process draws when it starts."""

    def new_id(self, publisher: str, number: int) -> int:
        """An id that no message has had."""
