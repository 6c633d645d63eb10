"""Facts of a leader about a range of offsets: size, batch boundaries, LeaderEpochs at both ends. Pure.

If a reader splits a range at ``borders``, no batch is sent twice. The borders do not change which records are read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """Facts about the committed offset range from ``start`` (inclusive) to ``end`` (exclusive).

    Attributes:
        size_bytes: Stored size of its batches. None: the node is too old to know.
        borders: First offsets of its batches above ``start``, ascending.
        positions: Size of the range before each border, in bytes.
        before_epoch: LeaderEpoch of the record before ``start``. 0: not known.
        end_epoch: LeaderEpoch of the record before ``end``. 0: not known.
    """

    start: int
    end: int
    size_bytes: int | None = None
    borders: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    before_epoch: int = 0
    end_epoch: int = 0


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """Files that contain a range, on the host of a node.

    ``host``: id of the machine, '' if unknown. ``spans``: (base offset of the file, first byte, exclusive end byte) of
    each file, in order.
    """

    host: str
    folder: str
    spans: tuple[tuple[int, int, int], ...]


def files_of(head: client_pb2.ReadResponse) -> RangeFiles:
    """Return the segment files that the answer with the header ``head`` names. Raise ProtocolError if they are invalid."""
    bases, begins, ends = tuple(head.fileBases), tuple(head.fileBegins), tuple(head.fileEnds)
    ascending = all(low < high for low, high in itertools.pairwise(bases))
    if not len(bases) == len(begins) == len(ends) or not ascending or any(a >= b for a, b in zip(begins, ends, strict=True)):
        raise ProtocolError(
            f"Node {head.node} returned an invalid list of segment files: base offsets {bases[:4]}, bytes from "
            f"{begins[:4]} to {ends[:4]}. Retry. If this repeats, check the version of the node."
        )
    return RangeFiles(head.host, head.folder, tuple(zip(bases, begins, ends, strict=True)))


def facts_of(head: client_pb2.ReadResponse, start: int, end: int) -> RangeFacts:
    """Return the facts about the offsets ``start`` to ``end`` (exclusive) in the answer with the header ``head``.

    Raise ProtocolError if they are invalid.
    """
    if not head.HasField("rangeBytes"):
        return RangeFacts(start, end)
    size_bytes, borders, positions = head.rangeBytes, tuple(head.borders), tuple(head.borderPositions)
    marks = [(start, 0), *zip(borders, positions, strict=False), (end, size_bytes)]
    ascending = all(low[0] < high[0] and low[1] < high[1] for low, high in itertools.pairwise(marks))
    if len(borders) != len(positions) or (borders and not ascending) or head.beforeEpoch > head.endEpoch:
        raise ProtocolError(
            f"Node {head.node} returned invalid batch boundaries for the offsets {start} to {end}: "
            f"{borders[:4]} at the bytes {positions[:4]} of {size_bytes}. Retry. If this repeats, check the "
            "version of the node."
        )
    return RangeFacts(start, end, size_bytes, borders, positions, head.beforeEpoch, head.endEpoch)
