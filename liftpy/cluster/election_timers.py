"""The metadata leader's clocks over elections: how long positions are waited for, and how long a candidate may be silent. Pure.

Like sessions it is run by the metadata leader only and logs nothing but its proposals: ConcludeElection after
``election_wait_s`` (where nobody was deposed, because the leader came back as another process, after a session: whoever is
silent for so long is fenced, and HW waits for all the others anyway), PassOver when the candidate showed no progress for
``candidate_timeout_s``, ElectLeader for an Offline partition with a live eligible member after ``retry_s`` (its candidates
failed, and may not fail again). A candidate that shows progress is not cut short, however long its replay. A new metadata
leader starts all clocks anew.

A node that has thousands of partitions to open, to tell positions of and to promote itself in takes its time, and none of them is
silent because its turn has not come. So a clock that waits for a node waits on while that node gets on with any partition: tells a
position that it had not told, or finishes a promotion. Both are used up by being done; and nobody is waited for longer than
``PATIENCE`` time-outs of candidates.

Worked example: all nodes of 2,000 partitions were killed and are back. Each is the candidate of 667, and finishes 200 a second. Without
the rule those whose turn comes after two seconds are passed over, and the next candidate has even more to do: 3,900 promotions for
nothing. With it there are 2,000 promotions.
"""

from __future__ import annotations

from dataclasses import field
from heapq import heappop, heappush

from liftpy.cluster.diff import diff
from liftpy.cluster.image import ClusterImage, StreamImage
from liftpy.config import NS_PER_MS, NS_PER_S, ReplicationConfig
from liftpy.dataclass import dataclass
from liftpy.ids import PartitionKey
from liftpy.partition import PartitionState, PartitionStatus
from liftpy.wire._pb import cluster_pb2 as pb

DEFAULT_ELECTION_WAIT_S = 0.25
DEFAULT_RETRY_S = 1.0
GETS_ON_WITHIN_S = 0.5
"""A node that has told any position, or finished any promotion, so short a time ago makes progress."""
PATIENCE = 15
"""Times ``candidate_timeout_s``: so long one node is waited for at most."""
Proposal = pb.ConcludeElection | pb.PassOver | pb.ElectLeader


@dataclass(slots=True)
class _Clock:
    key: PartitionKey
    partition: PartitionState
    began_ns: int
    deadline_ns: int
    told: set[str] = field(default_factory=set)
    """In an election: who has told its position to this metadata leader."""
    replayed_end_offset: int = -1
    """Of the candidate's last report that showed progress."""
    newest_offset: int = -1


class ElectionTimers:
    """All elections that are under way, while this node leads the metadata group; ``now_ns`` is monotonic."""

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
        """Heap of (deadline, partition); an entry whose deadline is not its clock's any more means nothing."""
        self._got_on_ns: dict[str, int] = {}
        """Node id -> when it last told a position or finished a promotion."""

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        """This node has become the metadata leader."""
        self.resign()
        self._image = image
        for stream in image.streams.values():
            for partition in stream.partitions:
                self._watch(stream, partition, now_ns)

    def resign(self) -> None:
        """This node does not lead the metadata group any more."""
        self._image = None
        self._clocks.clear()
        self._queue.clear()
        self._got_on_ns.clear()

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        """Start, restart or stop the clocks of what changed."""
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

    def told(self, report: pb.ReportLeader, now_ns: int) -> None:
        """A replica tells its position: in an election, that its node makes progress."""
        clock = self._clocks.get(PartitionKey(report.stream, report.uid, report.partition))
        if clock is None or clock.partition.status is not PartitionStatus.ELECTION or report.witness in clock.told:
            return
        if report.witness in clock.partition.replicas:
            clock.told.add(report.witness)
            self._got_on_ns[report.witness] = now_ns

    def progress(self, report: pb.ReportPromotion, now_ns: int) -> bool:
        """A candidate's report that is not finished; whether it showed progress, and so restarted the candidate's clock."""
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

    def due(self, now_ns: int) -> list[Proposal]:
        """What to propose now, in the order of the partitions; a proposal that changes nothing is made again later."""
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
        """When ``due`` has to be asked again at the latest, or None when no clock runs."""
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
        """Until when a clock that has run out goes on, for the sake of nodes that make progress with other partitions."""
        status = clock.partition.status
        if status is PartitionStatus.CANDIDATE_FOUND:
            within_ns, awaited = self._wait_ns[status], [clock.partition.candidate]
        else:
            within_ns, awaited = self._gets_on_ns, self._silent(clock)
        got_on_ns = [self._got_on_ns[node_id] for node_id in awaited if node_id in self._got_on_ns]
        return min(max(got_on_ns) + within_ns, clock.began_ns + self._patience_ns) if got_on_ns else clock.began_ns

    def _silent(self, clock: _Clock) -> list[str]:
        """In an election: who may be the candidate, lives, and has not told its position."""
        key, partition, image = clock.key, clock.partition, self._image
        found = image.find(key.stream, key.uid, key.partition) if image is not None else None
        if found is None or image is None or partition.status is not PartitionStatus.ELECTION:
            return []
        reports = image.reports.get((key.uid, key.partition), ())
        out = {partition.deposed, *partition.passed_over, *(report.witness for report in reports)}
        return [node_id for node_id in found[0].may_lead(partition) if node_id not in out and image.is_live(node_id)]

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
        """The cluster's, or what the settings say where the image says nothing."""
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
