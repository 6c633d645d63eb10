"""Snapshot of a replica for status pages and tests: frozen values, read by nobody who decides."""

from __future__ import annotations

from liftpy.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FollowerSnapshot:
    """The leader's view of one follower."""

    replica: str
    position: int | None
    """Inclusive: newest offset that it has flushed in this LeaderEpoch; None: unknown."""
    lag_records: int | None
    """Records of the leader's flushed log that it does not have; None: unknown."""
    in_isr: bool
    caught_up_age_s: float
    """Seconds since it was last at the log end."""
    flush_ms: float = 0.0
    """What its last flush took, as it said; 0: unknown."""
    has_slow_disk: bool = False
    """Its flushes are far slower than the others': it stays out of the ISR as long as that is large enough without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSnapshot:
    """One replica at one moment."""

    stream: str
    partition: int
    role: str
    phase: str
    leader: str
    leader_epoch: int
    epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    log_start_offset: int
    log_end_offset: int
    """Exclusive."""
    flushed_end_offset: int
    """Exclusive."""
    high_watermark: int
    """Inclusive, -1: none."""
    lease_is_current: bool
    followers: tuple[FollowerSnapshot, ...]
    """Empty unless it leads."""
    target: tuple[str, ...] = ()
    """The replicas that are wanted; (): as they are."""
    joining: str = ""
    """The learner; '': there is none."""
    copy_lag_records: int | None = None
    """Of a learner: records that its leader has committed, and that it does not have; None: it is none, or does not know yet."""
    has_slow_disk: bool = False
    """It leads, and its own flushes are far slower than its followers'."""
    paused: str = ""
    """Until when, for people, as far as this replica knows; '': it takes publishes, if it leads."""
