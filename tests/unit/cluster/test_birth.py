"""The level at which a new group begins: the newest that all its controllers speak, before anything else is decided."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_metadata_member import MAX_BYTES, Log, Member

from liftpy.config import NS_PER_S, SessionTimes
from liftpy.core.metadata.controller.feature_negotiation import HEARD_WITHIN_NS, begin_at, is_unborn, level_at_birth
from liftpy.core.metadata.controller.quorum_member import EntryOutcome, Order
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.controller_list import ControllerList, GroupView
from liftpy.core.metadata.feature_range import LevelRange
from liftpy.core.metadata.features import FEATURES, SPOKEN
from liftpy.core.metadata.image import ClusterImage, ClusterRules, Counters, NodeImage
from liftpy.core.metadata.record_builder import Rules
from liftpy.core.wire._pb import cluster_pb2 as pb

OLD, BOTH = LevelRange(1, 1), LevelRange(1, 2)
VOTERS = ControllerList(("n1", "n2", "n3"))
Error = pb.ControlResponse


def new_group(n2: LevelRange | None = BOTH, n3: LevelRange | None = BOTH, halted: str = "") -> Member:
    """Of three controllers; n1 leads and is in office."""
    made = Member()
    made.log.fsm.image = ClusterImage()
    made.log.view_ = GroupView(VOTERS, "n1", frozenset(VOTERS.voters), halted=halted, levels={"n2": n2, "n3": n3})
    made.lead()
    return made


def register() -> pb.ControlRequest:
    said = pb.RegisterNode(nodeId="d0")
    SPOKEN.tell(said)
    return pb.ControlRequest(registerNode=said)


def orders(made: Member, later_ns: int = 0) -> list[Order]:
    return [decided for decided in made.tick(later_ns=later_ns) if isinstance(decided, Order)]


def refused(made: Member, request: pb.ControlRequest) -> str:
    answer = made.ask(request)
    assert isinstance(answer, pb.ControlResponse)
    assert answer.error == Error.UNAVAILABLE
    return answer.detail


def test_a_new_group_begins_at_the_newest_level_and_takes_nodes_in_only_then() -> None:
    made = new_group()
    assert "feature level is being decided" in refused(made, register())
    batch = pb.ControlRequest()
    batch.batch.requests.add(number=1).request.CopyFrom(register())
    refused(made, batch)
    [birth] = orders(made)
    assert (birth.request.setFeatureLevel.level, list(birth.request.setFeatureLevel.checked)) == (2, [])
    assert orders(made) == [], "one at a time"
    refused(made, register())
    assert made.do(birth).error == Error.OK
    assert orders(made) == []
    image = made.log.image
    assert (image.feature_level, image.rules, len(image.digest)) == (2, ClusterRules("liftpy", False), 8)
    assert isinstance(made.ask(register()), Order)


def test_what_only_looks_is_answered_meanwhile() -> None:
    made = new_group(n3=None)
    answer = made.ask(pb.ControlRequest(describeCluster=pb.DescribeCluster()))
    assert isinstance(answer, pb.ControlResponse)
    assert answer.error == Error.OK
    assert isinstance(made.ask(pb.ControlRequest(barrier=pb.Barrier())), Order)


@pytest.mark.parametrize("outcome", [EntryOutcome.NEVER, EntryOutcome.UNKNOWN])
def test_an_order_that_came_to_nothing_is_given_again(outcome: EntryOutcome) -> None:
    made = new_group()
    [birth] = orders(made)
    entry = made.member.entry(birth, 1, MAX_BYTES)
    assert isinstance(entry, bytes)
    made.member.ended(birth, outcome, None, made.log.now_ns)
    [again] = orders(made)
    assert made.do(again).error == Error.OK
    made.log.apply(entry)  # the first one comes yet
    assert made.log.image.feature_level == 2


def test_with_one_old_controller_the_group_begins_at_its_level_and_nothing_is_logged() -> None:
    made = new_group(n3=OLD)
    assert orders(made) == []
    assert isinstance(made.ask(register()), Order)
    made.register(1)
    assert made.log.image.feature_level == 1


def test_a_controller_that_is_not_heard_is_waited_for_and_may_be_of_any_version() -> None:
    made = new_group(n3=None)
    assert orders(made) == []
    assert "has not heard yet which feature levels n3 speaks" in refused(made, register())
    assert orders(made, later_ns=HEARD_WITHIN_NS - 1) == []
    refused(made, register())
    made.log.view_ = replace(made.log.view_, levels={"n2": BOTH, "n3": BOTH})
    assert [order.request.setFeatureLevel.level for order in orders(made)] == [2]
    late = new_group(n3=None)
    assert orders(late, later_ns=HEARD_WITHIN_NS) == []
    assert isinstance(late.ask(register()), Order)


def test_a_group_whose_images_differ_decides_nothing() -> None:
    made = new_group(halted="they differ")
    assert orders(made) == []
    made.log.view_ = replace(made.log.view_, halted="")
    assert len(orders(made)) == 1


@pytest.mark.parametrize(
    "image",
    [
        ClusterImage(counters=Counters(next_incarnation=2)),
        ClusterImage(counters=Counters(next_stream_uid=2)),
        ClusterImage(controllers=ControllerList(("n1",), index=3)),
        ClusterImage(nodes=ClusterImage().nodes.set("d1", NodeImage(node_id="d1", incarnation=1))),
    ],
    ids=["nodes were there", "streams were there", "controllers changed", "a node is there"],
)
def test_a_group_that_was_ever_used_keeps_its_level(image: ClusterImage) -> None:
    made = new_group()
    made.log.fsm.image = image
    assert not is_unborn(image)
    assert orders(made) == []
    assert isinstance(made.ask(register()), Order), "and lets nodes in"
    assert is_unborn(ClusterImage(index=7, time_ns=9))


def test_a_leader_that_is_not_in_office_yet_lets_nothing_pass_the_birth() -> None:
    made = Member()
    made.log.fsm.image = ClusterImage()
    made.log.leads = True
    create = pb.ControlRequest(createStream=pb.CreateStream(name="orders", subject="o.>", partitions=1, replicationFactor=1))
    refused(made, create)
    made.log.fsm.image = ClusterImage(counters=Counters(next_incarnation=2))
    assert isinstance(made.ask(create), Order)


def test_who_registers_before_the_entry_keeps_the_group_at_its_level() -> None:
    log = Log(fsm=ClusterFsm())
    requests = [
        pb.ControlRequest(registerNode=pb.RegisterNode(nodeId="old"), operationId=bytes(16)),
        begin_at(2, Rules(), SessionTimes(2000, 900)),
    ]
    requests[1].operationId = bytes(15) + b"1"
    answers = [pb.ControlResponse.FromString(log.apply(request.SerializeToString())) for request in requests]
    assert [answer.error for answer in answers] == [Error.OK, Error.STALE]
    assert log.image.feature_level == 1


@pytest.mark.parametrize(
    ("own", "others", "level"),
    [
        (BOTH, {}, 2),
        (BOTH, {"b": LevelRange(1, 3)}, 2),
        (LevelRange(2, 4), {"b": LevelRange(1, 3), "c": LevelRange(3, 9)}, 3),
        (BOTH, {"b": BOTH, "c": OLD}, 1),
        (
            LevelRange(1, 2),
            {"b": LevelRange(3, 4)},
            "controllers speak no feature level in common: the leader 1 to 2, b 3 to 4",
        ),
    ],
)
def test_the_newest_level_in_common(own: LevelRange, others: dict[str, LevelRange | None], level: int | str) -> None:
    found = level_at_birth(own, others, waited=False)
    assert found == level or (isinstance(level, str) and isinstance(found, str) and found.endswith(level))


def test_a_version_that_does_not_speak_the_first_level_waits_for_who_is_silent() -> None:
    said = level_at_birth(LevelRange(2, 3), {"b": None}, waited=True)
    assert said == "the group is new, and its controllers speak no feature level in common: the leader 2 to 3, b 1"


def test_a_version_of_one_level_holds_nothing_back() -> None:
    made = Member()
    made.log.fsm = ClusterFsm(features=FEATURES[:1])
    made.member = type(made.member)(made.config, made.log.fsm.rules, made.log, made.log.feed, made.new_id)
    made.lead()
    assert isinstance(made.ask(register()), Order)
    assert orders(made, later_ns=9 * NS_PER_S) == []
