"""Election requests: reports of followers and candidates, timers of the metadata leader, and commands of operators.

A witness is a follower that reports a silent leader. Each request names the state that it was based on. If that state
has changed since, the request changes nothing [C4, C9]. ``election.py`` computes the next state.
"""

from __future__ import annotations

from dataclasses import replace

from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata import election
from liftpy.core.metadata.image import LeaderReport, StreamImage
from liftpy.core.metadata.record_builder import Decision, RecordBuilder, RejectedError, refuse
from liftpy.core.metadata.records import LeaderReported
from liftpy.core.wire._pb import cluster_pb2 as pb

REPORT_WINDOW_NS = 4_000_000_000
"""Window for counting reports of one leadership, by the clock of the metadata leader, in nanoseconds."""


def report_leader(draft: RecordBuilder, request: pb.ReportLeader) -> Decision:
    """Process a follower's report that it cannot reach its leader. Start an election if enough followers report it [C9].

    During an election, the report contains the follower's position.
    """
    stream, partition = draft.find_partition(request)
    if not draft.rules.elections:
        return draft.store(stream, partition)
    _check_process(draft, request.witness, request.witnessIncarnation, partition)
    if (request.leader, request.leaderEpoch) != (partition.leader, partition.leader_epoch):
        return _stale(partition)
    if request.leaderLacks and partition.status is PartitionStatus.ONLINE:
        return _leader_lacks(draft, stream, partition, request)
    if request.witness == partition.leader or not _counts(stream, partition, request.witness):
        return refuse(pb.ControlResponse.INVALID, f"{request.witness!r} is no witness", partition)
    if partition.status is PartitionStatus.CANDIDATE_FOUND or partition.status is PartitionStatus.OFFLINE:
        return _stale(partition)
    report = _report(draft, request)
    record = LeaderReported(stream.uid, partition.partition, report)
    if partition.status is PartitionStatus.ELECTION:
        draft.add(record)
        return draft.store(stream, election.add_report(draft, stream, partition, report))
    if not (request.accusedAsked or _most_have_reported(draft, stream, partition, report)):
        draft.add(record)
        return draft.store(stream, partition)
    return _depose(draft, stream, partition, report)


def _leader_lacks(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, request: pb.ReportLeader) -> Decision:
    """Start an election because the leader lacks a committed record that another replica has.

    The leader's log went back in time, so the leader is no longer complete [C10, S15].
    """
    if request.witness == partition.leader or request.witness not in stream.may_lead(partition):
        return refuse(pb.ControlResponse.INVALID, f"{request.witness!r} may lack something itself", partition)
    lacking = {partition.leader, *partition.incomplete} if stream.commits_by_quorum else set(partition.incomplete)
    doubted = replace(partition, incomplete=tuple(node for node in partition.replicas if node in lacking))
    return _depose(draft, stream, doubted, _report(draft, request))


def give_up_leadership(draft: RecordBuilder, request: pb.GiveUpLeadership) -> Decision:
    """Start an election because the leader itself requests a successor.

    Without another complete replica, the leader stays. A leader with a slow disk names its successor and then follows
    it.
    """
    stream, partition = draft.find_partition(request)
    if not draft.rules.elections:
        return refuse(pb.ControlResponse.INVALID, "elections are switched off in this cluster", partition)
    _check_process(draft, request.leader, request.incarnation, partition)
    if (request.leader, request.leaderEpoch) != (partition.leader, partition.leader_epoch):
        return _stale(partition)
    if request.toward and partition.status is PartitionStatus.ONLINE:
        return _transfer(draft, stream, partition, request.toward)
    return _depose(draft, stream, partition)


def report_promotion(draft: RecordBuilder, request: pb.ReportPromotion) -> Decision:
    """Make a candidate the leader, because it reports that it has replayed its log. This finishes the election.

    Status, leader, epoch and ISR change together.
    """
    stream, partition = draft.find_partition(request)
    named = (request.candidate, request.leaderEpoch)
    if partition.status is PartitionStatus.ONLINE and named == (partition.leader, partition.leader_epoch):
        return draft.store(stream, partition)
    if not request.finished:
        return refuse(pb.ControlResponse.INVALID, "progress is for the metadata leader's timers and not logged", partition)
    if (*named, request.epoch) != (partition.candidate, partition.leader_epoch, partition.epoch):
        return _stale(partition)
    _check_process(draft, request.candidate, request.candidateIncarnation, partition)
    return draft.store(stream, election.finish(stream, partition))


def pass_over(draft: RecordBuilder, request: pb.PassOver) -> Decision:
    """Replace a candidate that showed no progress in time by the next candidate."""
    stream, partition = draft.find_partition(request)
    named = (request.candidate, request.leaderEpoch, request.epoch)
    if not partition.candidate or named != (partition.candidate, partition.leader_epoch, partition.epoch):
        return _stale(partition)
    return draft.store(stream, election.pass_over(draft, stream, partition))


def conclude_election(draft: RecordBuilder, request: pb.ConcludeElection) -> Decision:
    """Choose a candidate among the nodes that have reported their positions, because the time to wait for others is over."""
    stream, partition = draft.find_partition(request)
    if partition.status is not PartitionStatus.ELECTION or request.epoch != partition.epoch:
        return _stale(partition)
    return draft.store(stream, election.conclude(draft, stream, partition))


def elect_leader(draft: RecordBuilder, request: pb.ElectLeader) -> Decision:
    """Elect a leader by command of an operator [C11].

    An Online partition transfers its leadership. An Offline partition gets a leader, by unclean election if requested.
    """
    stream, partition = draft.find_partition(request)
    if not draft.rules.elections:
        return refuse(pb.ControlResponse.INVALID, "elections are switched off in this cluster", partition)
    if request.node and request.node not in partition.replicas:
        return refuse(pb.ControlResponse.INVALID, f"{request.node!r} is not among {list(partition.replicas)}", partition)
    if partition.status is PartitionStatus.ONLINE and not request.unclean:
        if partition.leader_to_elect and request.node not in ("", partition.leader_to_elect):
            partition = replace(partition, moved_for=MoveReason.BY_HAND)  # it overrules the rebalance
        return _transfer(draft, stream, partition, request.node)
    if partition.status is not PartitionStatus.OFFLINE:
        what = "only an Offline partition is elected uncleanly" if request.unclean else "an election is under way"
        return refuse(pb.ControlResponse.INVALID, f"{partition.status.name}: {what}", partition)
    if request.unclean:
        return _elect_uncleanly(draft, stream, partition, request.node)
    elected = election.begin(draft, stream, partition)
    if elected == partition:
        detail = "no member of the ISR that holds all acknowledged data is live"
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, detail, partition)
    return draft.store(stream, elected)


def drain_node(draft: RecordBuilder, request: pb.DrainNode) -> Steps[Decision]:
    """Transfer all leaderships of a node that stops cleanly. The answer contains the number of transfers."""
    node = draft.find_process(request.nodeId, request.incarnation)
    if not draft.rules.elections:
        return draft.done(pb.ControlResponse(detail="elections are switched off in this cluster"))
    moving = staying = 0
    for number, (stream, partition) in enumerate(draft.image.partitions_of(node.node_id), 1):
        if number % PER_STEP == 0:
            yield
        if partition.leader == node.node_id:
            moved = election.transfer(draft, stream, partition)
            staying += moved is None
            if moved is not None:
                moving += 1
                draft.change(stream, moved)
    return draft.done(pb.ControlResponse(detail=f"{moving} partitions move, {staying} have nobody to move to"))


def _transfer(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> Decision:
    chosen = node_id or partition.replicas[0]
    if chosen == partition.leader:
        return draft.store(stream, partition)
    moved = election.transfer(draft, stream, partition, chosen)
    if moved is None:
        return refuse(
            pb.ControlResponse.INVALID, f"{chosen!r} is not a live member of the ISR {list(partition.isr)}", partition
        )
    return draft.store(stream, moved)


def _elect_uncleanly(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> Decision:
    ranked = (*partition.isr, *partition.replicas)
    live = [replica for replica in ranked if draft.is_live(replica) and node_id in ("", replica)]
    if not live:
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, f"no live replica {node_id or list(partition.replicas)}", partition)
    doubtful = {live[0], *partition.incomplete}
    doubted = replace(partition, incomplete=tuple(node for node in partition.replicas if node in doubtful))
    return draft.store(stream, election.propose(draft, doubted, live[0]))


def _depose(
    draft: RecordBuilder, stream: StreamImage, partition: PartitionState, report: LeaderReport | None = None
) -> Decision:
    """Start an election without the current leader. Keep the leader if no other node may lead.

    ``report``: report that caused the election, None for another cause.
    """
    began = election.begin(draft, stream, partition, partition.leader, report)
    if began.status is PartitionStatus.OFFLINE:
        detail = f"nobody but {partition.leader!r} is live and holds all that was committed"
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, detail, partition)
    return draft.store(stream, began)


def _counts(stream: StreamImage, partition: PartitionState, witness: str) -> bool:
    """Return whether a report of ``witness`` about the partition's leader has an effect.

    Reports of ISR followers count. If the leader is the only ISR member, reports of all replicas count. In an election, reports of
    all nodes that may lead count.
    """
    if partition.status is PartitionStatus.ELECTION:
        return witness in partition.isr or witness in stream.may_lead(partition)
    return witness in (partition.isr if len(partition.isr) > 1 else partition.replicas)


def _most_have_reported(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, report: LeaderReport) -> bool:
    """Return whether more than half of the ISR followers, with ``report``, reported this leader as silent within the window [C9].

    A single follower is no majority: the leader is asked instead (``failure_reports.py``).
    """
    if len(partition.isr) <= 2:
        return False
    witnesses = {report.witness}
    for earlier in draft.image.reports.get((stream.uid, partition.partition), ()):
        node = draft.node(earlier.witness)
        current = node is not None and not node.fenced and node.incarnation == earlier.witness_incarnation
        same = (earlier.leader, earlier.leader_epoch) == (partition.leader, partition.leader_epoch)
        if current and same and earlier.witness in partition.isr and _within_window(earlier, report):
            witnesses.add(earlier.witness)
    return 2 * len(witnesses) > len(partition.isr) - 1


def _within_window(earlier: LeaderReport, report: LeaderReport) -> bool:
    return earlier.stamp_term == report.stamp_term and abs(report.stamp_ns - earlier.stamp_ns) <= REPORT_WINDOW_NS


def _report(draft: RecordBuilder, request: pb.ReportLeader) -> LeaderReport:
    return LeaderReport(
        witness=request.witness,
        witness_incarnation=request.witnessIncarnation,
        leader=request.leader,
        leader_epoch=request.leaderEpoch,
        last_epoch=request.lastEpoch,
        newest_offset=request.newestOffset,
        high_watermark=request.highWatermark,
        time_ns=draft.now_ns,
        stamp_ns=request.stampNs,
        stamp_term=request.stampTerm,
    )


def _check_process(draft: RecordBuilder, node_id: str, incarnation: int, partition: PartitionState) -> None:
    node = draft.image.nodes.get(node_id)
    if node is None or node.fenced or node.incarnation != incarnation:
        raise RejectedError(pb.ControlResponse.FENCED, f"{node_id!r} is not live as incarnation {incarnation}", partition)


def _stale(partition: PartitionState) -> Decision:
    detail = (
        f"{partition.status.name}, (leader, candidate, LeaderEpoch, Epoch) is "
        f"{(partition.leader, partition.candidate, partition.leader_epoch, partition.epoch)} now"
    )
    return refuse(pb.ControlResponse.STALE, detail, partition)
