"""Failure reports of followers about a silent leader. Only the metadata leader runs this. Pure.

One disconnected node must not depose a working leader. With three or more ISR members, a majority of the followers
decides [C9]. With two members there is only one witness (the follower that reports). So the metadata leader asks the
reported leader whether it serves, and the witness whether it is reachable. The report counts only if the witness
answers. The reported leader must also be silent for ``ANSWER_NS``, or answer that it does not serve.

Example: ISR a b, a leads. The network of b fails: b reports a, but a answers. The report is dropped, and b leaves the
ISR. Or the network of a fails: a does not answer, b does, and b is elected.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb

ANSWER_NS = 1_000_000_000
"""Maximum time for the answers to both questions, in nanoseconds. It is less than half the time before a follower reports."""
_MIN_WITNESSES = 2
"""Largest ISR for which the metadata leader asks the reported leader. In a larger ISR, a majority of the followers decides."""


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
