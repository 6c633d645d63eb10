"""The digest of what was applied: a chain over all records since the feature level was set, one on every controller. Pure.

    digest(n) = BLAKE2b-64(digest(n - 1), index of the entry, its records as protobufs)

Every entry counts, also one that does nothing. It is a part of the image, so that a snapshot carries it on, and of no decision.

AppliedDigests: do the controllers hold the same image? They compare digests of what they applied. Pure.

Goal: a controller whose image differs (a bug, memory that flipped, a version that decides otherwise without a level) is found within
``EVERY`` entries, and gives way: it must neither lead nor vote by what nobody else holds. Constraint: a majority alone knows who is
right; where there is none nothing more may be decided.

Algorithm: after the first entry beyond each multiple of ``EVERY`` a member keeps (index, digest), the same places everywhere, and tells
its leader the newest with what it acknowledges. The leader compares. A place where a majority of the voters agree it tells with its
heartbeats; a member that has another digest there has diverged: it stops, puts its folder aside and fetches a snapshot. A leader that
is itself beside the majority does the same. Where voters differ and no majority agrees, proposals stop until one does. Each digest is a
chain over all before, or came with a snapshot: so the newest place of which a majority, or none, can be said says what holds now. Who
was sent a snapshot in the middle of its session had told another one of an earlier place.

Worked example: EVERY 1024, n1 leads n2, n3. At 2048 n1 has d, n2 tells d: agreed. n3 tells e: it differs, and hears of (2048, d): it
stops, comes back with an empty folder, and is sent n1's snapshot. Had n2 been down: d and e, no majority of three: proposals stop.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from liftpy.core.base.cooperative_apply import PER_STEP, Steps
from liftpy.core.metadata.feature_range import NO_LEVEL
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import Record, record_to_pb

DIGEST_SIZE = 8
Checkpoint = tuple[int, bytes]
"""(index of the last entry, digest after it); (0, b''): none."""


def digesting(after: ClusterImage, records: tuple[Record, ...]) -> Steps[bytes]:
    """The digest after the entry that made ``after`` of the image before, whose digest it still holds; b'' while the group is new."""
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
"""AppliedDigests of each member that are kept."""
NONE: Checkpoint = (0, b"")


class AppliedDigests:
    """Digests of one controller. ``every``: entries between two digests."""

    def __init__(self, node_id: str, every: int = EVERY) -> None:
        self._node_id = node_id
        self._every = every
        self._held: dict[str, dict[int, bytes]] = {node_id: {}}
        """Member -> index -> digest, by age."""
        self.newest: Checkpoint = NONE
        """The own one: what is told."""
        self.agreed: Checkpoint = NONE
        """Leader: the newest place where a majority agrees with this member."""
        self.halted = ""
        """Leader: why nothing more may be decided, for people; ''."""
        self.found_count = 0
        """Leader: how often a member was found to differ, once for each place."""
        self._found: set[tuple[str, int]] = set()
        """Who, and where; of what is held."""

    def applied(self, before: int, index: int, digest: bytes) -> None:
        """An entry was applied, ``before`` was the one before it. While the group is new there is no digest."""
        if digest and before // self._every != index // self._every:
            self._keep(self._node_id, index, digest)
            self.newest = (index, digest)

    def told(self, node_id: str, checkpoint: Checkpoint) -> None:
        """A member has said its newest one."""
        if checkpoint[0] and self._held.get(node_id, {}).get(checkpoint[0]) != checkpoint[1]:
            self._keep(node_id, *checkpoint)

    def forget(self, node_id: str) -> None:
        """Its session has ended: its next process may hold another image, or nothing, and then the majority needs who differs."""
        self._held.pop(node_id, None)
        self.agreed = NONE
        self._found = {(who, index) for who, index in self._found if who != node_id}

    def _keep(self, node_id: str, index: int, digest: bytes) -> None:
        held = self._held.setdefault(node_id, {})
        held[index] = digest
        while len(held) > KEPT:
            del held[next(iter(held))]

    def differs_from(self, agreed: Checkpoint) -> bool:
        """Whether this member has another digest where the leader says that a majority agrees."""
        own = self._held[self._node_id].get(agreed[0])
        return own is not None and own != agreed[1]

    def untold(self, voters: Iterable[str]) -> frozenset[str]:
        """Leader: who of them has not told its digest at this member's newest place."""
        return frozenset(node_id for node_id in voters if self.newest[0] not in self._held.get(node_id, ()))

    def judge(self, voters: Iterable[str]) -> bool:
        """Leader: compare what the voters have told. Whether this member itself is beside a majority."""
        names = set(voters)
        majority = len(names) // 2 + 1
        self.agreed, self.halted = NONE, ""
        own_is_beside = False
        for index, own in self._held[self._node_id].items():
            at = {node_id: held[index] for node_id, held in self._held.items() if node_id in names and index in held}
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

    def _count(self, found: set[tuple[str, int]]) -> None:
        self.found_count += len(found - self._found)
        self._found = {(who, index) for who, index in self._found if index in self._held.get(who, ())} | found
