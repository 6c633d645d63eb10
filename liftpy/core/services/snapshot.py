"""A service's snapshot as bytes: what the framework has to know, then the application's own bytes; checksummed. Pure.

Layout, little endian::

     0 8s magic "LIFTSNAP"   8 u16 version   10 u16 size of the identity   12 u32 CRC-32C of all bytes from 16 on
    16 u64 position          24 u64 LeaderEpoch of the record before it    32 i64 log time, ns
    40 u64 outputs so far    48 u32 count of timers   52 u32 size of the timers   56 u64 size of the application's bytes
    64 16s digest of the outputs so far, zeros for none
    80 u32 count of skips    84 u32 size of the skips
    88 identity (UTF-8: service/stream/uid/partition), timers (i64 time, u16 size, name each), skips (i64 offset, u16 size, name of
       the timer each: what was passed over below the position, the newest of it), application

Version 4 is version 3 with sections, which stand before the application's bytes; what has no sections is written as version 3::

    88 u32 size of the sections, identity, timers, skips, sections (u16 kind, u32 size, bytes each), application

A file has each kind of section at most once. The order of the kinds is the writer's and means nothing to a reader. All nodes use one
order, because they compare the bytes: PARAMETERS, EFFECTS, ANSWERS, VERSION.

All fields are functions of the log alone, so the files of all nodes are equal, byte for byte, where the application's are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

import crc32c

from liftpy.core.base.ids import check_name
from liftpy.core.services.bad_records import Unit
from liftpy.core.services.effects import Pending
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


class Section(IntEnum):
    """What the framework keeps beside timers and skips: only where a service uses it, so that other services' files are as before."""

    PARAMETERS = 1
    """Digest of what the service is made with (``liftpy.core.services.rules``)."""
    ANSWERS = 2
    """What commands of known message ids were answered (``liftpy.core.services.replies``)."""
    EFFECTS = 3
    """Effects and offers without a result (``liftpy.core.services.effects``)."""
    VERSION = 4
    """The active version of the service (``liftpy.core.services.versions``)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose state it is: a service over one partition of one incarnation of a stream."""

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
    """The state of a service after every record below ``position``.

    ``last_epoch``: LeaderEpoch of the last record applied: with ``position`` it names the log's prefix [D5]; 0: none.
    ``now_ns``: log time. ``output_count``: outputs so far. ``timers``: (time, name), in order. ``output_digest``: of those outputs
    (``liftpy.core.services.outbox``), 16 bytes; b"" when there are none. ``skips``: what was passed over so far
    (``liftpy.core.services.bad_records``). ``sections``: (kind, bytes), each kind at most once, none of them empty.
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
    """Makes ``state``, which is empty until then; None: it is there."""

    def section(self, kind: Section) -> bytes:
        """Its bytes, b"" where there are none."""
        return dict(self.sections).get(kind, b"")

    def whole(self) -> Snapshot:
        """The same with its state. Raises ServiceFailedError."""
        return self if self.make is None else replace(self, state=self.make(), make=None)

    def encode(self) -> bytes:
        """The bytes of the snapshot's file."""
        if self.make is not None:
            return self.whole().encode()
        identity = str(self.identity).encode()
        timers = _named(self.timers)
        skips = _named((unit.offset, unit.timer) for unit in self.skips)
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
    """Read the snapshot in ``data``, with the contents of its sections: a service can begin with what this returns.

    Raises:
        UnknownFormatError: A newer version wrote it.
        CorruptionError: It is no snapshot of ``identity``, or damaged.
    """
    if len(data) < HEADER_SIZE_BYTES:
        raise CorruptionError(f"{len(data)} bytes are shorter than a snapshot's header")
    magic, version, identity_size_bytes, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError("not a snapshot: the magic bytes are missing")
    body = memoryview(data)[_HEAD.size :]
    if crc32c.crc32c(body) != crc:
        raise CorruptionError("the CRC-32C of the snapshot does not match")
    if version < _WITHOUT_SECTIONS:
        raise CorruptionError(f"the snapshot has format version {version}, which is not read any more: the state is replayed")
    if version > VERSION:
        raise UnknownFormatError(f"the snapshot has format version {version}, this version reads {VERSION}")
    layout = _FIELDS if version == VERSION else _FIELDS_3
    if len(body) < layout.size or (version == VERSION and not layout.unpack_from(body)[-1]):
        raise CorruptionError("the snapshot ends within its header")
    fields = layout.unpack_from(body)
    position, last_epoch, now_ns, output_count, timer_count, timers_size, state_size, digest = fields[:8]
    skip_count, skips_size, sections_size = (*fields[8:], 0)[:3]
    rest = bytes(body[layout.size :])
    if len(rest) != identity_size_bytes + timers_size + skips_size + sections_size + state_size:
        raise CorruptionError("the snapshot's parts do not add up to its size")
    whose = rest[:identity_size_bytes].decode(errors="replace")
    if whose != str(identity):
        raise CorruptionError(f"the snapshot is of {whose}, not of {identity}")
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


def _named(entries: Iterable[tuple[int, str]]) -> bytes:
    names = [(number, name.encode()) for number, name in entries]
    return b"".join(_TIMER.pack(number, len(name)) + name for number, name in names)


def _sections(data: bytes) -> tuple[tuple[Section, bytes], ...]:
    sections: dict[Section, bytes] = {}
    place = 0
    while place < len(data):
        try:
            kind, size_bytes = _SECTION.unpack_from(data, place)
        except struct.error:
            raise CorruptionError("the snapshot's sections can't be read") from None
        if kind not in list(Section):
            raise UnknownFormatError(f"the snapshot holds a section of kind {kind}, which a newer version has written")
        place += _SECTION.size + size_bytes
        if not size_bytes or place > len(data) or kind in sections:
            raise CorruptionError("the snapshot's sections do not add up")
        sections[Section(kind)] = data[place - size_bytes : place]
    decode_answers(sections.get(Section.ANSWERS, b""))
    Pending("").load(sections.get(Section.EFFECTS, b""))
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
        raise CorruptionError("the snapshot's timers can't be read") from None
    if len(timers) != count or place != len(data):
        raise CorruptionError("the snapshot's timers do not add up")
    return tuple(timers)
