"""Findings of an audit: the comparison of records, and the texts about differences. Pure.

Batches with equal bytes have equal records. If the bytes differ, the module compares the records column by column, in halves.
So it finds the first difference without a comparison of each record. It reports offsets that only some replicas have apart from
these differences, because each replica of a compacted log removes records at its own time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from liftpy.core.log.arrow import to_arrow
from liftpy.core.wire.batch import RecordBatch

DAMAGED, DIFFERS, MISSING, SURPLUS, BATCHES = "damaged", "differs", "missing", "surplus", "batches"
LOST, REVIVED = "lost", "revived"
_WORDS = {
    DAMAGED: "has damaged bytes",
    DIFFERS: "has another record",
    MISSING: "lacks a record",
    SURPLUS: "has a record that others lack",
    BATCHES: "has the same records in other batches",
    LOST: "lacks a record that no later record replaces",
    REVIVED: "has a record that other replicas deleted",
}
"""Kind of finding -> description of what is wrong with the replica."""
MAX_FINDINGS = 100
"""Maximum number of findings for a part of a partition."""
ABSENT = "nothing"
"""Text instead of a digest, if there is no record."""
MAX_ROWS = 10
"""Maximum number of rows that differ between two compared tables."""
_HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AuditFinding:
    """A difference that one replica has from the others.

    Attributes:
        offset: Offset of the record. A damaged replica may be damaged at a later offset.
        node: Node of the replica.
        kind: Kind of the difference, such as ``differs``.
        expected: Digest of the record on most other replicas. Empty: it is not known, because of damage.
        seen: Digest of the record on this replica. Empty: it is not known, because of damage.
        majority: True if more than half of the compared replicas have the expected digest. Otherwise ``expected`` is
            that of the leader, and no replica is known to be right.
        detail: More about the difference.
    """

    stream: str
    partition: int
    offset: int
    node: str
    kind: str
    uid: str = ""
    expected: str = ""
    seen: str = ""
    majority: bool = False
    detail: str = ""

    def __str__(self) -> str:
        text = f"{self.stream}/{self.partition} offset {self.offset}: {self.node} {_WORDS[self.kind]}"
        if self.expected:
            text += f", expected {self.expected}, seen {self.seen}"
            text += "" if self.majority else " (no majority agrees)"
        return f"{text}; {self.detail}" if self.detail else text


@dataclass(slots=True, kw_only=True)
class ReplicaAudit:
    """Result for one replica.

    Attributes:
        state: ``compared``, ``behind`` (not in sync, with a lower HW) or ``away`` (unreachable).
        detail: Reason of the state.
        high_watermark: HW of the replica, inclusive.
        log_start_offset: First offset of its log.
        records: Number of its compared records.
        size_bytes: Size of its compared batches, in bytes.
        epochs: (LeaderEpoch, offset of its first compared batch).
    """

    state: str
    detail: str = ""
    high_watermark: int = -1
    log_start_offset: int = -1
    records: int = 0
    size_bytes: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PartitionAudit:
    """Result for one partition.

    Attributes:
        start_offset: First compared offset, inclusive.
        end_offset: End of the compared range, exclusive.
        replicas: Result for the replica of each node, by node id.
        findings: Differences.
        dropped: Number of records that some replicas have already removed by compaction.
        dropped_checked: True if the audit checked that later records replace them.
    """

    stream: str
    uid: str
    partition: int
    leader: str
    start_offset: int = 0
    end_offset: int = 0
    replicas: dict[str, ReplicaAudit]
    findings: list[AuditFinding] = field(default_factory=list)
    dropped: int = 0
    dropped_checked: bool = True

    @property
    def compared(self) -> list[str]:
        """Nodes whose replicas were compared."""
        return [node for node, one in self.replicas.items() if one.state == "compared"]

    @property
    def is_proven(self) -> bool:
        """True if at least two replicas were compared, or the only replica that exists was read."""
        return len(self.compared) > 1 or len(self.compared) == len(self.replicas)


@dataclass(slots=True)
class AuditReport:
    """Result of an audit.

    Attributes:
        partitions: Result of each partition.
    """

    partitions: list[PartitionAudit] = field(default_factory=list)

    @property
    def findings(self) -> list[AuditFinding]:
        """All differences, sorted by stream, partition and offset."""
        return sorted(finding for one in self.partitions for finding in one.findings)

    @property
    def first(self) -> AuditFinding | None:
        """The first difference. None: all replicas agree."""
        return next(iter(self.findings), None)

    @property
    def is_proven(self) -> bool:
        """True if the replicas of every partition were compared, so that no finding means no difference."""
        return all(one.is_proven for one in self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        first = self.first
        return {
            "agrees": first is None,
            "proven": self.is_proven,
            "first": None if first is None else asdict(first),
            "partitions": [asdict(one) for one in self.partitions],
        }


def deviants(digests: Mapping[str, str], reference: str) -> tuple[str, bool, list[str]]:
    """Return (expected digest, True if more than half of the nodes have it, nodes with another digest).

    ``digests``: digest of each node. The most frequent digest is expected. In a tie, the digest of the node ``reference`` is expected.
    """
    counts = Counter(digests.values()).most_common(2)
    tied = len(counts) > 1 and counts[0][1] == counts[1][1]
    expected = digests[reference] if tied else counts[0][0]
    majority = 2 * sum(digest == expected for digest in digests.values()) > len(digests)
    return expected, majority, sorted(node for node, digest in digests.items() if digest != expected)


@dataclass(frozen=True, slots=True)
class ReplicaRecords:
    """Records of a replica in a range, in ascending order.

    ``offsets``: int64 array. ``rows``: one row of all columns for each record, times as int64 nanoseconds.
    """

    offsets: NDArray[np.int64]
    rows: pa.Table

    @classmethod
    def of(cls, batches: Sequence[RecordBatch], start_offset: int, end_offset: int) -> ReplicaRecords:
        """Return the records of ``batches`` from ``start_offset`` to ``end_offset`` (exclusive).

        Raises CorruptionError if the columns of a batch do not match its header.
        """
        rows = pa.Table.from_batches([to_arrow(batches, from_offset=start_offset, end_offset=end_offset)])
        place = rows.schema.get_field_index("timestamp")
        rows = rows.set_column(place, "timestamp", rows["timestamp"].cast(pa.int64()))
        for name, kind in (("subject", pa.binary()), ("headers", _HEADERS)):  # what is no UTF-8 has to be shown as well
            rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(kind))
        return cls(rows["offset"].combine_chunks().to_numpy(zero_copy_only=False), rows)

    def at(self, offset: int) -> int:
        """Return the number of the row with the record at ``offset``. -1: there is no such record."""
        row = int(np.searchsorted(self.offsets, offset))
        return row if row < len(self.offsets) and self.offsets[row] == offset else -1

    def digest(self, offset: int) -> str:
        """Return the hexadecimal digest of the record at ``offset``. ABSENT: there is no such record."""
        row = self.at(offset)
        if row < 0:
            return ABSENT
        record = self.rows.slice(row, 1).to_pylist()[0]
        return hashlib.blake2b(repr(sorted(record.items())).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class RecordDifference:
    """Differences between the records of two replicas, here and there.

    ``differs``: first MAX_ROWS offsets at which both have a record, and the records differ. ``only_here``, ``only_there``: offsets of
    records that only one of them has, as int64 arrays.
    """

    differs: tuple[int, ...]
    only_here: NDArray[np.int64]
    only_there: NDArray[np.int64]


def difference(here: ReplicaRecords, there: ReplicaRecords) -> RecordDifference:
    """Return the differences between the records of two replicas in one range of offsets."""
    common, own, other = np.intersect1d(here.offsets, there.offsets, assume_unique=True, return_indices=True)
    rows = differing_rows(_rows(here, own), _rows(there, other))
    return RecordDifference(
        tuple(int(common[row]) for row in rows),
        np.setdiff1d(here.offsets, common, assume_unique=True),
        np.setdiff1d(there.offsets, common, assume_unique=True),
    )


def _rows(replica: ReplicaRecords, wanted: NDArray[np.int64]) -> pa.Table:
    return replica.rows if len(wanted) == len(replica.offsets) else replica.rows.take(wanted)


def differing_rows(here: pa.Table, there: pa.Table) -> list[int]:
    """Return the numbers of the first MAX_ROWS rows that differ between two tables with an equal number of rows."""
    rows: list[int] = []
    begin = 0
    while len(rows) < MAX_ROWS:
        row = first_difference(here.slice(begin), there.slice(begin))
        if row is None:
            break
        rows.append(begin + row)
        begin += row + 1
    return rows


def first_difference(here: pa.Table, there: pa.Table) -> int | None:
    """Return the number of the first row that differs between two tables of equal length. None: they are equal."""
    if here.equals(there):
        return None
    low, high = 0, here.num_rows  # it is in [low, high)
    while high - low > 1:
        half = (high - low) // 2
        if here.slice(low, half).equals(there.slice(low, half)):
            low += half
        else:
            high = low + half
    return low


def first_other_batch(here: Sequence[RecordBatch], there: Sequence[RecordBatch]) -> int | None:
    """Return the base offset of the first batch whose bytes differ between two replicas. None: all batches are equal."""
    for one, other in zip(here, there, strict=False):
        if one.view != other.view:
            return min(one.base_offset, other.base_offset)
    rest = [*here[len(there) :], *there[len(here) :]]
    return rest[0].base_offset if rest else None


def digest_at(batches: Sequence[RecordBatch], offset: int) -> str:
    """Return the hexadecimal digest of the batch that begins at ``offset``. ABSENT: there is no such batch."""
    match = next((batch for batch in batches if batch.base_offset == offset), None)
    return ABSENT if match is None else hashlib.blake2b(match.view, digest_size=16).hexdigest()


def reference_of(replicas: Mapping[str, ReplicaRecords], leader: str) -> str:
    """Return the node whose records most replicas have. ``replicas``: records of each node in one range.

    In a tie, return ``leader`` if it is one of these nodes, otherwise the first of them.
    """
    shared = {node: sum(_same(own, other) for other in replicas.values()) for node, own in replicas.items()}
    return max(shared, key=lambda node: (shared[node], node == leader))


def _same(one: ReplicaRecords, other: ReplicaRecords) -> bool:
    return len(one.offsets) == len(other.offsets) and bool(one.rows.equals(other.rows))
