"""Test the limits of the feed in entries, records and bytes, contradictions, and snapshots in chunks."""

from __future__ import annotations

import dataclasses

import pytest

from liftpy.config import StreamConfig
from liftpy.core.metadata import feed
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.feed import FeedProducer, FeedSubscription
from liftpy.core.metadata.image import StreamImage
from liftpy.core.metadata.records import StreamCreated
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.small_images import a_partition, an_image


def created(number: int, partitions: int = 1) -> StreamCreated:
    made = tuple(a_partition(partition=n) for n in range(partitions))
    return StreamCreated(StreamImage(f"s{number}", f"u{number}", f"shop.{number}", StreamConfig(), made))


def test_metadata_feed_producer_bounds_the_buffered_entries_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_BUFFERED_RECORDS", 10)
    producer = FeedProducer()
    for index in range(1, 30):
        producer.entry_applied(index, (created(index), created(index + 100)))
        assert producer._waiting_record_count == sum(len(records) for _, _, records in producer._held) <= 10
    assert [entry.previousIndex for entry in producer.take_entries()][:1] == [24]
    producer.snapshot_is_ready(29, b"image")
    producer.entry_applied(30, ())
    assert 29 in producer._snapshots
    producer.entry_applied(31, (created(1, 20_000),))  # more than an entry holds: a gap for everyone
    assert not producer._held
    assert producer._snapshots == {}, "nothing leads on from it any more"
    producer.lead()
    assert producer.take_entries() == [], "who comes to lead does not say it all again"
    producer.set_message_size(1000)
    assert producer.answer(pb.FeedSnapshotRequest(afterIndex=5)) is None


def entries(count: int) -> list[pb.FeedEntry]:
    producer = FeedProducer()
    found = []
    for index in range(1, count + 1):
        producer.entry_applied(index, (created(index),))
        found += producer.take_entries()
    return found


def subscribed() -> FeedSubscription:
    made = FeedSubscription("n9")
    data = encode_snapshot(dataclasses.replace(an_image(), index=0))
    del data
    made.synced = True
    return made


def test_metadata_feed_subscription_bounds_entries_and_bytes_waiting_behind_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node requests the others again."""
    found = entries(9)
    size_bytes = found[3].ByteSize()
    assert {entry.ByteSize() for entry in found[2:]} == {size_bytes}
    for bounds, waiting in (
        ({"MAX_WAITING_ENTRIES": 3}, [3, 4, 5]), ({"MAX_WAITING_BYTES": 3 * size_bytes}, [3, 4, 5]),
        ({"MAX_WAITING_BYTES": 3 * size_bytes - 1}, [3, 4]), ({"MAX_WAITING_ENTRIES": 6}, [3, 4, 5, 6, 7, 8]),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            for name, value in bounds.items():
                patch.setattr(feed, name, value)
            made = subscribed()
            for entry in found[2:]:
                made.entry_received(entry)
            made_waiting = sorted(entry.index for entry in made._waiting.values())
            assert made_waiting == waiting, bounds
            assert made.known_index == 9
            for entry in found[:2]:
                made.entry_received(entry)
            assert made.image.index == waiting[-1]
