"""EventLog: which events go into the stream ``_liftpy-events`` next, each once, whoever leads the metadata group. Pure.

Goal: the stream holds every event of the metadata group's log once and in order, over any change of the leader. Constraint: it may be
offline for as long as it likes, and nothing waits for it; two controllers may believe that they lead.

Algorithm: events are the same on every controller, and (index, number) names each. The writer reads the stream's last record: what
comes behind that place is to be written, and each publish says behind which offset it belongs, so that of two writers one is refused
and reads the end anew. What waits is the trail in memory; what went from there before it was written is told by one record of the
kind ``gap``.

Worked example: the stream ends at offset 41 with (907, 1). The trail holds (907, 0..2) and (911, 0): (907, 2) is published behind
offset 41, (911, 0) behind 42. Both are refused: another leader was faster. The end is read again, 43 with (911, 0): nothing is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from liftpy.cluster.cluster_events import ClusterEvent, EventTrail
from liftpy.dataclass import dataclass
from liftpy.strict_json import load_json, whole_number

GAP = "gap"
NOTHING = (0, -1)
"""Before all events."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Of the stream. ``offset``: of its last record, -1 without any; ``place``: of the last event in it."""

    offset: int
    place: tuple[int, int]


def place_in(record: bytes) -> tuple[int, int]:
    """Place of the event in a record of the stream. Raises ValueError."""
    said = load_json(record)
    if not isinstance(said, dict):
        raise ValueError("that is no event")
    return whole_number(said.get("index"), 0, 1 << 63), whole_number(said.get("number"), -1, 1 << 31)


def newest_place(records: Sequence[bytes | None]) -> tuple[int, int] | None:
    """Of the last event among ``records``; None: there is none. Where NATS lets anybody publish, a record may be anything."""
    for record in reversed(records):
        with suppress(ValueError):
            return place_in(record or b"")
    return None


class EventLog:
    """What of ``trail`` is still to be written. The shell: while ``tail`` is None, read it and say ``found``; publish ``due``, each
    behind the one before it; then ``stored``, or ``lost_track`` where one was not."""

    def __init__(self, trail: EventTrail) -> None:
        self._trail = trail
        self.tail: Tail | None = None

    def found(self, tail: Tail) -> None:
        """The stream ends there."""
        self._ends_at(tail)

    def lost_track(self) -> None:
        """Where it ends is not known: another may have written, or this one, unheard; or it does not lead."""
        self.tail = None

    def resign(self) -> None:
        """This controller writes no more: what leaves its memory is another's to write."""
        self.tail = self._trail.written = None

    @property
    def is_behind(self) -> bool:
        """Whether something is to be written, as far as is known."""
        return self.tail is None or self._trail.newest > self.tail.place

    def due(self, most: int) -> list[dict[str, Any]]:
        """Up to ``most`` events, as objects for JSON."""
        if self.tail is None:
            return []
        place = self.tail.place
        found = self._trail.behind(place, 0, most)
        gap = self._gap(place, found)
        return [*gap, *(event.as_object() for event in found)][:most]

    def stored(self, events: list[dict[str, Any]], offset: int) -> None:
        """They are in the stream, the last one at ``offset``."""
        last = events[-1]
        self._ends_at(Tail(offset, (last["index"], last["number"])))

    def _ends_at(self, tail: Tail) -> None:
        self.tail = tail
        self._trail.written = tail.place

    def _gap(self, place: tuple[int, int], found: list[ClusterEvent]) -> list[dict[str, Any]]:
        """What lies behind ``place`` and is not known here any more, as one event."""
        begins = self._trail.begins
        if begins > place[0] and not (found and found[0].place <= (begins, 0)):
            number = found[0].number - 1 if found and found[0].index == begins else -1
            end = (begins, number)
        elif found and found[0].index == place[0] and found[0].number > place[1] + 1:
            end = (place[0], found[0].number - 1)
        else:
            return []
        about = ClusterEvent(
            index=end[0],
            number=end[1],
            time_ns=self._trail.begins_ns or time_of(found),
            kind=GAP,
            was=f"{place[0]}.{place[1]}",
            now=f"{end[0]}.{end[1]}",
            detail="what happened between is not known any more: no controller held it when it could be written",
        )
        return [about.as_object()]


def time_of(found: list[ClusterEvent]) -> int:
    """Of the first of them; 0 without any."""
    return found[0].time_ns if found else 0
