"""The lag policy: which ISR the leader wants. Pure functions over ``FollowerProgress``.

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

from collections.abc import Collection, Mapping

from liftpy.replica.progress import FollowerProgress

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
