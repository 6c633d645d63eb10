"""The metadata of one partition. The metadata image and the replicas of the partition use these values.

A new field needs only a number in ``cluster.proto``. Then every replica of the partition has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

from liftpy.config import CommitPolicy, StreamConfig
from liftpy.core.base.ids import PartitionKey


class PartitionStatus(IntEnum):
    """State of a partition's leadership, with the numbers of ``cluster.proto``."""

    OFFLINE = 0
    ONLINE = 1
    ELECTION = 2
    CANDIDATE_FOUND = 3


class Pause(IntEnum):
    """Pause state of a partition, with the numbers of ``cluster.proto``."""

    NOT_PAUSED = 0
    UNTIL_RESUMED = 1
    """The leader rejects publishes until an operator resumes the partition."""
    UNTIL_PUBLISH = 2
    """The first publish resumes the partition. The leader holds the publish until then."""
    ENDING = 3
    """The pause ends, or its settings have changed. The leader applies the change as soon as it knows it. Followers buffer
    publishes again only after the leader has confirmed it. So no follower keeps a message that the leader still rejects
    [A2].
    """
    UNTIL_PUBLISH_TO_ANY = 4
    """The first publish to any partition of the stream with this pause resumes all of them."""

    @classmethod
    def of(cls, number: int) -> Pause:
        """Return the pause with this number. A partition with an unknown number accepts no publishes."""
        try:
            return cls(number)
        except ValueError:
            return cls.UNTIL_RESUMED

    @property
    def until_publish(self) -> bool:
        """True if a publish ends the pause."""
        return self in (Pause.UNTIL_PUBLISH, Pause.UNTIL_PUBLISH_TO_ANY)

    @property
    def takes_nothing(self) -> bool:
        """Return whether a leader that knows this pause stores no publishes. It rejects or holds them."""
        return self not in (Pause.NOT_PAUSED, Pause.ENDING)

    @property
    def words(self) -> str:
        """Text of the pause for users. '': the partition is not paused."""
        return _PAUSES[self]


_PAUSES = {
    Pause.NOT_PAUSED: "",
    Pause.UNTIL_RESUMED: "until resumed",
    Pause.UNTIL_PUBLISH: "until publish",
    Pause.ENDING: "ending",
    Pause.UNTIL_PUBLISH_TO_ANY: "until publish to any",
}


class MoveReason(IntEnum):
    """Reason for a move of replicas. The numbers are those of ``cluster.proto``."""

    BY_HAND = 0
    REBALANCED = 1
    REPLACED = 2
    DRAINED = 3
    FACTOR = 4
    LEADERSHIPS = 5

    @classmethod
    def of(cls, number: int) -> MoveReason:
        """Return the reason with this number. An unknown number counts as no reason."""
        try:
            return cls(number)
        except ValueError:
            return cls.BY_HAND

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    MoveReason.BY_HAND: "by hand",
    MoveReason.REBALANCED: "rebalance",
    MoveReason.REPLACED: "a node is down",
    MoveReason.DRAINED: "drain",
    MoveReason.FACTOR: "replication factor",
    MoveReason.LEADERSHIPS: "rebalance of leaderships",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """Request of an operator to delete committed records below ``end_offset`` (exclusive).

    It deletes the records that match ``subjects`` (wildcards allowed) and ``keys``. If one of them is empty, it matches
    all. ``number``: unique in the cluster, ascending.
    """

    number: int
    subjects: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    end_offset: int

    @property
    def size_bytes(self) -> int:
        """Size of the subjects and keys that the purge names, in bytes."""
        return sum(len(subject.encode("utf-8", "surrogateescape")) for subject in self.subjects) + sum(map(len, self.keys))


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """Report of the replica on ``node`` that it has deleted the records of all purges up to ``number``."""

    node: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Metadata of one partition of a stream."""

    partition: int
    replicas: tuple[str, ...]
    """Nodes of the replicas, the preferred leader first."""
    isr: tuple[str, ...]
    """In-sync replicas in the order of ``replicas``. Never empty. Contains the leader if there is one [C3]."""
    leader: str
    """Node of the leader. '': the partition has none."""
    leader_epoch: int
    """Epoch of ``leader``, or of ``candidate`` while it promotes itself. Never used twice [C2]."""
    epoch: int
    """Grows with every change of this partition [C2]."""
    status: PartitionStatus = PartitionStatus.ONLINE
    unclean_elected: bool = False
    """True if an operator started an unclean election. The leader may lack committed records [C11]."""
    candidate: str = ""
    """Node that promotes itself in ``leader_epoch``, with status CANDIDATE_FOUND."""
    passed_over: tuple[str, ...] = ()
    """Candidates that failed in this election, oldest first."""
    incomplete: tuple[str, ...] = ()
    """Replicas that may lack acknowledged data. Only a command elects them [C10], until they join ``isr`` again.

    Replicas outside ``isr`` are listed only with the commit policy ``quorum`` and after an unclean election.
    """
    deposed: str = ""
    """Former leader that takes no part in this election. It leaves ``isr`` when there is a new leader."""
    last_leader: str = ""
    """Last leader, or ``leader`` if there is one. While it is in ``isr``, it has every committed record, also with the
    commit policy ``quorum``.
    """
    leaderships: int = 0
    """Number of leaders so far, the current one included. A replica sees by it that it has missed one."""
    complete: tuple[str, ...] = ()
    """Replicas outside ``isr`` that have every committed record: when they left, the ISR became smaller than
    ``min_isr``, and HW has not moved since [D20]. If no ISR member remains, one of them may become the leader
    [KIP-966].
    """
    target: tuple[str, ...] = ()
    """Requested replicas, preferred leader first. Empty: the current ones. Replicas are replaced one at a time."""
    joining: str = ""
    """Learner, which copies the log. It has no vote, and becomes a replica when it enters the ISR. '': none."""
    moved_for: MoveReason = MoveReason.BY_HAND
    """Reason for ``target``. LEADERSHIPS: there is no ``target``, and the first replica must become leader."""
    copy_epoch: int = 0
    """Epoch at which the learner was named. 0: there is no learner.

    The learner may have deleted an earlier copy. The epoch keeps reports about that copy from counting for this one
    [C12].
    """
    asked_start: int = 0
    """Offset below which operators have deleted the records. 0: none.

    The log begins here or later, when the high watermark has reached it [D26].
    """
    purges: tuple[Purge, ...] = ()
    """Pending purges by number. A purge ends when every holder has reported that it has none of its records."""
    purged: tuple[PurgeReport, ...] = ()
    """Highest purge number that each ISR member has reported, in the order of ``holders`` (``liftpy/core/base/purge.py``)."""
    pause: Pause = Pause.NOT_PAUSED
    """Pause that an operator has set. The partition then accepts no publishes. Reading continues."""
    pauses: int = 0
    """Number of pauses, and of changes of their settings. A replica sees by it that it has missed one."""

    @property
    def holders(self) -> tuple[str, ...]:
        """Nodes that have a log of the partition: the replicas, and the learner if there is one."""
        return (*self.replicas, self.joining) if self.joining else self.replicas

    def copy_of(self, node_id: str) -> int:
        """Return the epoch at which ``node_id`` was named learner (``copy_epoch``). 0: it is not the learner."""
        return self.copy_epoch if self.joining and node_id == self.joining else 0

    @property
    def leader_to_elect(self) -> str:
        """Node that should lead next, because leaderships are being rebalanced. '': no other node should lead."""
        first = self.replicas[0] if self.moved_for is MoveReason.LEADERSHIPS and self.replicas else ""
        return "" if first == self.leader else first

    @property
    def next_learner(self) -> str:
        """Node of the requested replicas that becomes the next learner.

        '': all of them are replicas, there is a learner already, or a replica must be removed first.
        """
        if self.joining or len(self.replicas) > len(self.target):
            return ""
        return next((node for node in self.target if node not in self.replicas), "")

    @property
    def leaving(self) -> str:
        """Replica to remove next during a move. '': none. Replicas outside the ISR are removed first, the leader last."""
        if not self.target or len(self.replicas) <= len(self.target):
            return ""
        unwanted = [node for node in self.replicas if node not in self.target]
        if not unwanted:
            return ""
        return min(unwanted, key=lambda node: (node in self.isr, node == self.leader, -self.replicas.index(node)))

    def min_isr(self, config: StreamConfig) -> int:
        """Return the effective min ISR, at least 1. During a move it is computed from the smaller number of replicas."""
        return config.effective_min_isr(min(len(self.replicas), len(self.target) or len(self.replicas)))

    def electable_replicas(self, policy: CommitPolicy) -> tuple[str, ...]:
        """Return the replicas that can become leader without an operator's command, in replica order. They may be down."""
        counted = self.replicas if policy is CommitPolicy.QUORUM else (*self.isr, *self.complete)
        return tuple(node for node in self.replicas if node in counted and node not in self.incomplete)


@lru_cache(maxsize=4096)
def _set_of(nodes: tuple[str, ...]) -> frozenset[str]:
    """Return the set of ``nodes``. Thousands of partitions share few sets, and each set needs 232 bytes."""
    return frozenset(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """Metadata that a replica has of its partition: its state, the settings of its stream, and derived values."""

    key: PartitionKey
    config: StreamConfig
    state: PartitionState
    partition_count: int = 1
    """Number of partitions of the stream."""
    longest_lease_ns: int = 0
    """Longest lease that another node may hold, in nanoseconds. 0: the setting of this node."""
    isr: frozenset[str] = field(init=False)
    min_isr: int = field(init=False)
    """Effective min ISR: at least 1, and at most the number of replicas."""
    electable_replicas: frozenset[str] = field(init=False)
    """Replicas that can become leader without an operator's command. They may be down.

    While the partition has a leader, they include the ISR (docs/code-terms.md).
    """

    @property
    def has_standby(self) -> bool:
        """True if the followers of this partition also receive the published messages, for a fast failover."""
        return self.config.failover_standby and len(self.state.holders) > 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "isr", _set_of(self.state.isr))
        object.__setattr__(self, "min_isr", self.state.min_isr(self.config))
        object.__setattr__(self, "electable_replicas", _set_of(self.state.electable_replicas(self.config.commit_policy)))
