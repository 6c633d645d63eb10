"""Test the state machine of the metadata: entries, the idempotency cache, snapshots, steps, and recorded entries [M6]."""

from __future__ import annotations

import operator

import pytest
from cluster_driver import MS, Driver, Error

from liftpy.core.base.cooperative_apply import PER_STEP
from liftpy.core.metadata import idempotency
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import Record, replay
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import CorruptionError, UnknownFormatError
from tests.born import BOTH, NEXT, born_fsm, registration
from tests.each import each
from tests.replay.corpus import FOLDER, differences, digests_of, read_entries

YEARS_NS = 10 * 365 * 86_400 * 1000 * MS


def test_cluster_fsm_answers_an_entry_of_invalid_bytes_with_invalid_and_advances_the_index() -> None:
    driver = Driver(("a",))
    before = driver.fsm.image
    assert driver.apply(b"\xff\xff\xff").error == Error.INVALID
    assert driver.fsm.image.index == driver.index
    assert driver.fsm.image.nodes is before.nodes
    assert driver.apply(b"").error == Error.INVALID


def test_cluster_fsm_rejects_empty_or_read_only_requests_and_requests_without_operation_id() -> None:
    driver = Driver()
    assert driver.ask().error == Error.INVALID
    assert driver.ask(heartbeat=pb.Heartbeat(nodeId="a")).error == Error.INVALID
    assert driver.ask(b"short", registerNode=registration(nodeId="a")).error == Error.INVALID
    assert driver.ask(b"", registerNode=registration(nodeId="a")).error == Error.INVALID
    future = pb.ControlRequest(operationId=b"x" * 16, timeNs=1 << 63, registerNode=registration(nodeId="a"))
    assert driver.apply(future.SerializeToString()).error == Error.INVALID
    assert not driver.fsm.image.nodes


def test_cluster_fsm_applies_an_index_only_once() -> None:
    driver = Driver(("a",))
    entry = pb.ControlRequest(operationId=b"n" * 16, registerNode=registration(nodeId="b")).SerializeToString()
    response = pb.ControlResponse.FromString(driver.fsm.apply(entry, 1))
    assert (response.error, response.index) == (Error.INVALID, 1)
    assert set(driver.fsm.image.nodes) == {"a"}


def test_cluster_fsm_after_an_entry_time_years_ahead_uses_the_time_of_the_next_entry() -> None:
    driver = Driver(("a",))
    before_ns = driver.now_ns
    driver.now_ns += YEARS_NS
    driver.register("b")
    driver.now_ns = before_ns
    driver.create()
    assert driver.fsm.image.time_ns == driver.fsm.image.streams["orders"].created_time_ns == driver.now_ns


@pytest.mark.parametrize("off_ns", [YEARS_NS, -YEARS_NS])
def test_cluster_fsm_with_wrong_entry_times_still_answers_a_repeated_operation_from_its_cache(off_ns: int) -> None:
    driver = Driver()
    first = driver.register("a")
    for _ in range(3):
        driver.now_ns += off_ns
        driver.register("b")
        driver.now_ns -= off_ns
        driver.register("c")
    again = driver.ask(first.operationId, registerNode=registration(nodeId="a"))
    assert again == first, "it is applied once"
    for _ in range(200):
        driver.now_ns += idempotency.MAX_STEP_NS
        driver.register("d")
    assert len(driver.fsm.image.operations) <= 1 + idempotency.MAX_AGE_NS // idempotency.MAX_STEP_NS


def test_cluster_fsm_after_a_long_idle_time_keeps_recent_operations_in_the_idempotency() -> None:
    driver = Driver()
    first = driver.register("a")
    driver.now_ns += 10 * idempotency.MAX_AGE_NS
    driver.register("b")
    assert driver.ask(first.operationId, registerNode=registration(nodeId="a")) == first


def test_cluster_fsm_operation_id_applied_twice_returns_the_first_answer() -> None:
    driver = Driver()
    refused = driver.delete("orders")
    assert refused.error == Error.NOT_FOUND
    driver.create()
    again = driver.ask(refused.operationId, deleteStream=pb.DeleteStream(name="orders"))
    assert again == refused
    assert driver.fsm.image.streams


def test_cluster_fsm_idempotency_cache_is_bounded_in_count_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_OPERATIONS", 10)
    driver = Driver()
    for number in range(25):
        driver.register(f"n{number}")
    window = driver.fsm.image.operations
    assert len(window) == len(window.by_id) == len(window.order) == 10
    assert [o.operation_id for o in window] == [n.to_bytes(16, "big") for n in range(16, 26)]
    for _ in range(2 * idempotency.MAX_AGE_NS // idempotency.MAX_STEP_NS):
        driver.now_ns += 2 * idempotency.MAX_STEP_NS
        driver.register("late")
    monkeypatch.setattr(idempotency, "MAX_OPERATIONS", 1000)
    assert len(driver.fsm.image.operations) == 10


def test_cluster_fsm_idempotency_cache_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_SIZE_BYTES", 20_000)
    driver = Driver(("a",))
    for number in range(300):
        driver.create(f"s{number}", "not a subject" * 500)
        window = driver.fsm.image.operations
        kept = sum(len(o.response) for o in window)
        assert kept <= window.size_bytes <= 20_000
    assert 10 < len(window) == len(window.by_id) < 60
    restored = born_fsm()
    restored.restore(driver.fsm.snapshot())
    assert restored.image.operations.size_bytes == window.size_bytes


@pytest.mark.parametrize("length", [100, 4000, 400_000])
def test_cluster_fsm_rejection_of_a_long_stream_name_contains_the_shortened_name(length: int) -> None:
    driver = Driver(("a",))
    name = "orders-" + "a" * length
    for response in (
        driver.create(name, "x"),
        driver.create("s", name + "."),
        driver.ask(deleteStream=pb.DeleteStream(name=name)),
        driver.ask(removeNode=pb.RemoveNode(nodeId=name)),
        driver.register(name),
        driver.ask(describeStream=pb.DescribeStream(name=name)),
    ):
        assert response.error != Error.OK
        assert response.ByteSize() < 1000
        assert "orders-aaaa" in response.detail
    assert "bytes)" in driver.create(name, "x").detail


def test_cluster_fsm_idempotency_cache_is_restored_from_a_snapshot() -> None:
    driver = Driver(("a",))
    first = driver.create()
    restored = born_fsm()
    restored.restore(driver.fsm.snapshot())
    entry = pb.ControlRequest(operationId=first.operationId, createStream=pb.CreateStream(name="other", subject="x"))
    answer = restored.apply(entry.SerializeToString(), driver.index + 1)
    assert pb.ControlResponse.FromString(answer) == first


@each("position", [0, 5, 7, 9, 17, 25, 30, -1])
def test_cluster_fsm_restore_of_a_damaged_snapshot_raises_and_keeps_the_image(position: int) -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    data = bytearray(driver.fsm.snapshot())
    data[position] ^= 0x40
    before = driver.fsm.image
    with pytest.raises((CorruptionError, UnknownFormatError)):
        driver.fsm.restore(bytes(data))
    assert driver.fsm.image is before


def test_cluster_fsm_restore_of_a_truncated_snapshot_or_a_pickle_is_rejected() -> None:
    driver = Driver(("a",))
    data = driver.fsm.snapshot()
    for cut in range(len(data)):
        with pytest.raises((CorruptionError, UnknownFormatError)):
            born_fsm().restore(data[:cut])
    with pytest.raises(CorruptionError):
        born_fsm().restore(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins." * 3)


def test_cluster_fsm_answers_barrier_and_describe_with_the_image_at_their_index() -> None:
    driver = Driver(("a", "b"))
    driver.create()
    assert driver.ask(barrier=pb.Barrier()).index == driver.index
    described = driver.ask(describeCluster=pb.DescribeCluster())
    image = described.cluster.image
    assert image.index == driver.index
    assert [node.nodeId for node in image.nodes] == ["a", "b"]
    assert image.streams[0].partitions[0].leader == "a"
    assert not image.operations


def test_cluster_fsm_counters_include_only_exceptions_and_undecodable_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(("a", "b", "c"))
    fsm = driver.fsm
    driver.ask(createStream=pb.CreateStream(name="s", subject="x"))
    driver.ask(createStream=pb.CreateStream(name="s", subject="x"))
    driver.ask(barrier=pb.Barrier())
    driver.ask(createStream=pb.CreateStream(name="t", subject="y", dryRun=True))
    fsm.apply(b"\xff", driver.index)
    assert (fsm.failure_count, fsm.refused_count) == (0, 0)
    fsm.apply(b"\xff", driver.index + 1)
    assert (fsm.failure_count, fsm.refused_count, fsm.image.index) == (0, 1, driver.index + 1)
    before = fsm.image

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("liftpy.core.metadata.controller.state_machine.changes_nothing", broken)
    answer = pb.ControlResponse.FromString(
        fsm.apply(pb.ControlRequest(operationId=b"o" * 16, barrier=pb.Barrier()).SerializeToString(), driver.index + 2)
    )
    assert (answer.error, answer.detail, answer.index) == (pb.ControlResponse.UNKNOWN, "RuntimeError: a bug", driver.index + 2)
    assert (fsm.failure_count, fsm.refused_count) == (1, 1)
    assert (fsm.image.index, fsm.image.streams, fsm.last_records) == (driver.index + 2, before.streams, ())


@pytest.mark.parametrize("level", range(SUPPORTED_LEVELS.least, SUPPORTED_LEVELS.most + 1))
def test_recorded_entries_of_each_feature_level_give_the_recorded_digests(level: int) -> None:
    assert differences(level) == [], (
        "the same entries come to something else: that needs a new feature level (liftpy/core/metadata/features.py), and a branch on it"
    )


def test_recorded_entries_of_two_equal_feature_levels_differ_only_in_the_level_number() -> None:
    history = next(read_entries())[:100]
    now, later = (digests_of(history, level, BOTH) for level in (SUPPORTED_LEVELS.most, NEXT.level))
    assert now == digests_of(history, SUPPORTED_LEVELS.most)
    assert all(map(operator.ne, now, later)), "the image holds its level"


def test_recorded_entries_contain_every_kind_of_control_request() -> None:
    kinds = set[str]()
    for history in read_entries():
        for entry in history:
            request = pb.ControlRequest.FromString(entry)
            parts = [item.request for item in request.batch.requests] or [request]
            kinds |= {part.WhichOneof("request") or "" for part in parts}
    every = {field.name for field in pb.ControlRequest.DESCRIPTOR.oneofs_by_name["request"].fields}
    changes_nothing = {"describeCluster", "heartbeat", "reportService"}
    assert every - kinds == {"batch", "changeControllers", "setFeatureLevel"} | changes_nothing
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 500_000


STREAMS, PARTITIONS = 100, 10


def register(node: str, start: int = 1) -> pb.ControlRequest:
    earlier = list(range(1, start))
    asked = registration(
        nodeId=node,
        previousIncarnation=start - 1,
        flushedAlways=True,
        folderId=node,
        start=start,
        nonce=start,
        earlierNonces=earlier,
    )
    return pb.ControlRequest(registerNode=asked)


class Driven:
    """A state machine, and its log."""

    def __init__(self) -> None:
        self.fsm = born_fsm(elections=True)
        self.index = 0

    def entry(self, request: pb.ControlRequest) -> bytes:
        self.index += 1
        request.operationId, request.timeNs = self.index.to_bytes(16, "big"), self.index
        return request.SerializeToString()

    def apply(self, request: pb.ControlRequest) -> pb.ControlResponse:
        response = pb.ControlResponse.FromString(self.fsm.apply(self.entry(request), self.index))
        assert response.error == pb.ControlResponse.OK, response.detail
        return response


def cluster() -> Driven:
    driven = Driven()
    for node in ("a", "b", "c"):
        driven.apply(register(node))
    for number in range(STREAMS):
        creation = pb.CreateStream(name=f"s{number}", subject=f"s{number}", partitions=PARTITIONS, replicationFactor=3)
        driven.apply(pb.ControlRequest(createStream=creation))
    return driven


def of_a_node(kind: str, driven: Driven) -> pb.ControlRequest:
    node = driven.fsm.image.nodes["a"]
    if kind == "register":
        again = register("a", start=2)
        again.registerNode.previousIncarnation = node.incarnation
        return again
    if kind == "emptied":
        return pb.ControlRequest(registerNode=registration(nodeId="a", folderId="another", start=1, nonce=9))
    if kind == "drain":
        return pb.ControlRequest(drainNode=pb.DrainNode(nodeId="a", incarnation=node.incarnation))
    if kind == "unfence":
        driven.apply(pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="a", incarnation=node.incarnation)))
        return pb.ControlRequest(unfenceNode=pb.UnfenceNode(nodeId="a", incarnation=node.incarnation))
    return pb.ControlRequest(fenceNode=pb.FenceNode(nodeId="a", incarnation=node.incarnation))


@pytest.mark.parametrize("kind", ["register", "emptied", "fence", "unfence", "drain"])
def test_apply_of_a_large_entry_in_steps_changes_the_image_only_at_the_end(kind: str) -> None:
    in_one, in_steps = cluster(), cluster()
    entry = in_one.entry(of_a_node(kind, in_one))
    assert in_steps.entry(of_a_node(kind, in_steps)) == entry
    before = in_steps.fsm.image
    steps = 1
    while not in_steps.fsm.precompute(entry, in_steps.index):
        steps += 1
        assert in_steps.fsm.image is before
    assert in_steps.fsm.precompute(entry, in_steps.index)
    assert in_steps.fsm.image is before
    assert steps >= STREAMS * PARTITIONS // PER_STEP
    assert in_steps.fsm.apply(entry, in_steps.index) == in_one.fsm.apply(entry, in_one.index)
    assert in_steps.fsm.last_records == in_one.fsm.last_records
    assert encode_snapshot(in_steps.fsm.image) == encode_snapshot(in_one.fsm.image)


def test_apply_of_a_large_entry_in_steps_replays_a_bounded_number_of_records_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = cluster()
    entry = driven.entry(of_a_node("emptied", driven))
    counted = 0

    def counting(image: ClusterImage, record: Record) -> ClusterImage:
        nonlocal counted
        counted += 1
        return replay(image, record)

    monkeypatch.setattr("liftpy.core.metadata.records.replay", counting)
    replayed = []
    while not driven.fsm.precompute(entry, driven.index):
        replayed.append(counted)
        counted = 0
    assert max(replayed) == PER_STEP
    assert sum(replayed) + counted > STREAMS * PARTITIONS


def test_apply_in_steps_discards_its_partial_result_on_a_snapshot_or_another_entry() -> None:
    driven, other = cluster(), cluster()
    snapshot = encode_snapshot(driven.fsm.image)
    driven.apply(pb.ControlRequest(deleteStream=pb.DeleteStream(name="s7")))
    entry = driven.entry(of_a_node("fence", driven))
    another = driven.entry(of_a_node("drain", driven))
    assert not driven.fsm.precompute(entry, driven.index)
    driven.fsm.restore(snapshot)  # of what was before the deletion
    assert driven.fsm.apply(entry, driven.index) == other.fsm.apply(entry, driven.index)
    assert encode_snapshot(driven.fsm.image) == encode_snapshot(other.fsm.image)
    driven.fsm.precompute(entry, driven.index + 1)
    assert driven.fsm.apply(another, driven.index + 1) == other.fsm.apply(another, driven.index + 1)
    assert encode_snapshot(driven.fsm.image) == encode_snapshot(other.fsm.image)
