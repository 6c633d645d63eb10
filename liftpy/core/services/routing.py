"""Further output streams: what a service emits ``to`` a route is copied there from its output stream, once and in order. Pure.

Goal: outputs reach several streams, and several partitions by key, as surely as they reach the output stream.
Constraint: any number of processes may believe to be LEADER for a moment, and where an output goes to is known by its record alone.
Algorithm: the output stream stays the one sequence of all outputs. The LEADER reads it and appends those of a route to the route's
partitions, each batch at the end of the partition that it saw. A copy bears the number of its output, so the last record of a partition
says how far the copying is: who begins reads that one, and goes on with the next output. Two that copy at once expect the same end: one
is refused, reads again, and finds the other's copies there. So nothing has to be stored beside the streams.

A partition that is written to belongs to one instance: of N instances (partitions of the input) number p writes to the partitions
p, p + N, p + 2N, ..., chosen among them by Kafka's hash of the key; without a key to the first.

Worked example: outputs 0 (to "alerts"), 1, 2 (to "alerts"). The LEADER appends the copy of 0, then dies. Its successor finds number 0
at the end of the alerts, and goes on from output 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from liftpy.core.services.outbox import OutputConflictError
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import OUTPUT_DIGEST, OUTPUT_ID, OUTPUT_NUMBER, OUTPUT_SERVICE, OUTPUT_TO, Pairs
from liftpy.core.wire.partitioner import partition_of
from liftpy.errors import ConfigError

MAX_ROUTES = 16
_NOT_COPIED = frozenset({OUTPUT_DIGEST, OUTPUT_TO})


@dataclass(frozen=True, slots=True)
class Route:
    """Route of a service: outputs that are emitted ``to`` ``name`` are written to ``stream``."""

    name: str
    stream: str


@dataclass(slots=True)
class Place:
    """One target partition of a route. ``end_offset``: exclusive. ``last_number``: newest output there, -1 for none."""

    end_offset: int = 0
    last_number: int = -1
    waiting: list[Record] = field(default_factory=list)
    """To be appended next, as they lie in the output stream."""


def partitions_of(partition: int, instances: int, partitions: int, route: Route) -> tuple[int, ...]:
    """Return the partitions of ``route.stream`` that instance ``partition`` of ``instances`` writes to.

    Raise ConfigError if they cannot be divided evenly.
    """
    if partitions % instances:
        raise ConfigError(
            f"--route {route.name}={route.stream}: {partitions} partitions cannot be shared by {instances} "
            f"instances (one per input partition). Use a stream with {instances} partitions, or a multiple of it."
        )
    return tuple(range(partition, partitions, instances))


def place_of(key: bytes | None, places: Sequence[int]) -> int:
    """Return the index in ``places`` for an output with ``key``."""
    return places[partition_of(key, len(places))] if key is not None else places[0]


def sort_in(records: Iterable[Record], route: Route, places: dict[int, Place]) -> None:
    """Give each of the outputs ``records`` that is the route's, and not there yet, to its place."""
    order = sorted(places)
    wanted = route.name.encode()
    for record in records:
        if record.header(OUTPUT_TO) != wanted:
            continue
        place = places[place_of(record.key, order)]
        if record.offset > place.last_number:
            place.waiting.append(record)


def headers_of(record: Record) -> Pairs:
    """Return the headers of an output's copy: all except the route and the digest."""
    return tuple((name, value) for name, value in record.headers if name not in _NOT_COPIED)


def number_of(record: Record, source: str, service: str, route: Route) -> int:
    """Return the number of the output that ``record`` is a copy of.

    Raise OutputConflictError if this service did not write it.
    """
    said, number = record.header(OUTPUT_ID, b"") or b"", record.header(OUTPUT_NUMBER, b"") or b""
    whose = record.header(OUTPUT_SERVICE)
    if not said.startswith(f"{source}/".encode()) or whose not in (None, service.encode()) or not number.isdigit():
        raise OutputConflictError(
            f"Offset {record.offset} of {route.stream} was not written by {service or 'this service'}. A stream "
            "of a route may be used by one service only. Choose a new stream (--route)."
        )
    return int(number)
