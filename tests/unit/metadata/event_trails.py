"""Trails of cluster events, and a stream that stores them, for tests."""

from __future__ import annotations

from collections.abc import Iterator

from liftpy.core.metadata.controller.cluster_events import NOTHING, ClusterEvent, EventStreamEnd, RecentEvents, place_in


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
