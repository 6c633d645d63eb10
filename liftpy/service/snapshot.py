"""A service's snapshot as bytes: what the framework has to know, then the application's own bytes; checksummed. Pure.

Layout, little endian::

     0 8s magic "LIFTSNAP"   8 u16 version   10 u16 size of the identity   12 u32 CRC-32C of all bytes from 16 on
    16 u64 position          24 u64 LeaderEpoch of the record before it    32 i64 log time, ns
    40 u64 outputs so far    48 u32 count of timers   52 u32 size of the timers   56 u64 size of the application's bytes
    64 16s digest of the outputs so far, zeros for none
    80 identity (UTF-8: service/stream/uid/partition), timers (i64 time, u16 size, name each), application

All fields are functions of the log alone, so the files of all nodes are equal, byte for byte, where the application's are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

from liftpy.errors import CorruptionError, UnknownFormatError
from liftpy.ids import check_name

MAGIC = b"LIFTSNAP"
VERSION = 2
"""Version 1 had no digest of the outputs, so that nothing could be proven by it: it is not read any more."""
_HEAD = struct.Struct("<8sHHI")
_FIELDS = struct.Struct("<QQqQIIQ16s")
_NO_DIGEST = bytes(16)
_TIMER = struct.Struct("<qH")
HEADER_SIZE_BYTES = _HEAD.size + _FIELDS.size


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
    (``liftpy.service.outbox``), 16 bytes; b"" when there are none.
    """

    identity: Identity
    position: int
    last_epoch: int
    now_ns: int
    output_count: int
    timers: tuple[tuple[int, str], ...]
    state: bytes
    output_digest: bytes = b""

    def encode(self) -> bytes:
        """The bytes of the snapshot's file."""
        identity = str(self.identity).encode()
        names = [(at_ns, name.encode()) for at_ns, name in self.timers]
        timers = b"".join(_TIMER.pack(at_ns, len(name)) + name for at_ns, name in names)
        fields = _FIELDS.pack(
            self.position,
            self.last_epoch,
            self.now_ns,
            self.output_count,
            len(names),
            len(timers),
            len(self.state),
            self.output_digest or _NO_DIGEST,
        )
        body = fields + identity + timers + self.state
        return _HEAD.pack(MAGIC, VERSION, len(identity), crc32c.crc32c(body)) + body


def decode(data: bytes, identity: Identity) -> Snapshot:
    """The snapshot in ``data``; raise UnknownFormatError for a newer version, CorruptionError for anything else but it."""
    if len(data) < HEADER_SIZE_BYTES:
        raise CorruptionError(f"{len(data)} bytes are shorter than a snapshot's header")
    magic, version, identity_size_bytes, crc = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptionError("not a snapshot: the magic bytes are missing")
    body = memoryview(data)[_HEAD.size :]
    if crc32c.crc32c(body) != crc:
        raise CorruptionError("the CRC-32C of the snapshot does not match")
    if version < VERSION:
        raise CorruptionError(f"the snapshot has format version {version}, which is not read any more: the state is replayed")
    if version != VERSION:
        raise UnknownFormatError(f"the snapshot has format version {version}, this version reads {VERSION}")
    position, last_epoch, now_ns, output_count, timer_count, timers_size, state_size, digest = _FIELDS.unpack_from(body)
    rest = bytes(body[_FIELDS.size :])
    if len(rest) != identity_size_bytes + timers_size + state_size:
        raise CorruptionError("the snapshot's parts do not add up to its size")
    whose = rest[:identity_size_bytes].decode(errors="replace")
    if whose != str(identity):
        raise CorruptionError(f"the snapshot is of {whose}, not of {identity}")
    timers = _timers(rest[identity_size_bytes : identity_size_bytes + timers_size], timer_count)
    state = rest[identity_size_bytes + timers_size :]
    return Snapshot(identity, position, last_epoch, now_ns, output_count, timers, state, digest if any(digest) else b"")


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
