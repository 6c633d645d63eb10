"""A partition as the metadata group sees it: the value that a replica is told, without the rest of the image."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from liftpy.config import CommitPolicy
from liftpy.ids import PartitionKey


class PartitionStatus(Enum):
    """Numbers of ``cluster.proto``."""

    OFFLINE = 0
    ONLINE = 1
    ELECTION = 2
    CANDIDATE_FOUND = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition in the metadata. ``replicas``: preferred leader first; ``leader``: '' when there is none."""

    key: PartitionKey
    replicas: tuple[str, ...]
    isr: frozenset[str]
    leader: str
    leader_epoch: int
    epoch: int
    status: PartitionStatus
    min_isr: int
    commit_policy: CommitPolicy = CommitPolicy.ISR
    candidate: str = ""
    leaderships: int = 0
    """How many there have been, the current one included."""
    unclean_elected: bool = False
    """An operator has had a leader elected that may lack what was committed [C11]."""
    may_lead: frozenset[str] = frozenset()
    """Who may be elected without a command, dead or alive: the ISR, and outside of it who is known to be as complete."""
