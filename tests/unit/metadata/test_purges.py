"""Test PurgeRecords and ReportPurged: a purge lasts until every holder reports that it has no such record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster_driver import Driver, Error

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, Purge, PurgeReport
from liftpy.core.base.purge import (
    MAX_PURGE_BYTES,
    MAX_PURGES,
    reported_number,
    to_report,
    waits_for,
    with_purge,
    with_report,
    without_completed,
)
from liftpy.core.metadata.codec import PARTITION
from liftpy.core.metadata.controller.request_batcher import purge_report
from liftpy.core.metadata.image_delta import diff
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each


def cluster(nodes: str = "abc") -> Driver:
    driver = Driver(tuple(nodes))
    driver.create(partitions=2)
    return driver


def ask(driver: Driver, end_offset: int = 41, **more: Any) -> pb.ControlResponse:
    about = {"stream": "orders", "uid": driver.fsm.image.streams["orders"].uid, "partition": 1, "subjects": ["x"]} | more
    return driver.ask(purgeRecords=pb.PurgeRecords(endOffset=end_offset, **about))


def now(driver: Driver) -> PartitionState:
    return driver.fsm.image.streams["orders"].partitions[1]


def report(driver: Driver, node: str, number: int, incarnation: int = 0) -> pb.ControlResponse:
    registered = driver.fsm.image.nodes[node].incarnation
    said = pb.ReportPurged(stream="orders", partition=1, node=node, incarnation=incarnation or registered, number=number)
    return driver.ask(reportPurged=said)


def test_purge_stays_in_the_image_until_every_replica_has_reported() -> None:
    driver = cluster()
    before = driver.fsm.image
    answer = ask(driver, keys=[b"k", b"k"], subjects=["y.>", "x"])
    assert answer.error == Error.OK
    (wish,) = now(driver).purges
    assert (wish.subjects, wish.keys, wish.end_offset) == (("x", "y.>"), (b"k",), 41)
    assert answer.partition == PARTITION.to_pb(now(driver))
    assert [change.key.partition for change in diff(before, driver.fsm.image).partitions] == [1]
    for node in now(driver).isr[:-1]:
        assert report(driver, node, wish.number).error == Error.OK
        assert (now(driver).purges, reported_number(now(driver), node)) == ((wish,), wish.number)
    assert waits_for(now(driver), wish) == [now(driver).isr[-1]]
    assert report(driver, now(driver).isr[-1], wish.number - 1).error == Error.OK
    assert now(driver).purges == (wish,), "of an earlier one"
    assert report(driver, now(driver).isr[-1], wish.number).error == Error.OK
    assert (now(driver).purges, now(driver).purged) == ((), ())
    epoch = now(driver).epoch
    assert report(driver, now(driver).isr[-1], wish.number).error == Error.OK
    assert now(driver).epoch == epoch, "nothing is under way"


def test_purge_is_replaced_only_by_a_purge_with_a_higher_end_offset() -> None:
    driver = cluster()
    ask(driver, 41)
    first = now(driver)
    for end_offset in (40, 41):
        assert ask(driver, end_offset).error == Error.OK
        assert now(driver) == first
    assert ask(driver, 42).error == Error.OK
    (wish,) = now(driver).purges
    assert wish.end_offset == 42
    assert wish.number > first.purges[0].number
    ask(driver, 41, subjects=[], keys=[b"x"])
    assert [p.keys for p in now(driver).purges] == [(), (b"x",)]


@each(
    ("more", "error"),
    [({"uid": ""}, Error.NOT_FOUND), ({"uid": "of before"}, Error.NOT_FOUND), ({"partition": 2}, Error.NOT_FOUND),
     ({"stream": "other"}, Error.NOT_FOUND), ({"end_offset": 0}, Error.INVALID), ({"end_offset": (1 << 62) + 1}, Error.INVALID),
     ({"subjects": []}, Error.INVALID), ({"subjects": ["a..b"]}, Error.INVALID), ({"keys": [b"k" * 1025]}, Error.INVALID),
     ({"keys": [b"k"] * 400}, Error.OK), ({"keys": [b"%d" % n for n in range(300)]}, Error.INVALID)],
)  # fmt: skip
def test_purge_of_another_stream_or_an_impossible_range_is_rejected(more: dict[str, Any], error: int) -> None:
    driver = cluster()
    before = driver.fsm.image.streams
    answer = ask(driver, **more)
    assert answer.error == error
    if error:
        assert driver.fsm.image.streams == before
        assert answer.detail


def test_purges_are_bounded_in_number_and_size() -> None:
    driver = cluster()
    for number in range(MAX_PURGES):
        assert ask(driver, subjects=[f"x{number}"]).error == Error.OK
    refused = ask(driver, subjects=["one.more"])
    assert refused.error == Error.INVALID
    assert "8 purges are under way" in refused.detail
    assert "a, b, c" in refused.detail
    assert ask(driver, 42, subjects=["x0"]).error == Error.OK, "in the place of one"
    another = cluster()
    assert ask(another, keys=[b"h" * (MAX_PURGE_BYTES // 2 - 1)], subjects=["x"]).error == Error.OK
    assert ask(another, keys=[b"k" * (MAX_PURGE_BYTES // 2 + 1)], subjects=[]).error == Error.INVALID
    assert ask(another, keys=[b"k" * (MAX_PURGE_BYTES // 2)], subjects=[]).error == Error.OK
    alone = ask(cluster(), keys=[b"k" * (MAX_PURGE_BYTES + 1)])
    assert f"at most {MAX_PURGE_BYTES} bytes" in alone.detail


def test_purge_report_of_another_incarnation_or_outside_the_isr_is_ignored() -> None:
    driver = cluster()
    ask(driver)
    state = now(driver)
    number = state.purges[0].number
    assert report(driver, "a", number, 77).error == Error.FENCED
    assert driver.ask(reportPurged=pb.ReportPurged(stream="no", node="a")).error == Error.NOT_FOUND
    assert driver.ask(reportPurged=pb.ReportPurged(stream="orders", partition=1, node="z")).error == Error.NOT_FOUND
    assert now(driver) == state
    left = replace(state, isr=("a", "b"))
    assert with_report(left, "c", number) is left
    assert with_report(state, "c", number) is not state


def a_state(**more: Any) -> PartitionState:
    wishes = (Purge(number=3, subjects=("x",), end_offset=9), Purge(number=7, keys=(b"k",), end_offset=5))
    about: dict[str, Any] = {"replicas": ("a", "b"), "isr": ("a", "b"), "purges": wishes} | more
    return PartitionState(partition=0, leader="a", leader_epoch=1, epoch=1, **about)


def test_purge_reported_by_all_replicas_is_removed_from_the_image() -> None:
    both = (PurgeReport("a", 7), PurgeReport("b", 3))
    assert [p.number for p in without_completed(a_state(purged=both)).purges] == [7]
    assert without_completed(a_state(purged=both)).purged == both
    assert without_completed(a_state(purged=both, isr=("a",))).purged == both[:1]
    assert [p.number for p in without_completed(a_state(purged=both, isr=("a",))).purges] == [3, 7]
    assert [p.number for p in without_completed(a_state(purged=both, joining="c")).purges] == [3, 7], "a learner copies it"
    quiet = a_state(purged=both[:1])
    assert without_completed(quiet) is quiet
    assert without_completed(a_state(purges=(), purged=both)).purged == ()


def test_purge_report_of_a_replica_is_sent_only_after_new_progress() -> None:
    state = a_state()
    assert [to_report(state, "a", done) for done in ((), {3}, {7}, {3, 7}, {3, 99})] == [0, 3, 0, 7, 3]
    assert to_report(a_state(purged=(PurgeReport("a", 3),)), "a", {3}) == 0
    assert to_report(a_state(isr=("b",)), "a", {3, 7}) == 0
    key = PartitionKey("orders", "u", 4)
    request = purge_report(key, state, "a", 5, {3, 7})
    assert request is not None
    assert request.reportPurged == pb.ReportPurged(stream="orders", uid="u", partition=4, node="a", incarnation=5, number=7)
    assert purge_report(key, state, "a", 5, {7}) is None


def test_purge_that_replaces_a_smaller_purge_counts_the_size_once() -> None:
    state = a_state(purges=(Purge(number=1, keys=(b"k" * MAX_PURGE_BYTES,), end_offset=5),))
    larger = Purge(number=2, keys=(b"k" * MAX_PURGE_BYTES,), end_offset=6)
    found = with_purge(state, larger)
    assert found is not None
    assert found.purges == (larger,)
    assert with_purge(state, Purge(number=2, keys=(b"x",), end_offset=6)) is None
