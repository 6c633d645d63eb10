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
    """Optional parts of a snapshot. They are present only if the service uses the feature."""

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
    """Owner of a snapshot: a service over one partition of a stream.

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
    """Function that makes ``state``, which is empty until then. None: ``state`` is complete."""

    def section(self, kind: Section) -> bytes:
        """Return the bytes of a section. b"": there is none.

        Args:
            kind: Kind of the section.
        """
        return dict(self.sections).get(kind, b"")

    def whole(self) -> Snapshot:
        """Return the snapshot with its state. Raises ServiceFailedError."""
        return self if self.make is None else replace(self, state=self.make(), make=None)

    def encode(self) -> bytes:
        """Return the bytes of the snapshot file."""
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
        raise CorruptionError(
            f"The snapshot is damaged: {len(data)} bytes are less than a header. The service uses an older snapshot."
        )
    magic, version, identity_size_bytes, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError(
            "The file is not a snapshot: it does not start with the magic bytes. The service uses an older snapshot."
        )
    body = memoryview(data)[_HEAD.size :]
    if crc32c.crc32c(body) != crc:
        raise CorruptionError("The snapshot is damaged: its CRC-32C does not match. The service uses an older snapshot.")
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
        raise CorruptionError("The snapshot is damaged: it ends inside its header. The service uses an older snapshot.")
    fields = layout.unpack_from(body)
    position, last_epoch, now_ns, output_count, timer_count, timers_size, state_size, digest = fields[:8]
    skip_count, skips_size, sections_size = (*fields[8:], 0)[:3]
    rest = bytes(body[layout.size :])
    if len(rest) != identity_size_bytes + timers_size + skips_size + sections_size + state_size:
        raise CorruptionError(
            "The snapshot is damaged: the sizes of its parts do not match its total size. The service uses an older snapshot."
        )
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
            raise CorruptionError(
                "The snapshot is damaged: its sections cannot be decoded. The service uses an older snapshot."
            ) from None
        if kind not in list(Section):
            raise UnknownFormatError(
                f"The snapshot has a section of kind {kind}, which a newer version wrote. Start the newer version of liftpy."
            )
        place += _SECTION.size + size_bytes
        if not size_bytes or place > len(data) or kind in sections:
            raise CorruptionError(
                "The snapshot is damaged: the sizes of its sections do not match. The service uses an older snapshot."
            )
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
        raise CorruptionError(
            "The snapshot is damaged: its timers cannot be decoded. The service uses an older snapshot."
        ) from None
    if len(timers) != count or place != len(data):
        raise CorruptionError(
            "The snapshot is damaged: its timers do not match their counts. The service uses an older snapshot."
        )
    return tuple(timers)
