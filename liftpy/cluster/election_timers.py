"""The metadata leader's clocks over elections: how long positions are waited for, and how long a candidate may be silent. Pure.

Like sessions it is run by the metadata leader only and logs nothing but its proposals: ConcludeElection after
``election_wait_s`` (where nobody was deposed, because the leader came back as another process, after a session: whoever is
silent for so long is fenced, and HW waits for all the others anyway), PassOver when the candidate showed no progress for
``candidate_timeout_s``, ElectLeader for an Offline partition with a live eligible member after ``retry_s`` (its candidates
failed, and may not fail again). A candidate that shows progress is not cut short, however long its replay. A new metadata
leader starts all clocks anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.cluster.diff import diff
from liftpy.cluster.image import ClusterImage, PartitionImage, PartitionStatus, StreamImage
from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.ids import PartitionKey
from liftpy.wire._pb import cluster_pb2 as pb

DEFAULT_ELECTION_WAIT_S = 0.25
DEFAULT_RETRY_S = 1.0
Proposal = pb.ConcludeElection | pb.PassOver | pb.ElectLeader


@dataclass(slots=True)
class _Clock:
    partition: PartitionImage
    deadline_ns: int
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
        self._unhurried_ns = round(config.session_s * NS_PER_S) + self._wait_ns[PartitionStatus.ELECTION]
        self._image: ClusterImage | None = None
        self._clocks: dict[PartitionKey, _Clock] = {}

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        """This node has become the metadata leader."""
        self._clocks.clear()
        self._image = image
        for stream in image.streams.values():
            for partition in stream.partitions:
                self._watch(stream, partition, now_ns)

    def resign(self) -> None:
        """This node does not lead the metadata group any more."""
        self._image = None
        self._clocks.clear()

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        """Start, restart or stop the clocks of what changed."""
        if self._image is None:
            return
        changes = diff(self._image, image)
        self._image = image
        for change in changes.partitions:
            self._clocks.pop(change.key, None)
            if change.new is not None:
                self._watch(change.stream, change.new, now_ns)

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
        clock.deadline_ns = now_ns + self._wait_ns[PartitionStatus.CANDIDATE_FOUND]
        return True

    def due(self, now_ns: int) -> list[Proposal]:
        """What to propose now, in the order of the partitions; a proposal that changes nothing is made again later."""
        proposals = []
        for key in sorted(key for key, clock in self._clocks.items() if now_ns >= clock.deadline_ns):
            clock = self._clocks[key]
            clock.deadline_ns = now_ns + self._wait_ns[clock.partition.status]
            proposals.append(_proposal(key, clock.partition))
        return proposals

    def next_deadline_ns(self) -> int | None:
        """When ``due`` has to be asked again at the latest, or None when no clock runs."""
        return min((clock.deadline_ns for clock in self._clocks.values()), default=None)

    def _watch(self, stream: StreamImage, partition: PartitionImage, now_ns: int) -> None:
        if partition.status is PartitionStatus.ONLINE:
            return
        if partition.status is PartitionStatus.OFFLINE and not self._can_lead(stream, partition):
            return  # the return of a member of its ISR begins an election by itself
        restarted = partition.status is PartitionStatus.ELECTION and not partition.deposed and not partition.passed_over
        wait_ns = self._unhurried_ns if restarted else self._wait_ns[partition.status]
        self._clocks[stream.key(partition.partition)] = _Clock(partition, now_ns + wait_ns)

    def _can_lead(self, stream: StreamImage, partition: PartitionImage) -> bool:
        image = self._image
        return image is not None and any(map(image.is_live, stream.may_lead(partition)))


def _proposal(key: PartitionKey, partition: PartitionImage) -> Proposal:
    if partition.status is PartitionStatus.CANDIDATE_FOUND:
        return pb.PassOver(
            stream=key.stream, uid=key.uid, partition=key.partition,
            candidate=partition.candidate, leaderEpoch=partition.leader_epoch, epoch=partition.epoch,
        )  # fmt: skip
    if partition.status is PartitionStatus.ELECTION:
        return pb.ConcludeElection(stream=key.stream, uid=key.uid, partition=key.partition, epoch=partition.epoch)
    return pb.ElectLeader(stream=key.stream, uid=key.uid, partition=key.partition)
