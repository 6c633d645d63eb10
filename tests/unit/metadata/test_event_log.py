"""Test EventLog: which events are written next, by any writer, and that a loss is reported once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from liftpy.core.metadata.controller.cluster_events import (
    GAP,
    NOTHING,
    ClusterEvent,
    EventLog,
    EventStreamEnd,
    RecentEvents,
    place_in,
)


class Stream:
    """Stand in for the events stream: store a record only at the expected offset."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def publish(self, record: bytes, expected_last: int) -> int:
        """Return the offset, or -1 for a rejected record."""
        if expected_last != len(self.records) - 1:
            return -1
        self.records.append(record)
        return len(self.records) - 1

    @property
    def tail(self) -> EventStreamEnd:
        return EventStreamEnd(len(self.records) - 1, place_in(self.records[-1]) if self.records else NOTHING)

    @property
    def places(self) -> list[tuple[int, int]]:
        return [place_in(record) for record in self.records]


def events(index: int, count: int) -> Iterator[ClusterEvent]:
    return (ClusterEvent(index=index, number=n, time_ns=index * 10**9, kind="election") for n in range(count))


def a_trail(*counts: int, most: int = 100) -> RecentEvents:
    """Return a trail with entries 1, 2, ... of the given numbers of events."""
    trail = RecentEvents(most)
    for index, count in enumerate(counts, 1):
        trail.note_entry(index, events(index, count))
        trail.derive_events(1000)
    return trail


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
