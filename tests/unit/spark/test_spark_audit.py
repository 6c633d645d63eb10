"""Test ``audit`` with nodes that serve from memory: it finds each different record, and ignores allowed differences."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from liftpy.core.base.partition import Purge
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import build_filler, parse_batch
from liftpy.core.wire.batch_columns import Mask
from liftpy.core.wire.filters import keep_records
from liftpy.errors import ConfigError, NotFoundError
from liftpy.spark.options import Access, Selection
from liftpy.spark.pipelines import audit as audit_module
from liftpy.spark.pipelines.audit import audit
from liftpy.spark.pipelines.audit_findings import AuditReport, deviants
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition, FakeStream

ORDERS = Selection(("orders",))
Change = Callable[[int, list[bytes]], list[bytes]]


def batch(first: int, values: list[bytes], *, epoch: int = 1, keyed: int = 0, **more: Any) -> bytes:
    keys = [b"k%d" % ((first + i) % keyed) for i in range(len(values))] if keyed else None
    return build_batch(values, keys=keys, base_offset=first, leader_epoch=epoch, timestamp_ns=(1 + first) * 1000, **more)


def log_of(sizes: list[int], change: Change = lambda first, values: values, **more: Any) -> FakePartition:
    """Return a log with batches of these record counts. ``change`` may replace the values."""
    log = FakePartition()
    for size in sizes:
        first = log.log_end_offset
        values = change(first, [b"%d" % i for i in range(first, first + size)])
        log.append(batch(first, values, **more))
    return log


def at(offset: int, value: bytes) -> Change:
    """Return a function that replaces the value at one offset."""

    def change(first: int, values: list[bytes]) -> list[bytes]:
        return [value if first + i == offset else old for i, old in enumerate(values)]

    return change


def serve(node: FakeNode, log: FakePartition, **own: FakePartition) -> FakeStream:
    stream = node.add_stream("orders")
    stream.partitions = [log]
    node.own = {("orders", 0, name): other for name, other in own.items()}
    return stream


def look(access: Access, **more: Any) -> AuditReport:
    return audit(access, more.pop("wanted", ORDERS), patience_s=more.pop("patience_s", 5.0), **more)


SIZES = [1, 700, 50, 3000, 20_000, 9]
END = sum(SIZES)


def test_spark_audit_of_equal_replicas_reports_no_findings(access: Access, node: FakeNode) -> None:
    serve(node, log_of(SIZES))
    report = look(access)
    assert report.first is None
    assert report.is_proven
    one = report.partitions[0]
    assert (one.start_offset, one.end_offset, one.compared) == (0, END, ["n1", "n2", "n3"])
    assert {(r.records, tuple(r.epochs), r.high_watermark) for r in one.replicas.values()} == {(END, ((1, 0),), END - 1)}
    assert len({r.size_bytes for r in one.replicas.values()}) == 1
    assert json.loads(json.dumps(report.to_json()))["agrees"] is True


@pytest.mark.parametrize("offset", [0, 1, 700, 751, 16_384, 20_000, END - 1])
def test_spark_audit_of_one_different_record_reports_its_offset_and_replica(
    access: Access, node: FakeNode, offset: int
) -> None:
    serve(node, log_of(SIZES), n3=log_of(SIZES, at(offset, b"x")))
    report = look(access)
    first = report.first
    assert first is not None
    assert (first.stream, first.partition, first.offset, first.node, first.kind) == ("orders", 0, offset, "n3", "differs")
    assert first.majority
    assert len(first.expected) == len(first.seen) == 32
    assert first.expected != first.seen
    assert f"orders/0 offset {offset}: n3 has another record, expected {first.expected}, seen {first.seen}" == str(first)
    assert [found.offset for found in report.findings] == [offset]


def test_spark_audit_of_two_different_replicas_reports_that_there_is_no_majority(access: Access, node: FakeNode) -> None:
    serve(node, log_of(SIZES), n1=log_of(SIZES, at(17, b"x")))
    node.silent = {"n3"}
    report = look(access, patience_s=0.2)
    first = report.first
    assert first is not None
    assert (first.node, first.majority) == ("n2", False)
    assert "no majority agrees" in str(first)
    assert report.partitions[0].replicas["n3"].state == "away"
    assert "n3" in report.partitions[0].replicas["n3"].detail


@pytest.mark.parametrize(("leader", "reported"), [("n1", ["n2", "n3"]), ("n3", ["n1", "n2"])])
def test_spark_audit_of_three_different_replicas_compares_with_the_leader(
    access: Access, node: FakeNode, leader: str, reported: list[str]
) -> None:
    node.node_ids = (leader, *reported)
    serve(node, log_of(SIZES), n1=log_of(SIZES, at(17, b"x")), n2=log_of(SIZES, at(17, b"y")))
    assert sorted((f.node, f.majority) for f in look(access).findings) == [(name, False) for name in reported]


def test_spark_audit_without_the_leader_compares_the_other_replicas_with_the_first_of_them(
    access: Access, node: FakeNode
) -> None:
    serve(node, log_of(SIZES), n3=log_of(SIZES, at(17, b"x")))
    node.silent = {"n1"}
    report = look(access, patience_s=0.2)
    assert report.partitions[0].compared == ["n2", "n3"]
    assert [(f.node, f.majority) for f in report.findings] == [("n3", False)]


def test_spark_audit_reports_a_missing_and_an_additional_record(access: Access, node: FakeNode) -> None:
    serve(node, log_of([50, 50, 50]), n2=log_of([50, 50, 50]))
    lacking = node.own["orders", 0, "n2"]
    lacking.batches[1] = _sealed(keep_records(parse_batch(memoryview(lacking.batches[1][1])), np.arange(50) < 49))
    found = look(access).findings
    assert [(f.node, f.offset, f.kind, f.seen) for f in found] == [("n2", 99, "missing", "nothing")]
    serve(node, lacking, n2=log_of([50, 50, 50]))
    found = look(access).findings
    assert [(f.node, f.offset, f.kind, f.expected) for f in found] == [("n2", 99, "surplus", "nothing")]


def test_spark_audit_reports_different_leader_epochs_and_batch_boundaries(access: Access, node: FakeNode) -> None:
    serve(node, log_of([10, 20, 30]), n2=log_of([10, 20, 30], epoch=2))
    assert {(f.node, f.kind) for f in look(access).findings} == {("n2", "differs")}
    assert [f.offset for f in look(access).findings] == list(range(10)), "of each piece that is compared the first ten"
    stamped = [b"%d" % i for i in range(10, 30)]
    other = log_of([10, 20, 30])
    other.batches[1] = _sealed(batch(10, stamped, producer_id=7, producer_epoch=1, base_sequence=0))
    serve(node, log_of([10, 20, 30]), n3=other)
    assert [(f.node, f.offset, f.kind, f.majority) for f in look(access).findings] == [("n3", 10, "batches", True)]


def test_spark_audit_of_a_large_block_halves_the_block_until_the_different_record_is_found(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "LEAF_BYTES", 2000)
    monkeypatch.setattr(audit_module, "BLOCK_OFFSETS", 4096)
    monkeypatch.setattr(audit_module, "SPAN_OFFSETS", 8192)
    for offset in (0, 4095, 4096, 8191, 8192, 12_345):
        serve(node, log_of([100] * 150), n2=log_of([100] * 150, at(offset, b"x")))
        assert [(f.node, f.offset) for f in look(access).findings] == [("n2", offset)]
    assert node.asked["n2"] > 30


def test_spark_audit_reports_every_difference_once_in_order(access: Access, node: FakeNode) -> None:
    both = log_of(SIZES, lambda first, values: at(20_001, b"y")(first, at(60, b"x")(first, values)))
    stream = serve(node, log_of(SIZES), n2=both)
    stream.partitions.append(log_of([40]))
    node.own["orders", 1, "n3"] = log_of([40], at(3, b"x"))
    found = [(f.partition, f.offset, f.node) for f in look(access).findings]
    assert found == [(0, 60, "n2"), (0, 20_001, "n2"), (1, 3, "n3")]
    only = look(access, wanted=Selection(("orders",), partitions=(("orders", 1),)))
    assert [(f.partition, f.offset) for f in only.findings] == [(1, 3)]


# ---- damage -----------------------------------------------------------------------------------------------------------------
def _sealed(data: bytes) -> tuple[Any, bytes]:
    return parse_batch(memoryview(data)).header, data


def flipped(log: FakePartition, number: int, position: int) -> FakePartition:
    header, data = log.batches[number]
    wrong = bytearray(data)
    wrong[position] ^= 4
    log.batches[number] = header, bytes(wrong)
    return log


def test_spark_audit_reports_a_corrupt_answer_as_damage(access: Access, node: FakeNode) -> None:
    serve(node, log_of([50, 50, 50]), n2=flipped(log_of([50, 50, 50]), 1, 90))
    first = look(access).first
    assert first is not None
    assert (first.node, first.kind, first.offset) == ("n2", "damaged", 50)
    assert "could not serve all of [50, 150)" in first.detail
    assert "CRC-32C" in first.detail


def test_spark_audit_reports_damage_that_the_node_detected(access: Access, node: FakeNode) -> None:
    serve(node, log_of(SIZES))
    node.damaged["orders", 0, "n3"] = "CORRUPTION: 00000000000000000000.log: the CRC-32C of the batch at 0 does not match"
    report = look(access)
    assert [(f.node, f.kind, f.offset) for f in report.findings] == [("n3", "damaged", 0)]
    node.damaged["orders", 0, "n3"] = "CORRUPTION: the CRC-32C of the batch at 1800 (offset 701) does not match"
    assert [(f.node, f.kind, f.offset) for f in look(access).findings] == [("n3", "damaged", 701)]
    assert "n3 has damaged bytes; it could not serve all of [0, 16384): CORRUPTION: 00000000000000000000.log" in str(
        report.first
    )
    assert report.partitions[0].replicas["n3"].records < END
    assert look(access).first is None, "it has repaired itself"


def test_spark_audit_reports_differences_in_addition_to_damage(access: Access, node: FakeNode) -> None:
    serve(node, log_of(SIZES), n2=log_of(SIZES, at(60, b"x")))
    node.damaged["orders", 0, "n3"] = "CORRUPTION: x"
    assert [(f.node, f.kind, f.offset) for f in look(access).findings] == [("n2", "differs", 60), ("n3", "damaged", 0)][::-1]


# ---- what is compared -------------------------------------------------------------------------------------------------------
def test_spark_audit_compares_from_the_highest_log_start_to_the_lowest_high_watermark(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_SETTLE_S", 0.05)
    serve(node, log_of([50] * 10), n2=log_of([50] * 10, at(3, b"x")), n3=log_of([50] * 10, at(480, b"x")))
    node.trimmed, node.lagging = {"n1": 50}, {"n2": 449}
    report = look(access)
    one = report.partitions[0]
    assert (one.start_offset, one.end_offset) == (50, 450)
    assert report.first is None
    assert (one.replicas["n1"].log_start_offset, one.replicas["n2"].high_watermark) == (50, 449)


@pytest.mark.parametrize("log_start", [60, 700, 16_600, END])
@pytest.mark.parametrize("is_equal", [True, False])
def test_spark_audit_continues_after_retention_deleted_records_during_the_audit(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch, log_start: int, is_equal: bool
) -> None:
    """The replicas have not deleted the same records yet. The audit compares the records that all replicas have."""
    serve(node, log_of(SIZES), **({} if is_equal else {"n3": log_of(SIZES, at(20_000, b"x"))}))
    answer = FakeNode.answer

    def answer_late(self: FakeNode, name: str, stream: str, number: int, request: Any) -> Any:
        if not request.boundsOnly:
            node.trimmed = {"n1": log_start, "n2": min(log_start, 650)}
        return answer(self, name, stream, number, request)

    monkeypatch.setattr(FakeNode, "answer", answer_late)
    monkeypatch.setattr(audit_module, "LEAF_BYTES", 1 << 10)
    report = look(access, patience_s=0.5)
    assert report.is_proven
    assert report.partitions[0].compared == ["n1", "n2", "n3"]
    assert [found.offset for found in report.findings] == ([] if is_equal or log_start == END else [20_000])


def test_spark_audit_with_one_reachable_replica_reports_the_partition_as_not_proven(access: Access, node: FakeNode) -> None:
    serve(node, log_of([50]))
    node.silent = {"n2", "n3"}
    report = look(access, patience_s=0.2)
    assert not report.is_proven
    assert report.partitions[0].compared == ["n1"]
    node.silent = {"n1", "n2", "n3"}
    assert not look(access, patience_s=0.2).is_proven


def test_spark_audit_checks_only_the_selected_streams(access: Access, node: FakeNode) -> None:
    serve(node, log_of([5]))
    node.add_stream("_groups")
    node.add_stream("refunds")
    assert [one.stream for one in look(access, wanted=Selection(pattern=".*")).partitions] == ["orders", "refunds"]
    names = [one.stream for one in look(access, wanted=Selection(pattern=".*"), internal=True).partitions]
    assert sorted(names) == ["_groups", "orders", "refunds"]
    with pytest.raises(NotFoundError):
        look(access, wanted=Selection(("none",)))
    with pytest.raises(ConfigError, match="patience_s"):
        look(access, patience_s=0.0)
    with pytest.raises(ConfigError, match="tasks"):
        look(access, tasks=0)


# ---- compaction -------------------------------------------------------------------------------------------------------------
def compacted(log: FakePartition, drops: Callable[[int], bool]) -> FakePartition:
    """Return ``log`` after a compaction that deletes these offsets."""
    made = FakePartition(compacted=True)
    for header, data in log.batches:
        keep: Mask = np.array([not drops(header.base_offset + i) for i in range(header.record_count)])
        if not keep.any():
            made.append(build_filler(header.base_offset, header.next_offset, header.leader_epoch, header.timestamp_ns))
        else:
            made.append(data if keep.all() else keep_records(parse_batch(memoryview(data)), keep))
    return made


def keyed(count: int = 20, change: Change = lambda first, values: values) -> FakePartition:
    return log_of([10] * count, change, keyed=7)


def test_spark_audit_of_replicas_compacted_at_different_times_reports_no_findings(access: Access, node: FakeNode) -> None:
    whole = replace(keyed(), compacted=True)
    serve(node, whole, n2=compacted(keyed(), lambda o: o < 150), n3=compacted(keyed(), lambda o: 30 < o < 100 and o % 3 == 0))
    report = look(access)
    assert report.findings == []
    assert report.partitions[0].dropped == 150 + 23


def test_spark_audit_of_a_compacted_log_reports_a_different_record(access: Access, node: FakeNode) -> None:
    other = compacted(keyed(change=at(120, b"x")), lambda o: o < 50)
    serve(node, replace(keyed(), compacted=True), n3=other)
    assert [(f.node, f.offset, f.kind) for f in look(access).findings] == [("n3", 120, "differs")]


def test_spark_audit_of_a_compacted_log_reports_a_missing_record_without_a_newer_record_of_its_key(
    access: Access, node: FakeNode
) -> None:
    serve(node, replace(keyed(), compacted=True), n2=compacted(keyed(), lambda o: o in (3, 195)))
    assert [(f.node, f.offset, f.kind, f.detail) for f in look(access).findings] == [("n2", 195, "lost", "its key is b'k6'")]
    keyless = replace(log_of([10] * 20), compacted=True)
    serve(node, keyless, n2=compacted(log_of([10] * 20), lambda o: o == 3))
    assert [(f.node, f.offset, f.kind) for f in look(access).findings] == [("n2", 3, "lost")]


def deleted_on(log: FakePartition, *, deletes_end: int) -> FakePartition:
    """Return ``log`` after a complete compaction that deleted tombstones below ``deletes_end``."""
    return replace(log, compacted=True, compacted_end=log.log_end_offset, deletes_end=deletes_end)


def test_spark_audit_of_a_deleted_key_that_one_replica_still_has_reports_the_replica(access: Access, node: FakeNode) -> None:
    without = deleted_on(compacted(keyed(), lambda o: o == 195), deletes_end=200)
    serve(node, without, n3=replace(keyed(), compacted=True))
    (found,) = look(access).findings
    assert (found.node, found.offset, found.kind) == ("n3", 195, "revived")
    assert "n1 below 200, n2 below 200" in found.detail


def test_spark_audit_of_a_record_that_one_replica_lost_reports_the_replica(access: Access, node: FakeNode) -> None:
    there = replace(keyed(), compacted=True)
    for deletes_end in (0, 195, 200):  # of two replicas that have the record, the third one may have lost it all the same
        serve(node, there, n3=deleted_on(compacted(keyed(), lambda o: o == 195), deletes_end=deletes_end))
        assert [(f.node, f.offset, f.kind) for f in look(access).findings] == [("n3", 195, "lost")]


def test_spark_audit_ignores_a_missing_record_that_may_be_replaced_after_the_compared_range(
    access: Access, node: FakeNode
) -> None:
    serve(node, replace(keyed(21), compacted=True), n3=deleted_on(compacted(keyed(21), lambda o: o == 195), deletes_end=0))
    node.lagging = {"n1": 199, "n2": 199}
    one = look(access, patience_s=0.5).partitions[0]
    assert (one.end_offset, one.dropped, one.dropped_checked, one.findings) == (200, 1, False, [])


def test_spark_audit_allows_a_replica_to_have_deleted_a_tombstone(access: Access, node: FakeNode) -> None:
    def log() -> FakePartition:
        made = FakePartition(compacted=True)
        made.append(build_batch([b"a", None, b"c"], keys=[b"k", b"k", b"l"], base_offset=0, leader_epoch=1))
        return made

    for without in ("n1", "n2"):
        serve(node, log(), **{without: compacted(log(), lambda o: o < 2)})
        report = look(access)
        assert (report.findings, report.partitions[0].dropped) == ([], 2)


@pytest.mark.parametrize("has_keys", [True, False])
def test_spark_audit_of_records_that_were_deleted_during_the_audit_reports_no_findings(
    access: Access, node: FakeNode, has_keys: bool
) -> None:
    """No replica has the records anymore, and with keys their later records are gone, too."""
    log = replace(keyed() if has_keys else log_of([10] * 20), compacted=True)
    serve(node, log, n2=compacted(keyed() if has_keys else log_of([10] * 20), lambda o: o == 3))

    def delete(_done: int, _spans: int) -> None:
        log.log_start_offset = 200

    one = look(access, tell=delete, patience_s=0.5).partitions[0]
    assert (one.findings, one.dropped, one.dropped_checked) == ([], 1, False)


def test_spark_audit_of_a_purge_that_began_during_the_audit_reports_no_findings(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replica has deleted the record, the others will."""
    serve(node, replace(keyed(), compacted=True), n2=compacted(keyed(), lambda o: o == 195))
    described, began = audit_module.newest_streams, []

    async def with_purge(*given: Any, **more: Any) -> tuple[StreamImage, ...]:
        streams = await described(*given, **more)
        purges = (Purge(number=1, keys=(b"k6",), end_offset=200),) if began else ()
        return tuple(
            replace(one, partitions=tuple(replace(state, purges=purges) for state in one.partitions)) for one in streams
        )

    monkeypatch.setattr(audit_module, "newest_streams", with_purge)
    one = look(access, tell=lambda *_: began.append(1)).partitions[0]
    assert (one.findings, one.dropped, one.dropped_checked) == ([], 1, False)


def test_spark_audit_above_its_key_limit_only_counts_records_missing_through_compaction(
    access: Access, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(node, replace(keyed(), compacted=True), n2=compacted(keyed(), lambda o: o == 195))
    monkeypatch.setattr(audit_module, "MAX_KEYS_DROPPED", 0)
    report = look(access)
    assert (report.findings, report.partitions[0].dropped, report.partitions[0].dropped_checked) == ([], 1, False)


# ---- who is right -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("digests", "reference", "found"),
    [
        ({"a": "1", "b": "1", "c": "2"}, "c", ("1", True, ["c"])),
        ({"a": "1", "b": "2"}, "b", ("2", False, ["a"])),
        ({"a": "1", "b": "1", "c": "2", "d": "2"}, "d", ("2", False, ["a", "b"])),
        ({"a": "1", "b": "1", "c": "2", "d": "3"}, "c", ("1", False, ["c", "d"])),
    ],
)
def test_spark_audit_deviants_are_the_replicas_whose_digest_differs_from_the_majority(
    digests: dict[str, str], reference: str, found: tuple[str, bool, list[str]]
) -> None:
    assert deviants(digests, reference) == found
