"""Test the changes from one image to the next, as a worker process replays them."""

from __future__ import annotations

import random
from dataclasses import replace

from cluster_driver import Driver

from liftpy.config import DefaultQuota
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.image_delta import entry_between, records_between
from liftpy.core.metadata.records import record_from_pb, replay_all
from liftpy.core.wire._pb import cluster_pb2 as pb


def _shown(image: ClusterImage) -> tuple[object, ...]:
    """Return the part of an image that a worker process uses."""
    return (
        image.index, dict(image.nodes), dict(image.streams), image.controllers, image.feature_level, image.default_quota,
        {node: dict(streams) for node, streams in image.hosted.items()}, dict(image.leader_counts),
    )  # fmt: skip


def _led_on(old: ClusterImage, new: ClusterImage) -> ClusterImage:
    entry = entry_between(old, new)
    assert entry is not None
    read = pb.FeedEntry.FromString(entry.SerializeToString())
    assert read.previousIndex == old.index
    return replace(replay_all(old, [record_from_pb(record) for record in read.records]), index=read.index)


def _strike(driver: Driver, rng: random.Random, names: list[str]) -> None:
    match rng.randrange(9):
        case 0:
            name = f"s{len(names)}"
            driver.create(name, partitions=rng.randint(1, 4))
            names.append(name)
        case 1 if len(names) > 1:
            driver.ask(deleteStream=pb.DeleteStream(name=names.pop(rng.randrange(1, len(names)))))
        case 2:
            driver.restart(rng.choice("abc"))
        case 3:
            driver.fence("c")
        case 4:
            driver.register("d")
        case 5:
            driver.change_isr(["b", "c"], number=0)
        case 6:
            driver.ask(deleteStream=pb.DeleteStream(name="orders"))
            driver.create()
        case 7:
            quota = DefaultQuota(records_per_s=rng.randrange(3))
            driver.fsm.image = replace(driver.fsm.image, index=driver.fsm.image.index + 1, default_quota=quota)
            driver.log.append(b"")
        case _:
            driver.ask(addPartitions=pb.AddPartitions(name="orders", partitions=rng.randint(2, 6)))


def test_worker_that_replays_records_between_images_gets_an_equal_image() -> None:
    """The worker also gets only some of the images."""
    rng = random.Random(7)
    for _ in range(30):
        driver, names = Driver(("a", "b", "c")), ["orders"]
        driver.create(partitions=2)
        shown = decode_snapshot(encode_snapshot(driver.fsm.image, operations=False))
        at = driver.fsm.image
        for _ in range(25):
            _strike(driver, rng, names)
            if rng.random() < 0.5:
                new = driver.fsm.image
                shown, at = _led_on_from(shown, at, new), new
                assert _shown(shown) == _shown(new)


def _led_on_from(shown: ClusterImage, old: ClusterImage, new: ClusterImage) -> ClusterImage:
    """Replay the records between two images of the node on the image of the worker."""
    entry = entry_between(old, new)
    assert entry is not None
    return replace(replay_all(shown, [record_from_pb(record) for record in entry.records]), index=entry.index)


def test_records_between_equal_images_is_empty() -> None:
    driver = Driver(("a",))
    driver.create()
    image = driver.fsm.image
    assert records_between(image, image) == []
    assert records_between(image, replace(image, index=image.index + 1)) == []


def test_records_between_an_image_and_an_older_image_requires_a_snapshot() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    old = driver.fsm.image
    driver.change_isr(["b", "c"], number=1)
    new = driver.fsm.image
    assert _shown(_led_on(old, new)) == _shown(new)
    assert records_between(replace(new, index=new.index + 1), new) is None, "an older index"
    assert records_between(new, replace(old, index=new.index)) is None, "the epoch of a partition has fallen"
