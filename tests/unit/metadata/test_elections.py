"""Test elections, also with the commit policy ``quorum``."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_driver import MS, Driver, Error
from election_driver import CANDIDATE_FOUND, ELECTION, OFFLINE, ONLINE, Cluster

from liftpy.core.metadata.controller.elections import REPORT_WINDOW_NS
from liftpy.core.wire._pb import cluster_pb2 as pb


# ---- witnesses -----------------------------------------------------------------------------------------------------
def test_leader_reported_as_failed_by_most_followers_is_replaced_by_the_replica_with_the_longest_log() -> None:
    cluster = Cluster()
    before = cluster.partition()
    cluster.report("b", (1, 90))
    assert cluster.now == (ONLINE, "a", "")
    assert cluster.partition() is before
    cluster.report("c", (1, 93))
    assert cluster.now == (CANDIDATE_FOUND, "", "c")
    found = cluster.partition()
    assert found.leader_epoch > before.leader_epoch
    assert found.isr == ("a", "b", "c")
    assert cluster.promote().error == Error.OK
    assert cluster.now == (ONLINE, "c", "")
    assert cluster.partition().isr == ("b", "c")
    assert cluster.partition().leader_epoch == found.leader_epoch


def test_leader_reports_count_only_within_the_report_window() -> None:
    cluster = Cluster()
    cluster.report("b", stampNs=5, stampTerm=1)
    cluster.report("c", stampNs=6 + REPORT_WINDOW_NS, stampTerm=1)
    assert cluster.now == (ONLINE, "a", "")
    cluster.report("b", stampNs=7 + REPORT_WINDOW_NS, stampTerm=1)
    assert cluster.now[0] is CANDIDATE_FOUND


def test_leader_reports_sent_to_two_metadata_leaders_are_counted_separately() -> None:
    cluster = Cluster()
    cluster.report("b", stampNs=5, stampTerm=1)
    cluster.report("c", stampNs=6, stampTerm=2)
    assert cluster.now == (ONLINE, "a", "")
    cluster.report("b", stampNs=7, stampTerm=2)
    assert cluster.now[0] is CANDIDATE_FOUND


def test_leader_report_of_a_follower_that_rejoined_the_isr_is_not_counted() -> None:
    cluster = Cluster()
    cluster.report("c")
    cluster.change_isr(["a", "b"])
    cluster.change_isr(["a", "b", "c"])
    cluster.report("b")
    assert cluster.now == (ONLINE, "a", "")


def test_restarted_leader_whose_followers_are_fenced_is_reelected_at_once() -> None:
    cluster = Cluster()
    cluster.fence("b")
    cluster.fence("c")
    epoch = cluster.partition().leader_epoch
    cluster.restart("a")
    assert cluster.now == (ONLINE, "a", "")
    assert cluster.partition().leader_epoch > epoch
    waiting = Cluster()
    waiting.restart("a")
    waiting.report("a")
    waiting.fence("b")
    assert waiting.now == (ELECTION, "", "")
    waiting.fence("c")
    assert waiting.now == (CANDIDATE_FOUND, "", "a")


def test_leader_that_lacks_committed_records_is_replaced_after_the_report_of_one_isr_member() -> None:
    cluster = Cluster(minIsr=1)
    cluster.change_isr(["a", "c"])
    assert cluster.report("b", leaderLacks=True).error == Error.INVALID, "it may lack something itself"
    cluster.report("c", (1, 12), leaderLacks=True)
    assert cluster.now == (CANDIDATE_FOUND, "", "c")
    cluster.promote()
    assert cluster.partition().isr == ("c",)


def test_leader_that_resigns_transfers_only_partitions_with_another_electable_replica() -> None:
    cluster = Cluster(minIsr=1)

    def wish(**other: Any) -> pb.ControlResponse:
        partition = cluster.partition()
        fields = cluster.about(leader="a", incarnation=cluster.incarnation("a"), leaderEpoch=partition.leader_epoch)
        return cluster.ask(giveUpLeadership=pb.GiveUpLeadership(**(fields | other)))

    cluster.change_isr(["a"])
    assert wish().error == Error.NOT_ENOUGH_NODES
    assert cluster.now == (ONLINE, "a", "")
    cluster.change_isr(["a", "c"])
    assert wish(leaderEpoch=99).error == Error.STALE
    assert wish(incarnation=99).error == Error.FENCED
    assert wish(leader="c", incarnation=cluster.incarnation("c")).error == Error.STALE
    assert wish().error == Error.OK
    assert cluster.now == (CANDIDATE_FOUND, "", "c")


def test_leadership_transfer_elects_the_named_replica_and_keeps_the_old_leader_in_the_isr() -> None:
    cluster = Cluster()

    def wish(toward: str, **other: Any) -> pb.ControlResponse:
        leader = cluster.partition().leader
        fields = cluster.about(
            leader=leader, incarnation=cluster.incarnation("a"), leaderEpoch=cluster.partition().leader_epoch
        )
        return cluster.ask(giveUpLeadership=pb.GiveUpLeadership(**(fields | {"toward": toward} | other)))

    cluster.change_isr(["a", "c"])
    assert wish("b").error == Error.INVALID, "not in the ISR"
    assert wish("nobody").error == Error.INVALID
    assert wish("c", leaderEpoch=99).error == Error.STALE
    assert wish("c", incarnation=99).error == Error.FENCED
    assert cluster.now == (ONLINE, "a", "")
    assert wish("c").error == Error.OK
    assert cluster.now == (CANDIDATE_FOUND, "", "c")
    cluster.promote()
    assert cluster.now == (ONLINE, "c", "")
    assert cluster.partition().isr == ("a", "c"), "who made way is still complete"


def test_leader_reports_count_only_from_live_isr_followers_of_the_current_incarnation() -> None:
    cluster = Cluster("abcd")
    cluster.change_isr(["a", "b", "c"])
    assert cluster.report("d").error == Error.INVALID
    assert cluster.report("a").error == Error.INVALID
    assert cluster.report("b", witnessIncarnation=99).error == Error.FENCED
    cluster.report("c")
    cluster.fence("c")
    assert cluster.report("c").error == Error.FENCED
    cluster.report("b")
    assert cluster.now == (ONLINE, "a", ""), "the report of a witness that is fenced since does not count"


# ---- the end of a session ------------------------------------------------------------------------------------------
def test_fencing_a_leader_starts_an_election_that_waits_for_positions() -> None:
    cluster = Cluster()
    cluster.fence("a")
    assert cluster.now == (ELECTION, "", "")
    assert cluster.change_isr(["b", "c"]).error == Error.STALE, "the ISR is frozen"
    cluster.report("b", (1, 3))
    assert cluster.now == (ELECTION, "", "")
    cluster.report("c", (1, 2))
    assert cluster.now == (CANDIDATE_FOUND, "", "b")


def test_election_ends_without_positions_of_silent_followers() -> None:
    cluster = Cluster()
    cluster.fence("a")
    cluster.report("c", (1, 2))
    cluster.conclude()
    assert cluster.now == (CANDIDATE_FOUND, "", "c")
    assert cluster.conclude().error == Error.STALE
    silent = Cluster()
    silent.fence("a")
    silent.conclude()
    assert silent.now == (CANDIDATE_FOUND, "", "b")


def test_election_with_equal_positions_chooses_the_node_with_the_fewest_leaderships() -> None:
    cluster = Cluster()
    cluster.create("busy", replicationFactor=3)
    assert cluster.partition("busy").leader == "b"
    cluster.fence("a")
    cluster.conclude()
    assert cluster.now == (CANDIDATE_FOUND, "", "c")


def test_election_does_not_wait_for_a_follower_fenced_during_the_election() -> None:
    cluster = Cluster()
    cluster.fence("a")
    cluster.fence("b")
    assert cluster.now == (CANDIDATE_FOUND, "", "c")


# ---- candidates that fail ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("field", ["candidate", "leaderEpoch", "epoch"])
def test_pass_over_request_for_an_older_partition_state_returns_stale(field: str) -> None:
    cluster = Cluster()
    cluster.fence("a")
    cluster.conclude()
    p = cluster.partition()
    request = pb.PassOver(**cluster.about(candidate=p.candidate, leaderEpoch=p.leader_epoch, epoch=p.epoch))
    setattr(request, field, "c" if field == "candidate" else getattr(request, field) + 1)
    assert cluster.ask(passOver=request).error == Error.STALE
    assert cluster.partition() is p


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"candidate": "c"}, Error.STALE),
        ({"leaderEpoch": 1}, Error.STALE),
        ({"epoch": 1}, Error.STALE),
        ({"candidateIncarnation": 77}, Error.FENCED),
        ({"finished": False}, Error.INVALID),
    ],
)
def test_promotion_report_of_another_candidate_or_epoch_is_rejected(other: dict[str, Any], error: int) -> None:
    cluster = Cluster()
    cluster.fence("a")
    cluster.conclude()
    before = cluster.partition()
    assert cluster.ask(reportPromotion=cluster.promotion(**other)).error == error
    assert cluster.partition() is before


def test_promotion_reported_twice_is_accepted_but_not_after_a_restart() -> None:
    cluster = Cluster()
    cluster.fence("a")
    cluster.conclude()
    report = cluster.promotion()
    cluster.ask(reportPromotion=report)
    online = cluster.partition()
    assert cluster.ask(reportPromotion=report).error == Error.OK
    assert cluster.partition() is online

    other = Cluster()
    other.fence("a")
    other.conclude()
    report = other.promotion()
    other.restart("b")
    assert other.now == (CANDIDATE_FOUND, "", "c")
    assert other.ask(reportPromotion=report).error == Error.STALE


def test_last_candidate_that_restarts_is_proposed_again_with_a_new_leader_epoch() -> None:
    cluster = Cluster("ab")
    cluster.fence("a")
    first = cluster.partition()
    assert cluster.now == (CANDIDATE_FOUND, "", "b")
    cluster.restart("b")
    assert cluster.now == (CANDIDATE_FOUND, "", "b")
    assert cluster.partition().leader_epoch > first.leader_epoch
    cluster.fence("b")
    assert cluster.now == (OFFLINE, "", "")
    cluster.restart("b")
    assert cluster.now == (CANDIDATE_FOUND, "", "b")


# ---- switched off --------------------------------------------------------------------------------------------------
def test_cluster_with_elections_disabled_ignores_leader_reports_and_keeps_fenced_leaders() -> None:
    cluster = Driver(("a", "b", "c"))
    cluster.create()
    before = cluster.partition()
    for witness in ("b", "c"):
        report = pb.ReportLeader(stream="orders", witness=witness, witnessIncarnation=cluster.incarnation(witness))
        assert cluster.ask(reportLeader=report).error == Error.OK
    cluster.fence("a")
    assert cluster.partition() is before
    assert cluster.ask(electLeader=pb.ElectLeader(stream="orders", node="b")).error == Error.INVALID
    cluster.now_ns += MS


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
