"""Test elections that may lose records and so need a command, and planned transfers."""

from __future__ import annotations

import dataclasses
from typing import Any

from cluster_driver import Error
from election_driver import CANDIDATE_FOUND, OFFLINE, ONLINE, Cluster

from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller import elections
from liftpy.core.metadata.controller.record_builder import RecordBuilder, Rules
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image


# ---- what may be lost ----------------------------------------------------------------------------------------------
def test_candidate_restarted_after_data_loss_is_passed_over() -> None:
    cluster = Cluster()
    cluster.fence("a")
    cluster.conclude()
    cluster.restart("b", emptied=True)
    assert cluster.now == (CANDIDATE_FOUND, "", "c")
    assert cluster.partition().isr == ("a", "c")
    cluster.restart("c", emptied=True)
    assert cluster.now == (OFFLINE, "", "")
    assert cluster.partition().isr == ("a",)
    cluster.restart("a")
    assert cluster.now == (CANDIDATE_FOUND, "", "a")


def test_unclean_candidate_that_is_fenced_ends_the_election() -> None:
    cluster = Cluster("abc", minIsr=1)
    cluster.change_isr(["a"])
    cluster.fence("a")
    cluster.elect("c", unclean=True)
    assert cluster.now == (CANDIDATE_FOUND, "", "c")
    cluster.fence("b")
    assert cluster.now == (CANDIDATE_FOUND, "", "c"), "b counts for nothing here"
    cluster.fence("c")
    assert (cluster.now, cluster.partition().isr) == ((OFFLINE, "", ""), ("a",))


def test_candidate_passed_over_in_an_election_is_electable_after_the_election() -> None:
    cluster = Cluster("abc")
    cluster.fence("a")
    cluster.conclude()
    first = cluster.now[2]
    assert cluster.now == (CANDIDATE_FOUND, "", first)
    cluster.pass_over()
    assert cluster.partition().passed_over == (first,)
    cluster.promote()
    led = cluster.now[1]
    assert led not in ("a", first)
    assert cluster.partition().passed_over == ()


def test_replica_that_lost_data_is_not_electable_as_complete_replica() -> None:
    for lose in ("registers", "asks for it", "asked for it when it left"):
        cluster = Cluster("ab")
        lost = ["b"] if lose == "asked for it when it left" else []
        request = cluster.isr_request(["a"])
        request.lost.extend(lost)
        cluster.ask(changeIsr=request)
        assert cluster.partition().complete == (() if lost else ("b",))
        if lose == "registers":
            cluster.restart("b", flushed=False)
        elif lose == "asks for it":
            request = cluster.isr_request(["a"])
            request.lost.append("b")
            cluster.ask(changeIsr=request)
        cluster.fence("a")
        assert cluster.now == (OFFLINE, "", ""), lose


def test_unclean_election_without_an_offline_partition_or_a_live_replica_is_rejected() -> None:
    cluster = Cluster("ab")
    assert cluster.elect("b", unclean=True).error == Error.INVALID
    assert cluster.elect("zz", unclean=True).error == Error.INVALID
    cluster.change_isr(["a"])
    cluster.fence("b")
    cluster.fence("a")
    assert cluster.elect("b", unclean=True).error == Error.NOT_ENOUGH_NODES


# ---- planned transfers ---------------------------------------------------------------------------------------------
def test_leadership_transfer_that_fails_proposes_the_old_leader_again() -> None:
    cluster = Cluster("ab")
    cluster.elect("b")
    cluster.pass_over()
    assert cluster.now == (CANDIDATE_FOUND, "", "a")


def test_leadership_transfer_to_an_ineligible_replica_is_rejected() -> None:
    cluster = Cluster()
    cluster.fence("b")
    cluster.change_isr(["a", "b"])
    for node in ("b", "c", "zz"):
        assert cluster.elect(node).error == Error.INVALID
    assert cluster.elect("a").error == Error.OK
    assert cluster.now == (ONLINE, "a", "")


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


def test_unclean_election_sets_the_isr_to_the_new_leader() -> None:
    partition = a_partition(leader="", candidate="c", status=PartitionStatus.CANDIDATE_FOUND, incomplete=("c",), deposed="a")
    found = elections.finish_election(a_stream(partition), partition)
    assert (found.isr, found.unclean_elected, found.incomplete) == (("c",), True, ())
    clean = dataclasses.replace(partition, incomplete=())
    found = elections.finish_election(a_stream(clean), clean)
    assert (found.isr, found.unclean_elected, found.leader) == (("b", "c"), False, "c")
