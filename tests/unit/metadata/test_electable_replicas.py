"""Test drained nodes, and which replicas are electable. ``golden/elections.txt`` has the stories of elections."""

from __future__ import annotations

from typing import Any

from cluster_driver import Error
from election_driver import CANDIDATE_FOUND, Cluster

from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.controller import elections
from liftpy.core.metadata.controller.record_builder import RecordBuilder, Rules
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image


def test_drain_node_transfers_the_leaderships_of_the_node_and_returns_the_number_left() -> None:
    cluster = Cluster()
    cluster.create("alone", replicationFactor=1, partitions=3)
    led = [p.partition for p in cluster.fsm.image.streams["alone"].partitions if p.leader == "a"]
    response = cluster.ask(drainNode=pb.DrainNode(nodeId="a", incarnation=cluster.incarnation("a")))
    assert response.detail == f"1 partitions move, {len(led)} have nobody to move to"
    assert cluster.now[0] is CANDIDATE_FOUND
    assert cluster.ask(drainNode=pb.DrainNode(nodeId="a", incarnation=1000)).error == Error.FENCED


# ---- rules -----------------------------------------------------------------------------------------------------------------
def elect(partition: PartitionState, fenced: str = "", **config: Any) -> tuple[str, ...]:
    stream = a_stream(partition, **config)
    return elections.eligible(RecordBuilder(an_image(stream, fenced=fenced), 1, Rules()), stream, partition)


@each(
    ("more", "fenced", "able"),
    [
        ({}, "", "abc"),
        ({"deposed": "a"}, "", "bc"),
        ({"passed_over": ("b",)}, "", "ac"),
        ({}, "c", "ab"),
        ({"isr": ("a", "b")}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "ab", "c"),
        ({"incomplete": ("b",)}, "", "ac"),
        ({"deposed": "a", "passed_over": ("b",)}, "c", ""),
    ],
)
def test_electable_replicas_are_unfenced_isr_members_and_complete_replicas(
    more: dict[str, Any], fenced: str, able: str
) -> None:
    assert elect(a_partition(**more), fenced) == tuple(able)
