"""Test AlterStream of settings: compare-and-set on their version, fixed settings, and every replica."""

from __future__ import annotations

import pytest
from cluster_driver import Driver, Error

from liftpy.config import ALTERABLE, AckPolicy, StreamConfig
from liftpy.core.base.partition import Pause
from liftpy.core.metadata.codec import CONFIG, apply_changed_fields
from liftpy.core.metadata.image_delta import diff
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import ConfigError
from tests.each import each


def driver(**settings: object) -> Driver:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2, config=CONFIG.to_pb(StreamConfig(**settings)))  # type: ignore[arg-type]
    return driver


def alter(driver: Driver, changed: list[str], **more: object) -> pb.ControlResponse:
    settings = {name: more.pop(name) for name in list(more) if name in pb.StreamConfig.DESCRIPTOR.fields_by_name}
    wish = pb.AlterStream(name="orders", changed=changed, config=pb.StreamConfig(**settings), **more)  # type: ignore[arg-type]
    return driver.ask(alterStream=wish)


def test_alter_stream_changes_only_the_named_settings() -> None:
    cluster = driver(min_isr=1, retention_age_s=9.0, retention_bytes=5000)
    before = cluster.fsm.image
    answer = alter(cluster, ["readOnly", "retentionAgeS"], readOnly=True, retentionAgeS=0.0, retentionBytes=7)
    assert answer.error == Error.OK
    stream = cluster.fsm.image.streams["orders"]
    assert stream.config == StreamConfig(min_isr=1, retention_bytes=5000, read_only=True)
    assert (stream.config_version, answer.stream.configVersion) == (1, 1)
    assert answer.stream.config == CONFIG.to_pb(stream.config)
    assert stream.partitions == before.streams["orders"].partitions
    assert stream.replication_factor == before.streams["orders"].replication_factor
    changes = diff(before, cluster.fsm.image)
    assert [(change.key.partition, change.old == change.new) for change in changes.partitions] == [(0, True), (1, True)]
    assert not diff(cluster.fsm.image, cluster.fsm.image)


@each(
    ("changed", "how", "ends"),
    [
        ("readOnly", {"readOnly": True}, True),
        ("maxMessageBytes", {"maxMessageBytes": 9}, True),
        ("optimisticConcurrency", {"optimisticConcurrency": True}, True),
        ("retentionBytes", {"retentionBytes": 5000}, False),
    ],
)
@each("standby", [True, False])
def test_alter_stream_to_stricter_settings_pauses_partitions_with_standby_until_their_leader_confirms(
    standby: bool, changed: str, how: dict[str, object], ends: bool
) -> None:
    cluster = driver(failover_standby=standby, ack_policy=AckPolicy.ALL)
    assert alter(cluster, [changed], dryRun=True, **how).stream.partitions[0].pause == pb.NOT_PAUSED
    answer = alter(cluster, [changed], **how)
    found = [(part.pause, part.pauses) for part in cluster.fsm.image.streams["orders"].partitions]
    assert found == [(Pause.ENDING, 1) if standby and ends else (Pause.NOT_PAUSED, 0)] * 2
    assert [part.pause for part in answer.stream.partitions] == [pause for pause, _ in found]


def test_alter_stream_to_read_only_keeps_a_paused_partition_paused() -> None:
    cluster = driver(failover_standby=True)
    cluster.ask(pausePartitions=pb.PausePartitions(stream="orders", partitions=[1], pause=pb.UNTIL_RESUMED))
    alter(cluster, ["readOnly"], readOnly=True)
    found = [(part.pause, part.pauses) for part in cluster.fsm.image.streams["orders"].partitions]
    assert found == [(Pause.ENDING, 1), (Pause.UNTIL_RESUMED, 2)]


def test_alter_stream_to_equal_settings_keeps_the_settings_version() -> None:
    cluster = driver(read_only=True)
    before = cluster.fsm.image.streams["orders"]
    assert alter(cluster, ["readOnly"], readOnly=True).error == Error.OK
    assert cluster.fsm.image.streams["orders"] == before
    assert alter(cluster, ["readOnly"], readOnly=False).stream.configVersion == 1


def test_alter_stream_dry_run_shows_the_settings_and_changes_nothing() -> None:
    cluster = driver()
    before = cluster.fsm.image
    answer = alter(cluster, ["maxMessageBytes"], maxMessageBytes=100, dryRun=True)
    assert (answer.stream.config.maxMessageBytes, answer.stream.configVersion) == (100, 1)
    assert cluster.fsm.image.streams == before.streams


def test_alter_stream_with_an_old_settings_version_returns_stale() -> None:
    cluster = driver()
    assert alter(cluster, ["readOnly"], readOnly=True, configVersion=0).error == Error.OK
    answer = alter(cluster, ["readOnly"], readOnly=False, configVersion=0)
    assert answer.error == Error.STALE
    assert answer.detail == "the settings of 'orders' are at version 1, not 0: look again"
    assert cluster.fsm.image.streams["orders"].config.read_only
    assert alter(cluster, ["readOnly"], readOnly=False, configVersion=1).error == Error.OK


def test_alter_stream_changes_the_settings_and_the_replication_factor_together() -> None:
    cluster = driver()
    answer = alter(cluster, ["readOnly"], readOnly=True, replicationFactor=2)
    assert (answer.stream.replicationFactor, answer.stream.config.readOnly) == (2, True)
    stream = cluster.fsm.image.streams["orders"]
    assert (stream.replication_factor, stream.config.read_only, stream.config_version) == (2, True, 1)
    assert all(len(partition.target) == 2 for partition in stream.partitions)


@pytest.mark.parametrize(
    ("changed", "values", "text"),
    [
        (["ackPolicy"], {"ackPolicy": "none"}, "'ackPolicy' can't be changed any more"),
        (["dedupWindowS"], {"dedupWindowS": 1.0}, "'dedupWindowS' can't be changed any more"),
        (["nonsense"], {}, "'nonsense' can't be changed any more"),
        (["segmentBytes"], {"segmentBytes": 5}, "segment_bytes = 5 is outside"),
        (["maxHeldS"], {"maxHeldS": -1.0}, "max_held_s = -1.0 is outside"),
        ([], {"readOnly": True}, "replication factor = 0 is outside"),
    ],
)
def test_alter_stream_with_invalid_or_fixed_settings_is_rejected(
    changed: list[str], values: dict[str, object], text: str
) -> None:
    cluster = driver()
    before = cluster.fsm.image
    answer = alter(cluster, changed, **values)
    assert answer.error == Error.INVALID
    assert text in answer.detail
    assert cluster.fsm.image.streams == before.streams


def test_alter_stream_error_that_controllers_store_does_not_depend_on_later_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for alterable in (ALTERABLE, (*ALTERABLE, "later_setting")):
        monkeypatch.setattr("liftpy.core.metadata.codec.ALTERABLE", alterable)
        with pytest.raises(ConfigError, match=r"read_only, .*, quota_exempt can$") as caught:
            apply_changed_fields(StreamConfig(), pb.StreamConfig(), ["nonsense"])
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_alter_stream_of_a_stream_without_acks_to_optimistic_concurrency_is_rejected() -> None:
    cluster = driver(ack_policy=AckPolicy.NONE)
    answer = alter(cluster, ["optimisticConcurrency"], optimisticConcurrency=True)
    assert (answer.error, "optimistic_concurrency needs answers" in answer.detail) == (Error.INVALID, True)


def test_alter_stream_of_one_setting_changes_only_this_setting() -> None:
    values = {"read_only": True, "optimistic_concurrency": True, "quota_exempt": True, "segment_bytes": 8192}
    wanted = StreamConfig(**{name: values.get(name, 77) for name in ALTERABLE})  # type: ignore[arg-type]
    before = StreamConfig(max_per_subject=3)
    assert apply_changed_fields(before, CONFIG.to_pb(wanted), [CONFIG.wire_names[name] for name in ALTERABLE]) == wanted
    for name in ALTERABLE:
        one = apply_changed_fields(before, CONFIG.to_pb(wanted), [CONFIG.wire_names[name]])
        assert {field for field in ALTERABLE if getattr(one, field) != getattr(before, field)} == {name}
    with pytest.raises(ConfigError, match="codec"):
        apply_changed_fields(StreamConfig(), pb.StreamConfig(codec="zstd"), ["codec"])


@pytest.mark.parametrize(("before", "after"), [(0, 5), (5, 0)])
def test_alter_stream_that_enables_or_disables_max_per_subject_is_rejected(before: int, after: int) -> None:
    cluster = driver(max_per_subject=before)
    answer = alter(cluster, ["maxPerSubject"], maxPerSubject=after)
    assert answer.error == Error.INVALID
    assert "Make another stream" in answer.detail
    compacted = StreamConfig(compaction=True, max_per_subject=before)
    wanted = pb.StreamConfig(maxPerSubject=after)
    assert apply_changed_fields(compacted, wanted, ["maxPerSubject"]) == StreamConfig(compaction=True, max_per_subject=after)
