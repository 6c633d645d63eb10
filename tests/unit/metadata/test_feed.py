"""Test the feed: order, gaps, late joiners, snapshots in chunks, and invalid messages."""

from __future__ import annotations

import random
from dataclasses import replace

import crc32c
import pytest
from cluster_driver import Driver
from immutables import Map

from liftpy.core.metadata import codec
from liftpy.core.metadata import feed as feed_module
from liftpy.core.metadata.codec import encode_snapshot, image_to_bytes
from liftpy.core.metadata.controller.record_builder import MAX_DETAIL_LENGTH, refuse
from liftpy.core.metadata.feed import RETRY_AFTER_NS, FeedProducer, FeedSubscription
from liftpy.core.metadata.idempotency import Operation
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import OperationDone
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.frames import MisdirectedError
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image
from tests.unit.metadata.test_feed_limits import created


class Feed:
    """Connect a producer with one subscriber. The test decides which messages arrive."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.producer = FeedProducer()
        self.subscription = FeedSubscription("n9")
        self.now_ns = 0

    def do(self, what: str, **fields: object) -> list[pb.FeedEntry]:
        getattr(self.driver, what)(**fields)
        self.producer.entry_applied(self.driver.index, self.driver.fsm.last_records)
        return self.producer.take_entries()

    def register(self, *nodes: str) -> list[pb.FeedEntry]:
        return [entry for node in nodes for entry in self.do("register", node=node)]

    def deliver(self, entries: list[pb.FeedEntry]) -> None:
        for entry in entries:
            self.subscription.entry_received(pb.FeedEntry.FromString(entry.SerializeToString()))

    def exchange(self) -> bool:
        """Send one request and deliver its answer. Return False if the subscriber has no request."""
        self.now_ns += RETRY_AFTER_NS
        request = self.subscription.request(self.now_ns)
        if request is None:
            return False
        response = self.producer.answer(request)
        if response is None:
            image = self.driver.fsm.image
            self.producer.snapshot_is_ready(image.index, encode_snapshot(image, operations=False))
            response = self.producer.answer(request)
        assert response is not None
        self.subscription.response_received(pb.FeedSnapshotResponse.FromString(response.SerializeToString()))
        return True

    def settle(self) -> None:
        for _ in range(100):
            if not self.exchange():
                break
        self.check()

    def check(self) -> None:
        assert seen(self.subscription.image) == seen(self.driver.fsm.image)
        assert not self.subscription.behind


def seen(image: ClusterImage) -> bytes:
    """Return the image without the idempotency cache and the time of no-op requests."""
    message = pb.Image.FromString(image_to_bytes(image, operations=False))
    message.timeNs = 0
    return message.SerializeToString(deterministic=True)


@pytest.fixture
def feed() -> Feed:
    made = Feed()
    made.register("a", "b", "c")
    made.settle()
    return made


def test_metadata_feed_snapshot_of_index_0_is_rejected() -> None:
    """A controller of another version may still serve its state before the first entry."""
    feed = Feed()
    data = encode_snapshot(ClusterImage(), operations=False)
    for index in (0, 7):
        chunk = pb.FeedSnapshotResponse(index=index, sizeBytes=len(data), chunk=data, crc=crc32c.crc32c(data))
        assert feed.subscription.request(feed.now_ns) is not None
        assert not feed.subscription.response_received(chunk)
        assert not feed.subscription.synced
        feed.now_ns += RETRY_AFTER_NS
    feed.register("a", "b", "c")
    feed.settle()


def test_metadata_feed_publishes_entries_applied_since_the_last_publication_in_one_message(feed: Feed) -> None:
    for node in ("d", "e", "f"):
        feed.driver.register(node)
        feed.producer.entry_applied(feed.driver.index, feed.driver.fsm.last_records)
    (entry,) = feed.producer.take_entries()
    assert (entry.previousIndex, entry.index) == (3, 6)
    assert feed.producer.take_entries() == []
    feed.deliver([entry])
    feed.check()


def test_metadata_feed_subscriber_behind_the_buffered_entries_fetches_a_snapshot(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_BUFFERED_ENTRIES", 2)
    feed.register("d", "e", "f")
    feed.deliver([feed.producer.head()])
    feed.settle()


def test_metadata_feed_missing_entries_of_a_long_gap_are_sent_in_several_bounded_answers(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_ENTRY_SIZE_BYTES", 300)
    monkeypatch.setattr(feed_module, "_MAX_STATE_SIZE_BYTES", 100)
    for number in range(20):
        feed.driver.register(f"x{number}")
        feed.producer.entry_applied(feed.driver.index, feed.driver.fsm.last_records)
    assert len(feed.producer.take_entries()) > 2
    feed.deliver([feed.producer.head()])
    assert feed.exchange()
    assert feed.subscription.behind
    feed.settle()
    assert feed.subscription.resync_count == 0


def test_metadata_feed_entry_above_the_message_limit_is_published_without_records(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_ENTRY_SIZE_BYTES", 2000)
    entries = feed.do("create", partitions=200)
    assert [(e.index == e.previousIndex, len(e.records)) for e in entries] == [(True, 0)]
    feed.deliver(entries)
    assert feed.subscription.behind
    feed.deliver(feed.register("d"))
    feed.settle()


def test_metadata_feed_snapshot_chunks_are_received_by_several_subscribers_at_once(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "CHUNK_SIZE_BYTES", 100)
    feed.do("create", partitions=50)
    data = encode_snapshot(feed.driver.fsm.image, operations=False)
    feed.producer.snapshot_is_ready(feed.driver.index, data)
    for _ in range(2):
        feed.subscription = FeedSubscription("late")
        exchanges = 0
        while feed.exchange():
            exchanges += 1
        assert exchanges == -(-len(data) // 100)
        assert feed.subscription.image.index == 4
        feed.deliver([feed.producer.head()])
        feed.settle()
        feed.register(f"n{exchanges}-{feed.driver.index}")
        feed.deliver([feed.producer.head()])
        feed.settle()


def test_metadata_feed_snapshot_requests_may_be_answered_by_different_controllers(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "CHUNK_SIZE_BYTES", 100)
    feed.do("create", partitions=50)
    producers = [FeedProducer(feed.driver.index) for _ in range(3)]
    for producer in producers:  # as each is asked for the first time
        producer.entry_applied(feed.driver.index, feed.driver.fsm.last_records)
        image = feed.driver.fsm.image
        producer.snapshot_is_ready(image.index, encode_snapshot(image, operations=False))
        feed.register(f"n{image.index}")
    chunks = -(-len(encode_snapshot(feed.driver.fsm.image, operations=False)) // 100)
    assert chunks > 5, "three controllers that are drawn answer the same one five times in a row too seldom to wait for"
    subscription, draw, asked, now_ns = FeedSubscription("late"), random.Random(0), 0, 0
    while not subscription.synced and asked < 20 * chunks:
        now_ns += RETRY_AFTER_NS // 20
        request = subscription.request(now_ns)
        if request is not None:
            asked += 1
            response = draw.choice(producers).answer(request)
            assert response is not None
            subscription.response_received(response)
    assert subscription.synced
    assert asked < 10 * chunks


def test_metadata_feed_subscriber_rejects_an_answer_for_another_node(feed: Feed) -> None:
    feed.subscription = subscription = FeedSubscription("late")
    image = feed.driver.fsm.image
    feed.producer.snapshot_is_ready(image.index, encode_snapshot(image, operations=False))
    request = subscription.request(0)
    assert request is not None
    response = feed.producer.answer(request)
    assert response is not None
    assert response.nodeId == "late"
    response.nodeId = "early"
    with pytest.raises(MisdirectedError):
        subscription.response_received(response)
    assert not subscription.synced
    response.nodeId = ""
    assert subscription.response_received(response)
    assert subscription.synced


def test_metadata_feed_subscriber_ignores_damaged_chunks_and_requests_them_after_a_delay(feed: Feed) -> None:
    feed.subscription = subscription = FeedSubscription("late")
    image = feed.driver.fsm.image
    feed.producer.snapshot_is_ready(image.index, encode_snapshot(image, operations=False))
    request = subscription.request(0)
    assert request is not None
    response = feed.producer.answer(request)
    assert response is not None
    response.chunk = response.chunk[:-1] + b"\x00"
    assert not subscription.response_received(response)
    assert subscription.request(RETRY_AFTER_NS - 1) is None
    assert not subscription.synced
    feed.settle()


def test_metadata_feed_record_that_contradicts_the_image_causes_a_resync(feed: Feed) -> None:
    entries = feed.do("create")
    entries[0].records[0].streamCreated.config.codec = "unheard-of"
    feed.deliver(entries)
    assert feed.subscription.resync_count == 1
    feed.settle()
    forged = pb.FeedEntry(index=99, previousIndex=feed.driver.index, records=[pb.Record()])
    feed.deliver([forged])
    assert feed.subscription.resync_count == 2
    feed.settle()


def test_metadata_feed_after_a_metadata_leader_change_resumes_without_a_gap(feed: Feed) -> None:
    other = FeedProducer()
    for number in range(1, 4):
        other.entry_applied(number, ())
    feed.driver.register("d")
    for producer in (feed.producer, other):
        producer.entry_applied(feed.driver.index, feed.driver.fsm.last_records)
    feed.producer = other
    other.lead()
    assert other.take_entries() == []
    feed.deliver([other.head()])
    feed.settle()


@each("seed", range(30))
def test_metadata_feed_image_equals_the_controller_image_after_message_loss_delay_and_repetition(seed: int) -> None:
    rng = random.Random(seed)
    feed = Feed()
    feed.register("a", "b", "c")
    in_flight: list[pb.FeedEntry] = []
    for number in range(60):
        kind = rng.choice(["register", "create", "change_isr", "nothing"])
        if kind == "register":
            in_flight += feed.do("register", node=f"n{rng.randrange(6)}")
        elif kind == "create":
            in_flight += feed.do("create", name=f"s{number}", partitions=rng.randrange(1, 4))
        elif kind == "change_isr" and (names := sorted(feed.driver.fsm.image.streams)):
            name = rng.choice(names)
            in_flight += feed.do("change_isr", name=name, isr=[feed.driver.partition(name).isr[0]])
        in_flight = [e for e in in_flight if rng.random() > 0.2]
        rng.shuffle(in_flight)
        count = rng.randrange(len(in_flight) + 1)
        feed.deliver(in_flight[:count])
        in_flight = in_flight[count // 2 :]
        if rng.random() < 0.3:
            feed.exchange()
        if rng.random() < 0.03:
            feed.producer.snapshot_loaded(feed.driver.index)
    feed.deliver([feed.producer.head()])
    feed.settle()
    assert feed.subscription.resync_count == 0


def test_metadata_feed_messages_fit_the_maximum_payload_of_the_server(feed: Feed) -> None:
    feed.register("n1", "n2", "n3")
    feed.do("create", name="large", subject="a.large", partitions=200)
    feed.producer.set_message_size(16 * 1024)
    sizes = []
    answer = feed.producer.answer

    def measured(request: pb.FeedSnapshotRequest) -> pb.FeedSnapshotResponse | None:
        response = answer(request)
        sizes.append(len(response.SerializeToString()) if response is not None else 0)
        return response

    feed.producer.answer = measured  # type: ignore[method-assign]
    feed.deliver([feed.producer.head()])
    feed.settle()
    entries = feed.do("create", name="larger", subject="a.larger", partitions=400)
    assert all(len(entry.SerializeToString()) < 16 * 1024 for entry in entries)
    feed.deliver([*entries, feed.producer.head()])
    feed.settle()
    assert max(sizes) < 16 * 1024


# ---- what somebody else puts on the feed -------------------------------------------------------------------------------------
def forged_deletion(feed: Feed, index: int) -> pb.FeedEntry:
    name, stream = next(iter(feed.driver.fsm.image.streams.items()))
    record = pb.Record(streamDeleted=pb.StreamDeleted(name=name, uid=stream.uid))
    return pb.FeedEntry(previousIndex=feed.subscription.image.index, index=index, records=[record])


@pytest.mark.parametrize("ahead", [1, 5, 1 << 60])
def test_metadata_feed_image_changed_by_a_forged_record_is_replaced_by_a_resync(ahead: int) -> None:
    feed = Feed()
    feed.deliver(feed.register("n1", "n2"))
    feed.deliver(feed.do("create", name="s"))
    feed.settle()
    feed.deliver([forged_deletion(feed, feed.driver.index + ahead)])
    assert "s" not in feed.subscription.image.streams
    for _ in range(6):  # three seconds in which nothing happens
        feed.deliver([feed.producer.head()])
    feed.settle()
    assert "s" in feed.subscription.image.streams
    assert feed.subscription.resync_count == 1


def test_metadata_feed_image_with_a_forged_record_at_an_unused_index_is_replaced_by_a_snapshot() -> None:
    """The library's own entries have an index and are not applied: seed 97 of the metadata group's simulator."""
    feed = Feed()
    feed.deliver(feed.register("a", "b"))
    feed.settle()
    at = feed.driver.index
    forged = pb.FeedEntry(previousIndex=at, index=at + 1)
    forged.records.extend(feed.driver.fsm.records)
    assert feed.subscription.entry_received(forged)
    feed.driver.log.append(b"")  # an entry of the library has the forged one's index
    feed.deliver(feed.register("c", "d"))
    feed.settle()


def test_metadata_feed_entry_at_the_index_of_an_earlier_forged_record_causes_a_resync() -> None:
    feed = Feed()
    feed.deliver(feed.register("n1", "n2"))
    feed.deliver(feed.do("create", name="s"))
    feed.settle()
    true = feed.register("n3")
    feed.deliver([forged_deletion(feed, true[0].index)])
    feed.deliver(true)
    feed.settle()
    assert "s" in feed.subscription.image.streams
    assert feed.subscription.resync_count == 1


def test_metadata_feed_repeated_and_late_entries_cause_no_resync() -> None:
    feed = Feed()
    feed.deliver(feed.register("n1"))
    feed.settle()
    old = [feed.producer.head()] * 5
    entries = feed.register("n2", "n3")
    feed.deliver(entries)
    feed.deliver(entries)
    feed.deliver(old)
    feed.deliver(entries)
    feed.deliver([feed.producer.head(), *old])
    feed.check()
    assert feed.subscription.resync_count == 0


# ---- answers -------------------------------------------------------------------------------------------------------------------
def test_control_request_rejection_detail_above_the_limit_is_shortened() -> None:
    fits = "é" * MAX_DETAIL_LENGTH
    decision = refuse(pb.ControlResponse.INVALID, fits)
    assert (decision.records, decision.response) == ((), pb.ControlResponse(error=pb.ControlResponse.INVALID, detail=fits))
    longer = refuse(pb.ControlResponse.STALE, fits + "x", a_partition())
    assert longer.response.detail == f"{fits}…({MAX_DETAIL_LENGTH + 1} characters)"
    assert codec.PARTITION.from_pb(longer.response.partition) == a_partition()


# ---- the feed ------------------------------------------------------------------------------------------------------------------
def test_metadata_feed_omits_records_of_finished_operations() -> None:
    producer = FeedProducer()
    producer.entry_applied(1, (created(1), OperationDone(Operation(b"o" * 16, 1, b"secret"))))
    (entry,) = producer.take_entries()
    assert [record.WhichOneof("record") for record in entry.records] == ["streamCreated"]
    assert producer._waiting_record_count == 1
    assert producer.index == 1


# ---- bytes ---------------------------------------------------------------------------------------------------------------------
def test_metadata_image_snapshot_bytes_do_not_depend_on_the_order_of_changes() -> None:
    streams = [replace(a_stream(), name=f"s{number}", uid=f"u{number}", subject=f"x.{number}") for number in range(5)]
    first, second = (an_image().with_streams(order) for order in (streams, streams[::-1]))
    nodes = Map(dict(reversed(list(first.nodes.items()))))
    second = replace(second, nodes=nodes)
    assert codec.image_to_bytes(first) == codec.image_to_bytes(second)
    found = pb.Image.FromString(codec.image_to_bytes(first))
    assert [stream.name for stream in found.streams] == [f"s{number}" for number in range(5)]
    assert [node.nodeId for node in found.nodes] == ["a", "b", "c"]
    done = replace(first, operations=first.operations.with_operation(Operation(b"o" * 16, 1, b"answer")))
    assert codec.image_to_bytes(done) != codec.image_to_bytes(first)
    assert codec.image_to_bytes(done, operations=False) == codec.image_to_bytes(first, operations=False)
