"""Reconcile: where a follower cuts its log so that it is a prefix of its leader's [D9, D11, D12].

Goal: cut to the largest common prefix, without ever asking what HW is: HW lags one round trip, so a cut at it can drop what was
committed (KIP-101).
Algorithm: ask the leader for the follower's last epoch. It answers the largest epoch <= the asked one on its log, and that
epoch's end. Both logs hold the same records of an epoch up to the smaller end, since one leader wrote them in order; so cut
to min(that end, own end of that epoch). If the follower's last epoch then is the answered one, the logs agree; else ask again,
with an older epoch (one answer is not enough after several fast elections, KIP-279). Each round ends with a smaller epoch.

Worked example: own epochs (1, 0) (3, 10), log end 14; leader's (1, 0) (2, 8) (4, 12). Asked for 3, it answers (2, end 12). Own
end of "the largest epoch <= 2", which is 1, is 10: cut to 10. Own last epoch is 1, not 2: ask for 1; answer (1, end 8): cut
to 8. Now both have epoch 1 up to 8: agreed.

A log that has been compacted is only worth what stands up to its horizon with it: where it must be cut below that, and where it ends
below that (damage, or a fetch that was broken off) and the leader does not hold the records up to there, it starts afresh [D5].
"""

from __future__ import annotations

from liftpy.dataclass import dataclass
from liftpy.log.epochs import NO_EPOCH
from liftpy.log.horizon import Horizon
from liftpy.replica.events import EpochQueryAnswered
from liftpy.replica.local_log import LocalLog


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the log to ``end_offset`` (exclusive; the log's end: nothing to cut). ``agreed``: then it's the leader's prefix."""

    end_offset: int
    agreed: bool


@dataclass(frozen=True, slots=True)
class StartAfresh:
    """Nothing of the log can be kept: begin an empty one at ``start_offset``, the leader's log start [D26]."""

    start_offset: int


def reconcile(log: LocalLog, answer: EpochQueryAnswered) -> Cut | StartAfresh:
    """What one answer of the leader asks for. ``log`` is not empty."""
    if answer.leader_epoch == NO_EPOCH:
        return StartAfresh(answer.log_start_offset)
    leader_end_offset = answer.last_offset + 1
    _, own_end_offset = log.epochs.end_offset_for(answer.leader_epoch, log.log_end_offset)
    end_offset = min(leader_end_offset, own_end_offset)
    superseding_is_cut = end_offset < min(log.horizon.end_offset, log.log_end_offset)
    if end_offset <= log.log_start_offset or superseding_is_cut:
        return StartAfresh(answer.log_start_offset)
    return Cut(end_offset, log.epochs.epoch_at(end_offset - 1) == answer.leader_epoch)


def lacks_superseding(log: LocalLog) -> bool:
    """Whether the log ends below its horizon: if the leader does not hold what is missing, the log is worth nothing."""
    return log.log_end_offset < log.horizon.end_offset


def reaches(horizon: Horizon, answer: EpochQueryAnswered) -> bool:
    """Whether the leader, asked for the horizon's LeaderEpoch, holds the records below it: all are of that epoch or older ones."""
    return answer.leader_epoch != NO_EPOCH and answer.last_offset + 1 >= horizon.end_offset
