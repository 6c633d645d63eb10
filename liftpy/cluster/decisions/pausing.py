"""PausePartitions: operators have partitions take no publishes, or take them again. WakePartition: a leader asks for the latter,
because somebody publishes, or says that it takes publishes again."""

from __future__ import annotations

from dataclasses import replace

from liftpy.cluster.codec import partition_to_pb, stream_to_pb
from liftpy.cluster.draft import Decision, Draft, refuse
from liftpy.cluster.image import StreamImage
from liftpy.cluster.steps import PER_STEP, Steps
from liftpy.partition import PartitionState, PartitionStatus, Pause
from liftpy.wire._pb import cluster_pb2 as pb

_ASKED_FOR = {
    pb.NOT_PAUSED: Pause.ENDING,
    pb.UNTIL_RESUMED: Pause.UNTIL_RESUMED,
    pb.UNTIL_PUBLISH: Pause.UNTIL_PUBLISH,
    pb.UNTIL_PUBLISH_TO_ANY: Pause.UNTIL_PUBLISH_TO_ANY,
}


def pause_partitions(draft: Draft, request: pb.PausePartitions) -> Steps[Decision]:
    """All that are named, or none. One that is as asked stays as it is, in its Epoch."""
    held = draft.image.streams.get(request.stream)
    if held is None or request.uid not in ("", held.uid):
        detail = f"there is no stream {request.stream!r}" + (f" of the id {request.uid!r}" if held is not None else "")
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    asked_for = _ASKED_FOR.get(request.pause)
    if asked_for is None:
        return refuse(pb.ControlResponse.INVALID, f"pause = {request.pause}: nobody asks for that")
    if request.HasField("configVersion") and request.configVersion != held.config_version:
        detail = f"the settings of {held.name!r} are at version {held.config_version}, not {request.configVersion}: look again"
        return refuse(pb.ControlResponse.STALE, detail)
    missing = sorted(number for number in set(request.partitions) if number >= len(held.partitions))
    if missing or not held.partitions:
        there = f"it has {len(held.partitions)}" if held.partitions else "it waits for nodes"
        detail = f"there is no partition {held.name}/{missing[0] if missing else 0}: {there}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    partitions = list(held.partitions)
    for place, number in enumerate(sorted(set(request.partitions)) or range(len(partitions))):
        changed = _paused(partitions[number], asked_for)
        if changed is not partitions[number]:
            partitions[number] = draft.change(held, changed)
        if place % PER_STEP == PER_STEP - 1:
            yield
    return draft.done(pb.ControlResponse(stream=stream_to_pb(replace(held, partitions=tuple(partitions)))))


def wake_partition(draft: Draft, request: pb.WakePartition) -> Decision:
    """UNTIL_PUBLISH becomes ENDING, of all partitions that are paused so where that was asked for; ENDING is over."""
    found = draft.image.find(request.stream, request.uid, request.partition)
    if found is None:
        detail = f"there is no partition {request.stream}/{request.partition} of the id {request.uid!r}"
        return refuse(pb.ControlResponse.NOT_FOUND, detail)
    stream, partition = found
    current = (partition.leader, partition.leader_epoch, partition.pause.name, partition.pauses)
    asked = (request.leader, request.leaderEpoch, Pause.of(request.pause).name, request.pauses)
    if partition.status is not PartitionStatus.ONLINE or asked != current:
        detail = f"{partition.status.name}, (leader, LeaderEpoch, pause, pauses) is {current} now"
        return refuse(pb.ControlResponse.STALE, detail, partition)
    if partition.pause is Pause.ENDING:
        partition = draft.change(stream, replace(partition, pause=Pause.NOT_PAUSED))
    elif partition.pause.until_publish:
        partition = _woken(draft, stream, partition)
    else:
        return refuse(pb.ControlResponse.INVALID, f"{partition.pause.name}: operators alone resume it", partition)
    return draft.done(pb.ControlResponse(partition=partition_to_pb(partition)))


def _paused(partition: PartitionState, asked_for: Pause) -> PartitionState:
    """``partition`` itself where nothing is to be changed."""
    if asked_for is Pause.ENDING:
        return replace(partition, pause=Pause.ENDING) if partition.pause.takes_nothing else partition
    if partition.pause is asked_for:
        return partition
    return replace(partition, pause=asked_for, pauses=partition.pauses + 1)


def _woken(draft: Draft, stream: StreamImage, partition: PartitionState) -> PartitionState:
    if partition.pause is Pause.UNTIL_PUBLISH:
        return draft.change(stream, replace(partition, pause=Pause.ENDING))
    for other in stream.partitions:
        if other.pause is Pause.UNTIL_PUBLISH_TO_ANY:
            changed = draft.change(stream, replace(other, pause=Pause.ENDING))
            partition = changed if other is partition else partition
    return partition
