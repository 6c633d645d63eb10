"""Invariants of the metadata as code. The simulator and tests check them after every step.

``check_image`` checks one image, ``check_step`` two consecutive ones, ``LeadershipHistory`` all images of a test.
"""

from __future__ import annotations

from immutables import Map

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.invariants import check
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import ClusterImage, SubjectIndex
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.records import check_partition


def check_image(image: ClusterImage) -> None:
    """Check the invariants of one image: every partition meets C1 and C3, counters are above all assigned values, and derived
    maps are right. Raise InvariantError if one is broken.
    """
    hosted: dict[str, dict[str, list[int]]] = {}
    led: dict[str, int] = {}
    uids = [stream.uid for stream in image.streams.values()]
    check(len(set(uids)) == len(uids), "R9", uids)
    for name, stream in image.streams.items():
        for number, partition in enumerate(stream.partitions):
            check(partition.partition == number, "C1", "numbering", partition)
            check_partition(partition)
            check(set(partition.holders) <= set(image.nodes), "C3", "replica on an unknown node", partition)
            check(partition.leader_epoch < image.counters.next_leader_epoch, "C2", "LeaderEpoch of no counter", partition)
            check(partition.epoch < image.counters.next_epoch, "C2", "Epoch of no counter", partition)
            for node_id in partition.holders:
                hosted.setdefault(node_id, {}).setdefault(name, []).append(number)
            if partition.leader:
                led[partition.leader] = led.get(partition.leader, 0) + 1
    for node in image.nodes.values():
        check(node.incarnation < image.counters.next_incarnation, "C2", "incarnation of no counter", node)
    held = {node: {name: list(numbers) for name, numbers in streams.items()} for node, streams in image.hosted.items()}
    check(held == hosted, "M7", "hosted", held, hosted)
    answering = SubjectIndex()
    for name, stream in image.streams.items():
        answering = answering.with_stream(name, stream.subject, stream.partition_count) if stream.answers else answering
    check(image.answering == answering, "M7", "subjects that are answered")
    for stream in image.streams.values():
        check(bool(stream.partitions) != bool(stream.waiting), "C3", "no partitions, and none that wait", stream)
    check(image.waiting == {name for name, stream in image.streams.items() if stream.waiting}, "M7", "waiting", image.waiting)
    check(image.leader_counts == Map(led), "M7", "leader counts", image.leader_counts, led)


def check_step(old: ClusterImage, new: ClusterImage) -> None:
    """Check that the change from the image ``old`` to the next image ``new`` meets the invariants C2, C4 and C6.

    Raise InvariantError if it does not.
    """
    check(new.index >= old.index, "M5", "index fell")
    for field in ("next_incarnation", "next_stream_uid", "next_leader_epoch", "next_epoch", "placement_index"):
        check(getattr(new.counters, field) >= getattr(old.counters, field), "C2", field)
    changes = diff(old, new)
    for node in changes.nodes:
        if node.old is not None and node.new is not None:
            check(node.new.incarnation >= node.old.incarnation, "C2", node)
    for change in changes.partitions:
        if change.old is not None and change.new is not None:
            _check_change(new, change.old, change.new, change.stream.commits_by_quorum)


def _check_change(image: ClusterImage, old: PartitionState, new: PartitionState, quorum: bool) -> None:
    check(new.epoch > old.epoch, "C2", "a change without a new Epoch", old, new)
    check(new.leader_epoch >= old.leader_epoch, "C2", "LeaderEpoch fell", old, new)
    if new.leader and new.leader != old.leader:
        check(new.leader_epoch > old.leader_epoch or new.leader == old.candidate, "C1", "a leader without an epoch", old, new)
        check(
            new.leader in (*old.isr, *old.complete) or new.unclean_elected or quorum,
            "C5",
            "a leader from outside the ISR",
            old,
            new,
        )
        check(new.leader not in old.incomplete or new.unclean_elected, "C10", "silently elected", old, new)
    for node_id in set(new.isr) - set(old.isr):
        check(image.is_live(node_id), "C6", node_id, "joined but is not live", old, new)


class LeadershipHistory:
    """Leaders and candidates of all LeaderEpochs that a test has seen, to check the invariant C1."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[PartitionKey, int], tuple[str, int]] = {}
        self._epoch_owners: dict[int, PartitionKey] = {}

    def add_image(self, image: ClusterImage) -> None:
        """Add the leaders and candidates in an image.

        Raise InvariantError if one LeaderEpoch has two leader nodes, two processes of one node, or two partitions.
        """
        for stream in image.streams.values():
            for partition in stream.partitions:
                holder = partition.leader or partition.candidate
                if not holder:
                    continue
                key, epoch = stream.key(partition.partition), partition.leader_epoch
                process = (holder, image.nodes[holder].incarnation)
                check(self._leaders.setdefault((key, epoch), process) == process, "C1", key, epoch, process)
                check(self._epoch_owners.setdefault(epoch, key) == key, "C2", "LeaderEpoch used twice", epoch, key)
