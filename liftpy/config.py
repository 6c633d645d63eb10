"""Configuration of streams and of replication: frozen, units in the names, validated as a whole, everything bounded.

No environment and no files here: ``sidecar/runtime/settings.py`` is the one place that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum

from liftpy.errors import ConfigError

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
MAX_QUOTA_TOKEN = 256
"""Of a subject: by a token that stands farther back no quota is told apart."""


class AckPolicy(Enum):
    """When a publisher with a reply inbox is answered."""

    NONE = "none"
    LEADER = "leader"
    ALL = "all"


class CommitPolicy(Enum):
    """What commits a record: every in-sync replica, or a majority of the replica set."""

    ISR = "isr"
    QUORUM = "quorum"


class FlushMode(Enum):
    """When appended bytes are made durable."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NONE = "none"


class Codec(Enum):
    """Compression of a batch's body; the values are those of the attribute bits 0-2."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """``always`` (group commit), ``interval:<ms>`` or ``none``."""

    mode: FlushMode = FlushMode.ALWAYS
    interval_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> FlushPolicy:
        """From ``always``, ``none`` or ``interval:<ms>`` (1 to 60,000 ms); raise ConfigError otherwise."""
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


def _bounded(what: object, bounds: dict[str, tuple[float, float]]) -> None:
    for name, (low, high) in bounds.items():
        value = getattr(what, name)
        if not low <= value <= high:
            raise ConfigError(f"{name} = {value} is outside {low:g}..{high:g}")


_QUOTA_BOUNDS: dict[str, tuple[float, float]] = {
    "records_per_s": (0, 1 << 31),
    "bytes_per_s": (0, 1 << 40),
    "by_token": (0, MAX_QUOTA_TOKEN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultQuota:
    """A cluster's, for its streams that have no quota of their own (``StreamConfig.with_default``); as the three of StreamConfig."""

    records_per_s: int = 0
    bytes_per_s: int = 0
    by_token: int = 0

    def __post_init__(self) -> None:
        _bounded(self, _QUOTA_BOUNDS)

    @property
    def has_rates(self) -> bool:
        """Whether it bounds anything."""
        return self.records_per_s > 0 or self.bytes_per_s > 0

    @property
    def words(self) -> str:
        """For people."""
        said = [f"{self.records_per_s} records/s"] if self.records_per_s else []
        said += [f"{self.bytes_per_s} bytes/s"] if self.bytes_per_s else []
        if not said:
            return "none"
        return ", ".join(said) + (f", for each value of token {self.by_token} of the subject" if self.by_token else "")


NO_QUOTA = DefaultQuota()

MIN_SESSION_MS, MAX_SESSION_MS = 100, 3_600_000
MIN_LEASE_MS = 50


def check_session_times(session_ms: int, lease_ms: int) -> None:
    """Raise ConfigError unless a metadata leader may end sessions and grant leases by them: a lease ends before the session does, so
    that no node speaks for what was given to another one. The same for settings, at the door and when it is applied."""
    for name, value, least in (("session", session_ms, MIN_SESSION_MS), ("lease", lease_ms, MIN_LEASE_MS)):
        if not least <= value <= MAX_SESSION_MS:
            raise ConfigError(f"a {name} of {value / 1000:g} s is outside {least / 1000:g}..{MAX_SESSION_MS / 1000:g} s")
    if not lease_ms < session_ms:
        raise ConfigError(f"a lease of {lease_ms / 1000:g} s has to be shorter than the session, {session_ms / 1000:g} s")


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """By which nodes are fenced and may speak, in the whole cluster. Those before a change count until it is settled: until nothing
    that was granted by them can still count."""

    session_ms: int
    lease_ms: int
    session_before_ms: int = 0
    """0: settled."""
    lease_before_ms: int = 0
    change: int = 0
    """Grows with each change."""

    def __post_init__(self) -> None:
        check_session_times(self.session_ms, self.lease_ms)
        if not self.is_settled:
            check_session_times(self.session_before_ms, self.lease_before_ms)

    @property
    def is_settled(self) -> bool:
        """Whether those before count no more."""
        return not (self.session_before_ms or self.lease_before_ms)

    @property
    def longest_session_ns(self) -> int:
        """Of a session that may have begun by them, or by those before."""
        return max(self.session_ms, self.session_before_ms) * NS_PER_MS

    @property
    def longest_lease_ns(self) -> int:
        """That anybody may hold."""
        return max(self.lease_ms, self.lease_before_ms) * NS_PER_MS

    def changed(self, session_ms: int, lease_ms: int) -> SessionTimes:
        """After a change; raise ConfigError where they can't be."""
        return SessionTimes(session_ms, lease_ms, self.session_ms, self.lease_ms, self.change + 1)

    def settled(self) -> SessionTimes:
        """Once those before count no more."""
        return replace(self, session_before_ms=0, lease_before_ms=0)

    @property
    def words(self) -> str:
        """For people."""
        said = f"session {self.session_ms / 1000:g} s, lease {self.lease_ms / 1000:g} s"
        if self.is_settled:
            return said
        return (
            f"{said} (not settled: {self.session_before_ms / 1000:g} s and {self.lease_before_ms / 1000:g} s may still count)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Settings of one stream; those of ``ALTERABLE`` may change later. 0 means unlimited for every ``retention_*``.

    ``min_isr`` 0 means the default: 2, or 1 when there is only one replica.
    """

    ack_policy: AckPolicy = AckPolicy.ALL
    min_isr: int = 0
    flush: FlushPolicy = FlushPolicy()
    commit_policy: CommitPolicy = CommitPolicy.ISR
    segment_bytes: int = 256 * 1024 * 1024
    segment_age_s: float = 0.0
    retention_age_s: float = 0.0
    retention_bytes: int = 0
    retention_records: int = 0
    compaction: bool = False
    delete_retention_s: float = 86_400.0
    codec: Codec = Codec.NONE
    failover_standby: bool = False
    """Followers listen to the data subject too: nothing published is lost in a fail-over, and nobody is told that nobody is there
    (``liftpy/core/publish/standby.py``). Of small records at full speed it costs about a fifth of the throughput and 40 % more
    CPU: off by
    default."""
    dedup_window_s: float = 120.0
    read_only: bool = False
    """What is published is refused; what is held or under way when that is said may still be stored."""
    max_message_bytes: int = 0
    """Of payload and headers as they were sent, of each record where a batch was; 0: what a log takes."""
    optimistic_concurrency: bool = False
    """Each publish names the offset that it expects; one that names none is refused."""
    max_held_s: float = 0.0
    """What nobody waits for is held so long at most while the ISR is too short to commit, then dropped and counted; 0: as long as there
    is room."""
    max_per_subject: int = 0
    """Of each subject the newest so many stay for sure; older ones go as compaction comes by. 0: all stay."""
    quota_records_per_s: int = 0
    """Of publishes, of the whole stream: each partition takes its share (``liftpy/core/publish/quota.py``). 0: as many as come."""
    quota_bytes_per_s: int = 0
    """The same in bytes, of payload and headers as they were sent."""
    quota_by_token: int = 0
    """The two hold for each value of this token of the subject, counted from 1; 0: for all that is published together."""
    quota_exempt: bool = False
    """Where it has no quota of its own it has none: the cluster's default does not hold for it."""

    def __post_init__(self) -> None:
        year_s = 366 * 86_400.0
        _bounded(
            self,
            {
                "min_isr": (0, 32),
                "segment_bytes": (4096, 1 << 31),
                "segment_age_s": (0, year_s),
                "retention_age_s": (0, 100 * year_s),
                "retention_bytes": (0, 1 << 62),
                "retention_records": (0, 1 << 62),
                "delete_retention_s": (0, 100 * year_s),
                "dedup_window_s": (0, 86_400.0),
                "max_message_bytes": (0, 1 << 31),
                "max_held_s": (0, year_s),
                "max_per_subject": (0, 1 << 31),
                **{f"quota_{name}": bounds for name, bounds in _QUOTA_BOUNDS.items()},
            },
        )
        if self.optimistic_concurrency and self.ack_policy is AckPolicy.NONE:
            raise ConfigError("optimistic_concurrency needs answers: choose the ack policy leader or all")

    @property
    def is_cleaned(self) -> bool:
        """Whether records of it go because of later ones: by key, or by subject."""
        return self.compaction or self.max_per_subject > 0

    @property
    def has_quota(self) -> bool:
        """Whether publishes beyond a rate are refused."""
        return self.quota_records_per_s > 0 or self.quota_bytes_per_s > 0

    @property
    def takes_default_quota(self) -> bool:
        """Whether a cluster's default quota holds for it, if there is one."""
        return not (self.has_quota or self.quota_exempt)

    def with_default(self, quota: DefaultQuota) -> StreamConfig:
        """With the quota that holds where a cluster has that default. A stream's own rates stand alone; one that has none, and is not
        exempt, takes all of the default, but for the token by which it tells publishers apart itself."""
        if not (self.takes_default_quota and quota.has_rates):
            return self
        by_token = self.quota_by_token or quota.by_token
        records, size = quota.records_per_s, quota.bytes_per_s
        return replace(self, quota_records_per_s=records, quota_bytes_per_s=size, quota_by_token=by_token)

    @property
    def needs_quotas(self) -> bool:
        """Whether it holds what clusters without quotas don't know."""
        return any(getattr(self, name) for name in QUOTA_SETTINGS)

    @property
    def has_retention(self) -> bool:
        """Whether its oldest records go, by age, bytes or count."""
        return bool(self.retention_age_s or self.retention_bytes or self.retention_records)

    def effective_min_isr(self, replica_count: int) -> int:
        """``min_isr`` for a partition of ``replica_count`` replicas: 2 by default, never more than there are replicas."""
        return min(self.min_isr or 2, replica_count)


QUOTA_SETTINGS = ("quota_records_per_s", "quota_bytes_per_s", "quota_by_token")
ALTERABLE = (
    "read_only",
    "max_message_bytes",
    "optimistic_concurrency",
    "max_held_s",
    "retention_age_s",
    "retention_bytes",
    "retention_records",
    "max_per_subject",
    "segment_bytes",
    "segment_age_s",
    *QUOTA_SETTINGS,
    "quota_exempt",
)
"""Settings that a stream may be given anew, while it is used."""
REFUSED_BY = ("read_only", "max_message_bytes", "optimistic_concurrency")
"""Those by which a leader refuses publishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Time-outs and bounds of replication on one node; the defaults are the protocol's."""

    heartbeat_s: float = 0.25
    """How often a node tells the metadata leader that it is there."""
    session_s: float = 2.0
    """A node that is not heard for so long is fenced: what it leads gets other leaders."""
    lease_s: float = 0.9
    """A leader that was killed is replaced when its lease is over. One that hears no answer to a heartbeat for so long holds its
    acknowledgements back until it does, and is not replaced for it before ``session_s``."""
    max_leader_timeout_s: float = 2.0
    """A follower that its leader does not answer for so long reports it; enough of them depose it."""
    max_lag_time_s: float = 5.0
    """A follower that has not been at the leader's log end for so long leaves the ISR."""
    max_lag_records: int = 0
    """The same by records that it is behind; 0: by time alone."""
    probe_after: float = 0.3
    """Seconds that followers may hold HW back in silence before the leader asks the bus whether they are there; 0: never."""
    max_idle_wait_s: float = 1.0
    """A follower with nothing to fetch asks again after so long, if nobody wakes it before."""
    quiet_rounds: int = 2
    """Fetches in a row that bring no news, an idle wait apart, after which a follower's partition is quiet: it is asked for together
    with others, or more seldom. With 1 a busy one would come and go with every record."""
    fetch_timeout_s: float = 1.0
    """After so long without an answer a fetch is asked again."""
    fetch_backoff_min_s: float = 0.05
    """Pause before a fetch that has failed is asked again; twice as long each time."""
    fetch_backoff_max_s: float = 1.0
    """The longest of these pauses."""
    candidate_timeout_s: float = 2.0
    """A candidate that shows no progress for so long is passed over."""
    replication_max_bytes: int = 1024 * 1024 - 4096
    """Of batches in one answer to a follower; never more than NATS's ``max_payload`` lets through."""
    hw_checkpoint_s: float = 1.0
    """How often the high watermark is written to the disk."""
    notice_interval_s: float = 1.0
    """How often a leader tells followers that do not ask who leads."""
    ingest_buffer_bytes: int = 256 * 1024 * 1024
    """Of publishes that a node has read and not stored: two million of 100 bytes, some seconds of what it stores. A server itself
    holds 64 MiB for a connection, and cuts it then. Half of it may be held back for partitions that can't take what came."""
    ingest_late_s: float = 1.0
    """When something has waited unread for longer, publishes that somebody waits for are refused, before clients take silence for a
    loss and send again; while that lasts already beyond an eighth of it. So they are while answers go out, and all of them later
    than that (``liftpy/core/publish/queue_delay.py``)."""
    ingest_queue_bytes: int = 64 * 1024 * 1024
    """The same for one partition."""
    ingest_queue_records: int = 262_144
    """The same for one partition, in records."""
    unreplicated_bytes: int = 128 * 1024 * 1024
    """What a leader may have appended and not committed, of one partition; more is held back. It lies in the log, not in memory."""
    node_unreplicated_bytes: int = 512 * 1024 * 1024
    """The same for all partitions that a node leads."""
    dedup_bytes: int = 64 * 1024 * 1024
    """Of memory for the message ids within a partition's window: some 350,000 of 36 bytes, 120,000 where each is a batch of its own.
    A leader takes new ones up to seven eighths of it, and refuses more."""
    producer_bytes: int = 32 * 1024 * 1024
    """Of memory for the producers of a partition: some 20,000. Beyond it no new one is taken."""
    producer_expiry_s: float = 86_400.0
    """A producer that has sent nothing for so long, of the log's time, is forgotten."""
    subjects_bytes: int = 64 * 1024 * 1024
    """Of memory for the last offset of each subject of a partition, where publishers expect last sequences of subjects: some 360,000
    subjects of 40 bytes. With more, such publishes are refused."""
    node_derived_bytes: int = 512 * 1024 * 1024
    """Of memory for the message ids, producers and subjects of all partitions of a node. A leader takes new ones up to seven eighths
    of it, and refuses more (``liftpy/core/publish/log_state_budget.py``)."""
    state_checkpoint_s: float = 60.0
    """How often what is derived from a log (message ids, producers, subjects) is written beside it, where the log has grown enough."""
    state_checkpoint_bytes: int = 64 * 1024 * 1024
    """When a log has grown by so much it is written before that; more where it is large."""
    standby_bytes: int = 32 * 1024 * 1024
    """Of memory for what a follower has heard of one partition with ``failover_standby``: some 90,000 messages of 100 bytes."""
    node_standby_bytes: int = 128 * 1024 * 1024
    """The same for all partitions of a node."""
    standby_age_s: float = 10.0
    """For so long it is kept at most; an election that takes longer loses what no leader has taken."""
    batch_max_bytes: int = 512 * 1024
    """Of one record batch that a leader makes of single messages; a larger message is a batch of its own."""
    batch_max_records: int = 4096
    """The same in records."""
    slow_flush_s: float = 0.2
    """A flush of a log that takes less is never slow, however fast the other replicas are."""
    slow_flush_factor: float = 8.0
    """Times what the fastest other replica of the partition usually needs: from there on a flush is slow. 0: none ever is; then nobody
    leaves an ISR, or makes way as leader, for a slow disk (``liftpy/core/replication/slow_disk.py``)."""
    slow_flush_time_s: float = 5.0
    """Spent in slow flushes, by two of them at least: then a follower leaves the ISR, if ``min.isr`` members and two stay, and a leader
    hands over to a member that is fast."""
    slow_flush_out_s: float = 20.0
    """After its last slow flush such a follower may come back; twice as long each time, up to 16 times, if it is slow again soon."""
    hung_flush_s: float = 30.0
    """A flush, or a stored HW, that takes so long does not end any more: the node says that it is not live."""
    leader_rest_s: float = 120.0
    """A leadership, but for a stream's first one, lasts at least so long before a leader makes way for its slow disk."""
    service_grace_s: float = 5.0
    """A replicated service may be ill beside the leader for so long before the leadership goes to where it is well."""
    service_ended_s: float = 86_400.0
    """How long a node shows that a replicated service has ended which nobody has stopped, in status, health and metrics. A service that
    comes back is shown no longer."""
    service_hold_bytes: int = 1024 * 1024 * 1024
    """What retention leaves in a log, beyond what it would, for services whose newest snapshot is older; 0: nothing."""
    copy_bytes_per_second: int = 32 * 1024 * 1024
    """How fast the learners of a node copy at most, all together; what partitions grow meanwhile does not count (``copying.py``). 0: as
    fast as they can."""
    copy_share: float = 0.2
    """Of the time, that goes by with what they copy on its way, or in its flush; the rest is for others. The busier the machines, the
    slower a copy; 1: it never yields."""
    copy_least_bytes_per_second: int = 4 * 1024 * 1024
    """So fast a copy stays, whatever its share; 0: as slow as it gets."""
    copy_piece_bytes: int = 128 * 1024
    """What a learner asks for at a time, beside what its partition grows by; a larger batch comes as a whole."""
    preferred_leaders_every: float = 0.0
    """Seconds between looks for partitions that could go back to their preferred leader; 0: only by command."""
    replacement_grace_s: float = 300.0
    """A node that has been down for so long has its replicas made anew on others; 0: never, unless it is drained. Counted by the
    metadata leader, from when it saw it down: a new one begins anew."""
    groups_partitions: int = 3
    """Of the stream of consumer groups, when it is made; each has a coordinator, and a group is with one of them for good."""
    groups_replicas: int = 0
    """Of each of them; 0: 3, or as many as there are nodes."""
    events_stream: bool = False
    """The metadata leader keeps what happened in the cluster in the stream ``_liftpy-events``, not in memory alone; the same on all
    controllers."""
    copies_at_once: int = 64
    """Replicas that are copied to other nodes at a time, in the whole cluster."""
    copies_per_node: int = 8
    """Of them into one node, and the same number from one node."""

    def __post_init__(self) -> None:
        times = {f.name: (0.001, 3600.0) for f in fields(self) if f.name.endswith("_s")}
        days = {"replacement_grace_s": (0, 30), "service_ended_s": (0, 30), "producer_expiry_s": (1 / 86_400, 365)}
        _bounded(self, times | {name: (low * 86_400.0, high * 86_400.0) for name, (low, high) in days.items()})
        _bounded(
            self,
            {
                "groups_partitions": (1, 1000),
                "groups_replicas": (0, 32),
                "copies_at_once": (1, 10_000),
                "copies_per_node": (1, 1000),
                "max_lag_records": (0, 1 << 62),
                "slow_flush_factor": (0, 1e6),
                "probe_after": (0, 3600.0),
                "quiet_rounds": (1, 1 << 20),
                "replication_max_bytes": (4096, 64 << 20),
                "ingest_buffer_bytes": (8192, 16 << 30),
                "ingest_queue_bytes": (512, 4 << 30),
                "unreplicated_bytes": (512, 4 << 30),
                "node_unreplicated_bytes": (512, 16 << 30),
                "ingest_queue_records": (16, 1 << 26),
                "copy_bytes_per_second": (0, 64 << 30),
                "copy_share": (0.001, 1.0),
                "copy_least_bytes_per_second": (0, 64 << 30),
                "copy_piece_bytes": (4096, 64 << 20),
                "dedup_bytes": (4096, 16 << 30),
                "producer_bytes": (4096, 16 << 30),
                "subjects_bytes": (4096, 16 << 30),
                "node_derived_bytes": (512, 64 << 30),
                "state_checkpoint_s": (0.01, 86_400.0),
                "state_checkpoint_bytes": (4096, 1 << 40),
                "standby_bytes": (512, 4 << 30),
                "node_standby_bytes": (512, 16 << 30),
                "batch_max_bytes": (4096, 64 << 20),
                "batch_max_records": (1, 65_536),
                "preferred_leaders_every": (0, 86_400.0),
            },
        )
        if not self.heartbeat_s < self.lease_s < self.session_s:
            raise ConfigError("heartbeat_s < lease_s < session_s must hold: a leader gives up before it is replaced")
        check_session_times(*self._session_ms)
        if not self.max_idle_wait_s < self.max_lag_time_s:
            raise ConfigError("max_idle_wait_s must be below max_lag_time_s, or idle followers would leave the ISR")
        if not self.max_idle_wait_s < self.max_leader_timeout_s:
            raise ConfigError("max_idle_wait_s must be below max_leader_timeout_s, or idle followers would depose their leader")

    @property
    def _session_ms(self) -> tuple[int, int]:
        return round(self.session_s * 1000), round(self.lease_s * 1000)

    @property
    def session_times(self) -> SessionTimes:
        """What a cluster begins with whose metadata leader has these settings."""
        return SessionTimes(*self._session_ms)
