"""ISR changes, the lag policy, the commit rule, and the leader's view of its followers. Pure.

``IsrChange``: the leader's one ISR change in flight [C4]. The metadata group decides by compare-and-set on the
partition's Epoch, so at most one attempt on an Epoch takes effect. Until the metadata shows a higher Epoch, the members
of all attempts count.

Lag policy: a follower leaves the ISR when

- its node is fenced, or it was not caught up for ``max_lag_time_s``, or it is more than ``max_lag_records`` behind,
- it requests records that it had acknowledged (its disk lost them),
- it delays commits and NATS reported twice that its node is not connected, if at least ``min_isr`` members and two
  remain,
- its disk is far slower than the others (``SlowFlushes``), if at least ``min_isr`` members and two remain.

Load alone removes no follower [A11]: a follower that makes progress stays ``_PROGRESS_FACTOR`` times as long, and stays if
``min_isr`` needs it. A leader that receives nothing from any follower first requests a successor, because it may itself
be disconnected. With ``quorum`` the ISR never becomes smaller than a majority.

A follower joins when it is at or past the high watermark and the start of the epoch, by a fetch in this LeaderEpoch
[C6, D19], and was caught up within ``max_lag_time_s`` [L8]. Example: high watermark 40, epoch start 50, log end 60. A
follower at offset 45 stays out. At 49 (log end 50) it joins.

Commit rule (``new_high_watermark``): a committed record survives every election that the metadata group can hold. Only
positions that were acknowledged in the current LeaderEpoch by the current incarnation of a follower count [D6]. The
high watermark never falls [D8], and does not move with fewer than ``min_isr`` members in the ISR [D20].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from liftpy.config import NS_PER_S, CommitPolicy, ReplicationConfig
from liftpy.core.base.partition import PartitionMetadata
from liftpy.core.replication.role import ReplicaContext, nanoseconds

ABSENCES = 2
"""Number of consecutive probes without responders after which a node counts as absent."""
MIN_REMAINING_ISR = 2
_PROGRESS_FACTOR = 6
"""Factor by which a follower that makes progress may exceed the lag time."""
_RECENT_FLUSHES = 5
_MIN_FLUSHES = 3
"""Number of flushes of a replica that are needed before its disk is compared with others."""
_MAX_BACKOFF = 16
"""Maximum backoff of a slow replica, as a multiple of ``slow_flush_isr_backoff_s``."""
REACH_NS = 10 * NS_PER_S
"""Maximum distance of a request id from the last one, in addition to the time that has passed, in nanoseconds."""
REQUEST_ID_RESET_NS = 5 * NS_PER_S
"""Time without valid requests after which the leader accepts a rejected request id of the follower, in nanoseconds."""


class IsrChange:
    """Requests of the leader to change the ISR, made on the current Epoch of the partition."""

    __slots__ = ("in_flight", "possible", "retry_at_ns", "sets", "unsettled")

    def __init__(self) -> None:
        self.possible: frozenset[str] = frozenset()
        """Nodes that may be ISR members by an attempt with unknown outcome."""
        self.sets: frozenset[frozenset[str]] = frozenset()
        """Replica sets that may be in effect by an attempt with unknown outcome."""
        self.in_flight = False
        """True while the leader waits for an answer, or for an accepted change in the image."""
        self.unsettled = False
        """True if an attempt on this Epoch got no answer."""
        self.retry_at_ns = 0
        """Monotonic time before which no new attempt is made, in nanoseconds."""

    def maximal(self, isr: frozenset[str]) -> frozenset[str]:
        """Return the nodes of ``isr``, and all nodes that may be ISR members by a request with unknown outcome.

        ``isr``: ISR in the metadata.
        """
        return isr | self.possible if self.possible else isr

    def replica_sets(self, replicas: Collection[str]) -> Iterator[Collection[str]]:
        """Yield ``replicas``, the replica set in the metadata, and all sets that may replace it by a request with unknown outcome."""
        yield replicas
        yield from self.sets

    def record_attempt(self, isr: frozenset[str], replicas: frozenset[str] | None = None) -> None:
        """Record a new request of the leader for the ISR ``isr``. ``replicas``: replica set that it also requests, None: unchanged."""
        self.possible |= isr
        if replicas is not None:
            self.sets |= {replicas}
        self.in_flight = True

    def record_rejection(self, retry_at_ns: int) -> None:
        self.in_flight = False
        self.retry_at_ns = retry_at_ns
        if not self.unsettled:
            self.possible, self.sets = frozenset(), frozenset()

    def record_unknown_result(self, retry_at_ns: int) -> None:
        """Record that the request got no answer, so its nodes may be ISR members.

        ``retry_at_ns``: earliest monotonic time of the next request.
        """
        self.in_flight = False
        self.unsettled = True
        self.retry_at_ns = retry_at_ns

    def record_new_epoch(self) -> None:
        """Record that the metadata shows a higher Epoch of the partition. All requests on the old Epoch have ended."""
        self.possible, self.sets = frozenset(), frozenset()
        self.in_flight = self.unsettled = False


def is_lagging(progress: FollowerProgress, log_end_offset: int, now_ns: int, max_lag_ns: int, max_lag_records: int) -> bool:
    """Return whether an ISR member should leave the ISR because of its lag.

    It was not caught up for more than ``max_lag_ns``, or is more than ``max_lag_records`` behind ``log_end_offset`` (0: no
    limit).
    """
    if now_ns - progress.caught_up_ns > max_lag_ns:
        return True
    if max_lag_records == 0 or progress.position is None:
        return False
    return log_end_offset - 1 - progress.position > max_lag_records


def makes_progress(progress: FollowerProgress, now_ns: int, max_lag_ns: int) -> bool:
    """Return whether the flushed offset of the follower has risen within the last ``max_lag_ns`` nanoseconds."""
    return progress.position is not None and progress.progressed_ns > 0 and now_ns - progress.progressed_ns <= max_lag_ns


def has_lost(progress: FollowerProgress, high_watermark: int) -> bool:
    """Return whether an ISR member lacks records that it had acknowledged, because its flushed offset is below the HW.

    The HW is the minimum of the acknowledged offsets of the ISR [D3].
    """
    return progress.position is not None and progress.position < high_watermark


def lossy_replicas(
    followers: Mapping[str, FollowerProgress], electable_replicas: Collection[str], high_watermark: int
) -> frozenset[str]:
    """Return the ``electable_replicas`` that lack committed records. ``followers``: node id -> its progress."""
    return frozenset(r for r, progress in followers.items() if r in electable_replicas and has_lost(progress, high_watermark))


def may_join(progress: FollowerProgress, live_incarnation: int, high_watermark: int, epoch_start_offset: int) -> bool:
    """Return whether a replica outside the ISR may join, because it has all records that may be committed.

    ``live_incarnation``: incarnation of the replica's registered process. 0: the replica is fenced or unknown.
    """
    if live_incarnation == 0 or progress.incarnation != live_incarnation or progress.position is None:
        return False
    return progress.position >= high_watermark and progress.position + 1 >= epoch_start_offset


def _lagging_members_that_stay(
    slow: list[str], followers: Mapping[str, FollowerProgress], since_ns: int, missing: int
) -> set[str]:
    """Return the members of ``slow`` (lagging ISR members) that stay in the ISR.

    A member stays if it was caught up at ``since_ns`` or later. The ``missing`` members with the least lag also stay, because
    min_isr needs them.
    """
    best_first = sorted(slow, key=lambda replica: (-followers[replica].caught_up_ns, replica))
    return {replica for i, replica in enumerate(best_first) if i < missing or followers[replica].caught_up_ns >= since_ns}


def is_unchanged(shared: ReplicaContext, followers: Mapping[str, FollowerProgress], now_ns: int) -> bool:
    """Return whether ``wanted_isr`` certainly returns the current ISR, if no disk is slow. Idle partitions are checked often.

    That is so if each follower is a live ISR member with all records, and the leader waits for none of them. The arguments are
    those of ``wanted_isr``.
    """
    isr, live, newest = shared.metadata.isr, shared.live, shared.log.newest_offset
    if shared.node_id not in isr or len(followers) != len(isr) - 1:
        return False
    max_lag_ns = nanoseconds(shared.config.max_lag_time_s)
    for replica, progress in followers.items():
        if replica not in isr or replica not in live or progress.position is None or progress.position < newest:
            return False
        if progress.probed or now_ns - progress.caught_up_ns > max_lag_ns:
            return False
    return True


def wanted_isr(
    shared: ReplicaContext,
    followers: Mapping[str, FollowerProgress],
    epoch_start_offset: int,
    slow_disks: frozenset[str],
    now_ns: int,
) -> frozenset[str]:
    """Return the ISR that the lag policy requires now. The leader is always a member [C3].

    With the commit policy ``quorum``, the ISR keeps at least a majority of the replicas.

    Args:
        shared: State of the leader's replica: its log, the metadata, and the limits in the settings.
        followers: Node id -> progress of each follower.
        epoch_start_offset: First offset of the LeaderEpoch, inclusive.
        slow_disks: Replicas whose disks are far slower than those of the others.
        now_ns: Monotonic time, in nanoseconds.
    """
    metadata, log, config, live, leader = shared.metadata, shared.log, shared.config, shared.live, shared.node_id
    isr, min_isr, max_lag_ns = metadata.isr, metadata.min_isr, nanoseconds(config.max_lag_time_s)
    by_quorum = metadata.config.commit_policy is CommitPolicy.QUORUM
    least_count = len(metadata.state.replicas) // 2 + 1 if by_quorum else 1
    wanted, slow = {leader}, []
    for replica, progress in followers.items():
        if replica not in live or (not by_quorum and has_lost(progress, log.high_watermark)):
            continue
        if is_lagging(progress, log.log_end_offset, now_ns, max_lag_ns, config.max_lag_records):
            if replica in isr and makes_progress(progress, now_ns, max_lag_ns):
                slow.append(replica)
        elif replica in isr or (
            progress.was_caught_up and may_join(progress, live[replica], log.high_watermark, epoch_start_offset)
        ):
            wanted.add(replica)
    wanted |= _lagging_members_that_stay(slow, followers, now_ns - _PROGRESS_FACTOR * max_lag_ns, min_isr - len(wanted))
    silent = {replica for replica in wanted & isr - {leader} if followers[replica].probed}
    all_absent = all(followers[replica].absences >= ABSENCES for replica in silent)
    if all_absent and len(wanted) - len(silent) >= max(min_isr, MIN_REMAINING_ISR):
        wanted -= silent
    fast = wanted - slow_disks | {leader}
    if not by_quorum and len(fast) >= max(min_isr, MIN_REMAINING_ISR):
        wanted = fast
    leaving = sorted(isr - wanted, key=lambda replica: (-followers[replica].caught_up_ns, replica))
    return frozenset(wanted.union(leaving[: max(least_count - len(wanted), 0)]))


# ---- commit rule -----------------------------------------------------------------------------------------------------


def isr_high_watermark(
    positions: Mapping[str, int | None], maximal_isr: Collection[str], isr_count: int, min_isr: int, high_watermark: int
) -> int:
    """Return the new HW (inclusive) for the commit policy ``isr``: the smallest flushed offset of all possible ISR members.

    While an ISR change is in flight, the old and the new set both count [C8]. Example, ISR a b c at offsets 4, 3 and 2: the HW
    is 2. While the removal of c is in flight, it is still 2. With ISR a b it is 3.

    Args:
        positions: Node id -> newest flushed offset (inclusive). None or absent: unknown, and the HW stays.
        maximal_isr: Nodes that are ISR members, or may be by a change with unknown outcome.
        isr_count: Size of the ISR in the metadata.
        min_isr: Minimum size of the ISR. With fewer members the HW stays.
        high_watermark: Current HW, inclusive.
    """
    if isr_count < min_isr:
        return high_watermark
    lowest: int | None = None
    for replica in maximal_isr:
        position = positions.get(replica)
        if position is None:
            return high_watermark
        lowest = position if lowest is None or position < lowest else lowest
    return high_watermark if lowest is None else max(high_watermark, lowest)


def quorum_high_watermark(
    positions: Mapping[str, int | None],
    replicas: Collection[str],
    isr_count: int,
    min_isr: int,
    epoch_start_offset: int,
    high_watermark: int,
    maximal_electable: Collection[str] = (),
) -> int:
    """Return the new HW (inclusive) for the commit policy ``quorum``: the largest offset that a majority has flushed.

    At least ``min_isr`` replicas must have flushed the offset [D21]. The HW moves only to an offset of this epoch (figure 8 of
    the Raft paper), or to one that every electable replica has flushed in this epoch. Example, replicas a b c at offsets 4, 3
    and 2: the HW is 3 at once.

    Args:
        positions: Node id -> newest flushed offset (inclusive). None or absent: unknown.
        replicas: Node ids of the replicas. The majority, and at least ``min_isr`` of them, must have flushed the offset.
        isr_count: Size of the ISR in the metadata.
        min_isr: Minimum size of the ISR. With fewer members the HW stays.
        epoch_start_offset: Log end of the leader when its LeaderEpoch began. A majority commits only records from there on.
        high_watermark: Current HW, inclusive.
        maximal_electable: Electable replicas, and the nodes that a change in flight makes electable. Offsets that all of them have
            flushed are committed too. Empty: not known.
    """
    if isr_count < min_isr:
        return high_watermark
    if len(maximal_electable) >= max(min_isr, 1):
        high_watermark = isr_high_watermark(positions, maximal_electable, isr_count, min_isr, high_watermark)
    needed = max(len(replicas) // 2 + 1, min_isr)
    known = sorted((p for p in map(positions.get, replicas) if p is not None), reverse=True)
    if len(known) < needed:
        return high_watermark
    flushed_by_enough = known[needed - 1]
    return max(high_watermark, flushed_by_enough) if flushed_by_enough >= epoch_start_offset else high_watermark


def new_high_watermark(
    metadata: PartitionMetadata,
    change: IsrChange,
    positions: Mapping[str, int | None],
    epoch_start_offset: int,
    high_watermark: int,
) -> int:
    """Return the new HW (inclusive) by the commit policy. It is never below ``high_watermark``, the current one.

    Args:
        metadata: Metadata of the partition.
        change: Changes of the ISR and of the replica set that may be in effect. Each possible set must allow the HW.
        positions: Node id, also of the leader -> newest flushed offset (inclusive). None or absent: unknown.
        epoch_start_offset: First offset of the LeaderEpoch, inclusive.
        high_watermark: Current HW, inclusive.
    """
    maximal_isr, isr_count, min_isr = change.maximal(metadata.isr), len(metadata.isr), metadata.min_isr
    if metadata.config.commit_policy is not CommitPolicy.QUORUM:
        return isr_high_watermark(positions, maximal_isr, isr_count, min_isr, high_watermark)
    maximal_electable = metadata.electable_replicas | maximal_isr if metadata.electable_replicas else ()
    return min(
        quorum_high_watermark(positions, replicas, isr_count, min_isr, epoch_start_offset, high_watermark, maximal_electable)
        for replicas in change.replica_sets(metadata.state.replicas)
    )


# ---- slow disks ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _FlushTimes:
    """Flush durations of one replica, in nanoseconds."""

    recent: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT_FLUSHES))
    slow_ns: int = 0
    """Time spent in slow flushes, minus the time since then, in nanoseconds."""
    last_at_ns: int = 0
    slow_until_ns: int = 0
    slow_count: int = 0
    """Number of consecutive times that the replica was found slow."""


class SlowFlushes:
    """Detects replicas whose disks are far slower than the others, in one LeaderEpoch. Durations are in nanoseconds.

    One slow disk must not slow down every publish. But availability comes first: no replica leaves an ISR that would become
    smaller than ``min_isr``, or have only one member.

    With each fetch, a follower reports the duration of its last flush. A flush is slow if it takes at least ``slow_flush_s``
    and at least ``slow_flush_factor`` times the usual duration (a median) of the fastest other replica. The durations of slow
    flushes add up, and faster flushes reduce the sum. Each slow flush counts for at most half of ``slow_flush_time_s``. A
    replica that reaches ``slow_flush_time_s`` is slow for ``slow_flush_isr_backoff_s`` after its last slow flush, and twice as
    long each time that it happens again soon, up to 16 times.

    Example with the defaults (0.2 s, factor 8, 5 s, 20 s): the others need 4 ms, one follower 1.5 s. After four flushes it
    leaves the ISR. Its disk recovers, and 20 s later it is back. The next time it stays out for 40 s.
    """

    __slots__ = ("_backoff_ns", "_factor", "_least_ns", "_records", "_slow_time_ns")

    def __init__(self, config: ReplicationConfig) -> None:
        self._factor = config.slow_flush_factor
        self._least_ns = round(config.slow_flush_s * NS_PER_S)
        self._slow_time_ns = round(config.slow_flush_time_s * NS_PER_S)
        self._backoff_ns = round(config.slow_flush_isr_backoff_s * NS_PER_S)
        self._records: dict[str, _FlushTimes] = {}

    def flushed(self, replica: str, took_ns: int, now_ns: int, *, in_isr: bool = True) -> None:
        record = self._records.get(replica)
        if record is None:
            record = self._records[replica] = _FlushTimes()
        record.recent.append(took_ns)
        since_ns, record.last_at_ns = now_ns - record.last_at_ns, now_ns
        if took_ns < self._least_ns or not self._is_slow(replica, took_ns, now_ns):
            record.slow_ns = max(record.slow_ns - since_ns, 0)
            return
        record.slow_ns += min(took_ns, self._slow_time_ns // 2)
        if record.slow_ns >= self._slow_time_ns or record.slow_until_ns > now_ns or not in_isr:
            self._mark_slow(record, now_ns)

    def flush_running(self, replica: str, age_ns: int, now_ns: int) -> None:
        """Record that a flush of ``replica`` has run for ``age_ns`` and has not ended.

        So a replica can be detected as slow before its flush ends.
        """
        record = self._records.get(replica)
        if record is not None and age_ns >= self._slow_time_ns and self._is_slow(replica, age_ns, now_ns):
            self._mark_slow(record, now_ns)

    def _mark_slow(self, record: _FlushTimes, now_ns: int) -> None:
        if record.slow_until_ns <= now_ns:
            long_ago = now_ns - record.slow_until_ns > _MAX_BACKOFF * self._backoff_ns
            record.slow_count = 1 if long_ago else record.slow_count + 1
        record.slow_ns = 0
        record.slow_until_ns = now_ns + self._backoff_ns * min(1 << (record.slow_count - 1), _MAX_BACKOFF)

    def _is_slow(self, replica: str, took_ns: int, now_ns: int) -> bool:
        """Return whether a flush of ``took_ns`` is slow compared with the fastest other replica.

        The result is False if the durations of no other replica are known.
        """
        limit_ns = self._limit_ns(replica, now_ns)
        return limit_ns is not None and took_ns >= limit_ns

    def _limit_ns(self, replica: str, now_ns: int) -> int | None:
        others = [self.usual_ns(other) for other in self._records if other != replica and not self.is_slow(other, now_ns)]
        known = [usual_ns for usual_ns in others if usual_ns is not None]
        if not known or not self._factor:
            return None
        return max(self._least_ns, round(self._factor * min(known)))

    def usual_ns(self, replica: str) -> int | None:
        """Return the median duration of the last flushes of ``replica``, in nanoseconds. None: there were too few."""
        record = self._records.get(replica)
        return median_low(record.recent) if record is not None and len(record.recent) >= _MIN_FLUSHES else None

    def last_ns(self, replica: str) -> int:
        record = self._records.get(replica)
        return record.recent[-1] if record is not None else 0

    def is_slow(self, replica: str, now_ns: int) -> bool:
        record = self._records.get(replica)
        return record is not None and record.slow_until_ns > now_ns

    def slow_until_ns(self) -> Sequence[int]:
        """Return the monotonic times until which replicas count as slow, in nanoseconds. Some may be in the past."""
        return [record.slow_until_ns for record in self._records.values() if record.slow_until_ns]

    def slow(self, now_ns: int) -> frozenset[str]:
        return frozenset(replica for replica, record in self._records.items() if record.slow_until_ns > now_ns)

    def fast(self, replicas: Iterable[str], now_ns: int) -> list[str]:
        """Return those of ``replicas`` that do not count as slow at ``now_ns`` and have had enough flushes for a comparison."""
        fast_replicas = []
        for replica in replicas:
            usual_ns, limit_ns = self.usual_ns(replica), self._limit_ns(replica, now_ns)
            if usual_ns is None or self.is_slow(replica, now_ns):
                continue
            if usual_ns < self._least_ns or limit_ns is None or usual_ns < limit_ns:
                fast_replicas.append(replica)
        return fast_replicas

    def keep(self, replicas: Iterable[str]) -> None:
        replica_set = frozenset(replicas)
        for replica in [replica for replica in self._records if replica not in replica_set]:
            del self._records[replica]


def slow_to_exclude(leader: str, isr: frozenset[str], slow: frozenset[str]) -> frozenset[str]:
    """Return the nodes of ``slow`` that must not be ISR members, so that commits become faster.

    If ``leader`` itself is slow, no ISR member leaves. Then only slow nodes outside of ``isr`` are returned.
    """
    return slow - isr if leader in slow else slow


def fast_successor(
    fast: Iterable[str],
    followers: Mapping[str, FollowerProgress],
    live: Mapping[str, int],
    *,
    needed: int,
    now_ns: int,
    max_lag_ns: int,
) -> str:
    """Return the node that should lead instead of a leader with a slow disk, or '' if there is none.

    It is the one of the ``fast`` ISR members with the most records.

    Args:
        fast: ISR members whose disks are not slow.
        followers: Node id -> progress of each follower.
        live: Node id -> incarnation of each node that is not fenced.
        needed: Minimum number of fast members. With fewer, the HW would not rise faster, and the result is ''.
        now_ns: Monotonic time, in nanoseconds.
        max_lag_ns: Longest time that the node may be behind the log end, in nanoseconds.
    """
    able = [
        replica
        for replica in fast
        if replica in live
        and (progress := followers.get(replica)) is not None
        and progress.position is not None
        and now_ns - progress.caught_up_ns <= max_lag_ns
    ]
    if len(able) < needed:
        return ""
    return min(able, key=lambda replica: (-(followers[replica].position or 0), replica))


def standby_successor(node_id: str, isr: frozenset[str], live: Mapping[str, int], request_times_ns: Mapping[str, int]) -> str:
    """Return the live ISR member that should lead instead of ``node_id``: the one with the latest request. '': there is none.

    ``live``: node id -> its incarnation. ``request_times_ns``: follower -> monotonic time of its last request.
    """
    able = [replica for replica in sorted(request_times_ns) if replica in isr and replica in live and replica != node_id]
    return max(able, key=lambda replica: request_times_ns[replica], default="")


# ---- followers -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FollowerProgress:
    """Position and state of one follower in this LeaderEpoch, as the leader knows them. Each fetch sets it, up or down [D18].

    A position counts only for one LeaderEpoch and one incarnation of the follower's node. If the node restarts, the position is
    forgotten, because the new process may have lost flushed records [D6, C12]. Times are monotonic nanoseconds.
    """

    caught_up_ns: int
    """Monotonic time when the follower was last at the leader's log end. Initially: the start of the leadership."""
    copy_epoch: int = 0
    """Number of the copy by which the replica joined or which the learner makes now. 0: none."""
    incarnation: int = 0
    """Incarnation of the process that this position belongs to. 0: unknown."""
    live: bool = False
    """True if the follower's node has a live session."""
    position: int | None = None
    """Newest offset that the follower has flushed, inclusive. None: unknown in this LeaderEpoch."""
    was_caught_up: bool = False
    """True if the follower reached the log end in this LeaderEpoch with this process, after it last left the ISR."""
    in_isr: bool = False
    """True if the follower is in the ISR in the image."""
    last_fetch_ns: int = 0
    last_contact_ns: int = 0
    """Monotonic time of the follower's last request of any kind. Initially: the start of the leadership."""
    absences: int = 0
    """Number of consecutive probes without responders since the follower's last fetch."""
    probed: bool = False
    """True if NATS was asked about the follower since its last fetch."""
    progressed_ns: int = 0
    """Monotonic time when the follower's position last rose. Initially a time in the distant past, which means never."""
    mark_end_offset: int = -1
    """Log end of the leader at ``mark_ns``, exclusive, that the follower has not reached yet. -1: none."""
    mark_ns: int = 0
    log_end_offset_at_last_fetch: int = 0
    """Log end of the leader when the follower last fetched, exclusive."""
    last_request_id: int = 0
    """Id of the follower's newest valid request. A lower id means an outdated request."""
    last_request_ns: int = 0
    """Arrival time of the follower's last request. A confirmed wait does not change it, but changes ``last_fetch_ns``."""
    doubted_ns: int | None = None
    """Arrival time of the first request whose id was rejected since the last valid one. None: there is none."""
    sent_high_watermark: int = -2
    """High watermark in the last answer or notice to the follower. -2: nothing was sent."""
    notice_since_ns: int = 0
    """Monotonic time since which the follower waits for an answer or for the current HW. 0: it does not wait."""

    def set_live(self, incarnation: int, now_ns: int) -> None:
        """Set the incarnation of the follower's registered process. 0: the follower's node is fenced or unknown."""
        if incarnation and not (self.live and incarnation == self.incarnation):
            self.last_contact_ns = now_ns
        self.live = incarnation > 0
        if incarnation:
            self.set_incarnation(incarnation)

    def set_incarnation(self, incarnation: int) -> None:
        """Forget the follower's position if ``incarnation`` is another process than before."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self.last_request_id, self.doubted_ns = 0, None
            self._forget()

    def set_in_isr(self, in_isr: bool) -> None:
        """Set whether the metadata shows the follower in the ISR.

        A follower that left must fetch before it may return, because its disk may have failed.
        """
        if self.in_isr and not in_isr:
            self.was_caught_up = False
        self.in_isr = in_isr

    def set_copy_epoch(self, copy_epoch: int) -> None:
        """Set the number of the copy by which the follower joins or has joined the partition. 0: none.

        A new copy has a new log, so the follower's position is forgotten.
        """
        if copy_epoch and copy_epoch != self.copy_epoch:
            self.copy_epoch = copy_epoch
            self._forget()

    def _forget(self) -> None:
        self.position = None
        self.was_caught_up = False
        self.progressed_ns, self.mark_end_offset = 0, -1
        self.sent_high_watermark, self.notice_since_ns = -2, 0

    def record_sent_high_watermark(self, high_watermark: int) -> None:
        self.sent_high_watermark, self.notice_since_ns = high_watermark, 0

    def mark_stale(self, now_ns: int) -> None:
        """Note ``now_ns`` as the time since which the follower lacks the current HW. An earlier noted time stays."""
        self.notice_since_ns = self.notice_since_ns or now_ns

    def accepts_request_id(self, request_id: int, now_ns: int) -> bool:
        """Return whether ``request_id`` is plausible as the id of the follower's next request: higher than the last one, but not
        too high.

        After some time without plausible requests, any id is accepted, because the last id may have come from another sender.
        """
        reach = self.last_request_id + max(now_ns - self.last_request_ns, 0) + REACH_NS
        if not self.last_request_id or self.last_request_id < request_id <= reach:
            return True
        if self.doubted_ns is None:
            self.doubted_ns = now_ns
        return now_ns - self.doubted_ns > REQUEST_ID_RESET_NS

    def fetched(self, offset: int, request_id: int, leader_end_offset: int, now_ns: int) -> None:
        """Record a valid fetch, which acknowledges all records up to ``offset`` (inclusive).

        If ``offset`` is at the leader's log end, the follower is caught up now. Otherwise it counts as caught up at an earlier
        time at which the log ended there. So its lag behind a busy leader is known in seconds [L8]. ``leader_end_offset``: log
        end of the leader, exclusive.
        """
        if offset + 1 >= leader_end_offset:
            self.caught_up_ns, self.was_caught_up = now_ns, True
        elif self.position is not None and offset + 1 >= self.log_end_offset_at_last_fetch:
            self.caught_up_ns, self.was_caught_up = max(self.caught_up_ns, self.last_fetch_ns), True
        elif 0 <= self.mark_end_offset <= offset + 1:
            self.caught_up_ns, self.was_caught_up = max(self.caught_up_ns, self.mark_ns), True
        if self.mark_end_offset <= offset + 1:
            self.mark_end_offset, self.mark_ns = leader_end_offset, now_ns
        if self.position is not None and offset > self.position:
            self.progressed_ns = now_ns
        self.position = offset
        self.last_request_id, self.last_request_ns, self.doubted_ns = request_id, now_ns, None
        self.last_fetch_ns = now_ns
        self.absences, self.probed = 0, False
        self.log_end_offset_at_last_fetch = leader_end_offset

    def still_waits(self, now_ns: int) -> None:
        """Record the waiting fetch of the follower as a new fetch at the log end. It keeps its request id."""
        self.caught_up_ns, self.was_caught_up = now_ns, True
        self.last_fetch_ns = self.last_contact_ns = now_ns
        self.absences, self.probed = 0, False
