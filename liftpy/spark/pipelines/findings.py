"""What an audit finds, and how it is told. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from liftpy.dataclass import dataclass

DAMAGED, DIFFERS, MISSING, SURPLUS, BATCHES = "damaged", "differs", "missing", "surplus", "batches"
LOST, REVIVED = "lost", "revived"
_WORDS = {
    DAMAGED: "has damaged bytes",
    DIFFERS: "has another record",
    MISSING: "lacks a record",
    SURPLUS: "has a record that others have not",
    BATCHES: "has the same records in other batches",
    LOST: "lacks a record that nothing supersedes",
    REVIVED: "has a record that other replicas deleted",
}
"""Kind of finding -> what its replica does, in words."""
MAX_FINDINGS = 100
"""Of a piece of a partition: more say nothing new."""
ABSENT = "nothing"
"""Instead of a digest, where there is no record."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AuditFinding:
    """``node``'s replica is not what it should be at ``offset`` (of ``damaged`` ones: there, or behind it).

    ``expected``: the digest that most of the others have, ``seen``: its own; empty where damage left none. ``majority``: whether more
    than half of the replicas that were compared have the expected one; else it is the leader's, and nothing says who is right.
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
            text += "" if self.majority else " (no majority says who is right)"
        return f"{text}; {self.detail}" if self.detail else text


@dataclass(slots=True, kw_only=True)
class ReplicaAudit:
    """One replica in an audit. ``state``: ``compared``, ``behind`` (not in sync, and its HW lower: not compared), or ``away`` (it could
    not be asked, or not to the end). ``high_watermark``, ``log_start_offset``: as it said, inclusive, -1: it did not. ``records``,
    ``size_bytes``, ``epochs`` ((LeaderEpoch, offset of its first batch)): of what was compared."""

    state: str
    detail: str = ""
    high_watermark: int = -1
    log_start_offset: int = -1
    records: int = 0
    size_bytes: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PartitionAudit:
    """One partition: offsets ``start_offset`` (inclusive) to ``end_offset`` (exclusive) of its ``replicas``, by node.

    ``dropped``: records that some replicas have and others do not have any more, because they were compacted at another time;
    ``dropped_checked``: whether it was looked at that later ones supersede them.
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
        """The nodes whose replicas were compared."""
        return [node for node, one in self.replicas.items() if one.state == "compared"]

    @property
    def is_proven(self) -> bool:
        """Whether there was anything to compare: two replicas, or all that there are."""
        return len(self.compared) > 1 or len(self.compared) == len(self.replicas)


@dataclass(slots=True)
class AuditReport:
    """An audit of some partitions."""

    partitions: list[PartitionAudit] = field(default_factory=list)

    @property
    def findings(self) -> list[AuditFinding]:
        """All of them, in the order of stream, partition, offset."""
        return sorted(found for one in self.partitions for found in one.findings)

    @property
    def first(self) -> AuditFinding | None:
        """The first difference, None where replicas agree."""
        return next(iter(self.findings), None)

    @property
    def is_proven(self) -> bool:
        """Whether replicas were compared in every partition."""
        return all(one.is_proven for one in self.partitions)

    def to_json(self) -> dict[str, Any]:
        """For machines: plain values."""
        first = self.first
        return {
            "agrees": first is None,
            "proven": self.is_proven,
            "first": None if first is None else asdict(first),
            "partitions": [asdict(one) for one in self.partitions],
        }


def deviants(digests: Mapping[str, str], reference: str) -> tuple[str, bool, list[str]]:
    """(the digest to be expected, whether more than half have it, the nodes that have another). ``digests``: node -> digest.
    Where no digest has more nodes than every other, that of the node ``reference`` is expected."""
    counts = Counter(digests.values()).most_common(2)
    tied = len(counts) > 1 and counts[0][1] == counts[1][1]
    expected = digests[reference] if tied else counts[0][0]
    majority = 2 * sum(digest == expected for digest in digests.values()) > len(digests)
    return expected, majority, sorted(node for node, digest in digests.items() if digest != expected)
