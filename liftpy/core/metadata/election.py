"""Elections: the states of an election and the choice of a candidate ("Electing a leader" in the protocol).

After the loss of a leader, the ISR member with the most records leads next, and no committed record is lost. Only live
ISR members are eligible [C5], except the deposed leader, skipped candidates, and members that lost data [C10]. Every
candidate gets a LeaderEpoch of its own [C2]. The ISR does not change during the election. With the commit policy
``quorum`` every complete replica is eligible, and a majority must have reported its position in this election.

::

                     one eligible, or all have reported
    ONLINE --begin--> ELECTION --------conclude--------> CANDIDATE_FOUND --finish--> ONLINE
      ^                  |                                 |        ^ |
      |                  | none is eligible       pass_over|        | | next candidate
      |                  v                                 v        +-+
      |               OFFLINE <------------------------ none left
      +------------------+ a member of the ISR comes back: begin

Candidates are ranked by (last epoch, newest offset), then the last leader, then the number of led partitions, then
replica order.

Example: ISR a b c, a leads and fails. b reports (epoch 4, offset 90), c (epoch 4, offset 93). c is the candidate in a
new LeaderEpoch. If c makes no progress, b is the next candidate.

Timers of the metadata leader: ConcludeElection after ``wait_s``, PassOver when a candidate makes no progress
for ``candidate_timeout_s``, ElectLeader for an Offline partition after ``retry_s``. A timer waits while the node makes
progress with any partition, at most ``PATIENCE`` timeouts. The reason is that a node with thousands of partitions
processes them one after the other.

``PreferredLeaders`` moves leaderships back to the first replica of a partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from liftpy.config import NS_PER_MS, NS_PER_S, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage, LeaderReport, StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.record_builder import RecordBuilder
from liftpy.core.wire._pb import cluster_pb2 as pb

DEFAULT_ELECTION_WAIT_S = 0.25
DEFAULT_RETRY_S = 1.0
GETS_ON_WITHIN_S = 0.5
"""Time after a reported position or a finished promotion for which a node counts as making progress, in seconds."""
PATIENCE = 15
"""Maximum time to wait for one node, as a multiple of ``candidate_timeout_s``."""
Proposal = pb.ConcludeElection | pb.PassOver | pb.ElectLeader
MOVES_AT_ONCE = 32


def eligible(draft: RecordBuilder, stream: StreamImage, partition: PartitionState) -> tuple[str, ...]:
    """Return the nodes that may become leader in this election, in replica order."""
    able = [
        node_id
        for node_id in stream.may_lead(partition)
        if node_id != partition.deposed and node_id not in partition.passed_over and draft.is_live(node_id)
    ]
    members = able if stream.commits_by_quorum else [node_id for node_id in able if node_id in partition.isr]
    return tuple(members or able)


def begin(
    draft: RecordBuilder, stream: StreamImage, partition: PartitionState, deposed: str = "", report: LeaderReport | None = None
) -> PartitionState:
    """Return the partition with a new election, in which the node ``deposed`` takes no part.

    The election ends at once if enough is known. ``deposed`` '': every eligible node may win. ``report``: report that caused
    the election.
    """
    reports = _answers(draft, stream, partition) | ({report.witness: report} if report else {}) if deposed else {}
    started = replace(partition, leader="", candidate="", passed_over=(), deposed=deposed, status=PartitionStatus.ELECTION)
    start_reports = (
        {} if stream.commits_by_quorum else reports
    )  # a report from before the election does not promise to follow no other leader
    return _conclude_if_all_reported(draft, stream, started, start_reports)


def add_report(
    draft: RecordBuilder, stream: StreamImage, partition: PartitionState, report: LeaderReport | None = None
) -> PartitionState:
    """Return the partition after a node has reported its position, or after the set of eligible nodes has changed.

    The election ends if all needed positions are known.
    """
    answers = _answers(draft, stream, partition)
    if report is not None:
        answers[report.witness] = report
    return _conclude_if_all_reported(draft, stream, partition, answers)


def conclude(draft: RecordBuilder, stream: StreamImage, partition: PartitionState) -> PartitionState:
    """Return the partition with a candidate, chosen by the positions that are known. Do not wait for further reports."""
    return _choose(draft, stream, partition, _answers(draft, stream, partition))


def pass_over(draft: RecordBuilder, stream: StreamImage, partition: PartitionState) -> PartitionState:
    """Return the partition with the next candidate, because the current one failed.

    Without another candidate, it is Offline.
    """
    failed = partition.candidate
    rest = replace(partition, candidate="", passed_over=(*partition.passed_over, failed), status=PartitionStatus.ELECTION)
    if stream.commits_by_quorum:
        return _conclude_if_all_reported(draft, stream, rest, {})
    return _choose(draft, stream, rest, {})


def transfer(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, node_id: str = "") -> PartitionState | None:
    """Return the partition with a planned transfer of its leadership to ``node_id``. None: no node can become leader.

    ``node_id`` '': the best other member. The old leader is alive and stays in the ISR. It is a candidate again if the
    others fail.
    """
    others = [n for n in eligible(draft, stream, partition) if n != partition.leader]
    if node_id and node_id not in others:
        return None
    if stream.commits_by_quorum:
        if len(others) < _quorum_overlap(stream, partition) or len(others) + 1 < _needed_reports(stream, partition):
            return None
        return replace(partition, leader="", passed_over=(partition.leader,), status=PartitionStatus.ELECTION)
    if not others:
        return None
    chosen = node_id or min(others, key=lambda n: (draft.leader_count(n), partition.replicas.index(n)))
    return propose(draft, partition, chosen)


def propose(draft: RecordBuilder, partition: PartitionState, candidate: str) -> PartitionState:
    """Return the partition with the node ``candidate`` as candidate for its leadership, in a new LeaderEpoch."""
    draft.count_leader(candidate)
    return replace(
        partition,
        leader="",
        candidate=candidate,
        leader_epoch=draft.next_leader_epochs(),
        status=PartitionStatus.CANDIDATE_FOUND,
    )


def finish(stream: StreamImage, partition: PartitionState) -> PartitionState:
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
    draft: RecordBuilder, stream: StreamImage, partition: PartitionState, answers: dict[str, LeaderReport]
) -> PartitionState:
    candidates = eligible(draft, stream, partition)
    tellers = _nodes_whose_positions_count(draft, stream, partition)
    answer_count = sum(node_id in answers for node_id in tellers)
    waiting = any(node_id not in answers for node_id in candidates) or answer_count < _needed_reports(stream, partition)
    enough = len(candidates) >= _quorum_overlap(stream, partition) and len(tellers) >= _needed_reports(stream, partition)
    if waiting and enough and (len(candidates) > 1 or stream.commits_by_quorum):
        return partition
    return _choose(draft, stream, partition, answers)


def _choose(
    draft: RecordBuilder, stream: StreamImage, partition: PartitionState, answers: dict[str, LeaderReport]
) -> PartitionState:
    candidates = eligible(draft, stream, partition)
    if stream.commits_by_quorum and not _may_decide(draft, stream, partition, answers):
        candidates = tuple(node_id for node_id in candidates if node_id == partition.last_leader)
    if not candidates:
        return offline(partition)

    def rank(node_id: str) -> tuple[int, int, bool, int, int]:
        report = answers.get(node_id)
        position = (report.last_epoch, report.newest_offset) if report else (-1, -2)
        another = node_id != partition.last_leader
        return -position[0], -position[1], another, draft.leader_count(node_id), partition.replicas.index(node_id)

    return propose(draft, partition, min(candidates, key=rank))


def _may_decide(draft: RecordBuilder, stream: StreamImage, partition: PartitionState, answers: dict[str, LeaderReport]) -> bool:
    reporters = [node_id for node_id in _nodes_whose_positions_count(draft, stream, partition) if node_id in answers]
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


def _nodes_whose_positions_count(draft: RecordBuilder, stream: StreamImage, partition: PartitionState) -> list[str]:
    """Return the nodes that must report a position in an election before a candidate is chosen.

    These are the eligible nodes, and with the commit policy ``quorum`` also failed candidates.
    """
    if not stream.commits_by_quorum:
        return list(eligible(draft, stream, partition))
    return [node for node in stream.may_lead(partition) if node != partition.deposed and draft.is_live(node)]


def _answers(draft: RecordBuilder, stream: StreamImage, partition: PartitionState) -> dict[str, LeaderReport]:
    """Return the positions that nodes have reported in this leadership and status, by node.

    Reports of ended processes are left out.
    """
    current_reports = draft.image.reports.get((stream.uid, partition.partition), ())
    return {report.witness: report for report in current_reports if _is_current(draft, report)}


def _is_current(draft: RecordBuilder, report: LeaderReport) -> bool:
    node = draft.node(report.witness)
    return node is not None and node.incarnation == report.witness_incarnation


@dataclass(slots=True)
class _Clock:
    key: PartitionKey
    partition: PartitionState
    began_ns: int
    deadline_ns: int
    told: set[str] = field(default_factory=set)
    """Replicas that have reported their position to this metadata leader in this election."""
    replayed_end_offset: int = -1
    """Replayed end offset in the candidate's last report with progress."""
    newest_offset: int = -1


class ElectionTimers:
    """Timers of all running elections on the metadata leader. ``now_ns`` is monotonic."""

    def __init__(
        self, config: ReplicationConfig, wait_s: float = DEFAULT_ELECTION_WAIT_S, retry_s: float = DEFAULT_RETRY_S
    ) -> None:
        self._wait_ns = {
            PartitionStatus.ELECTION: round(wait_s * NS_PER_S),
            PartitionStatus.CANDIDATE_FOUND: round(config.candidate_timeout_s * NS_PER_S),
            PartitionStatus.OFFLINE: round(retry_s * NS_PER_S),
        }
        self._own_session_ns = round(config.session_s * NS_PER_S)
        self._gets_on_ns = round(GETS_ON_WITHIN_S * NS_PER_S)
        self._patience_ns = round(PATIENCE * config.candidate_timeout_s * NS_PER_S)
        self._image: ClusterImage | None = None
        self._clocks: dict[PartitionKey, _Clock] = {}
        self._queue: list[tuple[int, PartitionKey]] = []
        """Heap of (deadline, partition). An entry is ignored if the timer of its partition has another deadline."""
        self._got_on_ns: dict[str, int] = {}
        """Node id -> time of its last reported position or finished promotion."""

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        self.resign()
        self._image = image
        for stream in image.streams.values():
            for partition in stream.partitions:
                self._watch(stream, partition, now_ns)

    def resign(self) -> None:
        self._image = None
        self._clocks.clear()
        self._queue.clear()
        self._got_on_ns.clear()

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        if self._image is None:
            return
        changes = diff(self._image, image)
        self._image = image
        for change in changes.partitions:
            before = self._clocks.pop(change.key, None)
            if change.new is not None:
                if before is not None and before.partition.candidate and change.new.leader == before.partition.candidate:
                    self._got_on_ns[change.new.leader] = now_ns
                self._watch(change.stream, change.new, now_ns)

    def note_report(self, report: pb.ReportLeader, now_ns: int) -> None:
        """Record that a node reported its position, because progress of a node makes the timers wait."""
        clock = self._clocks.get(PartitionKey(report.stream, report.uid, report.partition))
        if clock is None or clock.partition.status is not PartitionStatus.ELECTION or report.witness in clock.told:
            return
        if report.witness in clock.partition.replicas:
            clock.told.add(report.witness)
            self._got_on_ns[report.witness] = now_ns

    def progress(self, report: pb.ReportPromotion, now_ns: int) -> bool:
        """Process a report of a candidate that is not ready yet. Return whether it showed progress, which restarts its timer."""
        clock = self._clocks.get(PartitionKey(report.stream, report.uid, report.partition))
        if clock is None or clock.partition.status is not PartitionStatus.CANDIDATE_FOUND:
            return False
        if (report.candidate, report.leaderEpoch) != (clock.partition.candidate, clock.partition.leader_epoch):
            return False
        if report.replayedEndOffset <= clock.replayed_end_offset and report.newestOffset <= clock.newest_offset:
            return False
        clock.replayed_end_offset = max(clock.replayed_end_offset, report.replayedEndOffset)
        clock.newest_offset = max(clock.newest_offset, report.newestOffset)
        self._set(clock, now_ns + self._wait_ns[PartitionStatus.CANDIDATE_FOUND])
        return True

    def take_due(self, now_ns: int) -> list[Proposal]:
        """Return the requests of expired timers that the metadata leader proposes now, ordered by partition.

        A request without effect is returned again later.
        """
        ended: list[_Clock] = []
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            clock = self._clocks[heappop(self._queue)[1]]
            waits_until_ns = self._waits_until_ns(clock)
            if waits_until_ns > now_ns:
                self._set(clock, waits_until_ns)
            else:
                ended.append(clock)
                self._set(clock, now_ns + self._wait_ns[clock.partition.status])
        return [_proposal(clock.key, clock.partition) for clock in sorted(ended, key=lambda clock: clock.key)]

    def next_deadline_ns(self) -> int | None:
        queue = self._queue
        while queue:
            deadline_ns, key = queue[0]
            clock = self._clocks.get(key)
            if clock is not None and clock.deadline_ns == deadline_ns:
                return deadline_ns
            heappop(queue)
        return None

    def _set(self, clock: _Clock, deadline_ns: int) -> None:
        clock.deadline_ns = deadline_ns
        heappush(self._queue, (deadline_ns, clock.key))

    def _waits_until_ns(self, clock: _Clock) -> int:
        """Return the monotonic time until which the expired timer ``clock`` still waits.

        It waits while its nodes make progress with other partitions.
        """
        status = clock.partition.status
        if status is PartitionStatus.CANDIDATE_FOUND:
            within_ns, awaited = self._wait_ns[status], [clock.partition.candidate]
        else:
            within_ns, awaited = self._gets_on_ns, self._silent(clock)
        got_on_ns = [self._got_on_ns[node_id] for node_id in awaited if node_id in self._got_on_ns]
        return min(max(got_on_ns) + within_ns, clock.began_ns + self._patience_ns) if got_on_ns else clock.began_ns

    def _silent(self, clock: _Clock) -> list[str]:
        key, partition, image = clock.key, clock.partition, self._image
        location = image.find(key.stream, key.uid, key.partition) if image is not None else None
        if location is None or image is None or partition.status is not PartitionStatus.ELECTION:
            return []
        reports = image.reports.get((key.uid, key.partition), ())
        out = {partition.deposed, *partition.passed_over, *(report.witness for report in reports)}
        return [node_id for node_id in location[0].may_lead(partition) if node_id not in out and image.is_live(node_id)]

    def _watch(self, stream: StreamImage, partition: PartitionState, now_ns: int) -> None:
        if partition.status is PartitionStatus.ONLINE:
            return
        if partition.status is PartitionStatus.OFFLINE and not self._can_lead(stream, partition):
            return  # the return of a member of its ISR begins an election by itself
        restarted = partition.status is PartitionStatus.ELECTION and not partition.deposed and not partition.passed_over
        wait_ns = self._wait_ns[partition.status] + (self._session_ns if restarted else 0)
        key = stream.key(partition.partition)
        clock = self._clocks[key] = _Clock(key, partition, now_ns, now_ns)
        self._set(clock, now_ns + wait_ns)

    @property
    def _session_ns(self) -> int:
        times = None if self._image is None else self._image.session_times
        return self._own_session_ns if times is None else times.session_ms * NS_PER_MS

    def _can_lead(self, stream: StreamImage, partition: PartitionState) -> bool:
        image = self._image
        return image is not None and any(map(image.is_live, stream.may_lead(partition)))


def _proposal(key: PartitionKey, partition: PartitionState) -> Proposal:
    if partition.status is PartitionStatus.CANDIDATE_FOUND:
        return pb.PassOver(
            stream=key.stream, uid=key.uid, partition=key.partition,
            candidate=partition.candidate, leaderEpoch=partition.leader_epoch, epoch=partition.epoch,
        )  # fmt: skip
    if partition.status is PartitionStatus.ELECTION:
        return pb.ConcludeElection(stream=key.stream, uid=key.uid, partition=key.partition, epoch=partition.epoch)
    return pb.ElectLeader(stream=key.stream, uid=key.uid, partition=key.partition)


# ---- preferred leaders -----------------------------------------------------------------------------------------------


def partitions_off_preferred_leader(image: ClusterImage) -> list[tuple[PartitionKey, str]]:
    """Return (partition, preferred leader) of every partition that can return to its preferred leader without loss."""
    return [
        (stream.key(partition.partition), partition.replicas[0])
        for stream in sorted(image.streams.values(), key=lambda stream: stream.name)
        for partition in stream.partitions
        if partition.status is PartitionStatus.ONLINE
        and partition.leader != partition.replicas[0]
        and partition.replicas[0] in partition.isr
        and partition.replicas[0] not in partition.incomplete
        and image.is_live(partition.replicas[0])
        and not image.nodes[partition.replicas[0]].leaving
    ]


class PreferredLeaders:
    """Moves leaderships back to the first replica of a partition by planned transfers, if the setting is on.

    Every ``every_s`` seconds (0: never) it finds partitions that another node led at two checks in a row and that can return
    without loss. It moves at most ``MOVES_AT_ONCE`` per check, and none during an election. Only the metadata leader runs it.
    ``now_ns`` is monotonic.
    """

    def __init__(self, every_s: float) -> None:
        self._every_ns = round(every_s * NS_PER_S)
        self._next_ns: int | None = None
        self._leads = False
        self._seen: frozenset[PartitionKey] = frozenset()

    def lead(self, now_ns: int) -> None:
        self._seen = frozenset()
        self._leads = True
        self._next_ns = now_ns + self._every_ns if self._every_ns else None

    def resign(self) -> None:
        self._next_ns = None
        self._leads = False

    def change(self, every_s: float) -> None:
        """Change the interval of the checks to ``every_s`` seconds. 0: no checks.

        The first check runs at once. The second one returns the leaderships that are still misplaced.
        """
        self._every_ns = round(every_s * NS_PER_S)
        self._seen = frozenset()
        self._next_ns = 0 if self._every_ns and self._leads else None

    def take_due(self, image: ClusterImage, now_ns: int) -> list[pb.ElectLeader]:
        if self._next_ns is None or now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + self._every_ns
        misplaced_leaders, before = partitions_off_preferred_leader(image), self._seen
        self._seen = frozenset(key for key, _ in misplaced_leaders)
        if any(p.status is not PartitionStatus.ONLINE for stream in image.streams.values() for p in stream.partitions):
            return []
        moves = [(key, node) for key, node in misplaced_leaders if key in before][:MOVES_AT_ONCE]
        return [pb.ElectLeader(stream=key.stream, uid=key.uid, partition=key.partition, node=node) for key, node in moves]

    def next_deadline_ns(self) -> int | None:
        return self._next_ns
