"""Who leads next: the states of an election and the choice of a candidate ("Electing a leader" of the protocol).

Goal: after the loss of a leader, the member of the ISR that has most leads next, and nothing committed is lost.

Constraint: only the ISR as of apply is eligible [C5], and of it only who is live, not the deposed leader, not passed over
in this election, and not known to have lost data [C10]. When nobody of it is, those are who left it while HW stood still,
because they left fewer than ``min.isr`` behind: they hold all that was committed, too. Every candidate gets a LeaderEpoch of
its own [C2]. The ISR is frozen until the end, but for a member that comes back incomplete [C7]. With the commit policy
``quorum`` any majority of the replica set may hold a committed record: every complete replica is eligible, a majority must
have told its position in this very election, in which it follows nobody, and the best of them is taken; without a majority
only the last leader itself will do. Who has been passed over, as the leader of a planned transfer is, tells like the others, if
so many others have told that no majority is without one of them: so one of two replicas can hand over to the other.

Algorithm::

                     one eligible, or all told their positions
    ONLINE --begin--> ELECTION --------conclude--------> CANDIDATE_FOUND --finish--> ONLINE
      ^                  |                                 |        ^ |
      |                  | nobody is eligible     pass_over|        | | next candidate
      |                  v                                 v        +-+
      |               OFFLINE <----------------------- nobody left
      +------------------+ a member of the ISR comes back: begin

Candidates are ranked by (last epoch, newest offset) downwards, those who did not tell last; then whoever led last, which has only
restarted; then by the number of partitions that they lead; then by replica order.

Worked example: replicas and ISR a b c, a leads and dies. b told (epoch 4, offset 90), c (epoch 4, offset 93). c is the
candidate in a new LeaderEpoch; b follows it. c makes no progress: b is the candidate in the next LeaderEpoch, and
succeeds: Online, leader b, ISR b c.
"""

from __future__ import annotations

from dataclasses import replace

from liftpy.cluster.draft import Draft
from liftpy.cluster.image import LeaderReport, StreamImage
from liftpy.partition import MoveReason, PartitionState, PartitionStatus


def is_quorum(stream: StreamImage) -> bool:
    """Whether a majority of the replica set commits, and not the ISR."""
    return stream.commits_by_quorum


def eligible(draft: Draft, stream: StreamImage, partition: PartitionState) -> tuple[str, ...]:
    """Who may become the leader in this election, in replica order: of the ISR, and else of those that are as complete."""
    able = [
        node_id
        for node_id in stream.may_lead(partition)
        if node_id != partition.deposed and node_id not in partition.passed_over and draft.is_live(node_id)
    ]
    members = able if is_quorum(stream) else [node_id for node_id in able if node_id in partition.isr]
    return tuple(members or able)


def begin(
    draft: Draft, stream: StreamImage, partition: PartitionState, deposed: str = "", report: LeaderReport | None = None
) -> PartitionState:
    """An election without ``deposed`` ('': everyone of the ISR may win), as far as it gets at once; ``report`` began it."""
    reports = _answers(draft, stream, partition) | ({report.witness: report} if report else {}) if deposed else {}
    started = replace(partition, leader="", candidate="", passed_over=(), deposed=deposed, status=PartitionStatus.ELECTION)
    told = {} if is_quorum(stream) else reports  # what was told before the election is no promise to follow nobody
    return _conclude_if_all_told(draft, stream, started, told)


def answered(
    draft: Draft, stream: StreamImage, partition: PartitionState, report: LeaderReport | None = None
) -> PartitionState:
    """An election after one more ``report``, or after the set of the eligible has changed."""
    told = _answers(draft, stream, partition)
    if report is not None:
        told[report.witness] = report
    return _conclude_if_all_told(draft, stream, partition, told)


def conclude(draft: Draft, stream: StreamImage, partition: PartitionState) -> PartitionState:
    """The election's candidate from what is known now: positions were waited for long enough."""
    return _choose(draft, stream, partition, _answers(draft, stream, partition))


def pass_over(draft: Draft, stream: StreamImage, partition: PartitionState) -> PartitionState:
    """The candidate failed: the next one, or Offline when there is none."""
    failed = partition.candidate
    rest = replace(partition, candidate="", passed_over=(*partition.passed_over, failed), status=PartitionStatus.ELECTION)
    if is_quorum(stream):
        return _conclude_if_all_told(draft, stream, rest, {})
    return _choose(draft, stream, rest, {})


def transfer(draft: Draft, stream: StreamImage, partition: PartitionState, node_id: str = "") -> PartitionState | None:
    """A planned change of leader to ``node_id`` ('': the best other member), or None when there is nobody to take over.

    The old leader is alive and stays in the ISR; it is the candidate again if the others fail.
    """
    others = [n for n in eligible(draft, stream, partition) if n != partition.leader]
    if node_id and node_id not in others:
        return None
    if is_quorum(stream):
        if len(others) < _overlapping(stream, partition) or len(others) + 1 < _needed(stream, partition):
            return None
        return replace(partition, leader="", passed_over=(partition.leader,), status=PartitionStatus.ELECTION)
    if not others:
        return None
    chosen = node_id or min(others, key=lambda n: (draft.leader_count(n), partition.replicas.index(n)))
    return propose(draft, partition, chosen)


def propose(draft: Draft, partition: PartitionState, candidate: str) -> PartitionState:
    """``candidate`` promotes itself in a new LeaderEpoch."""
    draft.appointed(candidate)
    return replace(
        partition,
        leader="",
        candidate=candidate,
        leader_epoch=draft.next_leader_epochs(),
        status=PartitionStatus.CANDIDATE_FOUND,
    )


def finish(stream: StreamImage, partition: PartitionState) -> PartitionState:
    """Online, led by the candidate, in one change. One that may lack data is the only member from then on [C11]."""
    candidate = partition.candidate
    unclean = candidate in partition.incomplete
    staying = {candidate} if unclean else {candidate, *partition.isr} - {partition.deposed, *partition.incomplete}
    elected = stream.with_isr(partition, staying, lost=(partition.deposed,))  # it may keep what was refused since [A2]
    return replace(
        elected,
        leader=candidate,
        candidate="",
        complete=() if unclean else elected.complete,
        status=PartitionStatus.ONLINE,
        passed_over=(),
        deposed="",
        incomplete=tuple(node for node in partition.incomplete if node not in staying),
        unclean_elected=partition.unclean_elected or unclean,
        asked_start=0 if unclean else partition.asked_start,  # offsets are given anew, below it too
        purges=() if unclean else partition.purges,
        moved_for=MoveReason.BY_HAND if partition.wants_leader == candidate else partition.moved_for,
    )


def offline(partition: PartitionState) -> PartitionState:
    """Nobody can lead; the ISR stays as it was, and any member that comes back is eligible."""
    return replace(partition, leader="", candidate="", passed_over=(), deposed="", status=PartitionStatus.OFFLINE)


def _conclude_if_all_told(
    draft: Draft, stream: StreamImage, partition: PartitionState, told: dict[str, LeaderReport]
) -> PartitionState:
    candidates = eligible(draft, stream, partition)
    tellers = _tellers(draft, stream, partition)
    heard = sum(node_id in told for node_id in tellers)
    waiting = any(node_id not in told for node_id in candidates) or heard < _needed(stream, partition)
    enough = len(candidates) >= _overlapping(stream, partition) and len(tellers) >= _needed(stream, partition)
    if waiting and enough and (len(candidates) > 1 or is_quorum(stream)):
        return partition
    return _choose(draft, stream, partition, told)


def _choose(draft: Draft, stream: StreamImage, partition: PartitionState, told: dict[str, LeaderReport]) -> PartitionState:
    candidates = eligible(draft, stream, partition)
    if is_quorum(stream) and not _may_decide(draft, stream, partition, told):
        candidates = tuple(node_id for node_id in candidates if node_id == partition.last_leader)
    if not candidates:
        return offline(partition)

    def rank(node_id: str) -> tuple[int, int, bool, int, int]:
        report = told.get(node_id)
        position = (report.last_epoch, report.newest_offset) if report else (-1, -2)
        another = node_id != partition.last_leader
        return -position[0], -position[1], another, draft.leader_count(node_id), partition.replicas.index(node_id)

    return propose(draft, partition, min(candidates, key=rank))


def _may_decide(draft: Draft, stream: StreamImage, partition: PartitionState, told: dict[str, LeaderReport]) -> bool:
    heard = [node_id for node_id in _tellers(draft, stream, partition) if node_id in told]
    eligible_heard = [node_id for node_id in heard if node_id not in partition.passed_over]
    return len(heard) >= _needed(stream, partition) and len(eligible_heard) >= _overlapping(stream, partition)


def _needed(stream: StreamImage, partition: PartitionState) -> int:
    """How many must tell their positions."""
    return len(partition.replicas) // 2 + 1 if is_quorum(stream) else 1


def _overlapping(stream: StreamImage, partition: PartitionState) -> int:
    """How many of them must be eligible: by quorum one at least of every majority, of two replicas one, of three and of four two."""
    return (len(partition.replicas) + 1) // 2 if is_quorum(stream) else 1


def _tellers(draft: Draft, stream: StreamImage, partition: PartitionState) -> list[str]:
    """Whose positions count, if they tell them: the eligible, and by quorum who has been passed over."""
    if not is_quorum(stream):
        return list(eligible(draft, stream, partition))
    return [node for node in stream.may_lead(partition) if node != partition.deposed and draft.is_live(node)]


def _answers(draft: Draft, stream: StreamImage, partition: PartitionState) -> dict[str, LeaderReport]:
    """The positions that are held for this (leader, LeaderEpoch, status), of processes that still run."""
    held = draft.image.reports.get((stream.uid, partition.partition), ())
    return {report.witness: report for report in held if _is_current(draft, report)}


def _is_current(draft: Draft, report: LeaderReport) -> bool:
    node = draft.node(report.witness)
    return node is not None and node.incarnation == report.witness_incarnation
