"""Settings of streams and of replication. All values have limits, and units are in the names.

Only ``sidecar/runtime/settings.py`` reads environment variables and files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Annotated, get_origin, get_type_hints

from liftpy.errors import ConfigError
from liftpy.renamed import accept_old_keywords

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
MAX_QUOTA_TOKEN = 256
"""Highest number of a subject token that can have its own quota."""


class AckPolicy(Enum):
    """When a publish with a reply subject is acked."""

    NONE = "none"
    """No ack."""
    LEADER = "leader"
    """When the leader has flushed the record."""
    ALL = "all"
    """When the record is committed."""


class CommitPolicy(Enum):
    """Which replicas must have flushed a record before it is committed."""

    ISR = "isr"
    """All in-sync replicas."""
    QUORUM = "quorum"
    """A majority of the replicas."""


class FlushMode(Enum):
    """When appended records are flushed to disk."""

    ALWAYS = "always"
    """Before they are committed. One flush serves many records."""
    INTERVAL = "interval"
    """At a fixed interval."""
    NONE = "none"
    """When the operating system writes them."""


class Codec(Enum):
    """Compression of record batches. The values are bits 0-2 of the batch attributes."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


_INTERVAL = re.compile(r"interval:([0-9]{1,8}(?:\.[0-9]{1,3})?)(ms|s|m)?")
_FLUSH_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000}


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """When records are flushed to disk: ``always``, ``none`` or at an interval, such as ``interval:250ms``.

    Args:
        mode: Always, at an interval, or never. Default: always.
        interval_s: Interval in seconds (0.001 to 60), for the mode ``interval``. Default 0.

    Example:
        policy = liftpy.FlushPolicy.parse("interval:100ms")
    """

    mode: FlushMode = FlushMode.ALWAYS
    interval_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> FlushPolicy:
        """Read a flush policy as a user writes it.

        Args:
            text: ``always``, ``none`` or ``interval:`` and a time from 1 ms to 60 s, such as ``interval:250ms`` or
                ``interval:2s``. A number without a unit is in milliseconds.

        Raises:
            ConfigError: The text is none of these.
        """
        match = _INTERVAL.fullmatch(text)
        if text in ("always", "none"):
            return cls(FlushMode(text))
        if match and 1 <= (milliseconds := round(float(match[1]) * _FLUSH_UNITS_MS[match[2] or "ms"])) <= 60_000:
            return cls(FlushMode.INTERVAL, milliseconds / 1000)
        raise ConfigError(f"flush policy {text!r}: use always, none or an interval of 1ms to 60s, such as interval:100ms")

    @classmethod
    def decode(cls, text: str) -> FlushPolicy:
        """Read a flush policy as it is stored and sent: ``always``, ``none`` or ``interval:`` and whole milliseconds.

        Args:
            text: The result of ``str`` for a policy.

        Raises:
            ConfigError: The text is none of these.
        """
        if text in ("always", "none"):
            return cls(FlushMode(text))
        kind, _, milliseconds = text.partition(":")
        if (
            kind == "interval"
            and milliseconds.isascii()
            and milliseconds.isdigit()
            and len(milliseconds) < 9
            and 1 <= int(milliseconds) <= 60_000
        ):
            return cls(FlushMode.INTERVAL, int(milliseconds) / 1000)
        raise ConfigError(f"flush policy {text!r}: use 'always', 'none' or 'interval:<ms>' with 1 to 60000 ms")

    def __str__(self) -> str:
        return f"interval:{round(self.interval_s * 1000)}" if self.mode is FlushMode.INTERVAL else self.mode.value


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lowest and highest value of a setting, inclusive. It annotates the field.

    Attributes:
        low: Lowest value.
        high: Highest value.
    """

    low: float
    high: float


def _bounds_of(kind: type) -> dict[str, tuple[float, float]]:
    """Return the (lowest, highest) value of each field of the class ``kind`` that has limits, by name."""
    hints = get_type_hints(kind, include_extras=True)
    annotated = {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: (bounds.low, bounds.high) for name, bounds in annotated.items()}


def _bounded(what: object, bounds: dict[str, tuple[float, float]]) -> None:
    for name, (low, high) in bounds.items():
        value = getattr(what, name)
        if not low <= value <= high:
            raise ConfigError(f"{name} = {value} is outside {low:g}..{high:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultQuota:
    """Quota of streams without a quota of their own.

    Args:
        records_per_s: Records per second and stream. Default 0: no limit.
        bytes_per_s: Bytes per second and stream. Default 0: no limit.
        by_token: Number of the subject token (from 1) whose values have separate quotas. Default 0: one quota per
            stream.
    """

    records_per_s: Annotated[int, Bounds(0, 1 << 31)] = 0
    bytes_per_s: Annotated[int, Bounds(0, 1 << 40)] = 0
    by_token: Annotated[int, Bounds(0, MAX_QUOTA_TOKEN)] = 0

    def __post_init__(self) -> None:
        _bounded(self, QUOTA_BOUNDS)

    @property
    def has_rates(self) -> bool:
        """True if a rate is limited."""
        return self.records_per_s > 0 or self.bytes_per_s > 0

    @property
    def words(self) -> str:
        """Text of the quota for users, such as its records and bytes per second."""
        parts = [f"{self.records_per_s} records/s"] if self.records_per_s else []
        parts += [f"{self.bytes_per_s} bytes/s"] if self.bytes_per_s else []
        if not parts:
            return "none"
        return ", ".join(parts) + (f", for each value of token {self.by_token} of the subject" if self.by_token else "")


QUOTA_BOUNDS = _bounds_of(DefaultQuota)
"""Field of DefaultQuota -> (lowest, highest) value."""
NO_QUOTA = DefaultQuota()

MIN_SESSION_MS, MAX_SESSION_MS = 100, 3_600_000
MIN_LEASE_MS = 50


def check_session_times(session_ms: int, lease_ms: int) -> None:
    """Raise ConfigError unless a cluster may use these session and lease times.

    A lease must end before the session. Otherwise two nodes could serve the same partition.

    Args:
        session_ms: Session time in milliseconds.
        lease_ms: Lease time in milliseconds.
    """
    for name, value, least in (("session", session_ms, MIN_SESSION_MS), ("lease", lease_ms, MIN_LEASE_MS)):
        if not least <= value <= MAX_SESSION_MS:
            raise ConfigError(f"a {name} of {value / 1000:g} s is outside {least / 1000:g}..{MAX_SESSION_MS / 1000:g} s")
    if not lease_ms < session_ms:
        raise ConfigError(f"a lease of {lease_ms / 1000:g} s has to be shorter than the session, {session_ms / 1000:g} s")


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Session and lease times of the whole cluster.

    After a change, the previous times also count until no session and no lease of the previous times can exist.

    Attributes:
        session_ms: Session time in milliseconds.
        lease_ms: Lease time in milliseconds.
        session_before_ms: Previous session time. 0: the change is settled.
        lease_before_ms: Previous lease time. 0: the change is settled.
        change: Number of changes so far.
    """

    session_ms: int
    lease_ms: int
    session_before_ms: int = 0
    """Previous session time in milliseconds. 0: the change is settled."""
    lease_before_ms: int = 0
    change: int = 0
    """Number of changes so far."""

    def __post_init__(self) -> None:
        check_session_times(self.session_ms, self.lease_ms)
        if not self.is_settled:
            check_session_times(self.session_before_ms, self.lease_before_ms)

    @property
    def is_settled(self) -> bool:
        """True if the previous times no longer count."""
        return not (self.session_before_ms or self.lease_before_ms)

    @property
    def longest_session_ns(self) -> int:
        """The longer one of the current and the previous session time, in nanoseconds."""
        return max(self.session_ms, self.session_before_ms) * NS_PER_MS

    @property
    def longest_lease_ns(self) -> int:
        """The longer one of the current and the previous lease time, in nanoseconds."""
        return max(self.lease_ms, self.lease_before_ms) * NS_PER_MS

    def changed(self, session_ms: int, lease_ms: int) -> SessionTimes:
        """Return the session times after a change to ``session_ms`` and ``lease_ms``.

        Args:
            session_ms: New session time in milliseconds.
            lease_ms: New lease time in milliseconds.

        Raises:
            ConfigError: The times are not allowed.
        """
        return SessionTimes(session_ms, lease_ms, self.session_ms, self.lease_ms, self.change + 1)

    def settled(self) -> SessionTimes:
        """Return these times after the change is complete, so that the previous times no longer count."""
        return replace(self, session_before_ms=0, lease_before_ms=0)

    @property
    def words(self) -> str:
        """Text of the current and the previous times, for users."""
        text = f"session {self.session_ms / 1000:g} s, lease {self.lease_ms / 1000:g} s"
        if self.is_settled:
            return text
        return (
            f"{text} (not settled: {self.session_before_ms / 1000:g} s and {self.lease_before_ms / 1000:g} s may still count)"
        )


_YEAR_S = 366 * 86_400.0


@accept_old_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Settings of one stream. ``Admin.alter_stream`` can change the settings in ``ALTERABLE`` later.

    Args:
        ack_policy: When a publish with a reply subject is acked. Default ALL: when the record is committed.
        min_isr: In-sync replicas needed to commit a record (0 to 32). Default 0: 2, or 1 with one replica.
        flush: When records are flushed to disk. Default: always, before the commit.
        commit_policy: Which replicas must have flushed a record. Default ISR: all in-sync replicas.
        segment_bytes: Size of a segment file (4096 to 2 GiB). Default 256 MiB.
        segment_age_s: Age at which a new segment file begins, in seconds. Default 0: no limit.
        retention_age_s: Delete records older than this, in seconds. Default 0: keep all.
        retention_bytes: Delete the oldest records of a partition beyond this size, in bytes. Default 0: keep all.
        retention_records: Delete the oldest records of a partition beyond this number. Default 0: keep all.
        compaction: If True, keep only the newest record of each key. Default False.
        delete_retention_s: Time until compaction deletes a tombstone, in seconds. Default 86,400 (one day).
        codec: Compression of stored and replicated batches. Default NONE.
        failover_standby: If True, followers also buffer published messages. The new leader then stores those that the
            old leader did not store. Default False.
        dedup_window_s: Time in which a message id is stored once, in seconds (0 to 86,400). Default 120. 0: message ids
            are ignored.
        read_only: If True, reject all publishes. Default False.
        max_message_bytes: Maximum size of payload and headers of a record. Default 0: no limit of the stream.
        optimistic_concurrency: If True, reject publishes without an expected offset. Default False.
        min_isr_hold_timeout_s: Time to hold messages without ack while too few replicas are in sync, in seconds. Then they are
            dropped and counted. Default 0: as long as there is room.
        max_per_subject: Number of newest records to keep per subject. Default 0: keep all.
        quota_records_per_s: Records per second over all partitions. Default 0: no limit.
        quota_bytes_per_s: Bytes per second over all partitions. Default 0: no limit.
        quota_by_token: Number of the subject token (from 1) whose values have separate quotas. Default 0: one quota.
        quota_exempt: If True, the cluster's default quota does not apply. Default False.

    Raises:
        ConfigError: A value is out of range, or two settings exclude each other.

    Example:
        config = liftpy.StreamConfig(retention_age_s=7 * 86_400, codec=liftpy.Codec.ZSTD)
        await client.create_stream("orders", "shop.orders", config=config)
    """

    ack_policy: AckPolicy = AckPolicy.ALL
    """When a publish with a reply subject is acked."""
    min_isr: Annotated[int, Bounds(0, 32)] = 0
    """In-sync replicas needed to commit a record. 0: 2, or 1 with one replica."""
    flush: FlushPolicy = FlushPolicy()
    """When records are flushed to disk."""
    commit_policy: CommitPolicy = CommitPolicy.ISR
    """Which replicas must have flushed a record before it is committed."""
    segment_bytes: Annotated[int, Bounds(4096, 1 << 31)] = 256 * 1024 * 1024
    """Size at which a new segment file begins, in bytes."""
    segment_age_s: Annotated[float, Bounds(0, _YEAR_S)] = 0.0
    """Age at which a new segment file begins, in seconds. 0: no limit."""
    retention_age_s: Annotated[float, Bounds(0, 100 * _YEAR_S)] = 0.0
    """Age at which records are deleted, in seconds. 0: never."""
    retention_bytes: Annotated[int, Bounds(0, 1 << 62)] = 0
    """Size of a partition beyond which the oldest records are deleted, in bytes. 0: no limit."""
    retention_records: Annotated[int, Bounds(0, 1 << 62)] = 0
    """Number of records in a partition beyond which the oldest are deleted. 0: no limit."""
    compaction: bool = False
    """True if only the newest record of each key is kept."""
    delete_retention_s: Annotated[float, Bounds(0, 100 * _YEAR_S)] = 86_400.0
    """Time until compaction deletes a tombstone, in seconds."""
    codec: Codec = Codec.NONE
    """Compression of stored and replicated batches."""
    failover_standby: bool = False
    """True if followers also buffer published messages. The new leader then stores those that the old leader did not store.
    With small records at full speed it costs about a fifth of the throughput and 40 % more CPU.
    """
    dedup_window_s: Annotated[float, Bounds(0, 86_400.0)] = 120.0
    """Time in which a message id is stored once, in seconds of log time. 0: message ids are ignored."""
    read_only: bool = False
    """True if all publishes are rejected. Publishes in progress may still be stored."""
    max_message_bytes: Annotated[int, Bounds(0, 1 << 31)] = 0
    """Maximum size of payload and headers of one record, in bytes. 0: no limit of the stream."""
    optimistic_concurrency: bool = False
    """True if publishes without an expected offset are rejected."""
    min_isr_hold_timeout_s: Annotated[float, Bounds(0, _YEAR_S)] = 0.0
    """Time to hold messages without ack while too few replicas are in sync, in seconds. Then they are dropped and counted.
    0: as long as there is room.
    """
    max_per_subject: Annotated[int, Bounds(0, 1 << 31)] = 0
    """Number of newest records to keep per subject. Compaction deletes older ones later. 0: keep all."""
    quota_records_per_s: Annotated[int, Bounds(0, 1 << 31)] = 0
    """Records per second over all partitions. Each partition gets an equal share. 0: no limit."""
    quota_bytes_per_s: Annotated[int, Bounds(0, 1 << 40)] = 0
    """Bytes per second over all partitions, payload and headers as sent. 0: no limit."""
    quota_by_token: Annotated[int, Bounds(0, MAX_QUOTA_TOKEN)] = 0
    """Number of the subject token (from 1) whose values have separate quotas. 0: one quota for the stream."""
    quota_exempt: bool = False
    """True if the cluster's default quota does not apply to this stream."""

    def __post_init__(self) -> None:
        _bounded(self, STREAM_BOUNDS)
        if self.optimistic_concurrency and self.ack_policy is AckPolicy.NONE:
            raise ConfigError("optimistic_concurrency needs answers: choose the ack policy leader or all")

    @property
    def is_cleaned(self) -> bool:
        """True if a later record can replace an earlier one, by key (compaction) or by subject (``max_per_subject``)."""
        return self.compaction or self.max_per_subject > 0

    @property
    def has_quota(self) -> bool:
        """True if the stream has a quota of its own."""
        return self.quota_records_per_s > 0 or self.quota_bytes_per_s > 0

    @property
    def takes_default_quota(self) -> bool:
        """True if the cluster's default quota applies, if there is one."""
        return not (self.has_quota or self.quota_exempt)

    def with_default(self, quota: DefaultQuota) -> StreamConfig:
        """Return the settings with the quota that applies under a cluster default.

        A stream with rates of its own keeps them. A stream that is exempt has no quota. Otherwise the default applies,
        but the stream's own ``quota_by_token`` wins.

        Args:
            quota: Default quota of the cluster.
        """
        if not (self.takes_default_quota and quota.has_rates):
            return self
        by_token = self.quota_by_token or quota.by_token
        records, size = quota.records_per_s, quota.bytes_per_s
        return replace(self, quota_records_per_s=records, quota_bytes_per_s=size, quota_by_token=by_token)

    @property
    def has_retention(self) -> bool:
        """True if retention deletes the oldest records, by age, size or number."""
        return bool(self.retention_age_s or self.retention_bytes or self.retention_records)

    def effective_min_isr(self, replica_count: int) -> int:
        """Return the in-sync replicas needed for a partition: 2 by default, at most its number of replicas.

        Args:
            replica_count: Number of replicas of the partition.
        """
        return min(self.min_isr or 2, replica_count)


STREAM_BOUNDS = _bounds_of(StreamConfig)
"""Field of StreamConfig -> (lowest, highest) value."""
QUOTA_SETTINGS = ("quota_records_per_s", "quota_bytes_per_s", "quota_by_token")
ALTERABLE = (
    "read_only",
    "max_message_bytes",
    "optimistic_concurrency",
    "min_isr_hold_timeout_s",
    "retention_age_s",
    "retention_bytes",
    "retention_records",
    "max_per_subject",
    "segment_bytes",
    "segment_age_s",
    *QUOTA_SETTINGS,
    "quota_exempt",
)
"""Settings that can be changed while the stream is in use."""
REFUSED_BY = ("read_only", "max_message_bytes", "optimistic_concurrency")
"""Settings by which a leader rejects publishes."""


@accept_old_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Timeouts and limits of replication on one node."""

    heartbeat_interval_s: float = 0.25
    """Interval of a node's heartbeats to the metadata leader, in seconds."""
    session_s: float = 2.0
    """Time without a heartbeat after which a node is fenced and its partitions get new leaders, in seconds. Initial value
    of a new cluster: `liftpy settings node-session` changes it later.
    """
    lease_s: float = 0.75
    """Time that a leader may send acks without a heartbeat answer, in seconds. After a kill, the new leader waits for the
    end of this lease. Initial value of a new cluster.
    """
    max_leader_timeout_s: float = 2.0
    """Time without an answer of the leader after which a follower reports the leader, in seconds. Enough reports lead to
    an election.
    """
    max_lag_time_s: float = 5.0
    """Time since a follower was last at the leader's log end, in seconds. After it, the follower leaves the ISR."""
    max_lag_records: int = 0
    """Number of records that a follower may be behind before it leaves the ISR. 0: no limit, only time counts."""
    follower_ping_delay_s: float = 0.3
    """Time that silent followers may hold back commits before the leader asks NATS whether they are connected, in seconds.
    0: never.
    """
    max_idle_wait_s: float = 1.0
    """Interval of a follower's fetches while there are no new records, in seconds. A new record wakes the follower
    earlier.
    """
    idle_polls_before_quiet: int = 2
    """Number of fetches without new records after which a follower fetches the partition together with other idle ones."""
    fetch_timeout_s: float = 1.0
    """Time without an answer after which a follower sends a fetch again, in seconds."""
    fetch_backoff_min_s: float = 0.05
    """First pause after a failed fetch, in seconds. Each further failure doubles it."""
    fetch_backoff_max_s: float = 1.0
    """Longest pause after failed fetches, in seconds."""
    candidate_timeout_s: float = 2.0
    """Time without progress after which an election skips a candidate, in seconds."""
    replication_max_bytes: int = 1024 * 1024 - 4096
    """Maximum size of the batches in one answer to a follower, in bytes. The `max_payload` of NATS may lower it."""
    hw_checkpoint_interval_s: float = 1.0
    """Interval at which a replica writes its high watermark to disk, in seconds."""
    notice_interval_s: float = 1.0
    """Interval at which a leader announces itself to followers that do not fetch, in seconds."""
    ingest_buffer_bytes: int = 256 * 1024 * 1024
    """Maximum size of unstored publishes on a node, in bytes. Half of it may be held for partitions that cannot accept
    records. NATS buffers 64 MiB per connection on its side, and closes the connection beyond that.
    """
    max_queue_delay_s: float = 1.0
    """Queue delay beyond which the node rejects publishes that wait for an ack, in seconds. During an overload, the node
    rejects from 1/8 of it until the delay is below 1/16.
    """
    ingest_queue_bytes: int = 64 * 1024 * 1024
    """Maximum size of unstored publishes per partition, in bytes."""
    ingest_queue_records: int = 262_144
    """Maximum number of unstored publishes per partition."""
    unreplicated_bytes: int = 128 * 1024 * 1024
    """Maximum size of appended but uncommitted records per led partition, in bytes. Beyond it, the leader holds publishes
    back.
    """
    node_unreplicated_bytes: int = 512 * 1024 * 1024
    """Maximum size of appended but uncommitted records over all partitions that a node leads, in bytes."""
    partition_message_id_bytes: int = 64 * 1024 * 1024
    """Memory for message ids per partition, in bytes. 64 MiB hold about 350,000 ids of 36 bytes. From 7/8 on, the leader
    rejects publishes with new ids.
    """
    partition_producer_bytes: int = 32 * 1024 * 1024
    """Memory for producers per partition, in bytes. 32 MiB hold about 20,000. Beyond it, the leader rejects new producers."""
    producer_expiry_s: float = 86_400.0
    """Time without a batch after which a producer is forgotten, in seconds of log time."""
    partition_subject_index_bytes: int = 64 * 1024 * 1024
    """Memory for the last offset of each subject per partition, in bytes. 64 MiB hold about 360,000 subjects of 40 bytes.
    Beyond it, the leader rejects publishes that expect a last subject sequence.
    """
    node_dedup_state_bytes: int = 512 * 1024 * 1024
    """Memory for message ids, producers and subjects over all partitions of a node, in bytes. From 7/8 on, leaders reject
    new ones.
    """
    state_checkpoint_interval_s: float = 60.0
    """Interval at which message ids, producers and subjects are saved to disk, in seconds. Shorter intervals make a
    restart faster.
    """
    state_checkpoint_bytes: int = 64 * 1024 * 1024
    """Growth of a log after which this state is saved earlier, in bytes."""
    standby_bytes: int = 32 * 1024 * 1024
    """Memory for the standby buffer per partition with `failover_standby`, in bytes. 32 MiB hold about 90,000 messages of
    100 bytes.
    """
    node_standby_bytes: int = 128 * 1024 * 1024
    """Memory for the standby buffers of all partitions of a node, in bytes."""
    standby_age_s: float = 10.0
    """Time that a standby buffer keeps a message, in seconds. If an election takes longer, messages are lost."""
    batch_max_bytes: int = 512 * 1024
    """Maximum size of a batch that a leader makes of single messages, in bytes. A larger message is a batch of its own."""
    batch_max_records: int = 4096
    """Maximum number of records in a batch that a leader makes of single messages."""
    slow_flush_s: float = 0.2
    """Duration below which a flush never counts as slow, in seconds."""
    slow_flush_factor: float = 8.0
    """Factor by which a flush must be slower than usual on the fastest other replica to count as slow. 0 turns the check
    off.
    """
    slow_flush_time_s: float = 5.0
    """Time in slow flushes, at least two, after which a follower leaves the ISR or a leader transfers its leadership, in
    seconds.
    """
    slow_flush_isr_backoff_s: float = 20.0
    """Time that a slow follower stays out of the ISR after its last slow flush, in seconds. It doubles up to 16 times if
    the follower is soon slow again.
    """
    hung_flush_s: float = 30.0
    """Duration of a flush after which the node reports itself as not live, in seconds."""
    min_leadership_s: float = 120.0
    """Time that a leader keeps its leadership before a slow disk may transfer it, in seconds. The first leader of a stream
    is excepted.
    """
    service_grace_s: float = 5.0
    """Time that a replicated service may be unhealthy on the leader's node before the leadership moves to a healthy one,
    in seconds.
    """
    service_ended_retention_s: float = 86_400.0
    """Time that status, health and metrics show a service that ended unexpectedly, in seconds."""
    service_log_retention_bytes: int = 1024 * 1024 * 1024
    """Size of old records that retention keeps for a service whose snapshot is older, in bytes. 0: none."""
    copy_bytes_per_s: int = 32 * 1024 * 1024
    """Maximum copy rate of all learners of a node, in bytes per second. New records do not count. 0: no limit."""
    copy_duty_cycle: float = 0.2
    """Fraction of time in which a learner may have a copy request in flight or in a flush. 1 turns this throttle off."""
    copy_min_bytes_per_s: int = 4 * 1024 * 1024
    """Minimum copy rate that `copy_duty_cycle` leaves, in bytes per second. 0: no minimum."""
    copy_fetch_bytes: int = 128 * 1024
    """Size of one copy request of a learner, in bytes. A larger batch is copied whole."""
    preferred_leader_interval_s: float = 0.0
    """Interval at which leaderships return to the preferred leaders, in seconds. 0: only by command."""
    replacement_grace_s: float = 300.0
    """Time that a node may be down before its replicas are created on other nodes, in seconds. 0: never, unless the node
    is drained. A new metadata leader starts to count again.
    """
    groups_partitions: int = 3
    """Number of partitions of the groups stream when it is created. Each has a coordinator. A group belongs to one of them
    permanently.
    """
    groups_replicas: int = 0
    """Replicas of each partition of the groups stream. 0: 3, or the number of nodes if there are fewer."""
    events_stream: bool = False
    """True if the metadata leader also stores cluster events in the stream `_liftpy-events`. Use the same value on all
    controllers.
    """
    max_copies: int = 64
    """Maximum number of replicas that are copied at the same time in the cluster."""
    max_copies_per_node: int = 8
    """Maximum number of replicas that are copied to one node, and from one node, at the same time."""

    def __post_init__(self) -> None:
        _bounded(self, REPLICATION_BOUNDS)
        if not self.heartbeat_interval_s < self.lease_s < self.session_s:
            raise ConfigError(
                "heartbeat_interval_s < lease_s < session_s must hold, so that a leader stops before it is replaced. Change "
                "these settings."
            )
        check_session_times(*self._session_ms)
        if not self.max_idle_wait_s < self.max_lag_time_s:
            raise ConfigError(
                "max_idle_wait_s must be below max_lag_time_s. Otherwise idle followers leave the ISR. Decrease max_idle_wait_s."
            )
        if not self.max_idle_wait_s < self.max_leader_timeout_s:
            raise ConfigError(
                "max_idle_wait_s must be below max_leader_timeout_s. Otherwise idle followers depose their leader. "
                "Decrease max_idle_wait_s."
            )

    @property
    def _session_ms(self) -> tuple[int, int]:
        return round(self.session_s * 1000), round(self.lease_s * 1000)

    @property
    def session_times(self) -> SessionTimes:
        """Session and lease times of a new cluster whose metadata leader has these settings."""
        return SessionTimes(*self._session_ms)


_DAY_S = 86_400.0
REPLICATION_BOUNDS: dict[str, tuple[float, float]] = {
    **{f.name: (0.001, 3600.0) for f in fields(ReplicationConfig) if f.name.endswith("_s")},
    "replacement_grace_s": (0, 30 * _DAY_S),
    "service_ended_retention_s": (0, 30 * _DAY_S),
    "producer_expiry_s": (1, 365 * _DAY_S),
    "groups_partitions": (1, 1000),
    "groups_replicas": (0, 32),
    "max_copies": (1, 10_000),
    "max_copies_per_node": (1, 1000),
    "max_lag_records": (0, 1 << 62),
    "slow_flush_factor": (0, 1e6),
    "follower_ping_delay_s": (0, 3600.0),
    "idle_polls_before_quiet": (1, 1 << 20),
    "replication_max_bytes": (4096, 64 << 20),
    "ingest_buffer_bytes": (8192, 16 << 30),
    "ingest_queue_bytes": (512, 4 << 30),
    "unreplicated_bytes": (512, 4 << 30),
    "node_unreplicated_bytes": (512, 16 << 30),
    "ingest_queue_records": (16, 1 << 26),
    "copy_bytes_per_s": (0, 64 << 30),
    "copy_duty_cycle": (0.001, 1.0),
    "copy_min_bytes_per_s": (0, 64 << 30),
    "copy_fetch_bytes": (4096, 64 << 20),
    "partition_message_id_bytes": (4096, 16 << 30),
    "partition_producer_bytes": (4096, 16 << 30),
    "partition_subject_index_bytes": (4096, 16 << 30),
    "node_dedup_state_bytes": (512, 64 << 30),
    "state_checkpoint_interval_s": (0.01, 86_400.0),
    "state_checkpoint_bytes": (4096, 1 << 40),
    "standby_bytes": (512, 4 << 30),
    "node_standby_bytes": (512, 16 << 30),
    "batch_max_bytes": (4096, 64 << 20),
    "batch_max_records": (1, 65_536),
    "preferred_leader_interval_s": (0, 86_400.0),
}
"""Field of ReplicationConfig -> (lowest, highest) value."""
