"""Elections: requests about leaders, and the states of an election ("Electing a leader" in the protocol). Pure.

Requests are reports of followers and candidates, timers of the metadata leader, and commands of operators. A witness is
a follower that reports a silent leader. Each request names the state that it was based on. If that state has changed
since, the request changes nothing [C4, C9].

After the loss of a leader, the ISR member with the most records leads next, and no committed record is lost. Only live
ISR members are eligible [C5], except the deposed leader, skipped candidates, and members that lost data [C10]. Every
candidate gets a LeaderEpoch of its own [C2]. The ISR does not change during the election. With the commit policy
``quorum`` every complete replica is eligible, and a majority must have reported its position in this election.

::

                     one eligible, or all have reported
    ONLINE --begin--> ELECTION --------conclude--------> CANDIDATE_FOUND --finish--> ONLINE
      ^                  |                                 |        ^ |
      |                  | none is eligible           skip|        | | next candidate
      |                  v                                 v        +-+
      |               OFFLINE <------------------------ none left
      +------------------+ a member of the ISR comes back: begin

Candidates are ranked by (last epoch, newest offset), then the last leader, then the number of led partitions, then
replica order.

Example: ISR a b c, a leads and fails. b reports (epoch 4, offset 90), c (epoch 4, offset 93). c is the candidate in a
new LeaderEpoch. If c makes no progress, b is the next candidate.
"""

from __future__ import annotations

from dataclasses import replace

from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder, RejectedError, refuse
from liftpy.core.metadata.image import LeaderReport, StreamImage
from liftpy.core.metadata.records import LeaderReported
from liftpy.core.wire._pb import cluster_pb2 as pb

REPORT_WINDOW_NS = 4_000_000_000
"""Window for counting reports of one leadership, by the clock of the metadata leader, in nanoseconds."""


def report_leader(builder: RecordBuilder, request: pb.ReportLeader) -> Decision:
    """Process a follower's report that it cannot reach its leader. Start an election if enough followers report it [C9].

    During an election, the report contains the follower's position.
    """
    stream, partition = builder.find_partition(request)
    if not builder.rules.elections:
        return builder.store(stream, partition)
    _check_process(builder, request.witness, request.witnessIncarnation, partition)
    if (request.leader, request.leaderEpoch) != (partition.leader, partition.leader_epoch):
        return _stale(partition)
    if request.leaderLacks and partition.status is PartitionStatus.ONLINE:
        return _leader_lacks(builder, stream, partition, request)
    if request.witness == partition.leader or not _counts(stream, partition, request.witness):
        return refuse(pb.ControlResponse.INVALID, f"{request.witness!r} is no witness", partition)
    if partition.status is PartitionStatus.CANDIDATE_FOUND or partition.status is PartitionStatus.OFFLINE:
        return _stale(partition)
    report = _report(builder, request)
    record = LeaderReported(stream.uid, partition.partition, report)
    if partition.status is PartitionStatus.ELECTION:
        builder.add(record)
        return builder.store(stream, add_report(builder, stream, partition, report))
    if not (request.accusedAsked or _most_have_reported(builder, stream, partition, report)):
        builder.add(record)
        return builder.store(stream, partition)
    return _depose(builder, stream, partition, report)


def _leader_lacks(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, request: pb.ReportLeader) -> Decision:
    """Start an election because the leader lacks a committed record that another replica has.

    The leader's log went back in time, so the leader is no longer complete [C10, S15].
    """
    if request.witness == partition.leader or request.witness not in stream.electable_replicas(partition):
        return refuse(pb.ControlResponse.INVALID, f"{request.witness!r} may lack something itself", partition)
    lacking = {partition.leader, *partition.incomplete} if stream.commits_by_quorum else set(partition.incomplete)
    doubted = replace(partition, incomplete=tuple(node for node in partition.replicas if node in lacking))
    return _depose(builder, stream, doubted, _report(builder, request))


def give_up_leadership(builder: RecordBuilder, request: pb.GiveUpLeadership) -> Decision:
    """Start an election because the leader itself requests a successor.

    Without another complete replica, the leader stays. A leader with a slow disk names its successor and then follows
    it.
    """
    stream, partition = builder.find_partition(request)
    if not builder.rules.elections:
        return refuse(pb.ControlResponse.INVALID, "elections are switched off in this cluster", partition)
    _check_process(builder, request.leader, request.incarnation, partition)
    if (request.leader, request.leaderEpoch) != (partition.leader, partition.leader_epoch):
        return _stale(partition)
    if request.toward and partition.status is PartitionStatus.ONLINE:
        return _transfer(builder, stream, partition, request.toward)
    return _depose(builder, stream, partition)


def report_promotion(builder: RecordBuilder, request: pb.ReportPromotion) -> Decision:
    """Make a candidate the leader, because it reports that it has replayed its log. This finishes the election.

    Status, leader, epoch and ISR change together.
    """
    stream, partition = builder.find_partition(request)
    named = (request.candidate, request.leaderEpoch)
    if partition.status is PartitionStatus.ONLINE and named == (partition.leader, partition.leader_epoch):
        return builder.store(stream, partition)
    if not request.finished:
        return refuse(pb.ControlResponse.INVALID, "progress is for the metadata leader's timers and not logged", partition)
    if (*named, request.epoch) != (partition.candidate, partition.leader_epoch, partition.epoch):
        return _stale(partition)
    _check_process(builder, request.candidate, request.candidateIncarnation, partition)
    return builder.store(stream, finish_election(stream, partition))


def pass_over(builder: RecordBuilder, request: pb.PassOver) -> Decision:
    """Replace a candidate that showed no progress in time by the next candidate."""
    stream, partition = builder.find_partition(request)
    named = (request.candidate, request.leaderEpoch, request.epoch)
    if not partition.candidate or named != (partition.candidate, partition.leader_epoch, partition.epoch):
        return _stale(partition)
    return builder.store(stream, skip_candidate(builder, stream, partition))


def conclude_election(builder: RecordBuilder, request: pb.ConcludeElection) -> Decision:
    """Choose a candidate among the nodes that have reported their positions, because the time to wait for others is over."""
    stream, partition = builder.find_partition(request)
    if partition.status is not PartitionStatus.ELECTION or request.epoch != partition.epoch:
        return _stale(partition)
    return builder.store(stream, _choose_now(builder, stream, partition))


def elect_leader(builder: RecordBuilder, request: pb.ElectLeader) -> Decision:
    """Elect a leader by command of an operator [C11].

    An Online partition transfers its leadership. An Offline partition gets a leader, by unclean election if requested.
    """
    stream, partition = builder.find_partition(request)
    if not builder.rules.elections:
        return refuse(pb.ControlResponse.INVALID, "elections are switched off in this cluster", partition)
    if request.node and request.node not in partition.replicas:
        return refuse(pb.ControlResponse.INVALID, f"{request.node!r} is not among {list(partition.replicas)}", partition)
    if partition.status is PartitionStatus.ONLINE and not request.unclean:
        if partition.leader_to_elect and request.node not in ("", partition.leader_to_elect):
            partition = replace(partition, moved_for=MoveReason.BY_HAND)  # it overrules the rebalance
        return _transfer(builder, stream, partition, request.node)
    if partition.status is not PartitionStatus.OFFLINE:
        what = "only an Offline partition is elected uncleanly" if request.unclean else "an election is under way"
        return refuse(pb.ControlResponse.INVALID, f"{partition.status.name}: {what}", partition)
    if request.unclean:
        return _elect_uncleanly(builder, stream, partition, request.node)
    elected = begin_election(builder, stream, partition)
    if elected == partition:
        detail = "no member of the ISR that holds all acknowledged data is live"
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, detail, partition)
    return builder.store(stream, elected)


def drain_node(builder: RecordBuilder, request: pb.DrainNode) -> Steps[Decision]:
    """Transfer all leaderships of a node that stops cleanly. The answer contains the number of transfers."""
    node = builder.find_process(request.nodeId, request.incarnation)
    if not builder.rules.elections:
        return builder.done(pb.ControlResponse(detail="elections are switched off in this cluster"))
    moving = staying = 0
    for number, (stream, partition) in enumerate(builder.image.partitions_of(node.node_id), 1):
        if number % PER_STEP == 0:
            yield
        if partition.leader == node.node_id:
            moved = transfer_leadership(builder, stream, partition)
            staying += moved is None
            if moved is not None:
                moving += 1
                builder.change(stream, moved)
    return builder.done(pb.ControlResponse(detail=f"{moving} partitions move, {staying} have nobody to move to"))


def _transfer(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> Decision:
    chosen = node_id or partition.replicas[0]
    if chosen == partition.leader:
        return builder.store(stream, partition)
    moved = transfer_leadership(builder, stream, partition, chosen)
    if moved is None:
        return refuse(
            pb.ControlResponse.INVALID, f"{chosen!r} is not a live member of the ISR {list(partition.isr)}", partition
        )
    return builder.store(stream, moved)


def _elect_uncleanly(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str) -> Decision:
    ranked = (*partition.isr, *partition.replicas)
    live = [replica for replica in ranked if builder.is_live(replica) and node_id in ("", replica)]
    if not live:
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, f"no live replica {node_id or list(partition.replicas)}", partition)
    doubtful = {live[0], *partition.incomplete}
    doubted = replace(partition, incomplete=tuple(node for node in partition.replicas if node in doubtful))
    return builder.store(stream, propose(builder, doubted, live[0]))


def _depose(
    builder: RecordBuilder, stream: StreamImage, partition: PartitionState, report: LeaderReport | None = None
) -> Decision:
    """Start an election without the current leader. Keep the leader if no other node may lead.

    ``report``: report that caused the election, None for another cause.
    """
    began = begin_election(builder, stream, partition, partition.leader, report)
    if began.status is PartitionStatus.OFFLINE:
        detail = f"nobody but {partition.leader!r} is live and holds all that was committed"
        return refuse(pb.ControlResponse.NOT_ENOUGH_NODES, detail, partition)
    return builder.store(stream, began)


def _counts(stream: StreamImage, partition: PartitionState, witness: str) -> bool:
    """Return whether a report of ``witness`` about the partition's leader has an effect.

    Reports of ISR followers count. If the leader is the only ISR member, reports of all replicas count. In an election, reports of
    ISR members and of electable replicas count. So an incomplete replica counts while it is the only ISR member.
    """
    if partition.status is PartitionStatus.ELECTION:
        return witness in partition.isr or witness in stream.electable_replicas(partition)
    return witness in (partition.isr if len(partition.isr) > 1 else partition.replicas)


def _most_have_reported(builder: RecordBuilder, stream: StreamImage, partition: PartitionState, report: LeaderReport) -> bool:
    """Return whether more than half of the ISR followers, with ``report``, reported this leader as silent within the window [C9].

    A single follower is no majority: the leader is asked instead (``FailureReports``).
    """
    if len(partition.isr) <= 2:
        return False
    witnesses = {report.witness}
    for earlier in builder.image.reports.get((stream.uid, partition.partition), ()):
        node = builder.node(earlier.witness)
        current = node is not None and not node.fenced and node.incarnation == earlier.witness_incarnation
        same = (earlier.leader, earlier.leader_epoch) == (partition.leader, partition.leader_epoch)
        if current and same and earlier.witness in partition.isr and _within_window(earlier, report):
            witnesses.add(earlier.witness)
    return 2 * len(witnesses) > len(partition.isr) - 1


def _within_window(earlier: LeaderReport, report: LeaderReport) -> bool:
    return earlier.stamp_term == report.stamp_term and abs(report.stamp_ns - earlier.stamp_ns) <= REPORT_WINDOW_NS


def _report(builder: RecordBuilder, request: pb.ReportLeader) -> LeaderReport:
    return LeaderReport(
        witness=request.witness,
        witness_incarnation=request.witnessIncarnation,
        leader=request.leader,
        leader_epoch=request.leaderEpoch,
        last_epoch=request.lastEpoch,
        newest_offset=request.newestOffset,
        high_watermark=request.highWatermark,
        time_ns=builder.now_ns,
        stamp_ns=request.stampNs,
        stamp_term=request.stampTerm,
    )


def _check_process(builder: RecordBuilder, node_id: str, incarnation: int, partition: PartitionState) -> None:
    node = builder.image.nodes.get(node_id)
    if node is None or node.fenced or node.incarnation != incarnation:
        raise RejectedError(pb.ControlResponse.FENCED, f"{node_id!r} is not live as incarnation {incarnation}", partition)


def _stale(partition: PartitionState) -> Decision:
    detail = (
        f"{partition.status.name}, (leader, candidate, LeaderEpoch, Epoch) is "
        f"{(partition.leader, partition.candidate, partition.leader_epoch, partition.epoch)} now"
    )
    return refuse(pb.ControlResponse.STALE, detail, partition)


# ---- states of an election ---------------------------------------------------------------------------------------------


def eligible(builder: RecordBuilder, stream: StreamImage, partition: PartitionState) -> tuple[str, ...]:
    """Return the nodes that may become leader in this election, in replica order."""
    able = [
        node_id
        for node_id in stream.electable_replicas(partition)
        if node_id != partition.deposed and node_id not in partition.passed_over and builder.is_live(node_id)
    ]
    members = able if stream.commits_by_quorum else [node_id for node_id in able if node_id in partition.isr]
    return tuple(members or able)


def begin_election(
    builder: RecordBuilder,
    stream: StreamImage,
    partition: PartitionState,
    deposed: str = "",
    report: LeaderReport | None = None,
) -> PartitionState:
    """Return the partition with a new election, in which the node ``deposed`` takes no part.

    The election ends at once if enough is known. ``deposed`` '': every eligible node may win. ``report``: report that caused
    the election.
    """
    reports = _answers(builder, stream, partition) | ({report.witness: report} if report else {}) if deposed else {}
    started = replace(partition, leader="", candidate="", passed_over=(), deposed=deposed, status=PartitionStatus.ELECTION)
    start_reports = (
        {} if stream.commits_by_quorum else reports
    )  # a report from before the election does not promise to follow no other leader
    return _conclude_if_all_reported(builder, stream, started, start_reports)


def add_report(
    builder: RecordBuilder, stream: StreamImage, partition: PartitionState, report: LeaderReport | None = None
) -> PartitionState:
    """Return the partition after a node has reported its position, or after the set of eligible nodes has changed.

    The election ends if all needed positions are known.
    """
    answers = _answers(builder, stream, partition)
    if report is not None:
        answers[report.witness] = report
    return _conclude_if_all_reported(builder, stream, partition, answers)


def _choose_now(builder: RecordBuilder, stream: StreamImage, partition: PartitionState) -> PartitionState:
    """Return the partition with a candidate, chosen by the positions that are known. Do not wait for further reports."""
    return _choose(builder, stream, partition, _answers(builder, stream, partition))


def skip_candidate(builder: RecordBuilder, stream: StreamImage, partition: PartitionState) -> PartitionState:
    """Return the partition with the next candidate, because the current one failed.

    Without another candidate, it is Offline.
    """
    failed = partition.candidate
    rest = replace(partition, candidate="", passed_over=(*partition.passed_over, failed), status=PartitionStatus.ELECTION)
    if stream.commits_by_quorum:
        return _conclude_if_all_reported(builder, stream, rest, {})
    return _choose(builder, stream, rest, {})


def transfer_leadership(
    builder: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str = ""
) -> PartitionState | None:
    """Return the partition with a planned transfer of its leadership to ``node_id``. None: no node can become leader.

    ``node_id`` '': the best other member. The old leader is alive and stays in the ISR. It is a candidate again if the
    others fail.
    """
    others = [n for n in eligible(builder, stream, partition) if n != partition.leader]
    if node_id and node_id not in others:
        return None
    if stream.commits_by_quorum:
        if len(others) < _quorum_overlap(stream, partition) or len(others) + 1 < _needed_reports(stream, partition):
            return None
        return replace(partition, leader="", passed_over=(partition.leader,), status=PartitionStatus.ELECTION)
    if not others:
        return None
    chosen = node_id or min(others, key=lambda n: (builder.leader_count(n), partition.replicas.index(n)))
    return propose(builder, partition, chosen)


def propose(builder: RecordBuilder, partition: PartitionState, candidate: str) -> PartitionState:
    """Return the partition with the node ``candidate`` as candidate for its leadership, in a new LeaderEpoch."""
    builder.count_leader(candidate)
    return replace(
        partition,
        leader="",
        candidate=candidate,
        leader_epoch=builder.next_leader_epochs(),
        status=PartitionStatus.CANDIDATE_FOUND,
    )


def finish_election(stream: StreamImage, partition: PartitionState) -> PartitionState:
    """Return the partition with its candidate as leader and status Online, in one change.

    A candidate that may miss records becomes the only member of the ISR [C11].
    """
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
        asked_start=0 if unclean else partition.asked_start,  # offsets are assigned again, also below it
        purges=() if unclean else partition.purges,
        moved_for=MoveReason.BY_HAND if partition.leader_to_elect == candidate else partition.moved_for,
    )


def offline(partition: PartitionState) -> PartitionState:
    """Return the partition as Offline, without a leader. The ISR stays. Each ISR member may lead when it returns."""
    return replace(partition, leader="", candidate="", passed_over=(), deposed="", status=PartitionStatus.OFFLINE)


def _conclude_if_all_reported(
    builder: RecordBuilder, stream: StreamImage, partition: PartitionState, answers: dict[str, LeaderReport]
) -> PartitionState:
    candidates = eligible(builder, stream, partition)
    tellers = _nodes_whose_positions_count(builder, stream, partition)
    answer_count = sum(node_id in answers for node_id in tellers)
    waiting = any(node_id not in answers for node_id in candidates) or answer_count < _needed_reports(stream, partition)
    enough = len(candidates) >= _quorum_overlap(stream, partition) and len(tellers) >= _needed_reports(stream, partition)
    if waiting and enough and (len(candidates) > 1 or stream.commits_by_quorum):
        return partition
    return _choose(builder, stream, partition, answers)


def _choose(
    builder: RecordBuilder, stream: StreamImage, partition: PartitionState, answers: dict[str, LeaderReport]
) -> PartitionState:
    candidates = eligible(builder, stream, partition)
    if stream.commits_by_quorum and not _may_decide(builder, stream, partition, answers):
        candidates = tuple(node_id for node_id in candidates if node_id == partition.last_leader)
    if not candidates:
        return offline(partition)

    def rank(node_id: str) -> tuple[int, int, bool, int, int]:
        report = answers.get(node_id)
        position = (report.last_epoch, report.newest_offset) if report else (-1, -2)
        another = node_id != partition.last_leader
        return -position[0], -position[1], another, builder.leader_count(node_id), partition.replicas.index(node_id)

    return propose(builder, partition, min(candidates, key=rank))


def _may_decide(
    builder: RecordBuilder, stream: StreamImage, partition: PartitionState, answers: dict[str, LeaderReport]
) -> bool:
    reporters = [node_id for node_id in _nodes_whose_positions_count(builder, stream, partition) if node_id in answers]
    eligible_reporters = [node_id for node_id in reporters if node_id not in partition.passed_over]
    return len(reporters) >= _needed_reports(stream, partition) and len(eligible_reporters) >= _quorum_overlap(
        stream, partition
    )


def _needed_reports(stream: StreamImage, partition: PartitionState) -> int:
    return len(partition.replicas) // 2 + 1 if stream.commits_by_quorum else 1


def _quorum_overlap(stream: StreamImage, partition: PartitionState) -> int:
    """Return how many replicas must be eligible so that one of them has every committed record.

    With the commit policy quorum, each majority must contain one of them: one of two replicas, two of three or four.
    """
    return (len(partition.replicas) + 1) // 2 if stream.commits_by_quorum else 1


def _nodes_whose_positions_count(builder: RecordBuilder, stream: StreamImage, partition: PartitionState) -> list[str]:
    """Return the nodes that must report a position in an election before a candidate is chosen.

    These are the eligible nodes, and with the commit policy ``quorum`` also failed candidates.
    """
    if not stream.commits_by_quorum:
        return list(eligible(builder, stream, partition))
    return [node for node in stream.electable_replicas(partition) if node != partition.deposed and builder.is_live(node)]


def _answers(builder: RecordBuilder, stream: StreamImage, partition: PartitionState) -> dict[str, LeaderReport]:
    """Return the positions that nodes have reported in this leadership and status, by node.

    Reports of ended processes are left out.
    """
    current_reports = builder.image.reports.get((stream.uid, partition.partition), ())
    return {report.witness: report for report in current_reports if _is_current(builder, report)}


def _is_current(builder: RecordBuilder, report: LeaderReport) -> bool:
    node = builder.node(report.witness)
    return node is not None and node.incarnation == report.witness_incarnation
