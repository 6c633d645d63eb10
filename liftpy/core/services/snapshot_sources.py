"""Chooses the snapshot of another node for a service that has none of its own. Pure.

Goal: a node that is new, or has lost its snapshots, goes on although the log begins later than any state that it has. Constraint: what
a process says on NATS proves nothing, and the process that gives a snapshot may have diverged.

Algorithm: every process that is asked offers its snapshots whose outputs are compared: position, digest, size. The sidecars tell each
other the digests of their services' snapshots as they go (``agreement.py``); the own one says on which digest at a position more nodes
agree than on any other. Taken is, of the snapshots that are offered and agreed on, within the log and within bounds: those that two
nodes have before those that one has, then the newest. Its bytes must have that digest. One that breaks off is
tried again later, one that has another digest is not, from that node; nor is one that was taken a moment ago: the log or the outputs
have disproved it, or nothing would be looked for.

Worked example: n2 and n3 offer 400 and 500, n4 offers 600; the sidecars know 400 from both, 500 from n2 (n3 has just stored it), 600
from nobody. 400 is taken from n2, or from n3 when n2 breaks off; then 500; 600 never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from liftpy.core.services.state_comparison import DIGEST_SIZE_BYTES

MAX_OFFERS = 8
"""Of one node."""
MAX_AGREED = 64
_CERTAIN = 2
"""So many nodes that agree are preferred to a newer snapshot that fewer have."""
_SAID_BYTES = 200


@dataclass(frozen=True, slots=True)
class Offer:
    """Snapshot that ``node`` offers. ``size_bytes``: size of its file."""

    node: str
    position: int
    digest: bytes
    size_bytes: int
    output_count: int


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """Positions of use, both ends inclusive, and how large a file may be."""

    lowest: int
    highest: int
    max_bytes: int


@dataclass(slots=True)
class PeerSearch:
    """State of the search for a snapshot. ``barred``: digests of useless snapshots."""

    barred: frozenset[bytes] = frozenset()
    _offers: dict[str, tuple[Offer, ...]] = field(default_factory=dict)
    _agreed: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Position -> digest, nodes that have it: as last told."""
    _failed: set[Offer] = field(default_factory=set)
    _lies: set[tuple[str, bytes]] = field(default_factory=set)
    """Node and digest: its bytes were others."""
    _said: dict[str, str] = field(default_factory=dict)

    def agreed(self, snapshots: Mapping[int, tuple[bytes, int]]) -> None:
        """Set the snapshots that the sidecar reports: position -> (digest, nodes)."""
        known = self._agreed | {at: told for at, told in snapshots.items() if len(told[0]) == DIGEST_SIZE_BYTES and told[1] > 0}
        self._agreed = {at: known[at] for at in sorted(known)[-MAX_AGREED:]}

    def offered(self, node: str, offers: Iterable[Offer]) -> None:
        """Set the offers of ``node``. Failed downloads from it may be retried."""
        self._offers[node] = tuple(offers)[:MAX_OFFERS]
        self._failed = {offer for offer in self._failed if offer.node != node}
        self.said(node, f"offers {', '.join(str(offer.position) for offer in self._offers[node]) or 'no snapshot'}")

    def said(self, node: str, what: str) -> None:
        """Note an answer of ``node`` for the explanation."""
        self._said[node] = what[:_SAID_BYTES]

    def best(self, reach: SnapshotRange) -> Offer | None:
        """Return the best offer, None if none is usable."""
        found = [offer for offers in self._offers.values() for offer in offers if self._will_do(offer, reach)]
        return max(found, key=self._rank, default=None)

    def _will_do(self, offer: Offer, reach: SnapshotRange) -> bool:
        digest, _ = self._agreed.get(offer.position, (b"", 0))
        return (
            digest == offer.digest
            and reach.lowest <= offer.position <= reach.highest
            and 0 < offer.size_bytes <= reach.max_bytes
            and offer not in self._failed
            and (offer.node, offer.digest) not in self._lies
            and offer.digest not in self.barred
        )

    def _rank(self, offer: Offer) -> tuple[int, int, str]:
        return min(self._agreed[offer.position][1], _CERTAIN), offer.position, offer.node

    def failed(self, offer: Offer, why: str, *, lies: bool = False) -> None:
        """Note a failed download. ``lies``: the content was not what was offered."""
        self._failed.add(offer)
        if lies:
            self._lies.add((offer.node, offer.digest))
        self.said(offer.node, f"the snapshot at {offer.position}: {why}")

    def explain(self, reach: SnapshotRange) -> str:
        """Return what was tried, for an error text."""
        if not self._said:
            return "there is no other node to ask"
        agreed = ", ".join(str(at) for at in self._agreed if reach.lowest <= at <= reach.highest)
        said = "; ".join(f"{node} {what}" for node, what in sorted(self._said.items()))
        return f"{said}; sidecars agree on {f'those at {agreed}' if agreed else 'none'} from {reach.lowest} on"
