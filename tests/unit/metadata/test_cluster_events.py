"""Test cluster events, and the log that the metadata leader writes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_driver import Driver, Error
from election_driver import Cluster
from event_trails import Stream, a_trail, events

from liftpy.config import SessionTimes
from liftpy.core.metadata.controller.cluster_events import (
    GAP,
    KINDS,
    NOTHING,
    ClusterEvent,
    EventLog,
    EventStreamEnd,
    RecentEvents,
    event_text,
    events_of,
    place_in,
)
from liftpy.core.metadata.controller.feature_levels import begin_at
from liftpy.core.metadata.controller.record_builder import Rules
from liftpy.core.metadata.controller.requests import REQUESTS, RequesterKind
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import PartitionStateChanged
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm


def all_events(log: list[bytes], *, elections: bool = False) -> list[ClusterEvent]:
    """Return all events of a log, applied on a new controller."""
    fsm, trail, found = born_fsm(elections=elections), RecentEvents(), []
    for index, entry in enumerate(log, 1):
        before = fsm.image
        answer = fsm.apply(entry, index)
        trail.note_entry(index, events_of(before, entry, answer, fsm.last_records, index, trail.causes))
        found += trail.derive_events(1000)
    assert found == trail.events_after((0, -1), 0, 10_000)
    return found


def told(driver: Any) -> list[str]:
    return [event_text(event.as_object()) for event in all_events(driver.log, elections=driver.fsm.rules.elections)]


def test_cluster_events_describe_each_change_of_a_cluster_in_order() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    driver.change_isr(["a", "b"])
    driver.fence("c")
    driver.unfence("c")
    driver.ask(setNode=pb.SetNode(nodeId="c", rack="r1"))
    driver.ask(addPartitions=pb.AddPartitions(name="orders", partitions=3))
    driver.restart("b", clean=True)
    driver.delete("orders")
    assert told(driver) == [
        "node registered a none -> incarnation 1",
        "node registered b none -> incarnation 2",
        "node registered c none -> incarnation 3",
        "createStream done orders by test",
        "stream created orders 2 partitions on shop.orders",
        "isr changed orders/0 a b c -> a b, c fell behind the leader",
        "node fenced c sent no heartbeat for 2 s",
        "node unfenced c",
        "setNode done c by test",
        "node changed c weight 1 -> weight 1, rack r1",
        "addPartitions done orders by test",
        "partitions added orders none -> 1",
        "node registered b incarnation 2 -> incarnation 4",
        "election orders/1 b -> b, epoch 4, because b started",
        "deleteStream done orders by test",
        "stream deleted orders",
    ]


def test_cluster_event_of_a_changed_default_quota_has_the_requester_and_the_old_value() -> None:
    driver = Driver(("a",))
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=5, byToken=2))
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(recordsPerS=0, bytesPerS=9))
    driver.ask(setDefaultQuota=pb.SetDefaultQuota(byToken=9999))
    assert told(driver)[-5:] == [
        "setDefaultQuota done the cluster by test",
        "default quota changed none -> 5 records/s, for each value of token 2 of the subject",
        "setDefaultQuota done the cluster by test",
        "default quota changed 5 records/s, for each value of token 2 of the subject "
        "-> 9 bytes/s, for each value of token 2 of the subject",
        "setDefaultQuota rejected the cluster by test, INVALID: default quota: by_token = 9999 is outside 0..256",
    ]
    asked = [event.now for event in all_events(driver.log, elections=False) if event.request == "setDefaultQuota"]
    assert asked == ["recordsPerS 5, byToken 2", "recordsPerS 0, bytesPerS 9", "byToken 9999"]


def test_cluster_events_distinguish_elections_from_leadership_transfers() -> None:
    cluster = Cluster()
    cluster.report("b", (1, 90))
    cluster.report("c", (1, 93))
    cluster.promote()
    cluster.elect("b")
    cluster.promote()
    kinds = [
        (event.kind, event.was, event.now) for event in all_events(cluster.log, elections=True) if event.stream == "orders"
    ]
    assert ("election", "a", "c") in kinds
    assert ("isr_changed", "a b c", "b c") in kinds
    assert ("leadership_transfer", "c", "b") in kinds
    assert ("unclean_election", "", "b") not in kinds


def test_cluster_events_of_elections_and_isr_changes_have_the_cause() -> None:
    cluster = Cluster()
    cluster.report("b", (1, 90))
    cluster.report("c", (1, 93))
    cluster.promote()
    state = cluster.partition()
    cluster.ask(
        giveUpLeadership=pb.GiveUpLeadership(
            stream="orders", partition=0, leader=state.leader, incarnation=cluster.incarnation(state.leader),
            leaderEpoch=state.leader_epoch, reason="disk full", toward="b",
        )
    )  # fmt: skip
    cluster.promote()
    cluster.ask(
        leaveIsr=pb.LeaveIsr(stream="orders", partition=0, node="c", incarnation=cluster.incarnation("c"), reason="disk failed")
    )
    cluster.change_isr(["b", "a"])
    found = {
        (event.kind, event.was, event.now): event.detail
        for event in all_events(cluster.log, elections=True)
        if event.stream == "orders" and event.kind != "stream_created"
    }
    assert found["election", "a", "c"].endswith("because a cannot be reached by c")
    assert found["leadership_transfer", "c", "b"].endswith("because disk full")
    assert found["isr_changed", "b c", "b"] == "c: disk failed"


def test_cluster_event_of_an_election_names_the_cause_of_its_start_and_no_later_report() -> None:
    cluster = Cluster()
    cluster.report("b", (1, 90), accusedAsked=True)
    cluster.report("c", (1, 93))
    cluster.report("b", (1, 90))
    cluster.promote()
    state = cluster.partition()
    cluster.ask(
        giveUpLeadership=pb.GiveUpLeadership(
            stream="orders", partition=0, leader=state.leader, incarnation=cluster.incarnation(state.leader),
            leaderEpoch=state.leader_epoch, reason="disk full",
        )
    )  # fmt: skip
    cluster.report("b", (1, 93))
    cluster.promote()
    elections = [event.detail for event in all_events(cluster.log, elections=True) if event.kind == "election"]
    assert [detail.partition(", because ")[2] for detail in elections] == ["a cannot be reached by b", "disk full"]


def test_cluster_event_of_a_fenced_node_distinguishes_a_stop_from_missing_heartbeats() -> None:
    driver = Driver(("a", "b"))
    driver.fence("a")
    fence = pb.FenceNode(nodeId="b", incarnation=driver.incarnation("b"))
    driver.apply(pb.ControlRequest(operationId=b"o" * 16, sender="b", fenceNode=fence).SerializeToString())
    fenced = [
        event.detail for event in all_events(driver.log, elections=driver.fsm.rules.elections) if event.kind == "node_fenced"
    ]
    assert fenced == ["sent no heartbeat for 2 s", "stopped"]


def test_cluster_event_of_a_stream_created_without_enough_nodes_says_waits_for_nodes() -> None:
    driver = Driver(("a",))
    driver.create(replicationFactor=3)
    created = [event.detail for event in all_events(driver.log, elections=False) if event.kind == "stream_created"]
    assert "waits for nodes" in created[0]


def test_cluster_event_of_a_rejected_request_has_the_error_of_the_request() -> None:
    driver = Driver(("a",))
    assert driver.delete("nothing").error == Error.NOT_FOUND
    event = all_events(driver.log)[-1]
    told = (event.kind, event.request, event.outcome, event.error, event.sender)
    assert told == ("request", "deleteStream", "rejected", "NOT_FOUND", "test")
    assert (event.stream, event.operation_id) == ("nothing", (2).to_bytes(16, "big").hex())
    assert event.detail


def test_cluster_events_omit_repeated_and_read_only_requests() -> None:
    driver = Driver(("a",))
    count = len(all_events(driver.log))
    for _ in range(3):
        driver.ask(b"i" * 16, createStream=pb.CreateStream(name="s", subject="x"))
    driver.ask(createStream=pb.CreateStream(name="t", subject="y", dryRun=True))
    driver.ask(describeCluster=pb.DescribeCluster())
    driver.ask(barrier=pb.Barrier())
    driver.apply(b"\xff\xff")
    assert [event.kind for event in all_events(driver.log)[count:]] == ["request", "stream_created"]


def test_cluster_events_have_the_result_of_each_request_in_a_batch() -> None:
    driver = Driver(("a", "b"), elections=True)
    driver.create(replicationFactor=2)
    uid = driver.fsm.image.streams["orders"].uid
    wanted = pb.ElectLeader(stream="orders", uid=uid, partition=0, node="b")
    parts = [
        pb.BatchedRequest(number=4, request=pb.ControlRequest(electLeader=wanted)),
        pb.BatchedRequest(number=7, request=pb.ControlRequest(electLeader=pb.ElectLeader(stream="x", uid="u", partition=3))),
        pb.BatchedRequest(number=9, request=pb.ControlRequest(changeIsr=driver.isr_request(["a"]))),
    ]
    driver.ask(batch=pb.Batch(requests=parts))
    asked = [event for event in all_events(driver.log, elections=True) if event.request == "electLeader"]
    assert [(event.stream, event.partition, event.outcome) for event in asked] == [("orders", 0, "done"), ("x", 3, "rejected")]
    assert asked[1].error == "NOT_FOUND"


def test_cluster_event_of_an_ended_service_has_the_reason() -> None:
    driver = Driver(("a", "b"))
    driver.create()
    of = {"stream": "orders", "uid": driver.fsm.image.streams["orders"].uid, "partition": 0, "node": "b", "incarnation": 2}
    ended = pb.ReportService(**of, service="bank", ending="failed", reason="no such account")
    before, count = driver.fsm.image.streams, len(all_events(driver.log))
    driver.ask(reportService=ended)
    parts = [
        pb.BatchedRequest(
            number=0, request=pb.ControlRequest(reportService=pb.ReportService(**{**of, "uid": "older"}, service="x"))
        ),
        pb.BatchedRequest(
            number=1, request=pb.ControlRequest(reportService=pb.ReportService(**{**of, "incarnation": 1}, service="x"))
        ),
        pb.BatchedRequest(
            number=2, request=pb.ControlRequest(reportService=pb.ReportService(**of, service="till", ending="silent"))
        ),
    ]
    driver.ask(batch=pb.Batch(requests=parts))
    assert [event_text(event.as_object()) for event in all_events(driver.log)[count:]] == [
        "service ended orders/0 bank on b failed: no such account",
        "service ended orders/0 till on b silent: ",
    ]
    assert driver.fsm.image.streams is before


def test_cluster_event_data_directory_lost_is_recorded_when_a_node_registers_another_directory() -> None:
    driver = Driver()
    driver.register("a", folderId="f1")
    driver.register("a", folderId="f1", previousIncarnation=1)
    assert "data_directory_lost" not in [event.kind for event in all_events(driver.log)]
    driver.register("a", folderId="f2")
    assert [event.kind for event in all_events(driver.log)][-2:] == ["node_registered", "data_directory_lost"]


def test_cluster_events_of_two_changes_in_one_entry_each_have_their_own_old_value() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    uid, held = driver.fsm.image.streams["orders"].uid, driver.partition()
    states = [replace(held, isr=tuple(isr)) for isr in ("ab", "a", "a")]
    records = [PartitionStateChanged("orders", uid, state) for state in states]
    entry = pb.ControlRequest(changeIsr=pb.ChangeIsr()).SerializeToString()
    found = [(event.was, event.now) for event in events_of(driver.fsm.image, entry, b"", records, 9)]
    assert found == [("a b c", "a b"), ("a b", "a")]


def test_cluster_events_are_equal_on_every_controller() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=9)
    driver.fence("a")
    found = all_events(driver.log)
    assert found == all_events(driver.log)
    assert [event.place for event in found] == sorted({event.place for event in found})
    assert {event.kind for event in found} <= set(KINDS)


def test_operator_requests_have_a_field_that_names_the_changed_object() -> None:
    for name, row in REQUESTS.items():
        if row.asked_by is RequesterKind.OPERATORS and name != "changeControllers":
            field = pb.ControlRequest.DESCRIPTOR.fields_by_name[name].message_type
            names = {one.name for one in field.fields}
            assert names & {"stream", "name", "nodeId", "node", "level", "recordsPerS", "sessionMs"}, (
                f"{name}: an event of it would not say what it is about"
            )


def test_cluster_event_of_changed_session_times_is_recorded_at_the_change_and_when_settled() -> None:
    driver = Driver()
    begin = begin_at(5, Rules(), SessionTimes(2000, 900))
    driver.ask(setFeatureLevel=begin.setFeatureLevel)
    driver.ask(setSessionTimes=pb.SetSessionTimes(sessionMs=5000, leaseMs=900))
    driver.ask(settleSessionTimes=pb.SettleSessionTimes(change=1))
    found = [(event.was, event.now) for event in all_events(driver.log) if event.kind == "session_times_changed"]
    unsettled = "session 5 s, lease 0.9 s (not settled: 2 s and 0.9 s may still count)"
    assert found == [("session 2 s, lease 0.9 s", unsettled), (unsettled, "session 5 s, lease 0.9 s")]
    asked = [event.now for event in all_events(driver.log) if event.request == "setSessionTimes"]
    assert asked == ["sessionMs 5000, leaseMs 900"]


def test_cluster_event_of_each_kind_is_documented_and_recorded() -> None:
    root = Path(__file__).resolve().parents[3]
    source = (root / "liftpy/core/metadata/controller/cluster_events.py").read_text(encoding="utf-8")
    page = (root / "docs" / "operating.md").read_text(encoding="utf-8")
    for kind in KINDS:
        assert f"`{kind}`" in page, kind
        assert source.count(f'"{kind}"') >= 2, kind


# ---- keeping ------------------------------------------------------------------------------------------------------------
def some(index: int, count: int, time_ns: int = 0) -> Any:
    return (ClusterEvent(index=index, number=n, time_ns=time_ns or index, kind="election") for n in range(count))


def test_cluster_event_trail_is_bounded_and_reports_the_first_index_in_memory() -> None:
    trail = RecentEvents(most=4, most_noted=2)
    trail.note_entry(1, some(1, 3, 100))
    trail.note_entry(2, some(2, 3, 200))
    trail.derive_events(99)
    assert (trail.begins, trail.begins_ns) == (1, 100)
    assert [event.place for event in trail.events_after((0, -1), 0, 99)] == [(1, 2), (2, 0), (2, 1), (2, 2)]
    for index in (3, 4, 5):
        trail.note_entry(index, some(index, 1, 300))
    assert (trail.dropped, trail.begins, trail.begins_ns) == (1, 3, 200)
    trail.restart_after_snapshot(50, 900)
    assert (trail.index, trail.begins, trail.begins_ns, trail.derive_events(9), trail.events_after((0, -1), 0, 9)) == (
        50,
        50,
        900,
        [],
        [],
    )


@pytest.mark.parametrize("event", [{}, {"kind": "request"}, {"kind": "x", "was": ""}])
def test_cluster_event_with_missing_or_unknown_fields_has_a_text(event: dict[str, Any]) -> None:
    assert event_text(event)


def test_cluster_events_of_an_unknown_stream_are_omitted() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create()
    driver.change_isr(["a", "b"])
    assert not list(events_of(ClusterImage(), driver.log[-1], b"", driver.fsm.last_records, 9))


def write(log: EventLog, stream: Stream, most: int = 64, *, heard: bool = True) -> bool:
    """Write once and return whether all records were stored. Without ``heard`` the answers are lost."""
    if log.tail is None:
        log.set_tail(stream.tail)
    assert log.tail is not None
    due, behind = log.take_due(most), log.tail.offset
    for number, event in enumerate(due):
        offset = stream.publish(json.dumps(event).encode(), behind + number)
        if offset < 0 or not heard:
            log.forget_tail()
            return False
        log.record_stored(due[: number + 1], offset)
    return True


def test_cluster_event_log_writes_each_event_once_in_order() -> None:
    trail, stream = a_trail(2, 0, 3, 1), Stream()
    one, two = EventLog(trail), EventLog(a_trail(2, 0, 3, 1))
    assert one.has_events_to_write
    assert write(one, stream, most=3)
    assert stream.places == [(1, 0), (1, 1), (3, 0)]
    assert write(two, stream)
    assert not write(one, stream), "it is refused, and reads the end anew"
    assert one.tail is None
    assert write(one, stream)
    assert not one.has_events_to_write
    assert stream.places == [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2), (4, 0)]
    trail.note_entry(9, events(9, 1))
    assert not one.has_events_to_write, "its events are not made yet"
    trail.derive_events(10)
    assert one.has_events_to_write
    assert not write(one, stream, heard=False)
    assert write(one, stream)
    assert stream.places[6:] == [(9, 0)], "one that was stored unheard is not written again"
    assert not any(json.loads(record)["kind"] == GAP for record in stream.records)
    assert trail.lost == 0


def test_cluster_event_log_writes_nothing_before_the_stream_end_is_known_and_after_resigning() -> None:
    log = EventLog(a_trail(1))
    assert log.take_due(9) == []
    log.set_tail(EventStreamEnd(-1, NOTHING))
    assert len(log.take_due(9)) == 1
    log.resign()
    assert log.take_due(9) == []
    assert log.has_events_to_write, "as far as is known"


def test_cluster_event_log_writes_one_gap_record_for_events_dropped_from_memory() -> None:
    trail, stream = a_trail(1, 1, most=3), Stream()
    log = EventLog(trail)
    assert write(log, stream)
    for index in range(3, 8):
        trail.note_entry(index, events(index, 1))
    trail.derive_events(1000)
    assert trail.lost == 2, "of the entries 3 and 4; the others were written, or are held"
    assert write(log, stream)
    assert stream.places == [(1, 0), (2, 0), (4, -1), (5, 0), (6, 0), (7, 0)]
    gap = json.loads(stream.records[2])
    assert (gap["kind"], gap["was"], gap["now"]) == (GAP, "2.0", "4.-1")
    assert write(log, stream)
    assert len(stream.records) == 6


def test_cluster_event_trail_counts_dropped_events_only_on_the_metadata_leader() -> None:
    trail = a_trail(*[1] * 9, most=3)
    assert trail.lost == 0
    log = EventLog(trail)
    log.set_tail(EventStreamEnd(4, (6, 0)))
    trail.note_entry(10, events(10, 1))
    trail.derive_events(9)
    assert trail.lost == 1, "(7, 0) was not written"
    log.resign()
    trail.note_entry(11, events(11, 1))
    trail.derive_events(9)
    assert trail.lost == 1


def test_cluster_event_log_writes_a_gap_record_for_events_missing_within_an_entry() -> None:
    trail, stream = a_trail(9, most=4), Stream()
    stream.records.append(b'{"index": 1, "number": 1}')
    assert write(EventLog(trail), stream)
    assert stream.places == [(1, 1), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8)]
    assert json.loads(stream.records[1])["kind"] == GAP


def test_cluster_event_log_after_a_snapshot_writes_a_gap_record_with_the_next_event() -> None:
    trail, stream = a_trail(1), Stream()
    log = EventLog(trail)
    assert write(log, stream)
    trail.restart_after_snapshot(500, 7)
    assert not log.has_events_to_write
    trail.note_entry(501, events(501, 1))
    trail.derive_events(9)
    assert write(log, stream)
    assert stream.places == [(1, 0), (500, -1), (501, 0)]
    fresh = EventLog(a_trail(1))
    fresh.set_tail(EventStreamEnd(2, (501, 0)))
    assert fresh.take_due(9) == [], "who is behind the stream writes nothing"


def test_cluster_event_log_batch_limit_includes_the_gap_record() -> None:
    trail = a_trail(*[1] * 9, most=3)
    log = EventLog(trail)
    log.set_tail(EventStreamEnd(-1, NOTHING))
    assert [event["kind"] for event in log.take_due(2)] == [GAP, "election"]


@pytest.mark.parametrize(
    "record", [b"", b"[]", b"{}", b'{"index": 1}', b'{"index": -1, "number": 0}', b'{"index": 1, "number": -2}']
)
def test_cluster_event_position_of_an_invalid_record_raises_value_error(record: bytes) -> None:
    with pytest.raises(ValueError):
        place_in(record)
