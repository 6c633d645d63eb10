"""Test the difference of two images by identity, and what a replica gets of it."""

from __future__ import annotations

from dataclasses import replace

from cluster_driver import Driver

from liftpy.config import DefaultQuota, StreamConfig
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata import image_delta as diff_module
from liftpy.core.metadata.image import StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm


def test_metadata_image_diff_of_one_partition_has_one_change() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=3)
    driver.create("other", partitions=3)
    old = driver.fsm.image
    driver.change_isr(["b", "c"], number=1)
    found = diff(old, driver.fsm.image)
    (change,) = found.partitions
    assert (str(change.key), change.key.uid) == ("orders/1", old.streams["orders"].uid)
    assert change.old is old.streams["orders"].partitions[1]
    assert change.new == driver.partition(number=1)
    assert not found.nodes
    assert not found.created
    assert [str(c.key) for c in found.for_node("a")] == ["orders/1"]
    assert list(found.for_node("z")) == []


def test_metadata_image_diff_of_a_recreated_stream_is_a_deletion_and_a_creation() -> None:
    driver = Driver(("a",))
    driver.create(partitions=2)
    old = driver.fsm.image
    driver.ask(deleteStream=pb.DeleteStream(name="orders"))
    driver.create()
    found = diff(old, driver.fsm.image)
    assert [s.uid for s in found.deleted] == [old.streams["orders"].uid]
    assert [s.uid for s in found.created] == [driver.fsm.image.streams["orders"].uid]
    assert [(c.key.uid, c.key.partition, c.new is None) for c in found.partitions] == [
        (found.deleted[0].uid, 0, True),
        (found.deleted[0].uid, 1, True),
        (found.created[0].uid, 0, False),
    ]


def test_metadata_image_diff_lists_added_changed_and_removed_nodes() -> None:
    driver = Driver(("a", "b"))
    old = driver.fsm.image
    driver.restart("a")
    driver.fence("b")
    driver.ask(removeNode=pb.RemoveNode(nodeId="b"))
    driver.register("c")
    found = diff(old, driver.fsm.image)
    assert [((c.old or c.new).node_id, c.old is None, c.new is None) for c in found.nodes] == [  # type: ignore[union-attr]
        ("a", False, False),
        ("b", False, True),
        ("c", True, False),
    ]


def test_metadata_image_diff_of_equal_images_is_empty() -> None:
    driver = Driver(("a", "b"))
    driver.create()
    restored = born_fsm()
    restored.restore(driver.fsm.snapshot())
    assert not diff(driver.fsm.image, driver.fsm.image)
    assert not diff(driver.fsm.image, restored.image)


def test_metadata_image_diff_finds_a_change_in_both_directions_and_between_snapshots() -> None:
    driver = Driver(("a", "b"))
    driver.create()
    old, old_restored = driver.fsm.image, born_fsm()
    old_restored.restore(driver.fsm.snapshot())
    driver.change_isr(["a"])
    new, new_restored = driver.fsm.image, born_fsm()
    new_restored.restore(driver.fsm.snapshot())
    for pair in ((new, old), (old_restored.image, new), (old_restored.image, new_restored.image)):
        assert [str(c.key) for c in diff(*pair).partitions] == ["orders/0"]


def rates(config: StreamConfig) -> tuple[int, int, int]:
    return config.quota_records_per_s, config.quota_bytes_per_s, config.quota_by_token


def test_metadata_image_diff_reports_streams_that_use_a_changed_default_quota() -> None:
    driver = Driver(("a",))
    own = StreamConfig(quota_bytes_per_s=7)
    first = PartitionState(partition=0, replicas=("a",), isr=("a",), leader="a", leader_epoch=1, epoch=1)
    streams = {
        name: StreamImage(name, name, name, config, partitions=(first, replace(first, partition=1)))
        for name, config in (
            ("_liftpy-groups", StreamConfig()), ("exempt", StreamConfig(quota_exempt=True)), ("own", own), ("plain", StreamConfig()),
            ("tokens", StreamConfig(quota_by_token=3)),
        )
    }  # fmt: skip
    before = driver.fsm.image.with_streams(streams.values())
    quota = DefaultQuota(records_per_s=10, by_token=2)
    after = replace(before, default_quota=quota)
    held = {name: rates(stream.partition_metadata(first, quota).config) for name, stream in streams.items()}
    assert held == {
        "_liftpy-groups": (0, 0, 0), "exempt": (0, 0, 0), "own": (0, 7, 0), "plain": (10, 0, 2), "tokens": (10, 0, 3),
    }  # fmt: skip
    told = [str(change.key) for change in diff(before, after).for_node("a")]
    assert told == ["plain/0", "plain/1", "tokens/0", "tokens/1"]
    assert all(change.old is change.new for change in diff(before, after).partitions)
    without_rates = replace(after, default_quota=DefaultQuota(by_token=2))
    assert not diff(without_rates, before), "no rate, no quota"
    assert [c.key.partition for c in diff(after, before).partitions] == [0, 1, 0, 1]
    more = replace(streams["plain"], partitions=(*streams["plain"].partitions, replace(first, partition=2)))
    assert [c.key.partition for c in diff_module._partitions(streams["plain"], more, quota, quota)] == [0, 1, 2]
    changed = after.with_altered(replace(streams["plain"], config=StreamConfig(quota_exempt=True)))
    assert [str(change.key) for change in diff(after, changed).partitions] == ["plain/0", "plain/1"]
    gone = replace(after.without_stream("tokens"), default_quota=DefaultQuota(records_per_s=11))
    assert [stream.name for stream in diff(after, gone).deleted] == ["tokens"]
    assert [str(c.key) for c in diff(after, gone).partitions if c.new is not None] == ["plain/0", "plain/1"]
