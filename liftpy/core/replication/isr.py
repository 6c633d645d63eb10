"""ISR changes and the lag policy: which followers leave and join the ISR. Pure functions and the state of one ISR change.

``IsrChange``: the leader's one ISR change in flight [C4]. The metadata group decides by compare-and-set on the
partition's Epoch, so at most one attempt on an Epoch takes effect. Until the metadata shows a higher Epoch, the members
of all attempts count.

Lag policy: a follower leaves the ISR when

- its node is fenced, or it was not caught up for ``max_lag_time_s``, or it is more than ``max_lag_records`` behind,
- it asks again for records that it had acknowledged (its disk lost them),
- it holds back commits and NATS reported twice that its node is not connected, if at least ``min_isr`` members and two
  remain,
- its disk is far slower than the others (``slow_disk.py``), if at least ``min_isr`` members and two remain.

Load alone removes nobody [A11]: a follower that makes progress stays ``_PATIENCE`` times as long, and stays if
``min_isr`` needs it. A leader that receives nothing from any follower first asks for a successor, because it may itself
be cut off. With ``quorum`` the ISR never becomes smaller than a majority.

A follower joins when it is at or past the high watermark and the start of the epoch, by a fetch in this LeaderEpoch
[C6, D19], and was caught up within ``max_lag_time_s`` [L8]. Example: high watermark 40, epoch start 50, log end 60. A
follower at offset 45 stays out. At 49 (log end 50) it joins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from liftpy.core.replication.follower_progress import FollowerProgress


class IsrChange:
    """State of the attempts made on the current Epoch."""

    __slots__ = ("in_flight", "possible", "retry_at_ns", "sets", "unsettled")

    def __init__(self) -> None:
        self.possible: frozenset[str] = frozenset()
        """Members of every attempt on this Epoch whose outcome is not known."""
        self.sets: frozenset[frozenset[str]] = frozenset()
        """Other replica sets that there may be by an attempt on this Epoch."""
        self.in_flight = False
        """An answer, or after acceptance the image, is waited for."""
        self.unsettled = False
        """An attempt on this Epoch ended without an answer."""
        self.retry_at_ns = 0
        """Monotonic: no new attempt before."""

    def maximal(self, isr: frozenset[str]) -> frozenset[str]:
        """Return all nodes that are ISR members or may have become members."""
        return isr | self.possible if self.possible else isr

    def replica_sets(self, replicas: Collection[str]) -> Iterator[Collection[str]]:
        """Yield all replica sets that may be in effect."""
        yield replicas
        yield from self.sets

    def proposed(self, isr: frozenset[str], replicas: frozenset[str] | None = None) -> None:
        """An attempt leaves; ``replicas``: the set that it leads to, None: the same."""
        self.possible |= isr
        if replicas is not None:
            self.sets |= {replicas}
        self.in_flight = True

    def refused(self, retry_at_ns: int) -> None:
        """Note that the metadata group rejected the attempt."""
        self.in_flight = False
        self.retry_at_ns = retry_at_ns
        if not self.unsettled:
            self.possible, self.sets = frozenset(), frozenset()

    def unanswered(self, retry_at_ns: int) -> None:
        """Note that the result is unknown: the new members still count."""
        self.in_flight = False
        self.unsettled = True
        self.retry_at_ns = retry_at_ns

    def settled(self) -> None:
        """The image shows a higher Epoch: every attempt on the old one has won or lost, and the image says which."""
        self.possible, self.sets = frozenset(), frozenset()
        self.in_flight = self.unsettled = False


ABSENCES = 2
"""In a row: a connection that was reset is back by then."""
STAY_AT_LEAST = 2
_PATIENCE = 6
"""Times the lag time."""


def is_lagging(progress: FollowerProgress, log_end_offset: int, now_ns: int, max_lag_ns: int, max_lag_records: int) -> bool:
    """Whether a member of the ISR should leave it."""
    if now_ns - progress.caught_up_ns > max_lag_ns:
        return True
    if max_lag_records == 0 or progress.position is None:
        return False
    return log_end_offset - 1 - progress.position > max_lag_records


def gets_on(progress: FollowerProgress, now_ns: int, max_lag_ns: int) -> bool:
    """Whether it fetches, and has more each time."""
    return progress.position is not None and progress.progressed_ns > 0 and now_ns - progress.progressed_ns <= max_lag_ns


def has_lost(progress: FollowerProgress, high_watermark: int) -> bool:
    """Return whether an ISR member lacks records that it had acknowledged.

    The HW is the minimum of the acknowledged offsets [D3].
    """
    return progress.position is not None and progress.position < high_watermark


def have_lost(followers: Mapping[str, FollowerProgress], heirs: Collection[str], high_watermark: int) -> frozenset[str]:
    """Return the ``heirs`` that count as complete but lack committed records. It also checks nodes outside the ISR."""
    return frozenset(r for r, progress in followers.items() if r in heirs and has_lost(progress, high_watermark))


def may_join(progress: FollowerProgress, live_incarnation: int, high_watermark: int, epoch_start_offset: int) -> bool:
    """Return whether a replica outside the ISR has all records that may be committed.

    ``live_incarnation`` 0: fenced or unknown.
    """
    if live_incarnation == 0 or progress.incarnation != live_incarnation or progress.position is None:
        return False
    return progress.position >= high_watermark and progress.position + 1 >= epoch_start_offset


def _staying(slow: list[str], followers: Mapping[str, FollowerProgress], since_ns: int, missing: int) -> set[str]:
    """Return the lagging members that stay in the ISR: caught up since ``since_ns``, or ``missing`` for min_isr."""
    best_first = sorted(slow, key=lambda replica: (-followers[replica].caught_up_ns, replica))
    return {replica for i, replica in enumerate(best_first) if i < missing or followers[replica].caught_up_ns >= since_ns}


def wanted_isr(
    leader: str,
    isr: frozenset[str],
    followers: Mapping[str, FollowerProgress],
    live: Mapping[str, int],
    *,
    high_watermark: int,
    epoch_start_offset: int,
    log_end_offset: int,
    now_ns: int,
    max_lag_ns: int,
    max_lag_records: int,
    by_quorum: bool = False,
    replica_count: int = 1,
    min_isr: int = 1,
    slow_disks: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """The ISR as it should be now; the leader is always in it [C3]. ``by_quorum``: never less than a majority of the replicas."""
    least_count = replica_count // 2 + 1 if by_quorum else 1
    wanted, slow = {leader}, []
    for replica, progress in followers.items():
        if replica not in live or (not by_quorum and has_lost(progress, high_watermark)):
            continue
        if is_lagging(progress, log_end_offset, now_ns, max_lag_ns, max_lag_records):
            if replica in isr and gets_on(progress, now_ns, max_lag_ns):
                slow.append(replica)
        elif replica in isr or (
            progress.was_caught_up and may_join(progress, live[replica], high_watermark, epoch_start_offset)
        ):
            wanted.add(replica)
    wanted |= _staying(slow, followers, now_ns - _PATIENCE * max_lag_ns, min_isr - len(wanted))
    silent = {replica for replica in wanted & isr - {leader} if followers[replica].probed}
    all_absent = all(followers[replica].absences >= ABSENCES for replica in silent)
    if all_absent and len(wanted) - len(silent) >= max(min_isr, STAY_AT_LEAST):
        wanted -= silent
    fast = wanted - slow_disks | {leader}
    if not by_quorum and len(fast) >= max(min_isr, STAY_AT_LEAST):
        wanted = fast
    leaving = sorted(isr - wanted, key=lambda replica: (-followers[replica].caught_up_ns, replica))
    return frozenset(wanted.union(leaving[: max(least_count - len(wanted), 0)]))
