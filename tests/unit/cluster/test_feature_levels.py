"""Feature levels: who speaks what, what is finalized and what is refused, and that what is not understood ends a reader."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_driver import Driver

from liftpy.config import DefaultQuota, ReplicationConfig, SessionTimes, StreamConfig
from liftpy.core.metadata.codec import image_from_bytes, image_from_pb, image_to_bytes, node_to_pb
from liftpy.core.metadata.controller import feature_negotiation
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.controller.feature_negotiation import HeardLevels, levels_answer
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.describe import ClusterPages, describe
from liftpy.core.metadata.feature_range import LevelRange, said
from liftpy.core.metadata.features import (
    DEFAULT_QUOTA,
    DEFAULT_QUOTA_NEEDS,
    FEATURES,
    QUOTAS,
    QUOTAS_NEED,
    SPOKEN,
    STRICT,
    UNSUPPORTED,
    Feature,
    check_level,
    range_of,
    refused_level,
    why_not_yet,
)
from liftpy.core.metadata.feed import MAX_UNREADABLE, FeedSubscription
from liftpy.core.metadata.image import ClusterImage, ClusterRules
from liftpy.core.metadata.node_session import Registered, registered
from liftpy.core.metadata.record_builder import Rules
from liftpy.core.metadata.snapshot import LEVELLED, VERSION, decode_snapshot, encode_snapshot
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
from liftpy.errors import CorruptionError, IncompatibleVersionError

NEWEST, NEXT = SPOKEN.most, SPOKEN.most + 1
NEWER = (*FEATURES, Feature(NEXT, "9.0", "something", has_way_back=True, in_use=lambda image: sorted(image.streams)))
UNKNOWN_FIELD = bytes.fromhex("c23e0161")  # number 1000, one byte
UNKNOWN_KIND = bytes.fromhex("921f00")  # number 498, an empty message
Error = pb.ControlResponse
TIMES = SessionTimes(2000, 900)


def a_driver(*nodes: str, features: tuple[Feature, ...] = FEATURES) -> Driver:
    driver = Driver(elections=True)
    driver.fsm = ClusterFsm("shop", elections=True, features=features)
    for node in nodes:
        register = pb.RegisterNode(nodeId=node, version="1.2.3")
        range_of(features).tell(register)
        driver.ask(registerNode=register)
    return driver


def heard_of(driver: Driver, **spoken: LevelRange) -> HeardLevels:
    heard = HeardLevels()
    for node in driver.fsm.image.nodes:
        beat = pb.Heartbeat(nodeId=node, incarnation=driver.incarnation(node))
        spoken.get(node, range_of(driver.fsm.rules.features)).tell(beat)
        heard.heard(beat, driver.fsm.image)
    return heard


def asked(
    driver: Driver, level: int, heard: HeardLevels, *, dry_run: bool = False, **controllers: LevelRange | None
) -> pb.ControlResponse:
    """As the metadata leader does it."""
    request = pb.ControlRequest(setFeatureLevel=pb.SetFeatureLevel(level=level, dryRun=dry_run))
    answer = levels_answer(request, driver.fsm.image, heard, controllers, driver.fsm.rules, TIMES)
    return driver.ask(setFeatureLevel=request.setFeatureLevel) if answer is None else answer


def finalized(*nodes: str, features: tuple[Feature, ...] = FEATURES, level: int = STRICT) -> Driver:
    driver = a_driver(*nodes, features=features)
    assert asked(driver, level, heard_of(driver)).error == Error.OK
    assert driver.fsm.image.feature_level == level
    return driver


# ---- finalize -------------------------------------------------------------------------------------------------------------------
def test_a_level_that_everybody_speaks_is_finalized_once_and_the_image_says_so() -> None:
    driver = a_driver("a", "b")
    before = driver.fsm.image
    assert (before.feature_level, before.rules, before.digest) == (1, None, b"")
    written = pb.Image.FromString(image_to_bytes(before))
    assert (written.featureLevel, written.HasField("rules"), written.digest) == (0, False, b""), "as versions without levels do"
    answer = asked(driver, 2, heard_of(driver), c=LevelRange(1, 2))
    assert (answer.error, answer.detail) == (Error.OK, "the feature level is 2, it was 1")
    image = driver.fsm.image
    assert (image.feature_level, image.rules, len(image.digest)) == (2, ClusterRules("shop", True), 8)
    again = asked(driver, 2, heard_of(driver))
    assert (again.error, again.detail) == (Error.OK, "the feature level is 2 already")
    assert image_from_bytes(image_to_bytes(image)) == image
    assert image_from_bytes(image_to_bytes(image)).digest == image.digest
    assert image_from_bytes(image_to_bytes(image, operations=False)).digest == b""


@pytest.mark.parametrize(
    ("level", "nodes", "controllers", "says"),
    [
        (2, {"b": LevelRange(1, 1)}, {}, r"node b \(1.2.3\) speaks 1, not 2"),
        (2, {"b": LevelRange(3, 4)}, {}, r"node b \(1.2.3\) speaks 3 to 4, not 2"),
        (2, {}, {"c": None}, "controller c is not connected: start it, or take it out of the controllers"),
        (2, {}, {"c": LevelRange(1, 1)}, "controller c speaks 1, not 2"),
        (
            NEXT,
            {},
            {},
            f"asked for is feature level {NEXT}, the metadata leader speaks 1 to {NEWEST}: it needs a newer version",
        ),
    ],
)
def test_a_level_that_somebody_does_not_speak_is_not(
    level: int, nodes: dict[str, LevelRange], controllers: dict[str, LevelRange | None], says: str
) -> None:
    driver = a_driver("a", "b")
    heard = heard_of(driver, **nodes)
    answer = asked(driver, level, heard, **controllers)
    assert answer.error == Error.INVALID
    assert answer.detail == says.replace("\\", "") or answer.detail.removeprefix(UNSUPPORTED) == says
    assert driver.fsm.image.feature_level == 1
    looked = asked(driver, level, heard, dry_run=True, **controllers)
    assert (looked.error, list(looked.levels.reasons)) == (Error.OK, [answer.detail])


def test_who_was_not_heard_since_it_registered_is_in_the_way() -> None:
    driver = a_driver("a", "b")
    heard = heard_of(driver)
    driver.restart("b")
    answer = asked(driver, 2, heard)
    assert answer.detail == "node b does not run, or was not heard yet: start it, or remove it"
    late = pb.Heartbeat(nodeId="b", incarnation=driver.incarnation("b") - 1, minLevel=1, maxLevel=2)
    heard.heard(late, driver.fsm.image)
    heard.heard(pb.Heartbeat(nodeId="x", incarnation=1), driver.fsm.image)
    assert asked(driver, 2, heard).error == Error.INVALID
    heard = heard_of(driver)
    heard.heard(late, driver.fsm.image)
    driver.fence("b")
    assert asked(driver, 2, heard).error == Error.INVALID, "its next process may be of any version"
    driver.unfence("b")
    assert asked(driver, 2, heard).error == Error.OK, "what comes late does not count"


def test_who_registers_between_the_look_and_the_entry_is_in_the_way() -> None:
    driver = a_driver("a", "b")
    request = pb.ControlRequest(setFeatureLevel=pb.SetFeatureLevel(level=2))
    assert levels_answer(request, driver.fsm.image, heard_of(driver), {}, driver.fsm.rules, TIMES) is None
    driver.restart("b")
    driver.register("c")
    answer = driver.ask(setFeatureLevel=request.setFeatureLevel)
    assert (answer.error, answer.detail) == (Error.STALE, "New nodes registered during the check: b, c. Retry.")
    assert driver.fsm.image.feature_level == 1


def test_a_dry_run_says_what_each_node_speaks_and_changes_nothing() -> None:
    driver = a_driver("a", "b")
    heard = heard_of(driver)
    driver.restart("b")
    answer = asked(driver, 0, heard, dry_run=True)
    found = {n.nodeId: (n.minLevel, n.maxLevel, n.version) for n in answer.levels.nodes}
    assert found == {"a": (1, NEWEST, "1.2.3"), "b": (0, 0, "")}
    assert (answer.levels.level, list(answer.levels.reasons)) == (1, [])
    assert driver.log[-1:] == driver.log[2:3], "only the restart was logged"


def test_the_metadata_leader_forgets_with_its_leadership_and_with_nodes() -> None:
    driver = a_driver("a")
    duties = ActiveController(ReplicationConfig(), driver.fsm.rules)
    duties.lead(driver.fsm.image, 0, 1)
    beat = pb.Heartbeat(nodeId="a", incarnation=driver.incarnation("a"), minLevel=1, maxLevel=2)
    duties.answer(pb.ControlRequest(heartbeat=beat), driver.fsm.image, 0, 0)
    assert duties.levels.of(driver.fsm.image, "a") == LevelRange(1, 2)
    duties.image_changed(replace(driver.fsm.image, nodes=driver.fsm.image.nodes.delete("a")), 1)
    assert duties.levels.of(driver.fsm.image, "a") is None
    duties.answer(pb.ControlRequest(heartbeat=beat), driver.fsm.image, 2, 2)
    duties.lead(driver.fsm.image, 3, 2)
    assert duties.levels.of(driver.fsm.image, "a") is None


# ---- the way back ---------------------------------------------------------------------------------------------------------------
def test_back_only_where_the_table_says_so_and_nothing_uses_the_level() -> None:
    driver = finalized("a", "b", features=NEWER, level=NEXT)
    driver.create("orders", "x", replicationFactor=2)
    assert asked(driver, NEWEST, heard_of(driver)).detail == "orders"
    unlooked = driver.ask(setFeatureLevel=pb.SetFeatureLevel(
        level=NEWEST, checked=[pb.CheckedNode(nodeId=n, incarnation=driver.incarnation(n)) for n in "ab"]))  # fmt: skip
    assert (unlooked.error, unlooked.detail) == (Error.INVALID, "orders"), "apply says the same"
    driver.delete("orders")
    assert asked(driver, 1, heard_of(driver)).detail == f"one level at a time: from {NEXT} to {NEWEST}"
    for level in range(NEWEST, STRICT - 1, -1):
        assert asked(driver, level, heard_of(driver)).error == Error.OK
        assert driver.fsm.image.feature_level == level
    answer = asked(driver, 1, heard_of(driver))
    assert answer.error == Error.INVALID
    assert answer.detail.startswith("level 2 has written what versions before it can't read")


def test_a_node_that_speaks_the_new_level_alone_is_in_the_way_back() -> None:
    driver = finalized("a", "b", features=NEWER, level=NEXT)
    answer = asked(driver, NEWEST, heard_of(driver, b=LevelRange(NEXT, NEXT)))
    assert answer.detail == f"node b (1.2.3) speaks {NEXT}, not {NEWEST}"


# ---- quotas ---------------------------------------------------------------------------------------------------------------------
QUOTA = pb.StreamConfig(quotaRecordsPerS=1000, quotaByToken=2)


def test_a_quota_needs_its_level_and_keeps_it() -> None:
    driver = finalized("a")
    refused = driver.create("orders", "x.*", replicationFactor=1, config=QUOTA)
    assert (refused.error, refused.detail) == (Error.INVALID, QUOTAS_NEED.format(level=2))
    driver.create("others", "y", replicationFactor=1)
    refused = driver.ask(alterStream=pb.AlterStream(name="others", config=QUOTA, changed=["quotaRecordsPerS"]))
    assert refused.error == Error.INVALID
    assert refused.detail.endswith("segment_bytes, segment_age_s can"), "as versions before say it"
    assert asked(driver, QUOTAS, heard_of(driver)).error == Error.OK
    assert driver.create("orders", "x.*", replicationFactor=1, config=QUOTA).error == Error.OK
    assert driver.fsm.image.streams["orders"].config == StreamConfig(quota_records_per_s=1000, quota_by_token=2)
    answer = driver.ask(alterStream=pb.AlterStream(name="others", config=QUOTA, changed=["quotaRecordsPerS"]))
    assert (answer.error, answer.stream.config.quotaRecordsPerS) == (Error.OK, 1000)
    assert asked(driver, 2, heard_of(driver)).detail == "stream orders has a quota; stream others has a quota"
    driver.delete("orders")
    driver.ask(alterStream=pb.AlterStream(name="others", config=pb.StreamConfig(), changed=["quotaRecordsPerS"]))
    assert asked(driver, 2, heard_of(driver)).error == Error.OK


@pytest.mark.parametrize(
    "part",
    [
        pb.ControlRequest(createStream=pb.CreateStream(name="s", config=QUOTA)),
        pb.ControlRequest(alterStream=pb.AlterStream(name="s", config=pb.StreamConfig(quotaBytesPerS=5))),
    ],
)
def test_what_versions_of_an_older_level_would_not_know_is_never_logged(part: pb.ControlRequest) -> None:
    batch = pb.ControlRequest(batch=pb.Batch(requests=[pb.BatchedRequest(number=1, request=part)]))
    for request in (part, batch):
        assert why_not_yet(request, 2) == QUOTAS_NEED.format(level=2)
        assert why_not_yet(request, QUOTAS) == ""
    assert why_not_yet(pb.ControlRequest(createStream=pb.CreateStream(name="s")), 1) == ""


def test_a_default_quota_needs_its_level_and_keeps_it() -> None:
    driver = finalized("a", level=QUOTAS)
    driver.create("orders", "x", replicationFactor=1)
    exempt = pb.StreamConfig(quotaExempt=True)
    refused = driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=5))
    needs = DEFAULT_QUOTA_NEEDS.format(level=3)
    assert (refused.error, refused.detail, driver.fsm.last_records[:-1]) == (Error.INVALID, needs, ())
    assert driver.create("free", "y", replicationFactor=1, config=exempt).detail == needs
    refused = driver.ask(alterStream=pb.AlterStream(name="orders", config=exempt, changed=["quotaExempt"]))
    assert refused.error == Error.INVALID
    assert refused.detail.endswith("quota_bytes_per_s, quota_by_token can"), "as versions that know level 3 say it"
    for request in (
        pb.ControlRequest(setDefaultQuota=pb.SetDefaultQuota()),
        pb.ControlRequest(createStream=pb.CreateStream(name="s", config=exempt)),
        pb.ControlRequest(alterStream=pb.AlterStream(name="s", config=exempt)),
    ):
        assert why_not_yet(request, QUOTAS) == needs
        assert why_not_yet(request, DEFAULT_QUOTA) == ""
    assert why_not_yet(pb.ControlRequest(createStream=pb.CreateStream(name="s", config=QUOTA)), QUOTAS) == ""

    assert asked(driver, DEFAULT_QUOTA, heard_of(driver)).error == Error.OK
    answer = driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=5, byToken=2))
    assert (answer.error, answer.defaultQuota) == (Error.OK, pb.DefaultQuota(recordsPerS=5, byToken=2))
    assert driver.create("free", "y", replicationFactor=1, config=exempt).error == Error.OK
    driver.ask(alterStream=pb.AlterStream(name="orders", config=exempt, changed=["quotaExempt"]))
    in_the_way = asked(driver, QUOTAS, heard_of(driver)).detail
    assert in_the_way == (
        "the cluster has a default quota; stream free is exempt from the default quota; stream orders is exempt from the default quota"
    )
    image = driver.fsm.image
    assert image_from_bytes(image_to_bytes(image)) == image
    assert decode_snapshot(encode_snapshot(image, operations=False)).default_quota == image.default_quota
    driver.delete("free")
    driver.ask(alterStream=pb.AlterStream(name="orders", config=pb.StreamConfig(), changed=["quotaExempt"]))
    assert asked(driver, QUOTAS, heard_of(driver)).detail == "the cluster has a default quota"
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=0, byToken=0))
    assert asked(driver, QUOTAS, heard_of(driver)).error == Error.OK
    written = image_to_bytes(driver.fsm.image)
    assert not pb.Image.FromString(written).HasField("defaultQuota"), "versions of level 3 refuse what they don't know"


def test_of_the_default_quota_what_is_not_named_stays_and_what_is_wrong_changes_nothing() -> None:
    driver = finalized("a", level=DEFAULT_QUOTA)
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=5, bytesPerS=6, byToken=7))
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(bytesPerS=0))
    assert driver.fsm.image.default_quota == DefaultQuota(records_per_s=5, by_token=7)
    wrong = driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=1 << 40, byToken=1))
    assert (wrong.error, wrong.detail) == (
        Error.INVALID, "Invalid default quota: records_per_s = 1099511627776 is outside 0..2.14748e+09",
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
def test_at_level_2_apply_refuses_who_does_not_speak_it_and_says_both() -> None:
    driver = finalized("a")
    answer = driver.ask(registerNode=pb.RegisterNode(nodeId="old"))
    assert (answer.error, "old" in driver.fsm.image.nodes) == (Error.INVALID, False)
    assert answer.detail == (
        f"{UNSUPPORTED}the cluster has feature level 2, but node 'old' supports 1. It needs a newer version."
    )
    assert registered(answer) is Registered.UNSPOKEN
    assert registered(pb.ControlResponse(error=Error.INVALID, detail="no")) is Registered.REFUSED
    newer = driver.ask(registerNode=pb.RegisterNode(nodeId="new", minLevel=3, maxLevel=5))
    assert "node 'new' speaks 3 to 5: it needs an older version, or to finalize a newer level first" in newer.detail
    assert driver.ask(registerNode=pb.RegisterNode(nodeId="b", minLevel=2, maxLevel=3)).error == Error.OK


def test_at_level_1_the_metadata_leader_alone_refuses_since_versions_without_levels_apply_the_same_entry() -> None:
    driver = a_driver("a")
    request = pb.ControlRequest(registerNode=pb.RegisterNode(nodeId="new", minLevel=2, maxLevel=3))
    duties = ActiveController(ReplicationConfig(), driver.fsm.rules)
    duties.lead(driver.fsm.image, 0, 1)
    answer = duties.answer(request, driver.fsm.image, 0, 0)
    assert answer is not None
    assert registered(answer) is Registered.UNSPOKEN
    assert driver.ask(registerNode=request.registerNode).error == Error.OK
    before = driver.fsm.image.nodes["new"]
    assert node_to_pb(before) == node_to_pb(replace(before)), "nothing of the range is in the image"
    assert duties.answer(pb.ControlRequest(registerNode=pb.RegisterNode(nodeId="c")), driver.fsm.image, 0, 0) is None


def test_ranges() -> None:
    assert said(pb.RegisterNode()) == LevelRange(1, 1)
    assert said(pb.RegisterNode(minLevel=2)) == LevelRange(2, 2)
    assert (str(LevelRange(1, 2)), str(LevelRange(2, 2))) == ("1 to 2", "2")
    assert [level in LevelRange(2, 3) for level in (1, 2, 3, 4)] == [False, True, True, False]
    assert refused_level(2, "x", LevelRange(1, 2)) == ""
    assert [feature.level for feature in FEATURES] == list(range(SPOKEN.least, SPOKEN.most + 1))
    check_level(ClusterImage(), SPOKEN)


# ---- what is not understood -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("strange", [UNKNOWN_KIND, UNKNOWN_FIELD])
def test_apply_ends_at_what_it_does_not_know_from_level_2_on(strange: bytes) -> None:
    entry = pb.ControlRequest(operationId=b"o" * 16, timeNs=1).SerializeToString() + strange
    at_1 = a_driver("a")
    assert pb.ControlResponse.FromString(at_1.fsm.apply(entry, 100)).error == Error.INVALID
    at_2 = finalized("a")
    before = at_2.fsm.image
    with pytest.raises(IncompatibleVersionError, match="entry 100 of the metadata group's log is of a newer version"):
        at_2.fsm.apply(entry, 100)
    assert at_2.fsm.image is before


def test_an_unknown_field_deep_in_an_entry_ends_apply_too() -> None:
    inner = pb.RegisterNode(nodeId="b").SerializeToString() + UNKNOWN_FIELD
    item = pb.ControlRequest(registerNode=pb.RegisterNode.FromString(inner))
    batch = pb.Batch(requests=[pb.BatchedRequest(number=1, request=item)])
    entry = pb.ControlRequest(operationId=b"o" * 16, timeNs=1, batch=batch).SerializeToString()
    with pytest.raises(IncompatibleVersionError):
        finalized("a").fsm.apply(entry, 100)


@pytest.mark.parametrize("level", [1, 2, NEWEST])
def test_a_controller_that_does_not_speak_the_next_level_ends_instead_of_guessing(level: int) -> None:
    newer = finalized("a", features=NEWER, level=level) if level > 1 else a_driver("a", features=NEWER)
    older = ClusterFsm("shop", elections=True)
    for index, entry in enumerate(newer.log, 1):
        older.apply(entry, index)
    assert asked(newer, NEXT, heard_of(newer)).error == Error.OK
    before = older.image
    with pytest.raises(IncompatibleVersionError, match=f"the feature level becomes {NEXT}, this version speaks 1 to {NEWEST}"):
        older.apply(newer.log[-1], len(newer.log))
    assert older.image is before
    with pytest.raises(IncompatibleVersionError, match="the cluster has feature level"):
        older.restore(newer.fsm.snapshot())
    assert older.image is before


def test_snapshots_of_level_2_have_a_version_that_versions_before_refuse() -> None:
    before, after = a_driver("a").fsm.snapshot(), finalized("a").fsm.snapshot()
    assert [int.from_bytes(data[4:6], "big") for data in (before, after)] == [VERSION, LEVELLED]
    assert decode_snapshot(after).feature_level == 2
    for data, version in ((before, LEVELLED), (after, VERSION)):
        forged = encode_as(decode_snapshot(data), version)
        with pytest.raises(CorruptionError, match=", but its image has feature level"):
            decode_snapshot(forged)


def encode_as(image: ClusterImage, version: int) -> bytes:
    import struct

    import crc32c

    data = encode_snapshot(image)
    head = data[:4] + version.to_bytes(2, "big") + data[6:24]
    body = data[28:]
    return head + struct.pack(">I", crc32c.crc32c(body, crc32c.crc32c(head))) + body


@pytest.mark.parametrize("inner", ["config", "node"])
def test_an_image_that_says_more_than_is_understood_is_not_read(inner: str) -> None:
    driver = a_driver("a")
    driver.create("orders", "x")
    message = pb.Image.FromString(image_to_bytes(driver.fsm.image))
    part = message.streams[0].config if inner == "config" else message.nodes[0]
    part.MergeFromString(UNKNOWN_FIELD)
    with pytest.raises(IncompatibleVersionError, match="fields of a newer version"):
        image_from_bytes(message.SerializeToString())


def test_a_follower_of_the_feed_takes_no_level_that_it_does_not_speak_and_ends_where_all_it_is_sent_is_so() -> None:
    newer = finalized("a", features=NEWER, level=2)
    follower = FeedSubscription("d")
    take = follower._take_snapshot
    take(encode_snapshot(newer.fsm.image, operations=False))
    assert (follower.synced, follower.image.feature_level) == (True, 2)
    held = newer.fsm.image.index
    assert asked(newer, NEXT, heard_of(newer)).error == Error.OK
    entry = pb.FeedEntry(index=newer.fsm.image.index, previousIndex=held, records=newer.fsm.records)
    assert not follower.entry_received(entry)
    assert (follower.image.index, follower.synced) == (held, False), "it asks for a snapshot"
    data = encode_snapshot(newer.fsm.image, operations=False)
    for _ in range(MAX_UNREADABLE - 1):
        take(data)
    take(encode_snapshot(replace(newer.fsm.image, feature_level=2), operations=False))
    for _ in range(MAX_UNREADABLE - 1):
        take(data)
    with pytest.raises(IncompatibleVersionError, match=f"feature level {NEXT}"):
        take(data)


def test_unknown_fields_are_seen_at_any_depth_and_only_they() -> None:
    request = pb.ControlRequest(batch=pb.Batch(requests=[pb.BatchedRequest(number=3)]))
    assert not has_unknown_fields(request)
    request.batch.requests[0].request.setNode.MergeFromString(UNKNOWN_FIELD)
    assert has_unknown_fields(request)


# ---- rules and digest -----------------------------------------------------------------------------------------------------------
def test_from_level_2_on_the_image_says_the_rules_and_no_controllers_settings() -> None:
    same = finalized("a")
    other = ClusterFsm("another", elections=False)
    for index, entry in enumerate(same.log, 1):
        other.apply(entry, index)
    for subject in ("shop.x", "another.x"):
        same.create("s" + subject[0], subject)
        other.apply(same.log[-1], len(same.log))
    assert other.image == same.fsm.image
    assert other.image.digest == same.fsm.image.digest
    assert sorted(other.image.streams) == ["sa"], "the namespace is the image's"


def heavier(weight: int) -> bytes:
    request = pb.ControlRequest(operationId=bytes([weight]) * 16, timeNs=5, setNode=pb.SetNode(nodeId="a", weight=weight))
    return request.SerializeToString()


def test_the_digest_goes_on_with_every_entry_and_over_snapshots_and_tells_records_apart() -> None:
    driver = finalized("a")
    seen = {driver.fsm.image.digest}
    for request in ({"barrier": pb.Barrier()}, {"setNode": pb.SetNode(nodeId="a", weight=2)}, {"barrier": pb.Barrier()}):
        driver.ask(**request)
        seen.add(driver.fsm.image.digest)
    driver.apply(b"\xff")
    assert len(seen | {driver.fsm.image.digest}) == 5
    restored = ClusterFsm("shop", elections=True)
    restored.restore(driver.fsm.snapshot())
    for each in (driver.fsm, restored):
        each.apply(
            pb.ControlRequest(operationId=b"x" * 16, timeNs=5, setNode=pb.SetNode(nodeId="a", weight=3)).SerializeToString(), 50
        )
    assert driver.fsm.image.digest == restored.image.digest
    other = ClusterFsm("shop", elections=True)
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


def test_a_repeated_finalization_is_answered_as_before() -> None:
    driver = a_driver("a")
    request = pb.ControlRequest(setFeatureLevel=pb.SetFeatureLevel(level=2), operationId=b"f" * 16, timeNs=5)
    assert (
        feature_negotiation.levels_answer(request, driver.fsm.image, heard_of(driver), {}, Rules("shop", True), TIMES) is None
    )
    driver.apply(request.SerializeToString())
    driver.restart("a")
    answer = feature_negotiation.levels_answer(request, driver.fsm.image, HeardLevels(), {}, driver.fsm.rules, TIMES)
    assert answer is not None
    assert answer.detail == "the feature level is 2, it was 1"


def test_the_description_tells_clients_the_level() -> None:
    for driver, level in ((a_driver("a"), 1), (finalized("a"), 2)):
        pages = ClusterPages()
        while pages.request is not None:
            pages.add(describe(driver.fsm.image, pages.request).cluster)
        assert image_from_pb(pages.cluster.image).feature_level == level
