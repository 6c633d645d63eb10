"""Whether rows that Spark read are those of the log, each once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Row = tuple[int, int, bytes]
"""(partition, offset, value)"""


@dataclass(frozen=True, slots=True)
class Reach:
    """Of a partition: ``start`` to ``end`` (exclusive) must have been read at least, ``earliest`` to ``latest`` may have been."""

    start: int
    end: int
    earliest: int = 0
    latest: int = 1 << 62


def complaints(rows: Iterable[Row], log: Mapping[int, Sequence[bytes]], reach: Mapping[int, Reach]) -> list[str]:
    """What is wrong with ``rows``; nothing: they are the log's. ``log``: the values of each partition from offset 0 on."""
    held = list(rows)
    count = Counter((partition, offset) for partition, offset, _ in held)
    said = [f"{sum(n - 1 for n in count.values() if n > 1)} rows twice"] if len(count) < len(held) else []
    other = sum(not (p in log and 0 <= o < len(log[p]) and log[p][o] == value) for p, o, value in held)
    if other:
        said.append(f"{other} rows that the log does not have")
    for partition, wanted in sorted(reach.items()):
        offsets = sorted(o for p, o in count if p == partition)
        lost = sum((partition, o) not in count for o in range(wanted.start, wanted.end))
        if lost:
            said.append(f"{lost} of [{wanted.start}, {wanted.end}) of partition {partition} are missing")
        if offsets and (offsets[0] < wanted.earliest or offsets[-1] >= wanted.latest):
            said.append(f"partition {partition} was read from {offsets[0]} to {offsets[-1]}, outside of what there was")
        if offsets and len(offsets) != offsets[-1] - offsets[0] + 1:
            said.append(f"partition {partition} has holes between {offsets[0]} and {offsets[-1]}")
    return said
