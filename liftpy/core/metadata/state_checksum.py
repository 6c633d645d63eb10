"""Digest of all applied records since the feature level was set, one per controller. Pure.

    digest(n) = BLAKE2b-64(digest(n - 1), index of the entry, its records as protobufs)

Every entry counts, also one without effect. The digest is part of the image and of its snapshots. It affects no
decision.

``AppliedDigests`` compares the digests of the controllers. Goal: a controller whose image differs is found within
``EVERY`` entries, and stops. The cause may be a bug, a memory error, or a version that decides differently. Such a
controller must neither lead nor vote. Constraint: only a majority knows which image is right. Without one, nothing more
may be decided.

Algorithm: after the first entry beyond each multiple of ``EVERY``, each member stores a checkpoint (index, digest), at
equal indexes. It sends the newest one to its leader with its acks. The leader compares them, and its heartbeats name a
checkpoint where a majority of the voters agrees. A member with another digest at this index has diverged: it stops,
quarantines its directory and loads a snapshot. A leader that differs from the majority does so, too. If voters differ
and no majority agrees, proposals stop until one does. Each digest covers everything before it, so the newest checkpoint
with a majority decides.

Worked example: EVERY is 1024, and n1 leads n2 and n3. At 2048 n1 has d, and n2 reports d: they agree. n3 reports e. It
receives (2048, d), stops, returns with an empty directory, and gets n1's snapshot. If n2 were down, d and e would be no
majority of three: proposals stop.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.metadata.features import NO_LEVEL
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import Record, record_to_pb

DIGEST_SIZE = 8
Checkpoint = tuple[int, bytes]
"""Index of a log entry, and the digest after it. (0, b''): no entry."""


def compute_digest(after: ClusterImage, records: tuple[Record, ...]) -> Steps[bytes]:
    """Compute the digest of all records up to and including one entry, in steps.

    ``after``: image after the entry, which still contains the digest before it. ``records``: records of the entry. The result
    is b'' if the group is new.
    """
    if after.feature_level == NO_LEVEL:
        return b""
    chain = hashlib.blake2b(after.digest, digest_size=DIGEST_SIZE)
    chain.update(after.index.to_bytes(8, "big"))
    for number, record in enumerate(records, 1):
        data = record_to_pb(record).SerializeToString(deterministic=True)
        chain.update(len(data).to_bytes(4, "big") + data)
        if number % PER_STEP == 0:
            yield
    return chain.digest()


EVERY = 1024
KEPT = 16
"""Number of digests that are kept for each member."""
NONE: Checkpoint = (0, b"")


class AppliedDigests:
    """Image digests that the members of the group have reported to one controller, to find an image that differs.

    ``every``: number of entries between two checkpoints.
    """

    def __init__(self, node_id: str, every: int = EVERY) -> None:
        self._node_id = node_id
        self._every = every
        self._digests: dict[str, dict[int, bytes]] = {node_id: {}}
        """Member -> index -> digest, oldest first."""
        self.newest: Checkpoint = NONE
        """Newest digest of this member, which it reports to the leader."""
        self.agreed: Checkpoint = NONE
        """Newest place where a majority has the digest of this member. Only the leader sets it."""
        self.halted = ""
        """Reason why the leader may decide nothing, as text. '': it may decide."""
        self.mismatch_count = 0
        """Number of times that the leader found a member with a different digest, once for each place."""
        self._mismatches: set[tuple[str, int]] = set()
        """(member, index) of the differences that were already counted."""

    def entry_applied(self, before: int, index: int, digest: bytes) -> None:
        """Record the digest of this member after the entry ``index``, if the entry is at a checkpoint.

        ``before``: index of the entry applied before it. ``digest``: b"" in a new group.
        """
        if digest and before // self._every != index // self._every:
            self._keep(self._node_id, index, digest)
            self.newest = (index, digest)

    def record_report(self, node_id: str, checkpoint: Checkpoint) -> None:
        if checkpoint[0] and self._digests.get(node_id, {}).get(checkpoint[0]) != checkpoint[1]:
            self._keep(node_id, *checkpoint)

    def forget(self, node_id: str) -> None:
        """Forget the digests of a member whose session has ended. Its next process may have another image."""
        self._digests.pop(node_id, None)
        self.agreed = NONE
        self._mismatches = {(who, index) for who, index in self._mismatches if who != node_id}

    def _keep(self, node_id: str, index: int, digest: bytes) -> None:
        digests = self._digests.setdefault(node_id, {})
        digests[index] = digest
        while len(digests) > KEPT:
            del digests[next(iter(digests))]

    def differs_from(self, agreed: Checkpoint) -> bool:
        """Return whether this member's image differs from that of a majority.

        ``agreed``: checkpoint at which the leader has found a majority with equal digests.
        """
        own = self._digests[self._node_id].get(agreed[0])
        return own is not None and own != agreed[1]

    def voters_without_digest(self, voters: Iterable[str]) -> frozenset[str]:
        """Return the voters that have not reported a digest at the leader's newest checkpoint.

        Only the leader calls this method.
        """
        return frozenset(node_id for node_id in voters if self.newest[0] not in self._digests.get(node_id, ()))

    def compare_reports(self, voters: Iterable[str]) -> bool:
        """As the leader, compare the digests that the voters have reported. Return whether this member differs from a majority."""
        names = set(voters)
        majority = len(names) // 2 + 1
        self.agreed, self.halted = NONE, ""
        own_is_beside = False
        for index, own in self._digests[self._node_id].items():
            at = {
                node_id: digests[index] for node_id, digests in self._digests.items() if node_id in names and index in digests
            }
            digest, count = Counter(at.values()).most_common(1)[0] if at else (own, 0)
            if count >= majority:
                own_is_beside, self.halted = digest != own, ""
                self.agreed = (index, own) if digest == own else self.agreed
                self._count({(node_id, index) for node_id, other in at.items() if other != digest})
            elif len(set(at.values())) > 1:
                self.halted = (
                    f"the controllers {', '.join(sorted(at))} hold different images at index {index}, and no majority agrees"
                )
                self._count({(node_id, index) for node_id in at})
        return own_is_beside

    def _count(self, mismatches: set[tuple[str, int]]) -> None:
        self.mismatch_count += len(mismatches - self._mismatches)
        self._mismatches = {(who, index) for who, index in self._mismatches if index in self._digests.get(who, ())} | mismatches
