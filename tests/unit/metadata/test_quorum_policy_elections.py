"""Test elections with the commit policy quorum: every complete replica counts, and a majority must report."""

from __future__ import annotations

from cluster_driver import Error
from election_driver import CANDIDATE_FOUND, ELECTION, OFFLINE, ONLINE, Cluster


def test_quorum_policy_election_uses_only_positions_reported_during_the_election() -> None:
    cluster = Cluster(commitPolicy="quorum")
    cluster.report("b", (1, 5))
    cluster.report("c", (1, 6))
    assert cluster.now == (ELECTION, "", ""), "what was told before followed the old leader still"
    cluster.report("c", (1, 6))
    assert cluster.now == (ELECTION, "", "")
    cluster.report("b", (1, 7))
    assert cluster.now == (CANDIDATE_FOUND, "", "b")


def test_quorum_policy_election_without_a_majority_leaves_the_partition_offline() -> None:
    cluster = Cluster(commitPolicy="quorum")
    cluster.fence("a")
    cluster.report("b")
    cluster.conclude()
    assert cluster.now == (OFFLINE, "", "")
    again = Cluster(commitPolicy="quorum")
    again.fence("a")
    again.fence("b")
    assert again.now == (OFFLINE, "", "")
    again.unfence("b")
    assert again.now == (ELECTION, "", "")
    again.report("b", (1, 1))
    again.report("c", (1, 2))
    assert again.now == (CANDIDATE_FOUND, "", "c")


def test_quorum_policy_election_without_a_majority_elects_no_replica_but_the_former_leader() -> None:
    cluster = Cluster(commitPolicy="quorum")
    cluster.fence("b")
    cluster.fence("c")
    cluster.fence("a")
    assert cluster.now == (OFFLINE, "", "")
    cluster.unfence("b")
    assert cluster.now == (OFFLINE, "", ""), "it may lack what a and c committed"
    cluster.fence("b")
    cluster.unfence("a")
    assert cluster.now == (CANDIDATE_FOUND, "", "a")


def test_quorum_policy_majority_includes_complete_replicas_but_no_replica_with_lost_data() -> None:
    cluster = Cluster(commitPolicy="quorum")
    cluster.change_isr(["a", "b"])
    cluster.restart("a", emptied=True)
    assert cluster.partition().incomplete == ("a",)
    cluster.report("b", (1, 5))
    assert cluster.now == (ELECTION, "", "")
    cluster.report("c", (1, 6))
    assert cluster.now == (CANDIDATE_FOUND, "", "c")
    cluster.promote()
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.unclean_elected) == ("c", ("b", "c"), False)
    cluster.change_isr(["a", "b", "c"])
    assert cluster.partition().incomplete == ()


def test_quorum_policy_partition_without_a_majority_gets_a_leader_only_by_an_unclean_election() -> None:
    cluster = Cluster(commitPolicy="quorum")
    cluster.restart("a", emptied=True)
    cluster.restart("c", emptied=True)
    assert cluster.now == (OFFLINE, "", "")
    assert cluster.elect().error == Error.NOT_ENOUGH_NODES
    cluster.elect("b", unclean=True)
    cluster.promote()
    assert (cluster.now, cluster.partition().unclean_elected) == ((ONLINE, "b", ""), True)
