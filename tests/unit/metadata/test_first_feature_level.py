"""Test the level of a new group: the newest that all its controllers support."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_quorum_member import MAX_BYTES, Member

from liftpy.core.metadata.controller.feature_levels import REPORT_MAX_AGE_NS, first_level_of_a_cluster
from liftpy.core.metadata.controller.quorum_member import EntryOutcome, ProposedEntry
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.controller_list import ControllerList, GroupView
from liftpy.core.metadata.features import DEFAULT_LEVELS, SUPPORTED_LEVELS, LevelRange
from liftpy.core.metadata.image import ClusterImage, ClusterRules
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import BOTH as FEATURES
from tests.born import born_image

NOW, NEXT = SUPPORTED_LEVELS.most, FEATURES[-1].level
OLD, BOTH = LevelRange(5, NOW), LevelRange(5, NEXT)
VOTERS = ControllerList(("n1", "n2", "n3"))
Error = pb.ControlResponse


def new_group(n2: LevelRange | None = BOTH, n3: LevelRange | None = BOTH, halted: str = "") -> Member:
    """Return controller n1 of three: it supports levels 5 to ``NEXT`` and is the active metadata leader."""
    made = Member()
    made.log.fsm = ClusterFsm(features=FEATURES)
    made.member = type(made.member)(made.config, made.log.fsm.rules, made.log, made.log.feed, made.new_id)
    made.log.view_ = GroupView(VOTERS, "n1", frozenset(VOTERS.voters), halted=halted, levels={"n2": n2, "n3": n3})
    made.lead()
    return made


def register() -> pb.ControlRequest:
    said = pb.RegisterNode(nodeId="d0")
    BOTH.write_to(said)
    return pb.ControlRequest(registerNode=said)


def orders(made: Member, later_ns: int = 0) -> list[ProposedEntry]:
    return [decided for decided in made.tick(later_ns=later_ns) if isinstance(decided, ProposedEntry)]


def refused(made: Member, request: pb.ControlRequest) -> str:
    answer = made.ask(request)
    assert isinstance(answer, pb.ControlResponse)
    assert answer.error == Error.UNAVAILABLE
    return answer.detail


def test_new_cluster_decides_its_feature_level_before_it_registers_nodes() -> None:
    made = new_group()
    assert "feature level is being decided" in refused(made, register())
    batch = pb.ControlRequest()
    batch.batch.requests.add(number=1).request.CopyFrom(register())
    refused(made, batch)
    [bootstrap] = orders(made)
    assert (bootstrap.request.setFeatureLevel.level, list(bootstrap.request.setFeatureLevel.checked)) == (NEXT, [])
    assert orders(made) == [], "one at a time"
    refused(made, register())
    assert made.do(bootstrap).error == Error.OK
    assert orders(made) == []
    image = made.log.image
    assert (image.feature_level, image.rules, len(image.digest)) == (NEXT, ClusterRules("liftpy", False), 8)
    assert image.session_times == made.config.session_times
    assert isinstance(made.ask(register()), ProposedEntry)


def test_new_cluster_answers_read_requests_before_its_feature_level() -> None:
    made = new_group(n3=None)
    answer = made.ask(pb.ControlRequest(describeCluster=pb.DescribeCluster()))
    assert isinstance(answer, pb.ControlResponse)
    assert answer.error == Error.OK
    assert isinstance(made.ask(pb.ControlRequest(barrier=pb.Barrier())), ProposedEntry)


@pytest.mark.parametrize("outcome", [EntryOutcome.NEVER, EntryOutcome.UNKNOWN])
def test_new_cluster_repeats_the_feature_level_request_after_an_unknown_outcome(outcome: EntryOutcome) -> None:
    made = new_group()
    [bootstrap] = orders(made)
    entry = made.member.entry(bootstrap, 1, MAX_BYTES)
    assert isinstance(entry, bytes)
    made.member.proposal_ended(bootstrap, outcome, None, made.log.now_ns)
    [again] = orders(made)
    assert made.do(again).error == Error.OK
    made.log.apply(entry)  # the first one comes yet
    assert made.log.image.feature_level == NEXT


def test_new_cluster_with_an_older_controller_uses_the_feature_level_of_this_controller() -> None:
    made = new_group(n3=OLD)
    [bootstrap] = orders(made)
    assert made.do(bootstrap).error == Error.OK
    assert orders(made) == []
    assert isinstance(made.ask(register()), ProposedEntry)
    assert made.log.image.feature_level == NOW


def test_new_cluster_with_a_silent_controller_waits_and_then_uses_the_oldest_feature_level() -> None:
    made = new_group(n3=None)
    assert orders(made) == []
    assert "has not heard yet which feature levels n3 speaks" in refused(made, register())
    assert orders(made, later_ns=REPORT_MAX_AGE_NS - 1) == []
    refused(made, register())
    made.log.view_ = replace(made.log.view_, levels={"n2": BOTH, "n3": BOTH})
    assert [order.request.setFeatureLevel.level for order in orders(made)] == [NEXT]
    late = new_group(n3=None)
    [bootstrap] = orders(late, later_ns=REPORT_MAX_AGE_NS)
    assert bootstrap.request.setFeatureLevel.level == 5


def test_new_cluster_whose_controllers_have_different_images_sets_no_feature_level() -> None:
    made = new_group(halted="they differ")
    assert orders(made) == []
    made.log.view_ = replace(made.log.view_, halted="")
    assert len(orders(made)) == 1


def test_metadata_leader_before_the_first_feature_level_logs_no_request() -> None:
    made = Member()
    made.log.fsm.image = ClusterImage()
    made.log.leads = True
    create = pb.ControlRequest(createStream=pb.CreateStream(name="orders", subject="o.>", partitions=1, replicationFactor=1))
    refused(made, create)
    made.log.fsm.image = born_image()
    assert isinstance(made.ask(create), ProposedEntry)


@pytest.mark.parametrize(
    ("own", "others", "level"),
    [
        (BOTH, {}, NEXT),
        (BOTH, {"b": LevelRange(5, NEXT + 1)}, NEXT),
        (LevelRange(NOW, NEXT + 1), {"b": LevelRange(5, NEXT), "c": LevelRange(NEXT, NEXT + 2)}, NEXT),
        (BOTH, {"b": BOTH, "c": OLD}, NOW),
        (
            BOTH,
            {"b": LevelRange(NEXT + 1, NEXT + 2)},
            f"controllers speak no feature level in common: the leader 5 to {NEXT}, b {NEXT + 1} to {NEXT + 2}",
        ),
        (BOTH, {"b": DEFAULT_LEVELS}, f"controllers speak no feature level in common: the leader 5 to {NEXT}, b 1"),
    ],
)
def test_first_feature_level_is_the_newest_that_all_controllers_support(
    own: LevelRange, others: dict[str, LevelRange | None], level: int | str
) -> None:
    found = first_level_of_a_cluster(own, others, waited=False)
    assert found == level or (isinstance(level, str) and isinstance(found, str) and found.endswith(level))
