"""Test the duties of the metadata leader, and which requests it answers without a log entry."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_driver import MS, Driver, Error
from election_driver import Cluster

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.controller.quorum_member import leader_to_ask_first
from liftpy.core.metadata.controller.state_machine import answer_without_log
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import registration


class Led:
    """A metadata leader, and nodes that send heartbeats while they are alive."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.duties = ActiveController(ReplicationConfig())
        self.now_ns = 0
        self.alive = set("abc")
        self.duties.lead(self.image, 0, 1)

    @property
    def image(self) -> ClusterImage:
        return self.cluster.fsm.image

    def heartbeat(self, node: str) -> pb.ControlResponse | None:
        beat = pb.Heartbeat(nodeId=node, incarnation=self.cluster.incarnation(node))
        request = pb.ControlRequest(operationId=b"h" * 16, heartbeat=beat)
        return self.duties.answer(request, self.image, self.now_ns, self.now_ns)

    def tick(self) -> None:
        self.now_ns += 50 * MS
        for node in sorted(self.alive):
            self.heartbeat(node)
        for request in self.duties.take_due(self.now_ns):
            kind = request.WhichOneof("request")
            assert kind is not None
            self.cluster.ask(**{kind: getattr(request, kind)})
            self.duties.image_changed(self.image, self.now_ns)

    def run_until(self, holds: Callable[[], bool]) -> int:
        """Advance the virtual time in milliseconds until ``holds`` is true."""
        for waited in range(0, 10_000, 50):
            if holds():
                return waited
            self.tick()
        raise AssertionError("it never came about")


def test_metadata_leader_asks_a_drained_leader_to_resign_before_it_moves_leaderships() -> None:
    led = Led()
    while led.cluster.now != (PartitionStatus.ONLINE, "a", ""):
        led.tick()
    for name in ("more", "still"):
        assert led.cluster.create(name, partitions=3).error == Error.OK
    led.duties.image_changed(led.image, led.now_ns)
    assert led.cluster.ask(setNode=pb.SetNode(nodeId="a", leaving=True)).error == Error.OK
    led.duties.image_changed(led.image, led.now_ns)
    led.now_ns += 1000 * MS
    asked = [
        leader_to_ask_first(led.image, request) for request in led.duties.take_due(led.now_ns) if "electLeader" in str(request)
    ]
    assert len(asked) == led.image.leader_counts["a"] > 1
    assert all(found is not None and found[0] == "a" for found in asked)


def test_silent_leader_and_silent_candidate_are_fenced_and_replaced() -> None:
    led = Led()
    for _ in range(100):
        led.tick()
    assert led.cluster.now == (PartitionStatus.ONLINE, "a", "")
    led.alive.discard("a")
    waited = led.run_until(lambda: led.cluster.now[2] == "b")
    assert 2000 <= waited <= 2400
    epoch = led.cluster.partition().leader_epoch
    led.alive.discard("b")
    led.run_until(lambda: led.cluster.now[2] == "c")
    assert led.cluster.partition().leader_epoch > epoch
    led.cluster.promote()
    led.duties.image_changed(led.image, led.now_ns)
    led.alive = set("abc")
    led.run_until(lambda: led.image.live_nodes() == ["a", "b", "c"])
    assert led.cluster.now == (PartitionStatus.ONLINE, "c", "")
    assert led.heartbeat("a").error == Error.OK  # type: ignore[union-attr]


@pytest.mark.parametrize("linearizable", [False, True])
def test_metadata_leader_answers_heartbeats_and_reads_without_log_entries(linearizable: bool) -> None:
    led = Led()
    answered = led.heartbeat("a")
    assert answered is not None
    assert (answered.error, answered.index, answered.operationId) == (Error.OK, led.image.index, b"h" * 16)
    describing = pb.ControlRequest(describeCluster=pb.DescribeCluster(), linearizable=linearizable)
    described = led.duties.answer(describing, led.image, 0, 0)
    assert (described is None) == linearizable
    for logged in (
        pb.ControlRequest(barrier=pb.Barrier()),
        pb.ControlRequest(createStream=pb.CreateStream(name="more", subject="shop.more")),
    ):
        assert led.duties.answer(logged, led.image, 0, 0) is None
    progress = pb.ControlRequest(reportPromotion=pb.ReportPromotion(stream="orders"))
    assert led.duties.answer(progress, led.image, 0, 0) is not None


def test_metadata_leader_after_resigning_makes_no_proposals() -> None:
    led = Led()
    led.duties.resign()
    assert led.duties.take_due(10**15) == []
    assert led.duties.next_deadline_ns() is None
    assert led.heartbeat("a").error == Error.NOT_METADATA_LEADER  # type: ignore[union-attr]


ID = b"sixteen bytes id"
CREATE = pb.CreateStream(name="more", subject="shop.more")


def leading(driver: Driver) -> ActiveController:
    duties = ActiveController(ReplicationConfig(), driver.fsm.rules)
    duties.lead(driver.fsm.image, 0, 1)
    return duties


@pytest.fixture
def driver() -> Driver:
    made = Driver(("a", "b", "c"))
    made.create(partitions=2)
    return made


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (pb.ControlRequest(createStream=pb.CreateStream(name="orders", subject="shop.other")), Error.EXISTS),
        (pb.ControlRequest(createStream=pb.CreateStream(name="bad name", subject="shop.other")), Error.INVALID),
        (pb.ControlRequest(createStream=pb.CreateStream(name="x", subject="shop.orders")), Error.INVALID),
        (pb.ControlRequest(addPartitions=pb.AddPartitions(name="none", partitions=9)), Error.NOT_FOUND),
        (pb.ControlRequest(setNode=pb.SetNode(nodeId="a", weight=-1)), Error.INVALID),
        (pb.ControlRequest(deleteStream=pb.DeleteStream(name="none")), Error.NOT_FOUND),
        (pb.ControlRequest(removeNode=pb.RemoveNode(nodeId="a")), Error.INVALID),
        (pb.ControlRequest(removeNode=pb.RemoveNode(nodeId="z")), Error.NOT_FOUND),
        (pb.ControlRequest(registerNode=registration(nodeId="bad name")), Error.INVALID),
        (pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="a", incarnation=99)), Error.FENCED),
        (pb.ControlRequest(changeIsr=pb.ChangeIsr(stream="orders", uid="gone", leader="a", isr=["a"])), Error.NOT_FOUND),
        (pb.ControlRequest(electLeader=pb.ElectLeader(stream="none")), Error.NOT_FOUND),
        (pb.ControlRequest(deleteStream=pb.DeleteStream(name="orders"), operationId=b"short"), Error.INVALID),
        (pb.ControlRequest(), Error.INVALID),
    ],
    ids=lambda value: value.WhichOneof("request") if isinstance(value, pb.ControlRequest) else "",
)
def test_metadata_leader_answers_an_impossible_request_without_a_log_entry(
    driver: Driver, request_: pb.ControlRequest, error: int
) -> None:
    duties = leading(driver)
    for number in range(3):
        answer = duties.answer(request_, driver.fsm.image, 0, 0)
        assert answer is not None
        assert answer.error == error, answer
        assert answer.detail, number
    assert duties.counters["control requests that change nothing"] == 3


def test_metadata_leader_logs_a_request_that_changes_the_image(driver: Driver) -> None:
    duties = leading(driver)
    ended = {"uid": driver.fsm.image.streams["orders"].uid, "node": "a", "incarnation": driver.incarnation("a"), "service": "x"}
    for request in (
        pb.ControlRequest(reportService=pb.ReportService(stream="orders", **ended)),
        pb.ControlRequest(createStream=CREATE),
        pb.ControlRequest(deleteStream=pb.DeleteStream(name="orders")),
        pb.ControlRequest(registerNode=registration(nodeId="d")),
        pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="a", incarnation=driver.incarnation("a"))),
        pb.ControlRequest(barrier=pb.Barrier()),
        pb.ControlRequest(describeCluster=pb.DescribeCluster(), linearizable=True),
    ):
        assert duties.answer(request, driver.fsm.image, 0, 0) is None


def test_metadata_leader_without_a_recent_majority_logs_a_request_that_changes_nothing(driver: Driver) -> None:
    duties = leading(driver)
    wrong = pb.ControlRequest(deleteStream=pb.DeleteStream(name="none"))
    assert duties.answer(wrong, driver.fsm.image, 400 * MS, 0) is not None
    assert duties.answer(wrong, driver.fsm.image, 400 * MS + 1, 0) is None


def test_metadata_leader_answers_an_operation_id_in_the_log_only_after_apply(driver: Driver) -> None:
    """The first request is logged, not applied yet, and may succeed."""
    duties = leading(driver)
    delete = pb.ControlRequest(operationId=ID, deleteStream=pb.DeleteStream(name="more"))
    duties.record_logged(ID)  # behind a creation that is not applied either
    assert duties.answer(delete, driver.fsm.image, 0, 0) is None
    driver.create("more")
    driver.ask(ID, deleteStream=pb.DeleteStream(name="more"))
    duties.image_changed(driver.fsm.image, 0)
    again = duties.answer(delete, driver.fsm.image, 0, 0)
    assert again is not None
    assert again.error == Error.OK, "what it was answered the first time"
    duties.record_logged(b"another id here.")
    duties.record_not_logged(b"another id here.")
    lost = pb.ControlRequest(operationId=b"another id here.", deleteStream=pb.DeleteStream(name="more"))
    assert duties.answer(lost, driver.fsm.image, 0, 0).error == Error.NOT_FOUND  # type: ignore[union-attr]


def test_repeated_registration_gets_the_answer_of_the_first(driver: Driver) -> None:
    """The answer to the first attempt was lost. The node is registered, and its session has begun."""
    duties = leading(driver)
    request = pb.ControlRequest(operationId=ID, registerNode=registration(nodeId="new"))
    assert duties.answer(request, driver.fsm.image, 0, 0) is None
    first = driver.ask(ID, registerNode=request.registerNode)
    duties.image_changed(driver.fsm.image, 0)
    again = duties.answer(request, driver.fsm.image, 0, 0)
    assert again is not None
    assert (again.error, again.node) == (Error.OK, first.node)
    other = pb.ControlRequest(operationId=b"another id here.", registerNode=request.registerNode)
    assert duties.answer(other, driver.fsm.image, 0, 0).error == Error.EXISTS  # type: ignore[union-attr]


def test_metadata_leader_of_a_new_term_has_no_operation_ids_of_earlier_terms(driver: Driver) -> None:
    """The image of the new leader has all logged entries. A lost entry may be requested again."""
    duties = leading(driver)
    assert [duties.record_logged(ID), duties.record_logged(ID)] == [True, False]
    duties.resign()
    duties.lead(driver.fsm.image, 0, 2)
    gone = pb.ControlRequest(operationId=ID, deleteStream=pb.DeleteStream(name="none"))
    assert duties.answer(gone, driver.fsm.image, 0, 0).error == Error.NOT_FOUND  # type: ignore[union-attr]
    assert duties.record_logged(ID)


def test_metadata_leader_logs_a_whole_batch_if_one_request_changes_the_image(driver: Driver) -> None:
    good = driver.isr_request(["a", "b"])
    stale = driver.isr_request(["a", "b"], number=1)
    stale.epoch += 7

    def batch(*changes: pb.ChangeIsr) -> pb.ControlRequest:
        items = [pb.BatchedRequest(number=n, request=pb.ControlRequest(changeIsr=change)) for n, change in enumerate(changes)]
        return pb.ControlRequest(operationId=ID, batch=pb.Batch(requests=items))

    duties = leading(driver)
    here, rest = duties.split_batch(batch(stale, stale), driver.fsm.image, 0, 0)
    assert rest is None
    assert [(answer.number, answer.error) for answer in here.batch.answers] == [(0, Error.STALE), (1, Error.STALE)]
    here, rest = duties.split_batch(batch(stale, good), driver.fsm.image, 0, 0)
    assert rest is not None
    assert len(rest.batch.requests) == 2
    assert not here.batch.answers


def test_metadata_leader_after_an_exception_in_a_decision_logs_the_request(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("liftpy.core.metadata.controller.streams.create_stream", broken)
    assert answer_without_log(driver.fsm.image, pb.ControlRequest(createStream=CREATE), 1, driver.fsm.rules) is None


def test_metadata_leader_writes_no_log_entry_to_reject_remove_node_of_a_running_node(driver: Driver) -> None:
    driver.register("d")
    duties = leading(driver)
    beat = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId="d", incarnation=driver.incarnation("d")))
    duties.answer(beat, driver.fsm.image, 0, 0)
    driver.fence("d")
    duties.image_changed(driver.fsm.image, MS)
    removal = pb.ControlRequest(removeNode=pb.RemoveNode(nodeId="d"))
    refused = duties.answer(removal, driver.fsm.image, 500 * MS, 500 * MS)
    assert refused is not None
    assert (refused.error, refused.detail) == (Error.INVALID, "node 'd' is alive: stop it first")
    assert duties.answer(removal, driver.fsm.image, 501 * MS, 501 * MS) is None, "it has stopped"


@pytest.mark.parametrize("kind", ["a command", "a leader that can't serve", "a witness"])
def test_metadata_leader_writes_no_log_entry_to_reject_an_election_without_electable_replica(kind: str) -> None:
    cluster = Cluster("ab", minIsr=1)
    cluster.change_isr(["a"])
    if kind == "a command":
        cluster.restart("a", flushed=False)
        asked = pb.ControlRequest(electLeader=pb.ElectLeader(**cluster.about()))
    elif kind == "a witness":
        about = cluster.about(
            witness="b", witnessIncarnation=cluster.incarnation("b"), leader="a", leaderEpoch=cluster.partition().leader_epoch
        )
        asked = pb.ControlRequest(reportLeader=pb.ReportLeader(**about, accusedAsked=True))
    else:
        partition = cluster.partition()
        gives_up = cluster.about(leader="a", leaderEpoch=partition.leader_epoch, incarnation=cluster.incarnation("a"))
        asked = pb.ControlRequest(giveUpLeadership=pb.GiveUpLeadership(**gives_up))
    fsm = cluster.fsm
    duties = ActiveController(ReplicationConfig(), fsm.rules)
    duties.lead(fsm.image, 0, 1)
    answer = (
        answer_without_log(fsm.image, asked, 0, fsm.rules) if kind == "a witness" else duties.answer(asked, fsm.image, 0, 0)
    )
    assert answer is not None
    assert answer.error == Error.NOT_ENOUGH_NODES
    assert kind == "a witness" or duties.counters["control requests that change nothing"] == 1
