"""Test feature levels: supported ones, finalized ones, and readers that end at an unknown one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_driver import Driver

from liftpy.config import DefaultQuota, ReplicationConfig
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot, image_from_bytes, image_from_pb, image_to_bytes
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.controller.feature_levels import ReportedLevels, downgrade_obstacles, levels_answer
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.describe import ClusterPages, describe
from liftpy.core.metadata.features import (
    DEFAULT_LEVELS,
    FEATURES,
    FIRST,
    NO_LEVEL,
    QUEUE_EPOCHS,
    SUPPORTED_LEVELS,
    UNSUPPORTED,
    Feature,
    LevelRange,
    feature_level_rejection,
    level_range_of,
)
from liftpy.core.metadata.feed import MAX_UNREADABLE, FeedSubscription
from liftpy.core.metadata.image import ClusterImage, ClusterRules
from liftpy.core.metadata.sessions import RegistrationOutcome, registration_result
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_STREAM
from liftpy.errors import IncompatibleVersionError
from tests.born import BOTH, TIMES, born_fsm, born_image
from tests.born import NEXT as NEXT_FEATURE
from tests.unit.metadata.small_images import a_stream, an_image

NOW, NEXT = SUPPORTED_LEVELS.most, NEXT_FEATURE.level
USED = replace(
    NEXT_FEATURE,
    in_use=lambda image: sorted(image.streams),
    asked=lambda request: "a read-only stream" if request.createStream.config.readOnly else "",
)
NEWER = (*FEATURES, USED)
"""The next level is in use while there are streams; only it knows requests for streams that are read-only from the start."""
UNKNOWN_FIELD = bytes.fromhex("c23e0161")  # number 1000, one byte
UNKNOWN_KIND = bytes.fromhex("921f00")  # number 498, an empty message
Error = pb.ControlResponse


def a_driver(*nodes: str, features: tuple[Feature, ...] = BOTH) -> Driver:
    """A cluster at the newest level of this version."""
    driver = Driver(elections=True)
    driver.fsm = born_fsm("shop", elections=True, features=features, level=NOW)
    for node in nodes:
        register = pb.RegisterNode(nodeId=node, version="1.2.3")
        level_range_of(features).write_to(register)
        driver.ask(registerNode=register)
    return driver


def heard_of(driver: Driver, **spoken: LevelRange) -> ReportedLevels:
    heard = ReportedLevels()
    for node in driver.fsm.image.nodes:
        beat = pb.Heartbeat(nodeId=node, incarnation=driver.incarnation(node))
        spoken.get(node, level_range_of(driver.fsm.rules.features)).write_to(beat)
        heard.record_heartbeat(beat, driver.fsm.image)
    return heard


def asked(
    driver: Driver, level: int, heard: ReportedLevels, *, dry_run: bool = False, **controllers: LevelRange | None
) -> pb.ControlResponse:
    """Decide a request like the metadata leader."""
    request = pb.ControlRequest(setFeatureLevel=pb.SetFeatureLevel(level=level, dryRun=dry_run))
    answer = levels_answer(request, driver.fsm.image, heard, controllers, driver.fsm.rules, TIMES)
    return driver.ask(setFeatureLevel=request.setFeatureLevel) if answer is None else answer


def finalized(*nodes: str, features: tuple[Feature, ...] = BOTH) -> Driver:
    """A cluster at the next level."""
    driver = a_driver(*nodes, features=features)
    assert asked(driver, NEXT, heard_of(driver)).error == Error.OK
    assert driver.fsm.image.feature_level == NEXT
    return driver


# ---- finalize -------------------------------------------------------------------------------------------------------------------
def test_feature_level_that_all_nodes_support_is_finalized_in_the_image() -> None:
    driver = a_driver("a", "b")
    answer = asked(driver, NEXT, heard_of(driver), c=LevelRange(NOW, NEXT))
    assert (answer.error, answer.detail) == (Error.OK, f"the feature level is {NEXT}, it was {NOW}")
    image = driver.fsm.image
    assert (image.feature_level, image.rules, len(image.digest)) == (NEXT, ClusterRules("shop", True), 8)
    again = asked(driver, NEXT, heard_of(driver))
    assert (again.error, again.detail) == (Error.OK, f"the feature level is {NEXT} already")
    assert image_from_bytes(image_to_bytes(image)) == image
    assert image_from_bytes(image_to_bytes(image)).digest == image.digest
    assert image_from_bytes(image_to_bytes(image, operations=False)).digest == b""


@pytest.mark.parametrize(
    ("level", "nodes", "controllers", "says"),
    [
        (NEXT, {"b": LevelRange(NOW, NOW)}, {}, f"node b (1.2.3) speaks {NOW}, not {NEXT}"),
        (NEXT, {"b": LevelRange(NEXT + 1, NEXT + 2)}, {}, f"node b (1.2.3) speaks {NEXT + 1} to {NEXT + 2}, not {NEXT}"),
        (NEXT, {}, {"c": None}, "controller c is not connected: start it, or take it out of the controllers"),
        (NEXT, {}, {"c": LevelRange(NOW, NOW)}, f"controller c speaks {NOW}, not {NEXT}"),
        (NEXT, {}, {"c": DEFAULT_LEVELS}, f"controller c speaks 1, not {NEXT}"),
        (
            NEXT + 1,
            {},
            {},
            f"asked for is feature level {NEXT + 1}, the metadata leader speaks 5 to {NEXT}: it needs a newer version",
        ),
        (4, {}, {}, "there is no level before 5 that the metadata leader speaks"),
    ],
)  # fmt: skip
def test_feature_level_that_a_node_does_not_support_is_rejected(
    level: int, nodes: dict[str, LevelRange], controllers: dict[str, LevelRange | None], says: str
) -> None:
    driver = a_driver("a", "b")
    heard = heard_of(driver, **nodes)
    answer = asked(driver, level, heard, **controllers)
    assert answer.error == Error.INVALID
    assert answer.detail.removeprefix(UNSUPPORTED) == says
    assert driver.fsm.image.feature_level == NOW
    looked = asked(driver, level, heard, dry_run=True, **controllers)
    assert (looked.error, list(looked.levels.reasons)) == (Error.OK, [answer.detail])


def test_feature_level_is_rejected_while_a_registered_node_is_silent() -> None:
    driver = a_driver("a", "b")
    heard = heard_of(driver)
    driver.restart("b")
    answer = asked(driver, NEXT, heard)
    assert answer.detail == "node b does not run, or was not heard yet: start it, or remove it"
    late = pb.Heartbeat(nodeId="b", incarnation=driver.incarnation("b") - 1, minLevel=NOW, maxLevel=NEXT)
    heard.record_heartbeat(late, driver.fsm.image)
    heard.record_heartbeat(pb.Heartbeat(nodeId="x", incarnation=1), driver.fsm.image)
    assert asked(driver, NEXT, heard).error == Error.INVALID
    heard = heard_of(driver)
    heard.record_heartbeat(late, driver.fsm.image)
    driver.fence("b")
    assert asked(driver, NEXT, heard).error == Error.INVALID, "its next process may be of any version"
    driver.unfence("b")
    assert asked(driver, NEXT, heard).error == Error.OK, "what comes late does not count"


def test_feature_level_request_checked_before_a_node_registered_returns_stale() -> None:
    driver = a_driver("a", "b")
    request = pb.ControlRequest(setFeatureLevel=pb.SetFeatureLevel(level=NEXT))
    assert levels_answer(request, driver.fsm.image, heard_of(driver), {}, driver.fsm.rules, TIMES) is None
    driver.restart("b")
    driver.register("c")
    answer = driver.ask(setFeatureLevel=request.setFeatureLevel)
    assert (answer.error, answer.detail) == (Error.STALE, "registered meanwhile, and not asked: b, c")
    assert driver.fsm.image.feature_level == NOW


def test_feature_level_dry_run_lists_the_ranges_of_the_nodes() -> None:
    driver = a_driver("a", "b")
    heard = heard_of(driver)
    driver.restart("b")
    answer = asked(driver, 0, heard, dry_run=True)
    found = {n.nodeId: (n.minLevel, n.maxLevel, n.version) for n in answer.levels.nodes}
    assert found == {"a": (FIRST, NEXT, "1.2.3"), "b": (0, 0, "")}
    assert (answer.levels.level, list(answer.levels.reasons)) == (NOW, [])
    assert driver.log[-1:] == driver.log[2:3], "only the restart was logged"


def test_feature_ranges_are_cleared_on_resigning_and_when_a_node_is_removed() -> None:
    driver = a_driver("a")
    duties = ActiveController(ReplicationConfig(), driver.fsm.rules)
    duties.lead(driver.fsm.image, 0, 1)
    beat = pb.Heartbeat(nodeId="a", incarnation=driver.incarnation("a"), minLevel=NOW, maxLevel=NEXT)
    duties.answer(pb.ControlRequest(heartbeat=beat), driver.fsm.image, 0, 0)
    assert duties.levels.levels_of(driver.fsm.image, "a") == LevelRange(NOW, NEXT)
    duties.image_changed(replace(driver.fsm.image, nodes=driver.fsm.image.nodes.delete("a")), 1)
    assert duties.levels.levels_of(driver.fsm.image, "a") is None
    duties.answer(pb.ControlRequest(heartbeat=beat), driver.fsm.image, 2, 2)
    duties.lead(driver.fsm.image, 3, 2)
    assert duties.levels.levels_of(driver.fsm.image, "a") is None


# ---- the way back ---------------------------------------------------------------------------------------------------------------
def test_feature_level_downgrade_is_rejected_while_a_stream_uses_the_feature() -> None:
    driver = finalized("a", "b", features=NEWER)
    driver.create("orders", "x", replicationFactor=2)
    assert asked(driver, NOW, heard_of(driver)).detail == "orders"
    unlooked = driver.ask(setFeatureLevel=pb.SetFeatureLevel(
        level=NOW, checked=[pb.CheckedNode(nodeId=n, incarnation=driver.incarnation(n)) for n in "ab"]))  # fmt: skip
    assert (unlooked.error, unlooked.detail) == (Error.INVALID, "orders"), "apply says the same"
    driver.delete("orders")
    assert asked(driver, NOW, heard_of(driver)).error == Error.OK
    assert driver.fsm.image.feature_level == NOW
    assert driver.fsm.image.rules == ClusterRules("shop", True)


def test_feature_level_of_queue_epochs_rejects_a_downgrade_while_the_groups_stream_exists() -> None:
    """The coordinators of an earlier version cannot read the log of that stream."""
    image = replace(an_image(replace(a_stream(), name=GROUPS_STREAM)), feature_level=QUEUE_EPOCHS)
    assert downgrade_obstacles(image, FEATURES) == ["stream _groups: its coordinators"]
    assert downgrade_obstacles(born_image(level=QUEUE_EPOCHS), FEATURES) == []


def test_feature_level_marked_irreversible_rejects_a_downgrade() -> None:
    driver = finalized("a", features=(*FEATURES, replace(NEXT_FEATURE, has_way_back=False)))
    answer = asked(driver, NOW, heard_of(driver))
    assert answer.error == Error.INVALID
    assert answer.detail.startswith(f"level {NEXT} has written what versions before it can't read")


def test_feature_level_downgrade_to_the_oldest_supported_level_is_accepted() -> None:
    driver = finalized("a", features=(FEATURES[-1], NEXT_FEATURE))
    assert asked(driver, NOW, heard_of(driver)).error == Error.OK
    assert driver.fsm.image.feature_level == NOW


def test_feature_level_downgrade_by_two_levels_is_rejected() -> None:
    driver = a_driver("a", features=(*BOTH, replace(NEXT_FEATURE, level=NEXT + 1)))
    assert asked(driver, NEXT + 1, heard_of(driver)).error == Error.OK
    assert asked(driver, NOW, heard_of(driver)).detail == f"one level at a time: from {NEXT + 1} to {NEXT}"
    checked = [pb.CheckedNode(nodeId="a", incarnation=driver.incarnation("a"))]
    answer = driver.ask(setFeatureLevel=pb.SetFeatureLevel(level=NOW, checked=checked))
    assert (answer.error, answer.detail) == (Error.INVALID, f"one level at a time: from {NEXT + 1} to {NEXT}"), (
        "apply says the same"
    )


def test_apply_of_a_feature_level_below_the_supported_range_raises_incompatible_version_error() -> None:
    driver = a_driver("a", features=FEATURES)
    driver.fsm.image = replace(driver.fsm.image, feature_level=FIRST)
    checked = [pb.CheckedNode(nodeId="a", incarnation=driver.incarnation("a"))]
    with pytest.raises(IncompatibleVersionError, match=f"the feature level becomes 4, but this version supports 5 to {NOW}"):
        driver.ask(setFeatureLevel=pb.SetFeatureLevel(level=FIRST - 1, checked=checked))
    assert driver.fsm.image.feature_level == FIRST


def test_feature_level_downgrade_is_rejected_if_a_node_supports_only_the_new_level() -> None:
    driver = finalized("a", "b", features=NEWER)
    answer = asked(driver, NOW, heard_of(driver, b=LevelRange(NEXT, NEXT)))
    assert answer.detail == f"node b (1.2.3) speaks {NEXT}, not {NOW}"


def test_control_request_that_needs_a_feature_level_not_yet_finalized_is_rejected() -> None:
    part = pb.ControlRequest(createStream=pb.CreateStream(name="s", config=pb.StreamConfig(readOnly=True)))
    batch = pb.ControlRequest(batch=pb.Batch(requests=[pb.BatchedRequest(number=1, request=part)]))
    says = f"UNSUPPORTED: a read-only stream needs feature level {NEXT}, the cluster is at level {NOW}: liftpy upgrade finalize"
    for request in (part, batch):
        assert feature_level_rejection(request, NOW, NEWER) == says
        assert feature_level_rejection(request, NEXT, NEWER) == ""
        assert feature_level_rejection(request, NOW, FEATURES) == ""
    assert feature_level_rejection(pb.ControlRequest(createStream=pb.CreateStream(name="s")), NOW, NEWER) == ""


# ---- default quota -----------------------------------------------------------------------------------------------------------------
def test_default_quota_change_keeps_the_values_of_omitted_fields() -> None:
    driver = a_driver("a")
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=5, bytesPerS=6, byToken=7))
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(bytesPerS=0))
    assert driver.fsm.image.default_quota == DefaultQuota(records_per_s=5, by_token=7)
    wrong = driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=1 << 40, byToken=1))
    assert (wrong.error, wrong.detail) == (
        Error.INVALID, "default quota: records_per_s = 1099511627776 is outside 0..2.14748e+09",
    )  # fmt: skip
    assert driver.fsm.image.default_quota == DefaultQuota(records_per_s=5, by_token=7)
    same = driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=5))
    assert (same.error, same.defaultQuota.byToken) == (Error.OK, 7)
    assert [type(record).__name__ for record in driver.fsm.last_records] == ["OperationDone"]
    pages = ClusterPages()
    while pages.request is not None:
        pages.add(describe(driver.fsm.image, pages.request).cluster)
    assert image_from_pb(pages.cluster.image).default_quota == driver.fsm.image.default_quota


# ---- who takes part -------------------------------------------------------------------------------------------------------------
def test_registration_of_a_node_without_the_cluster_feature_level_is_rejected_with_both_levels() -> None:
    driver = finalized("a")
    answer = driver.ask(registerNode=pb.RegisterNode(nodeId="old", minLevel=NOW, maxLevel=NOW))
    assert (answer.error, "old" in driver.fsm.image.nodes) == (Error.INVALID, False)
    assert answer.detail == (
        f"{UNSUPPORTED}the cluster is at feature level {NEXT}, node 'old' speaks {NOW}: it needs a newer version"
    )
    assert registration_result(answer) is RegistrationOutcome.UNSPOKEN
    assert registration_result(pb.ControlResponse(error=Error.INVALID, detail="no")) is RegistrationOutcome.REFUSED
    newer = driver.ask(registerNode=pb.RegisterNode(nodeId="new", minLevel=NEXT + 1, maxLevel=NEXT + 2))
    assert (
        f"node 'new' speaks {NEXT + 1} to {NEXT + 2}: it needs an older version, or to finalize a newer level first"
        in newer.detail
    )
    assert driver.ask(registerNode=pb.RegisterNode(nodeId="b", minLevel=NEXT, maxLevel=NEXT + 1)).error == Error.OK


def test_registration_of_a_node_without_a_feature_range_is_rejected() -> None:
    driver = a_driver("a")
    answer = driver.ask(registerNode=pb.RegisterNode(nodeId="old"))
    assert registration_result(answer) is RegistrationOutcome.UNSPOKEN
    assert f"the cluster is at feature level {NOW}, node 'old' speaks 1: it needs a newer version" in answer.detail
    duties = ActiveController(ReplicationConfig(), driver.fsm.rules)
    duties.lead(driver.fsm.image, 0, 1)
    before_the_log = duties.answer(pb.ControlRequest(registerNode=pb.RegisterNode(nodeId="c")), driver.fsm.image, 0, 0)
    assert before_the_log is not None
    assert registration_result(before_the_log) is RegistrationOutcome.UNSPOKEN


# ---- a group without a level ----------------------------------------------------------------------------------------------------
def test_metadata_image_without_a_feature_level_is_accepted_only_while_empty() -> None:
    """[M14]"""
    new = ClusterImage(index=7, time_ns=9)
    assert decode_snapshot(encode_snapshot(new)).feature_level == NO_LEVEL
    driver = a_driver("a")
    used = replace(driver.fsm.image, feature_level=NO_LEVEL)
    for read in (lambda: image_from_bytes(image_to_bytes(used)), lambda: decode_snapshot(encode_snapshot(used))):
        with pytest.raises(IncompatibleVersionError, match="has no feature level"):
            read()


def test_apply_of_an_entry_before_the_first_feature_level_raises_incompatible_version_error() -> None:
    fsm = ClusterFsm("shop", elections=True)
    barrier = pb.ControlRequest(operationId=b"b" * 16, timeNs=1, barrier=pb.Barrier())
    assert pb.ControlResponse.FromString(fsm.apply(barrier.SerializeToString(), 1)).error == Error.OK
    assert fsm.image.digest == b"", "the digest begins with the level"
    register = pb.ControlRequest(operationId=b"r" * 16, timeNs=1, registerNode=pb.RegisterNode(nodeId="a"))
    with pytest.raises(
        IncompatibleVersionError, match=rf"this version \(5 to {NOW}\) cannot apply entry 2 .* no feature level yet"
    ):
        fsm.apply(register.SerializeToString(), 2)
    assert fsm.image.index == 1


# ---- what is not understood -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("strange", [UNKNOWN_KIND, UNKNOWN_FIELD])
def test_apply_of_an_entry_with_unknown_fields_raises_incompatible_version_error(strange: bytes) -> None:
    entry = pb.ControlRequest(operationId=b"o" * 16, timeNs=1).SerializeToString() + strange
    driver = a_driver("a", features=FEATURES)
    before = driver.fsm.image
    for _ in range(2):  # a second attempt at the same entry once never ended
        with pytest.raises(IncompatibleVersionError, match=r"cannot apply entry 100 .* because a newer version"):
            driver.fsm.apply(entry, 100)
    assert driver.fsm.image is before


def test_apply_of_an_entry_with_a_nested_unknown_field_raises_incompatible_version_error() -> None:
    inner = pb.RegisterNode(nodeId="b").SerializeToString() + UNKNOWN_FIELD
    item = pb.ControlRequest(registerNode=pb.RegisterNode.FromString(inner))
    batch = pb.Batch(requests=[pb.BatchedRequest(number=1, request=item)])
    entry = pb.ControlRequest(operationId=b"o" * 16, timeNs=1, batch=batch).SerializeToString()
    with pytest.raises(IncompatibleVersionError):
        finalized("a").fsm.apply(entry, 100)


def test_controller_that_does_not_support_a_new_feature_level_stops_before_applying_the_entry() -> None:
    newer = a_driver("a")
    older = born_fsm("shop", elections=True)
    for index, entry in enumerate(newer.log, 1):
        older.apply(entry, index)
    assert asked(newer, NEXT, heard_of(newer)).error == Error.OK
    before = older.image
    with pytest.raises(
        IncompatibleVersionError, match=f"the feature level becomes {NEXT}, but this version supports 5 to {NOW}"
    ):
        older.apply(newer.log[-1], len(newer.log))
    assert older.image is before
    with pytest.raises(
        IncompatibleVersionError, match=f"the cluster is at feature level {NEXT}, this version speaks 5 to {NOW}"
    ):
        older.restore(newer.fsm.snapshot())
    assert older.image is before


@pytest.mark.parametrize("inner", ["config", "node"])
def test_metadata_image_with_unknown_fields_is_rejected(inner: str) -> None:
    driver = a_driver("a")
    driver.create("orders", "x")
    message = pb.Image.FromString(image_to_bytes(driver.fsm.image))
    part = message.streams[0].config if inner == "config" else message.nodes[0]
    part.MergeFromString(UNKNOWN_FIELD)
    with pytest.raises(IncompatibleVersionError, match="fields of a newer version"):
        image_from_bytes(message.SerializeToString())


def test_metadata_feed_subscription_stops_at_an_unsupported_feature_level() -> None:
    newer = a_driver("a")
    follower = FeedSubscription("d")
    take = follower._apply_snapshot
    take(encode_snapshot(newer.fsm.image, operations=False))
    assert (follower.synced, follower.image.feature_level) == (True, NOW)
    held = newer.fsm.image.index
    assert asked(newer, NEXT, heard_of(newer)).error == Error.OK
    entry = pb.FeedEntry(index=newer.fsm.image.index, previousIndex=held, records=newer.fsm.records)
    assert not follower.entry_received(entry)
    assert (follower.image.index, follower.synced) == (held, False), "it asks for a snapshot"
    data = encode_snapshot(newer.fsm.image, operations=False)
    for _ in range(MAX_UNREADABLE - 1):
        take(data)
    take(encode_snapshot(replace(newer.fsm.image, feature_level=NOW), operations=False))
    for _ in range(MAX_UNREADABLE - 1):
        take(data)
    with pytest.raises(IncompatibleVersionError, match=f"feature level {NEXT}"):
        take(data)


# ---- rules and digest -----------------------------------------------------------------------------------------------------------
def test_cluster_rules_in_the_image_do_not_depend_on_controller_settings() -> None:
    same = a_driver("a")
    other = ClusterFsm("another", elections=False)
    other.image = born_image("shop")
    for index, entry in enumerate(same.log, 1):
        other.apply(entry, index)
    for subject in ("shop.x", "another.x"):
        same.create("s" + subject[0], subject)
        other.apply(same.log[-1], len(same.log))
    assert other.image == same.fsm.image
    assert other.image.digest == same.fsm.image.digest
    assert sorted(other.image.streams) == ["sa"], "the namespace is the image's"


def test_metadata_image_digest_changes_with_every_entry_and_is_restored_from_a_snapshot() -> None:
    driver = a_driver("a")
    seen = {driver.fsm.image.digest}
    for request in ({"barrier": pb.Barrier()}, {"setNode": pb.SetNode(nodeId="a", weight=2)}, {"barrier": pb.Barrier()}):
        driver.ask(**request)
        seen.add(driver.fsm.image.digest)
    driver.apply(b"\xff")
    assert len(seen | {driver.fsm.image.digest}) == 5
    restored = ClusterFsm("shop", elections=True, features=BOTH)
    restored.restore(driver.fsm.snapshot())
    for each in (driver.fsm, restored):
        each.apply(
            pb.ControlRequest(operationId=b"x" * 16, timeNs=5, setNode=pb.SetNode(nodeId="a", weight=3)).SerializeToString(), 50
        )
    assert driver.fsm.image.digest == restored.image.digest
    other = ClusterFsm("shop", elections=True, features=BOTH)
    other.restore(driver.fsm.snapshot())
    for each, weight in ((driver.fsm, 4), (other, 5)):
        each.apply(
            pb.ControlRequest(
                operationId=b"y" * 16, timeNs=5, setNode=pb.SetNode(nodeId="a", weight=weight)
            ).SerializeToString(),
            51,
        )
    assert driver.fsm.image.digest != other.image.digest
    barrier = pb.ControlRequest(operationId=b"b" * 16, timeNs=5, barrier=pb.Barrier()).SerializeToString()
    for each in (driver.fsm, other):
        each.apply(barrier, 52)
    assert driver.fsm.image.digest != other.image.digest, "what was different once stays so"
    restored.restore(driver.fsm.snapshot())
    driver.fsm.apply(barrier, 53)
    restored.apply(barrier, 54)
    assert driver.fsm.image.digest != restored.image.digest, "each index counts"


def test_feature_level_request_sent_twice_returns_the_first_answer() -> None:
    driver = a_driver("a")
    request = pb.ControlRequest(setFeatureLevel=pb.SetFeatureLevel(level=NEXT), operationId=b"f" * 16, timeNs=5)
    assert levels_answer(request, driver.fsm.image, heard_of(driver), {}, driver.fsm.rules, TIMES) is None
    driver.apply(request.SerializeToString())
    driver.restart("a")
    answer = levels_answer(request, driver.fsm.image, ReportedLevels(), {}, driver.fsm.rules, TIMES)
    assert answer is not None
    assert answer.detail == f"the feature level is {NEXT}, it was {NOW}"
