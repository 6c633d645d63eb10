"""Base class of the parts of ``LogState``, and the column format of their state files. Pure.

A part keeps the effects of batches above the high watermark separately, so that a truncation can undo them, and merges
them when they are committed. Columns are encoded and decoded in slices, because one call over a million numbers would
block the node for 0.1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from liftpy.core.publish.log_state_budget import Share
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.batch_columns import ColumnSet
from liftpy.core.wire.producer_note import Partitioning, SourcePosition


class Numbering(NamedTuple):
    """Sequence numbers of a producer in a batch.

    ``columns``: its records from index ``first``. None: compaction removed some. ``name`` '': not in the batch.
    ``position``: source position. ``partitioning`` None: not in the batch.
    """

    producer_id: int
    epoch: int
    base_sequence: int
    columns: ColumnSet | None
    first: int = 0
    name: str = ""
    position: SourcePosition | None = None
    partitioning: Partitioning | None = None


class NewBatch(NamedTuple):
    """A batch in the log, as parts see it. Offsets are inclusive. ``record_count`` 0: only its offsets remain after
    compaction.
    """

    base_offset: int
    last_offset: int
    timestamp_ns: int
    """The leader's wall clock."""
    record_count: int
    ids: Mapping[int, bytes]
    """Offset -> message id, ascending, of the records that have one."""
    numbering: Numbering | None = None
    stored: RecordBatch | bytes = b""
    """The batch itself, for what is seldom needed of it; valid during the call."""
    asks: bool = False
    """One of its records was published under an expected last sequence of a subject."""


class Part(Protocol):
    """One part of the derived state."""

    @property
    def name(self) -> str:
        """Name in checkpoints and metrics. It never changes."""

    @property
    def version(self) -> int:
        """Version of the format that ``snapshot`` writes."""

    @property
    def reach_ns(self) -> int:
        """Log time in ns before the HW that the part must have read to be complete."""

    @property
    def share(self) -> Share:
        """Memory use and limit of the part. The part enforces the limit itself."""

    def begin(self, offset: int | None) -> None:
        """Start without any state. The next batch begins at ``offset``, None: at any offset."""

    def take(self, batch: NewBatch) -> None:
        """The next batch of the log; it may lie at or below HW already."""

    def committed(self, high_watermark: int) -> None:
        """Set the high watermark (inclusive).

        It may be ahead of the batches that were read. It decreases only after a truncation.
        """

    def cut(self, end_offset: int) -> None:
        """Forget all batches from ``end_offset`` on. All of them were above the HW."""

    def snapshot(self) -> Callable[[], Sequence[bytes]]:
        """Return a function that encodes the state up to the HW.

        The call is short. The function may run later in any thread, and returns pieces of at most ``packing.SLICE`` values.
        """

    def restore(self, data: bytes | None, end_offset: int) -> None:
        """Load the data of ``snapshot`` for a log up to ``end_offset`` (exclusive), after ``begin``.

        None: the file has nothing for this part. Raise CorruptionError if the data is invalid or insufficient.
        """


SLICE = 8192
"""Values: less than a millisecond."""


def sliced(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of ``SLICE`` values."""
    rest = iter(values)
    while some := list(islice(rest, SLICE)):
        yield some


def packed(values: Iterable[int], kind: Any) -> list[bytes]:
    """Numbers as a column of ``kind``, a numpy type, in pieces."""
    return [np.array(some, kind).tobytes() for some in sliced(values)]


def joined(texts: Iterable[bytes]) -> list[bytes]:
    """Join the texts into pieces."""
    return [b"".join(some) for some in sliced(texts)]


def numbers(column: np.ndarray) -> Iterator[int]:
    """Yield the numbers of a column as Python ints."""
    for at in range(0, len(column), SLICE):
        yield from column[at : at + SLICE].tolist()


def cut_up(data: bytes, at: int, sizes: np.ndarray) -> Iterator[bytes]:
    """The texts that stand in ``data`` from ``at`` on, one behind the other, of ``sizes`` bytes each."""
    for first in range(0, len(sizes), SLICE):
        ends = at + np.cumsum(sizes[first : first + SLICE], dtype=np.int64)
        for start, end in pairwise((at, *ends.tolist())):
            yield data[start:end]
        at = int(ends[-1])
