"""OpenGroups: the internal stream of consumer groups' commands is made when somebody needs it first."""

from __future__ import annotations

from liftpy.cluster.codec import stream_to_pb
from liftpy.cluster.decisions.streams import create_stream
from liftpy.cluster.draft import Decision, Draft
from liftpy.cluster.steps import Steps
from liftpy.cluster.stream_config import config_to_pb
from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.subjects import GROUPS_STREAM, Subjects

SEGMENT_BYTES = 8 * 1024 * 1024
RETENTION_BYTES = 64 * 1024 * 1024
"""Of commands, a partition: many times what lies between two snapshots of a coordinator, and so what all of them have in theirs."""


def open_groups(draft: Draft, request: pb.OpenGroups) -> Steps[Decision]:
    """The stream as it is; made where there is none. Whoever may read may ask for it: it is always the same stream."""
    held = draft.image.streams.get(GROUPS_STREAM)
    if held is not None:
        return draft.done(pb.ControlResponse(stream=stream_to_pb(held)))
    config = StreamConfig(segment_bytes=SEGMENT_BYTES, retention_bytes=RETENTION_BYTES)
    wanted = pb.CreateStream(
        name=GROUPS_STREAM,
        subject=Subjects(draft.rules.namespace).groups(),
        partitions=request.partitions,
        replicationFactor=request.replicationFactor,
        config=config_to_pb(config),
    )
    return (yield from create_stream(draft, wanted))


def say_how_many(request: pb.ControlRequest, config: ReplicationConfig) -> None:
    """What the metadata leader's settings say of the stream of groups, in the place of what the asker wrote."""
    if request.HasField("openGroups"):
        wanted = pb.OpenGroups(partitions=config.groups_partitions, replicationFactor=config.groups_replicas)
        request.openGroups.CopyFrom(wanted)
