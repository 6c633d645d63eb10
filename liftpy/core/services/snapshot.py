"""A service's snapshot as bytes, the search for a snapshot on other nodes, and the comparison of snapshots. Pure.

The bytes are the data of the framework, then the application's bytes, with checksums. Layout, little endian::

     0 8s magic "LIFTSNAP"   8 u16 version   10 u16 size of the identity   12 u32 CRC-32C of all bytes from 16 on
    16 u64 position          24 u64 LeaderEpoch of the record before it    32 i64 log time, ns
    40 u64 outputs so far    48 u32 count of timers   52 u32 size of the timers   56 u64 size of the application's bytes
    64 16s digest of the outputs so far, zeros for none
    80 u32 count of skips    84 u32 size of the skips
    88 identity (UTF-8: service/stream/uid/partition), timers (i64 time, u16 size, name each), skips (i64 offset, u16 size, name of
       the timer each: the newest records that were skipped below the position), application

Version 4 is version 3 with sections before the application's bytes. A snapshot without sections is written as version 3::

    88 u32 size of the sections, identity, timers, skips, sections (u16 kind, u32 size, bytes each), application

A file has each kind of section at most once. Readers accept any order of the kinds. All nodes write one order, because they
compare the bytes: PARAMETERS, EFFECTS, ANSWERS, VERSION.

All fields are functions of the log alone. So the files of all nodes are equal if the application's bytes are.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum

import crc32c

from liftpy.core.base.ids import check_name
from liftpy.core.services.bad_records import Unit
from liftpy.core.services.effects import COUNT_SIZE_BYTES, PendingEffects, count_in, damaged_snapshot
from liftpy.core.services.replies import decode_answers
from liftpy.core.services.versions import VersionError, from_section
from liftpy.errors import CorruptionError, UnknownFormatError

MAGIC = b"LIFTSNAP"
VERSION = 4
_WITHOUT_SECTIONS = 3
"""Versions 1 and 2 were never released: the state is replayed from the log."""
_HEAD = struct.Struct("<8sHHI")
_FIELDS = struct.Struct("<QQqQIIQ16sIII")
_FIELDS_3 = struct.Struct("<QQqQIIQ16sII")
_NO_DIGEST = bytes(16)
_TIMER = struct.Struct("<qH")
_SECTION = struct.Struct("<HI")
HEADER_SIZE_BYTES = _HEAD.size + _FIELDS_3.size
MAX_OFFERS = 8
"""Maximum number of snapshots that one node offers."""
MAX_AGREED = 64
_CERTAIN = 2
"""Number of agreeing nodes that is preferred to a newer snapshot of fewer nodes."""
_MAX_STATUS_CHARS = 200
MAX_POSITIONS = 16
"""Maximum number of positions kept for each service of each node, besides ``BEGINNING``."""
MAX_NODES = 16
BEGINNING = 0
"""Position before all records. Its digest is that of the service's parameters."""
DIGEST_SIZE_BYTES = 16


class Section(IntEnum):
    """Kind of an optional part of a snapshot. A snapshot has the part only if the service uses the feature."""

    PARAMETERS = 1
    """Digest of the arguments of the service."""
    ANSWERS = 2
    """Replies to commands with message ids."""
    EFFECTS = 3
    """Effects and offers without a result."""
    VERSION = 4
    """Active version of the service."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a snapshot: the service, and the partition whose records it has applied.

    Args:
        service: Name of the service.
        stream: Name of the stream.
        uid: Uid of the stream.
        partition: Number of the partition.
    """

    service: str
    stream: str
    uid: str
    partition: int

    def __post_init__(self) -> None:
        check_name(self.service, "service")
        check_name(self.stream, "stream")
        check_name(self.uid, "stream uid")

    def __str__(self) -> str:
        return f"{self.service}/{self.stream}/{self.uid}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a service after all records below ``position``.

    Attributes:
        identity: Owner of the state.
        position: Offset of the next record.
        last_epoch: LeaderEpoch of the last applied record. 0: none.
        now_ns: Log time in nanoseconds since 1970.
        output_count: Number of outputs so far.
        timers: (time, name) pairs, sorted.
        state: Bytes that the service returned.
        output_digest: Digest of all outputs so far, 16 bytes. b"": none.
        skips: Records and timers that were skipped.
        sections: (kind, bytes) pairs, each kind at most once.
        make: Function that makes ``state`` later. None: ``state`` is complete.
    """

    identity: Identity
    position: int
    last_epoch: int
    now_ns: int
    output_count: int
    timers: tuple[tuple[int, str], ...]
    state: bytes
    output_digest: bytes = b""
    skips: tuple[Unit, ...] = ()
    sections: tuple[tuple[Section, bytes], ...] = ()
    make: Callable[[], bytes] | None = None

    def section(self, kind: Section) -> bytes:
        """Return the bytes of a section. b"": the snapshot does not have it.

        Args:
            kind: Kind of the section.
        """
        return dict(self.sections).get(kind, b"")

    def whole(self) -> Snapshot:
        """Return the snapshot with its ``state``. If it has only the function ``make``, call it now.

        Raises ServiceFailedError if the service fails.
        """
        return self if self.make is None else replace(self, state=self.make(), make=None)

    def encode(self) -> bytes:
        """Return the snapshot as the bytes of its file."""
        if self.make is not None:
            return self.whole().encode()
        identity = str(self.identity).encode()
        timers = _encode_named(self.timers)
        skips = _encode_named((unit.offset, unit.timer) for unit in self.skips)
        sections = b"".join(_SECTION.pack(kind, len(content)) + content for kind, content in self.sections)
        fields: tuple[object, ...] = (
            self.position,
            self.last_epoch,
            self.now_ns,
            self.output_count,
            len(self.timers),
            len(timers),
            len(self.state),
            self.output_digest or _NO_DIGEST,
            len(self.skips),
            len(skips),
        )
        version = VERSION if sections else _WITHOUT_SECTIONS
        head = _FIELDS.pack(*fields, len(sections)) if sections else _FIELDS_3.pack(*fields)
        body = head + identity + timers + skips + sections + self.state
        return _HEAD.pack(MAGIC, version, len(identity), crc32c.crc32c(body)) + body


def decode(data: bytes, identity: Identity) -> Snapshot:
    """Decode the snapshot file ``data``, which must belong to ``identity``. A service can start with the result.

    Raises:
        UnknownFormatError: A newer version wrote it.
        CorruptionError: It is no snapshot of ``identity``, or damaged.
    """
    if len(data) < HEADER_SIZE_BYTES:
        raise damaged_snapshot(f"{len(data)} bytes are less than a header")
    magic, version, identity_size_bytes, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError(
            "The file is not a snapshot: it does not start with the magic bytes. The service uses an older snapshot."
        )
    body = memoryview(data)[_HEAD.size :]
    if crc32c.crc32c(body) != crc:
        raise damaged_snapshot("its CRC-32C does not match")
    if version < _WITHOUT_SECTIONS:
        raise CorruptionError(
            f"The snapshot has the old format version {version}. The service rebuilds its state from the stream."
        )
    if version > VERSION:
        raise UnknownFormatError(
            f"The snapshot has format version {version}, but this version reads {VERSION}. Start the newer "
            "version of liftpy that wrote it."
        )
    layout = _FIELDS if version == VERSION else _FIELDS_3
    if len(body) < layout.size or (version == VERSION and not layout.unpack_from(body)[-1]):
        raise damaged_snapshot("it ends inside its header")
    fields = layout.unpack_from(body)
    position, last_epoch, now_ns, output_count, timer_count, timers_size, state_size, digest = fields[:8]
    skip_count, skips_size, sections_size = (*fields[8:], 0)[:3]
    rest = bytes(body[layout.size :])
    if len(rest) != identity_size_bytes + timers_size + skips_size + sections_size + state_size:
        raise damaged_snapshot("the sizes of its parts do not match its total size")
    whose = rest[:identity_size_bytes].decode(errors="replace")
    if whose != str(identity):
        raise CorruptionError(
            f"The snapshot belongs to {whose}, not to {identity}. Check --data: each service needs its own directory."
        )
    sections_at = identity_size_bytes + timers_size + skips_size
    state_at = sections_at + sections_size
    timers = _timers(rest[identity_size_bytes : identity_size_bytes + timers_size], timer_count)
    skips = tuple(Unit(*entry) for entry in _timers(rest[identity_size_bytes + timers_size : sections_at], skip_count))
    digest = digest if any(digest) else b""
    return Snapshot(
        identity=identity,
        position=position,
        last_epoch=last_epoch,
        now_ns=now_ns,
        output_count=output_count,
        timers=timers,
        state=rest[state_at:],
        output_digest=digest,
        skips=skips,
        sections=_sections(rest[sections_at:state_at]),
    )


@dataclass(frozen=True, slots=True)
class ReplayPoint:
    """A stored snapshot from which a service can replay the log.

    ``output_count``, ``effect_count``: numbers of outputs and effects up to it. ``version``: active version of the service.
    """

    position: int
    output_count: int
    effect_count: int
    version: int


def replay_point(read: Callable[[int, int], bytes]) -> ReplayPoint:
    """Return the facts about the snapshot file that ``read`` reads: (start, size in bytes) -> bytes.

    Only the header and the headers of the sections are read, and no checksum is verified. Raises CorruptionError if the file is
    no snapshot that this version can read.
    """
    try:
        magic, version, identity_size_bytes, _ = _HEAD.unpack(read(0, _HEAD.size))
        layout = {VERSION: _FIELDS, _WITHOUT_SECTIONS: _FIELDS_3}[version if magic == MAGIC else 0]
        fields = layout.unpack(read(_HEAD.size, layout.size))
        _, _, skips_size, sections_size = (*fields[7:], 0)[:4]
        place = _HEAD.size + layout.size + identity_size_bytes + fields[5] + skips_size
        end, effect_count, active = place + sections_size, 0, b""
        while place < end:
            kind, size_bytes = _SECTION.unpack(read(place, _SECTION.size))
            place += _SECTION.size
            if kind == Section.EFFECTS:
                effect_count = count_in(read(place, min(size_bytes, COUNT_SIZE_BYTES)))
            elif kind == Section.VERSION:
                active = read(place, min(size_bytes, COUNT_SIZE_BYTES))
            place += size_bytes
        return ReplayPoint(fields[0], fields[3], effect_count, from_section(active))
    except (struct.error, KeyError, VersionError):
        raise damaged_snapshot("its header cannot be decoded") from None


def _encode_named(entries: Iterable[tuple[int, str]]) -> bytes:
    names = [(number, name.encode()) for number, name in entries]
    return b"".join(_TIMER.pack(number, len(name)) + name for number, name in names)


def _sections(data: bytes) -> tuple[tuple[Section, bytes], ...]:
    sections: dict[Section, bytes] = {}
    place = 0
    while place < len(data):
        try:
            kind, size_bytes = _SECTION.unpack_from(data, place)
        except struct.error:
            raise damaged_snapshot("its sections cannot be decoded") from None
        if kind not in list(Section):
            raise UnknownFormatError(
                f"The snapshot has a section of kind {kind}, which a newer version wrote. Start the newer version of liftpy."
            )
        place += _SECTION.size + size_bytes
        if not size_bytes or place > len(data) or kind in sections:
            raise damaged_snapshot("the sizes of its sections do not match")
        sections[Section(kind)] = data[place - size_bytes : place]
    decode_answers(sections.get(Section.ANSWERS, b""))
    PendingEffects("").load(sections.get(Section.EFFECTS, b""))
    try:
        from_section(sections.get(Section.VERSION, b""))
    except VersionError as error:
        raise CorruptionError(str(error)) from None
    return tuple(sections.items())


def _timers(data: bytes, count: int) -> tuple[tuple[int, str], ...]:
    timers: list[tuple[int, str]] = []
    place = 0
    try:
        while place < len(data):
            at_ns, size_bytes = _TIMER.unpack_from(data, place)
            place += _TIMER.size + size_bytes
            timers.append((at_ns, data[place - size_bytes : place].decode()))
    except (struct.error, UnicodeDecodeError):
        raise damaged_snapshot("its timers cannot be decoded") from None
    if len(timers) != count or place != len(data):
        raise damaged_snapshot("its timers do not match their counts")
    return tuple(timers)


# ---- snapshots of other nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotOffer:
    """A snapshot that ``node`` offers to other nodes for download.

    ``digest``: digest of its file. ``size_bytes``: size of its file. ``output_count``: number of outputs up to it.
    """

    node: str
    position: int
    digest: bytes
    size_bytes: int
    output_count: int


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """Bounds of snapshots that a service can use: lowest and highest position (inclusive), and maximum file size in bytes."""

    lowest: int
    highest: int
    max_bytes: int


@dataclass(slots=True)
class SnapshotSearch:
    """A search for a snapshot on other nodes: their offers, and the downloads that failed.

    ``barred``: digests of snapshots that must not be used.

    A node that is new, or has lost its snapshots, can then run the service although the log begins later than its state. A
    message on NATS proves nothing, and the process that sends a snapshot may have diverged.

    Each process offers its snapshots whose outputs were compared: position, digest, size. The sidecars report the digests of
    their services' snapshots to each other (``StateComparison``), so the own sidecar knows which digest most nodes have at a
    position. The node downloads a snapshot that is offered, has this digest, and is within the log and the limits. A snapshot
    that two nodes have is preferred to one that a single node has, then the newest is. Its bytes must have the digest. A
    download that breaks off is retried later. One with other bytes is not retried from that node. A snapshot that was used a
    moment ago is not used again, because the log or the outputs have disproved it.

    Worked example: n2 and n3 offer 400 and 500, n4 offers 600. The sidecars know 400 from both, 500 from n2 (n3 has just stored
    it), 600 from no node. The node downloads 400 from n2, or from n3 if n2 breaks off, and later 500. It never uses 600.
    """

    barred: frozenset[bytes] = frozenset()
    _offers: dict[str, tuple[SnapshotOffer, ...]] = field(default_factory=dict)
    _agreed: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """Position -> (digest, number of nodes that have it), from the last reports."""
    _failed: set[SnapshotOffer] = field(default_factory=set)
    _mismatched: set[tuple[str, bytes]] = field(default_factory=set)
    """(node, digest) of downloads whose bytes did not have the digest."""
    _answers: dict[str, str] = field(default_factory=dict)

    def set_agreed(self, snapshots: Mapping[int, tuple[bytes, int]]) -> None:
        """Add the snapshots on which nodes agree, as the sidecar reports them: (digest, number of nodes) by position."""
        known = self._agreed | {at: vote for at, vote in snapshots.items() if len(vote[0]) == DIGEST_SIZE_BYTES and vote[1] > 0}
        self._agreed = {at: known[at] for at in sorted(known)[-MAX_AGREED:]}

    def set_offers(self, node: str, offers: Iterable[SnapshotOffer]) -> None:
        """Replace the offers of ``node``. Failed downloads from it may be retried."""
        self._offers[node] = tuple(offers)[:MAX_OFFERS]
        self._failed = {offer for offer in self._failed if offer.node != node}
        self.note_answer(node, f"offers {', '.join(str(offer.position) for offer in self._offers[node]) or 'no snapshot'}")

    def note_answer(self, node: str, what: str) -> None:
        """Store a text about the answer of ``node``, which ``explain`` returns later."""
        self._answers[node] = what[:_MAX_STATUS_CHARS]

    def best(self, reach: SnapshotRange) -> SnapshotOffer | None:
        """Return the offer to download next, within the bounds ``reach``. None: no offer is usable."""
        usable_offers = [offer for offers in self._offers.values() for offer in offers if self._is_usable(offer, reach)]
        return max(usable_offers, key=self._rank, default=None)

    def is_behind(self, reach: SnapshotRange) -> bool:
        """Return whether an offer would be usable if the log of this node, which ``reach`` describes, had the records before it."""
        return self.best(replace(reach, highest=sys.maxsize)) is not None

    def _is_usable(self, offer: SnapshotOffer, reach: SnapshotRange) -> bool:
        digest, _ = self._agreed.get(offer.position, (b"", 0))
        return (
            digest == offer.digest
            and reach.lowest <= offer.position <= reach.highest
            and 0 < offer.size_bytes <= reach.max_bytes
            and offer not in self._failed
            and (offer.node, offer.digest) not in self._mismatched
            and offer.digest not in self.barred
        )

    def _rank(self, offer: SnapshotOffer) -> tuple[int, int, str]:
        return min(self._agreed[offer.position][1], _CERTAIN), offer.position, offer.node

    def note_failure(self, offer: SnapshotOffer, why: str, *, lies: bool = False) -> None:
        """Exclude an offer whose download failed. ``why``: reason for ``explain``.

        ``lies``: True if the bytes did not have the offered digest.
        """
        self._failed.add(offer)
        if lies:
            self._mismatched.add((offer.node, offer.digest))
        self.note_answer(offer.node, f"the snapshot at {offer.position}: {why}")

    def explain(self, reach: SnapshotRange) -> str:
        """Return a text for an error: the answers of the nodes, the failed downloads, and the usable positions within ``reach``."""
        if not self._answers:
            return "there is no other node to ask"
        agreed = ", ".join(str(at) for at in self._agreed if reach.lowest <= at <= reach.highest)
        answers = "; ".join(f"{node} {what}" for node, what in sorted(self._answers.items()))
        return f"{answers}; sidecars agree on {f'those at {agreed}' if agreed else 'none'} from {reach.lowest} on"


@dataclass(frozen=True, slots=True)
class Difference:
    """A position at which the snapshots of a service differ.

    ``nodes``: nodes with a different snapshot. ``diverged``: True if more nodes have another digest than this node.
    """

    position: int
    nodes: tuple[str, ...]
    diverged: bool

    def __str__(self) -> str:
        whose = ", ".join(self.nodes)
        if self.position == BEGINNING:
            how = "this instance stops: start it with their parameters" if self.diverged else "use the same ones on all nodes"
            return f"the parameters of the service differ from those on {whose}; {how}"
        differs = f"the state at position {self.position} differs from the state on {whose}"
        return (
            f"{differs}, and this instance is in the minority" if self.diverged else f"{differs}: the code is not deterministic"
        )


@dataclass(slots=True)
class StateComparison:
    """Digests of the snapshots of one service on all nodes, to find nodes whose state differs.

    It finds a service that is not deterministic even if its outputs do not show it. No node knows which state is right, so the
    majority decides. A snapshot is a function of the log alone, so the nodes report to each other (position, digest) of the
    newest snapshots that they have stored. If the digests of a position differ, and more nodes have another digest than the own
    one, the service on this node has diverged. If both digests have equally many nodes, the status of both sides shows the
    difference. The digest of a service's parameters (``liftpy.core.services.rules``) is reported as that of position 0, before
    all records.

    Worked example: n1 and n2 report (100, aa), n3 reports (100, bb). The service on n3 stops, and never uses that snapshot
    again. With n1 and n3 alone, the status of both shows that they differ at 100.
    """

    _told: dict[str, dict[int, bytes]] = field(default_factory=dict)
    _reported: dict[str, Set[int]] = field(default_factory=dict)
    """Positions in the last report of each node: its newest snapshots, and those that it offers to other nodes."""
    _lives: dict[str, int] = field(default_factory=dict)

    def set_digests(self, node: str, life: int, snapshots: Mapping[int, bytes]) -> None:
        """Store the snapshots that ``node`` reports. ``snapshots``: digest by position.

        ``life``: number of the service's process. A report of a new process removes all earlier ones, because their records
        may be deleted.
        """
        if self._lives.get(node) != life:
            self._told.pop(node, None)
        if node not in self._told and len(self._told) >= MAX_NODES:
            return
        self._lives[node] = life
        reported = {p: d for p, d in snapshots.items() if len(d) == DIGEST_SIZE_BYTES}
        known = self._told.get(node, {}) | reported
        by_priority = sorted(known.keys() - {BEGINNING}, key=lambda position: (position in reported, position))
        kept = {*by_priority[-MAX_POSITIONS:], *(known.keys() & {BEGINNING})}
        self._reported[node] = reported.keys()
        self._told[node] = {position: known[position] for position in sorted(kept)}

    def difference(self, own: str) -> Difference | None:
        """Return the first snapshot position at which the node ``own`` is in the minority. None: there is no difference.

        More nodes then have another digest than its own one. If there is no such position, return the first one at which equally
        many nodes have another digest.
        """
        undecided = None
        for position, digest in self._told.get(own, {}).items():
            reports = {node: digests[position] for node, digests in self._told.items() if position in digests}
            others = tuple(sorted(node for node, theirs in reports.items() if theirs != digest))
            if not others:
                continue
            votes = Counter(reports.values())
            difference = Difference(position, others, max(votes[reports[node]] for node in others) > votes[digest])
            if difference.diverged:
                return difference
            if votes[digest] == max(votes[reports[node]] for node in others):
                undecided = undecided or difference
        return undecided

    def agreed(self, own: str) -> dict[int, tuple[bytes, int]]:
        """Return the snapshots that most nodes other than ``own`` have: (digest, number of nodes) by position.

        The method leaves out positions without a majority. It returns at most ``MAX_POSITIONS``. It prefers positions in the last
        reports, because a node can download only a snapshot that another node still has. Then it prefers the newest.
        """
        reports = [digests for node, digests in self._told.items() if node != own]
        votes_at = {}
        for position in sorted({position for digests in reports for position in digests} - {BEGINNING}):
            votes = Counter(digests[position] for digests in reports if position in digests).most_common(2)
            if len(votes) == 1 or votes[0][1] > votes[1][1]:
                votes_at[position] = votes[0]
        current = set().union(*(positions for node, positions in self._reported.items() if node != own))
        chosen = sorted(votes_at, key=lambda position: (position in current, position))[-MAX_POSITIONS:]
        return {position: votes_at[position] for position in sorted(chosen)}
