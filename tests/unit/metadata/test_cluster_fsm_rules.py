"""Test the cluster's state machine: each entry once, depositions, names and returning nodes."""

from __future__ import annotations

import pytest

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.image import NodeImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import registration
from tests.each import each
from tests.unit.metadata.cluster_driver import Driver
from tests.unit.metadata.small_images import S


def test_cluster_fsm_counters_include_only_exceptions_and_undecodable_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(("a", "b", "c"))
    fsm = driver.fsm
    driver.ask(createStream=pb.CreateStream(name="s", subject="x"))
    driver.ask(createStream=pb.CreateStream(name="s", subject="x"))
    driver.ask(barrier=pb.Barrier())
    driver.ask(createStream=pb.CreateStream(name="t", subject="y", dryRun=True))
    fsm.apply(b"\xff", driver.index)
    assert (fsm.failure_count, fsm.refused_count) == (0, 0)
    fsm.apply(b"\xff", driver.index + 1)
    assert (fsm.failure_count, fsm.refused_count, fsm.image.index) == (0, 1, driver.index + 1)
    before = fsm.image

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("liftpy.core.metadata.controller.state_machine.kind_of", broken)
    answer = pb.ControlResponse.FromString(
        fsm.apply(pb.ControlRequest(operationId=b"o" * 16, barrier=pb.Barrier()).SerializeToString(), driver.index + 2)
    )
    assert (answer.error, answer.detail, answer.index) == (pb.ControlResponse.UNKNOWN, "RuntimeError: a bug", driver.index + 2)
    assert (fsm.failure_count, fsm.refused_count) == (1, 1)
    assert (fsm.image.index, fsm.image.streams, fsm.last_records) == (driver.index + 2, before.streams, ())


@each("reporters", [1, 2, 3])
@each("apart_s", [0, 3, 5])
def test_leader_of_many_followers_is_replaced_after_reports_of_most_followers_within_the_window(
    reporters: int, apart_s: int
) -> None:
    driver = Driver(("a", "b", "c", "d", "e"), elections=True)
    driver.ask(createStream=pb.CreateStream(name="s", subject="x", replicationFactor=5))
    partition = driver.fsm.image.streams["s"].partitions[0]
    witnesses = [node for node in partition.replicas if node != partition.leader]
    for number, witness in enumerate(witnesses[:reporters]):
        driver.ask(
            reportLeader=pb.ReportLeader(
                stream="s",
                witness=witness,
                witnessIncarnation=driver.fsm.image.nodes[witness].incarnation,
                leader=partition.leader,
                leaderEpoch=partition.leader_epoch,
                stampNs=number * apart_s * S + 1,
                stampTerm=1,
            )
        )
    deposed = driver.fsm.image.streams["s"].partitions[0].status is not PartitionStatus.ONLINE
    together = min(reporters, 1 + (4 // apart_s if apart_s else reporters))
    assert deposed is (2 * together > 4)


def test_leader_of_two_replicas_stays_leader_after_one_report() -> None:
    driver = Driver(("a", "b"), elections=True)
    driver.ask(createStream=pb.CreateStream(name="s", subject="x", replicationFactor=2))
    partition = driver.fsm.image.streams["s"].partitions[0]
    (witness,) = [node for node in partition.replicas if node != partition.leader]
    incarnation = driver.fsm.image.nodes[witness].incarnation
    report = pb.ReportLeader(
        stream="s", witness=witness, witnessIncarnation=incarnation, leader=partition.leader, leaderEpoch=partition.leader_epoch
    )
    driver.ask(reportLeader=report)
    assert driver.fsm.image.streams["s"].partitions[0].leader == partition.leader


def test_create_stream_repeatedly_spreads_the_leaders_over_the_nodes() -> None:
    driver = Driver(("a", "b", "c"))
    for number in range(6):
        driver.ask(createStream=pb.CreateStream(name=f"s{number}", subject=f"x{number}", replicationFactor=1))
    leaders = [driver.fsm.image.streams[f"s{n}"].partitions[0].leader for n in range(6)]
    assert sorted(leaders) == list("aabbcc")


@pytest.mark.parametrize(
    ("previous", "clean", "always", "complete"),
    [(1, True, False, True), (1, False, True, True), (1, False, False, False), (0, True, True, False), (7, True, True, False)],
)
def test_restarted_node_is_complete_only_with_its_last_incarnation_and_flushed_data(
    previous: int, clean: bool, always: bool, complete: bool
) -> None:
    from liftpy.core.metadata.controller.nodes import has_all_acknowledged_records

    known = NodeImage(node_id="a", incarnation=1)
    if previous == 7:
        known = NodeImage(node_id="a", incarnation=9, previous_incarnation=5)
    request = registration(nodeId="a", previousIncarnation=previous, cleanStop=clean, flushedAlways=always)
    assert has_all_acknowledged_records(known, request) is complete
