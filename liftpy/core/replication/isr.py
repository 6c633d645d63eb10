"""The commit rule: from who has flushed what to the high watermark. Pure functions, no state.

Goal: a record at or below HW survives every election that the metadata group can hold, and is the same on each replica.
Constraint: positions count only when they were acknowledged in the current LeaderEpoch by the follower's current incarnation
(``progress.py`` sees to that; an unknown position is None) [D6]; HW never falls [D8]; with fewer than ``min_isr`` members in
the ISR it does not move [D20].

``isr``: a leader is elected from the ISR only, so HW is the smallest position in the MAXIMAL ISR: while an ISR change is in
flight the old and the new set both count, since either may be the one that an election uses [C8].

``quorum``: a leader is elected by the best (last epoch, newest offset) of any majority of the replica set, so HW is the
largest offset that a majority has flushed, at least ``min_isr`` of them [D21]. A majority that holds only records of EARLIER
epochs commits nothing: a replica outside of it may hold a record of a later, failed epoch at the same offset and win the next
election by it (the classical counter-example, figure 8 of the Raft paper). So HW moves only to an offset that lies in this
epoch; then everything before it is committed with it.
Or to one that EVERY replica which may be elected has flushed in this epoch: nobody is outside of it then, so that after an
election HW reaches the log's end without another record.

Worked example, isr {a, b, c} with newest offsets a=4, b=3, c=2: HW 2. While the removal of c is in flight: still 2. Once the
metadata shows isr {a, b}: 3. Policy quorum, majority 2 of 3: HW 3 at once, if the epoch began at or below offset 3.

IsrChange: the leader's one ISR change in flight, and the maximal ISR while its outcome is not known [C4, C8].

A change may take the learner into the replica set, or a replica out of it. Until the image shows a higher Epoch the sets before and
after it both count as well: by ``quorum`` a majority of each is needed.

The metadata group decides by compare-and-set on the partition's Epoch, so of all attempts made on one Epoch at most one takes
effect. Until the image shows a higher Epoch, any of them may be the ISR that an election uses, so all their members count.
A refusal ends an attempt only when no earlier one on the same Epoch has an unknown outcome: the refusal may mean that the
earlier one took effect. An unsettled Epoch is settled by another attempt, which either wins or loses to the first; both
raise the Epoch.

The lag policy: which ISR the leader wants. Pure functions over ``FollowerProgress``.

Goal: the ISR is the set of replicas that follow; one that stopped must not hold HW for longer than ``max_lag_time_s``.
Constraint: who joins holds everything that is or may be committed, or an election could choose it and lose records:
at or past HW AND at or past the epoch's start, by a fetch in this LeaderEpoch under the incarnation that is live now [C6, D19].
(A new leader's own HW lags behind the true one until HW passes the epoch's start: at or past HW alone is not enough.)
Algorithm: leave when fenced, or not caught up for ``max_lag_time_s``, or (off by default) more than ``max_lag_records`` behind;
or ask for what they had acknowledged, which the disk then has lost (a flipped bit in the last batch looks like a torn write, and
recovery cuts it); or when they hold HW back and twice in a row nobody listened for them on the bus: the process has ended or lost its
connection, and neither its session nor the lag time need be waited for. For absence alone nobody leaves unless that frees HW:
all who hold it back are absent and go together, and as many stay as ``min.isr`` wants, two at least, so that a bus that is just
coming back leaves no leader alone;
Load alone shortens no ISR [A11]: a follower that makes progress is not out of sync because a fast leader is ahead of it, and the
leader is held to a bound of what it may have uncommitted (``intake``). Such a follower stays for ``_PATIENCE`` times as long; then it
is the follower that is too slow, and it leaves. But lag alone never removes one that makes progress and that ``min.isr`` needs: HW
would stand still, and nothing would be gained.
Nor is a leader that hears nobody, of two or more, left alone: it may be deaf, and could make way for nobody then. It asks for a
successor first (``leader``), and goes on alone when none has come.
Whose disk is far slower than the others' (``slow_flushes``) leaves, and does not join, as long as ``min.isr`` members stay without it,
two at least; where they do not, it is welcome, slow as it is.
Join by the constraint, and only after having caught up within ``max_lag_time_s``, so that it does not leave again at once [L8].

With the commit policy ``quorum`` nobody leaves an ISR that would be smaller than a majority of the replica set: HW does not wait for
slow members there, and an election needs that many answers from the ISR.

Worked example: HW 40, epoch start 50, log end 60. A follower at newest offset 45 has log end 46 < 50: it stays out. At 49, log
end 50, it joins (if it was caught up lately), and HW then waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from liftpy.config import CommitPolicy
from liftpy.core.replication.follower_progress import FollowerProgress


def isr_high_watermark(
    positions: Mapping[str, int | None], maximal_isr: Collection[str], isr_count: int, min_isr: int, high_watermark: int
) -> int:
    """New HW, inclusive. ``positions``: newest flushed offset (inclusive) by replica, None or absent when unknown."""
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
    may_lead: Collection[str] = (),
) -> int:
    """New HW, inclusive. ``epoch_start_offset``: the leader's log end when it began to lead; ``may_lead``: who may be elected
    next, or have become so by a change in flight; empty: not known."""
    if isr_count < min_isr:
        return high_watermark
    if len(may_lead) >= max(min_isr, 1):
        high_watermark = isr_high_watermark(positions, may_lead, isr_count, min_isr, high_watermark)
    needed = max(len(replicas) // 2 + 1, min_isr)
    known = sorted((p for p in map(positions.get, replicas) if p is not None), reverse=True)
    if len(known) < needed:
        return high_watermark
    flushed_by_enough = known[needed - 1]
    return max(high_watermark, flushed_by_enough) if flushed_by_enough >= epoch_start_offset else high_watermark


def new_high_watermark(
    policy: CommitPolicy,
    positions: Mapping[str, int | None],
    *,
    replicas: Collection[str],
    isr: Collection[str],
    maximal_isr: Collection[str],
    min_isr: int,
    epoch_start_offset: int,
    high_watermark: int,
    may_lead: Collection[str] = (),
) -> int:
    """HW after the leader looked at all positions, its own included; never below ``high_watermark``."""
    if policy is CommitPolicy.QUORUM:
        heirs = frozenset(may_lead).union(maximal_isr) if may_lead else ()
        return quorum_high_watermark(positions, replicas, len(isr), min_isr, epoch_start_offset, high_watermark, heirs)
    return isr_high_watermark(positions, maximal_isr, len(isr), min_isr, high_watermark)


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
        """Everyone who is, or may have become, a member."""
        return isr | self.possible if self.possible else isr

    def replica_sets(self, replicas: Collection[str]) -> Iterator[Collection[str]]:
        """Every replica set that there is, or may be."""
        yield replicas
        yield from self.sets

    def proposed(self, isr: frozenset[str], replicas: frozenset[str] | None = None) -> None:
        """An attempt leaves; ``replicas``: the set that it leads to, None: the same."""
        self.possible |= isr
        if replicas is not None:
            self.sets |= {replicas}
        self.in_flight = True

    def refused(self, retry_at_ns: int) -> None:
        """The group refused the attempt."""
        self.in_flight = False
        self.retry_at_ns = retry_at_ns
        if not self.unsettled:
            self.possible, self.sets = frozenset(), frozenset()

    def unanswered(self, retry_at_ns: int) -> None:
        """Nobody knows: keep counting its members."""
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
    """Whether a member of the ISR no longer holds what HW was raised by: HW is the least that the members acknowledged [D3]."""
    return progress.position is not None and progress.position < high_watermark


def have_lost(followers: Mapping[str, FollowerProgress], heirs: Collection[str], high_watermark: int) -> frozenset[str]:
    """Those of ``heirs``, who count as complete, that are not. Outside the ISR too: HW has stood still since they left it."""
    return frozenset(r for r, progress in followers.items() if r in heirs and has_lost(progress, high_watermark))


def may_join(progress: FollowerProgress, live_incarnation: int, high_watermark: int, epoch_start_offset: int) -> bool:
    """Whether a replica outside the ISR holds all that may be committed. ``live_incarnation`` 0: fenced or unknown."""
    if live_incarnation == 0 or progress.incarnation != live_incarnation or progress.position is None:
        return False
    return progress.position >= high_watermark and progress.position + 1 >= epoch_start_offset


def _staying(slow: list[str], followers: Mapping[str, FollowerProgress], since_ns: int, missing: int) -> set[str]:
    """Of the members that lag and get on, those that stay: caught up since ``since_ns``, or ``missing`` for min.isr."""
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
