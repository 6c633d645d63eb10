"""Base class of the parts of ``LogState``, the column format of their state files, and their memory limits. Pure.

A part stores the effects of batches above the high watermark separately, so that a truncation can undo them. It merges
them when the batches are committed. Columns are encoded and decoded in slices, because one call for a million numbers
would block the node for 0.1 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from liftpy.config import NS_PER_S
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.batch_columns import ColumnSet
from liftpy.core.wire.producer_note import Partitioning, SourcePosition

SLICE = 8192
"""Maximum number of values that one call encodes or decodes. It takes less than a millisecond."""
_OPEN_NUMERATOR, _OPEN_DENOMINATOR = 7, 8
_UNBOUNDED = 1 << 62
FILTER_CHECKS = 200_000
"""Maximum number of subjects that a node compares with filters without a pause: about a tenth of a second."""
FILTER_CHECKS_PER_S = 400_000
"""Maximum number of subjects that a node compares with filters per second: about a fifth of a core."""


class ProducerSequences(NamedTuple):
    """Producer and sequence numbers of the records of a batch.

    Attributes:
        columns: Columns of the batch. Its records from index ``first`` on were stored. None: compaction removed some of
            them.
        name: Name of the producer. '': the batch does not have it.
        position: Source position. None: the batch does not have it.
        partitioning: Method and number of partitions. None: the batch does not have them.
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
    """A batch of the log, with the fields from which the parts derive their state. All offsets are inclusive.

    ``record_count`` 0: compaction has removed all its records.
    """

    base_offset: int
    last_offset: int
    timestamp_ns: int
    """Timestamp of the batch by the leader's wall clock, in nanoseconds."""
    record_count: int
    ids: Mapping[int, bytes]
    """Offset -> message id, ascending, for the records that have one."""
    sequences: ProducerSequences | None = None
    stored: RecordBatch | bytes = b""
    """The batch itself, for data that is rarely needed. It is valid during the call."""
    has_conditions: bool = False
    """True if a record of the batch was published with an expected last sequence of a subject."""


class StatePart(Protocol):
    """One part of the derived state, such as the message ids. A part enforces its own limits."""

    @property
    def name(self) -> str:
        """Name of the part in checkpoints and metrics. It never changes."""

    @property
    def version(self) -> int: ...

    @property
    def reach_ns(self) -> int:
        """Log time in ns before the high watermark that the part must have processed to be complete."""

    @property
    def share(self) -> Share: ...

    def begin(self, offset: int | None) -> None:
        """Drop the whole state. The next batch begins at ``offset``. None: at any offset."""

    def add_batch(self, batch: NewBatch) -> None:
        """Add the next batch of the log to the state. The batch may already be committed."""

    def committed(self, high_watermark: int) -> None:
        """Note that all records up to ``high_watermark`` (inclusive) are committed.

        It may be above the last added batch. It decreases only after a truncation.
        """

    def truncate(self, end_offset: int) -> None:
        """Undo all batches from ``end_offset`` on, because the log was truncated there. None of them is committed."""

    def snapshot(self) -> Callable[[], Sequence[bytes]]:
        """Return a function that encodes the state up to the high watermark.

        The call is short. The function may run later in any thread, and returns pieces of at most ``SLICE`` values.
        """

    def restore(self, data: bytes | None, end_offset: int) -> None:
        """Load the data of ``snapshot`` for a log up to ``end_offset`` (exclusive). Call ``begin`` before it.

        ``data`` None: the file has nothing for this part. Raises CorruptionError if the data is invalid or insufficient.
        """


# ---- columns of state files ------------------------------------------------------------------------------------------


def slices_of(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the values in lists of ``SLICE`` values each."""
    rest = iter(values)
    while some := list(islice(rest, SLICE)):
        yield some


def pack_numbers(values: Iterable[int], kind: Any) -> list[bytes]:
    """Return numbers as the bytes of a column of the numpy type ``kind``, in pieces."""
    return [np.array(some, kind).tobytes() for some in slices_of(values)]


def join_texts(texts: Iterable[bytes]) -> list[bytes]:
    """Join the texts. Return them in pieces of ``SLICE`` texts."""
    return [b"".join(some) for some in slices_of(texts)]


def numbers(column: np.ndarray) -> Iterator[int]:
    """Yield the numbers of a column as Python ints."""
    for at in range(0, len(column), SLICE):
        yield from column[at : at + SLICE].tolist()


def cut_up(data: bytes, at: int, sizes: np.ndarray) -> Iterator[bytes]:
    """Yield consecutive texts from ``data``, beginning at position ``at``. ``sizes``: their lengths in bytes."""
    for first in range(0, len(sizes), SLICE):
        ends = at + np.cumsum(sizes[first : first + SLICE], dtype=np.int64)
        for start, end in pairwise((at, *ends.tolist())):
            yield data[start:end]
        at = int(ends[-1])


# ---- memory limits ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FilterBudget:
    """Limits how many subjects the publishes with a condition on a filter may compare, over all partitions of a node [A21]."""

    _left: float = FILTER_CHECKS
    _at_ns: int = 0

    def spend(self, checks: int, now_ns: int) -> bool:
        """Return whether a lookup may compare ``checks`` subjects at ``now_ns`` (monotonic). If so, they count as compared.

        The last lookup may exceed the budget.
        """
        grown = max(0, now_ns - self._at_ns) * FILTER_CHECKS_PER_S / NS_PER_S
        self._left, self._at_ns = min(FILTER_CHECKS, self._left + grown), now_ns
        if self._left <= 0:
            return False
        self._left -= checks
        return True


@dataclass(slots=True)
class NodeStateMemory:
    """Memory use and memory limit (``bound_bytes``) for message ids, producers and subjects of all partitions of a node.

    An id inside its window must never be forgotten silently: a repeated message would be stored twice. A follower cannot reject
    what its leader accepted. So a leader accepts new ids up to 7/8 of both limits (partition and node), and rejects more. The
    rest is for followers and uncommitted records. A part that grows beyond a limit drops as much of its own state as it grew,
    remembers this, and rejects unknown ids as leader until nothing is missing any more.

    Example: 448 of 512 MiB are used. A publish with a new id to any partition that this node leads is rejected. As a follower,
    the node still accepts ids up to 512 MiB. Beyond, it drops its oldest ids.
    """

    bound_bytes: int = _UNBOUNDED
    size_bytes: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    """Name of a part -> its memory in bytes, over all partitions."""
    refused: Counter[str] = field(default_factory=Counter)
    """Name of a part -> number of publishes and producer questions that were rejected for lack of room or knowledge, since
    the start.
    """
    filters: FilterBudget = field(default_factory=FilterBudget)


class Share:
    """Memory use and limit of one part (``kind``) of the derived state of one partition.

    ``node``: limit of the node. None: no limit. ``bound_bytes``: limit of the part. ``setting``: name of the setting for it,
    for error texts. All sizes are in bytes of memory.
    """

    __slots__ = ("_node", "bound_bytes", "kind", "setting", "size_bytes")

    def __init__(self, node: NodeStateMemory | None, kind: str, bound_bytes: int = _UNBOUNDED, setting: str = "") -> None:
        self._node = NodeStateMemory() if node is None else node
        self.kind = kind
        self.bound_bytes = bound_bytes
        self.setting = setting
        self.size_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """Set the current memory use of the part to ``size_bytes``."""
        node, grown_bytes = self._node, size_bytes - self.size_bytes
        self.size_bytes = size_bytes
        node.size_bytes += grown_bytes
        node.by_kind[self.kind] += grown_bytes

    def join(self, node: NodeStateMemory) -> None:
        """Count the memory use of the part for ``node`` from now on, including the current use."""
        size_bytes = self.size_bytes
        self.hold(0)
        self._node = node
        self.hold(size_bytes)

    def beside(self) -> Share:
        """Return another share of this kind with the limit of the node, but without a limit of its own."""
        return Share(self._node, self.kind)

    def has_room(self, more_bytes: int, beside_bytes: int = 0) -> bool:
        """Return whether a leader may accept data that needs ``more_bytes``.

        ``beside_bytes``: memory that is already counted elsewhere and will move into this share.
        """
        return not self.lacks(more_bytes, beside_bytes)

    def lacks(self, more_bytes: int, beside_bytes: int = 0) -> str:
        """Return the name of the setting whose limit would be exceeded by ``more_bytes``. '': there is room.

        ``beside_bytes``: memory that is already counted elsewhere and will move into this share.
        """
        node = self._node
        if self.size_bytes + beside_bytes + more_bytes > self.bound_bytes * _OPEN_NUMERATOR // _OPEN_DENOMINATOR:
            return self.setting
        is_open = node.size_bytes + more_bytes <= node.bound_bytes * _OPEN_NUMERATOR // _OPEN_DENOMINATOR
        return "" if is_open else "node_dedup_state_bytes"

    def fits(self, more_bytes: int) -> bool:
        """Return whether there is memory for ``more_bytes`` of an entry that is already known."""
        return self.size_bytes + more_bytes <= self.bound_bytes and self._node.size_bytes + more_bytes <= self._node.bound_bytes

    def excess_bytes(self, grown_bytes: int) -> int:
        """Return how many bytes the part must free, because it exceeds a limit after it has grown by ``grown_bytes``. 0: none."""
        of_node = min(self._node.size_bytes - self._node.bound_bytes, grown_bytes)
        return max(self.size_bytes - self.bound_bytes, of_node, 0)

    def may_check(self, subjects: int, now_ns: int) -> bool:
        return self._node.filters.spend(subjects, now_ns)

    def count_rejections(self, count: int = 1) -> None:
        self._node.refused[self.kind] += count
