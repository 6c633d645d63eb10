"""Build small images of a cluster: a partition, a stream, nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage, Counters, NodeImage, StreamImage
from tests.born import born_image

S = 1_000_000_000


def a_partition(**more: Any) -> PartitionState:
    given: dict[str, Any] = {
        "partition": 0,
        "replicas": ("a", "b", "c"),
        "isr": ("a", "b", "c"),
        "leader": "a",
        "leader_epoch": 5,
        "epoch": 6,
        "status": PartitionStatus.ONLINE,
        "last_leader": "a",
        "leaderships": 2,
    }
    return PartitionState(**(given | more))


def a_stream(*partitions: PartitionState, **config: Any) -> StreamImage:
    return StreamImage("s", "u1", "shop", StreamConfig(**config), partitions or (a_partition(),), 7)


def an_image(stream: StreamImage | None = None, nodes: str = "abc", fenced: str = "") -> ClusterImage:
    made = dataclasses.replace(born_image(), index=3, time_ns=9).with_streams((stream,) if stream else ())
    table = made.nodes
    for number, name in enumerate(nodes, 1):
        table = table.set(name, NodeImage(node_id=name, incarnation=number, fenced=name in fenced))
    return dataclasses.replace(made, nodes=table, counters=Counters(11, 12, 13, 14, 15))
