"""Triggers of elections on the metadata leader: timers, failure reports of followers, and preferred leaders. Pure.

``ElectionTimers`` proposes ConcludeElection after ``wait_s``, PassOver when a candidate makes no progress for
``candidate_timeout_s``, and ElectLeader for an Offline partition after ``retry_s``. A timer waits while the node makes
progress with any partition, at most ``PATIENCE`` timeouts. The reason is that a node with thousands of partitions
processes them one after the other.

``FailureReports`` checks reports about a silent leader. One disconnected node must not depose a working leader. With
three or more ISR members, a majority of the followers decides [C9]. With two members there is only one witness (the
follower that reports). So the metadata leader asks the reported leader whether it serves, and the witness whether it is
reachable. The report counts only if the witness answers. The reported leader must also be silent for ``ANSWER_NS``, or
answer that it does not serve.

Example: ISR a b, a leads. The network of b fails: b reports a, but a answers. The report is dropped, and b leaves the
ISR. Or the network of a fails: a does not answer, b does, and b is elected.

``PreferredLeaders`` moves leaderships back to the first replica of a partition.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush

from liftpy.config import NS_PER_MS, NS_PER_S, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.wire._pb import cluster_pb2 as pb

DEFAULT_ELECTION_WAIT_S = 0.25
DEFAULT_RETRY_S = 1.0
GETS_ON_WITHIN_S = 0.5
"""Time after a reported position or a finished promotion for which a node counts as making progress, in seconds."""
PATIENCE = 15
"""Maximum time to wait for one node, as a multiple of ``candidate_timeout_s``."""
Proposal = pb.ConcludeElection | pb.PassOver | pb.ElectLeader
MOVES_AT_ONCE = 32
ANSWER_NS = 1_000_000_000
"""Maximum time for the answers to both questions, in nanoseconds. It is less than half the time before a follower reports."""
_MIN_WITNESSES = 2
"""Largest ISR for which the metadata leader asks the reported leader. In a larger ISR, a majority of the followers decides."""


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
        return [
            node_id for node_id in location[0].electable_replicas(partition) if node_id not in out and image.is_live(node_id)
        ]

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
        return image is not None and any(map(image.is_live, stream.electable_replicas(partition)))


def _proposal(key: PartitionKey, partition: PartitionState) -> Proposal:
    if partition.status is PartitionStatus.CANDIDATE_FOUND:
        return pb.PassOver(
            stream=key.stream, uid=key.uid, partition=key.partition,
            candidate=partition.candidate, leaderEpoch=partition.leader_epoch, epoch=partition.epoch,
        )  # fmt: skip
    if partition.status is PartitionStatus.ELECTION:
        return pb.ConcludeElection(stream=key.stream, uid=key.uid, partition=key.partition, epoch=partition.epoch)
    return pb.ElectLeader(stream=key.stream, uid=key.uid, partition=key.partition)


# ---- failure reports -------------------------------------------------------------------------------------------------


class ProbeResult(Enum):
    """Answer of a node to a question about a reported leader."""

    SERVES = "serves"
    """The node leads in the requested epoch with a lease, and followers can fetch from it."""
    DOES_NOT = "does not serve"
    """The node answered, but it does not serve as leader."""
    ABSENT = "absent"
    """NATS reports no responders for the node."""


@dataclass(frozen=True, slots=True)
class LeaderCheck:
    """Question to ``node`` whether it serves as the leader of ``leader_epoch``."""

    key: PartitionKey
    leader_epoch: int
    node: str


@dataclass(slots=True)
class _OpenReport:
    report: pb.ReportLeader
    deadline_ns: int
    heard: dict[str, ProbeResult] = field(default_factory=dict)


class FailureReports:
    """All failure reports that wait for answers, on the metadata leader: at most one per partition. ``now_ns`` is monotonic."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        """Numbers of checks by result: the reported leader served, it did not serve, or the witness was unreachable."""
        self._term = 0
        self._cases: dict[PartitionKey, _OpenReport] = {}
        self._questions: list[LeaderCheck] = []
        self._proven: list[pb.ReportLeader] = []

    def lead(self, term: int) -> None:
        """Start to collect reports, because this node became the metadata leader in Raft term ``term``.

        Reports of other terms do not count together with new ones.
        """
        self.resign()
        self._term = term

    def resign(self) -> None:
        self._cases.clear()
        self._questions.clear()
        self._proven.clear()

    def add(self, report: pb.ReportLeader, image: ClusterImage, now_ns: int) -> bool:
        """Add a follower's report that its leader is silent, when it arrives.

        Return whether it must wait until the reported leader was asked. False: the report can be decided now.
        """
        report.stampNs, report.stampTerm, report.accusedAsked = now_ns, self._term, False
        location = image.find(report.stream, report.uid, report.partition)
        if location is None or report.leaderLacks or not _needs_questions(location[1], report):
            return False
        key = location[0].key(report.partition)
        case = self._cases.get(key)
        if case is not None and case.report.leaderEpoch == report.leaderEpoch:
            return True
        self._cases[key] = _OpenReport(report, now_ns + ANSWER_NS)
        self._questions += [LeaderCheck(key, report.leaderEpoch, node) for node in (report.leader, report.witness)]
        return True

    def take_leader_checks(self) -> list[LeaderCheck]:
        """Return the questions to send now to reported leaders and to reporting followers. Each question is returned once."""
        checks, self._questions = self._questions, []
        return checks

    def record_testimony(self, question: LeaderCheck, testimony: ProbeResult) -> None:
        """Record the answer of a node to a question, or that NATS reported no responders for it."""
        case = self._cases.get(question.key)
        if case is not None and case.report.leaderEpoch == question.leader_epoch:
            case.heard[question.node] = testimony
            self._close_if_clear(question.key, case, late=False)

    def take_due(self, now_ns: int) -> list[pb.ReportLeader]:
        for key, case in list(self._cases.items()):
            if now_ns >= case.deadline_ns:
                self._close_if_clear(key, case, late=True)
        proven, self._proven = self._proven, []
        return proven

    def next_deadline_ns(self) -> int | None:
        if self._proven:
            return 0
        return min((case.deadline_ns for case in self._cases.values()), default=None)

    def _close_if_clear(self, key: PartitionKey, case: _OpenReport, late: bool) -> None:
        accused, witness = case.heard.get(case.report.leader), case.heard.get(case.report.witness)
        if accused is ProbeResult.SERVES:
            outcome = "accused leaders that serve"
        elif witness is ProbeResult.ABSENT or (late and witness is None):
            outcome = "witnesses that can't be reached"
        elif witness is not None and (accused is not None or late):
            outcome = "accused leaders that don't serve"
            case.report.accusedAsked = True
            self._proven.append(case.report)
        else:
            return
        self.counters[outcome] += 1
        del self._cases[key]


def _needs_questions(partition: PartitionState, report: pb.ReportLeader) -> bool:
    current = (partition.leader, partition.leader_epoch) == (report.leader, report.leaderEpoch)
    witnesses = partition.isr if len(partition.isr) > 1 else partition.replicas
    may_witness = report.witness in witnesses and report.witness != partition.leader
    return partition.status is PartitionStatus.ONLINE and current and len(partition.isr) <= _MIN_WITNESSES and may_witness


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
