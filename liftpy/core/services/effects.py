"""Effects: actions of a service outside its state machine, and records that it offers to its own input. Pure.

A state machine must not do I/O. It can schedule an effect: the LEADER runs ``on_effect`` after the record is committed and
its outputs are written. The LEADER appends the result to the input, with the header ``Lift-Service-Effect:
<service>/<number>``. The first result ends the effect on all nodes. Later ones are ignored. A new LEADER runs effects
without a result again. So a handler runs at least once, and its result counts exactly once. The action must tolerate a
repetition, so it sends ``effect.id`` along.

An offer is an effect without a handler: its payload is the record, and ``on_record`` receives it once.

The number of an effect follows from the record that requested it, and from its content. So it does not depend on other
effects. A replay may lack a record that is skipped, or that an unclean election lost. It then still gives each remaining
effect its number. Earlier versions counted the effects. A record of the log decides which scheme numbers the effects that
are requested after it, as for versions of the service's code. Pending effects keep their numbers.

Example: record 17 schedules effect 3. The LEADER charges the card and dies. The new LEADER charges again under the same id,
and the bank recognizes it. Record 40 says "charged". A late result of the first LEADER, record 41, is ignored.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from liftpy.core.base.ids import check_name
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import SERVICE_EFFECT, SERVICE_TICK, SERVICE_VERSION, Pairs
from liftpy.errors import CorruptionError, LiftError

MAX_PENDING = 10_000
MAX_PENDING_BYTES = 8 * 1024 * 1024
MAX_NAME_BYTES = 256
_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQBHIi")
COUNT_SIZE_BYTES = _COUNT.size
_MAX_DIGITS = 19
_BY_RECORD = 1 << 63
"""Flag of the stored count: effects are numbered by their records. It is above all numbers, as earlier versions require."""
_BY_COUNT_AGAIN = 1 << 62
"""Flag of the stored count: effects are counted again. It keeps these numbers above those of records."""
_COUNT_MASK = _BY_COUNT_AGAIN - 1
_OFFSET_BITS = 40
_DIGEST_BITS = 22
_CONTENT = struct.Struct("<QIBIIIi")


class EffectNumbering(Enum):
    """How the effects of a service get their numbers. The value is the text in the header of the decision."""

    BY_COUNT = "effects-by-count"
    BY_RECORD = "effects-by-record"


@dataclass(frozen=True, slots=True)
class NumberingDecision:
    """Decision of a service to number later effects by ``numbering``. ``leader_epoch``: LeaderEpoch of the deciding service."""

    service: str
    numbering: EffectNumbering
    leader_epoch: int

    def headers(self) -> Pairs:
        return ((SERVICE_VERSION, f"{self.service}/{self.numbering.value}/{self.leader_epoch}".encode()),)


def decided_numbering(record: Record, service: str) -> EffectNumbering | None:
    """Return the numbering of effects that ``record`` activates for ``service``. None: the record is no valid decision."""
    for name, value in record.headers:
        if name != SERVICE_VERSION:
            continue
        try:
            whose, text, epoch = value.decode().split("/")
            check_name(whose, "service")
            numbering, leader_epoch = EffectNumbering(text), int(epoch)
        except (ValueError, LiftError):
            return None
        return numbering if whose == service and leader_epoch == record.leader_epoch else None
    return None


@dataclass(frozen=True, slots=True)
class EffectCause:
    """The part of a service's work that requested an effect: ``on_record``, or a timer that fired before the record.

    ``offset``, ``leader_epoch``: those of the record. ``timer``: name of the timer, '' for ``on_record``.
    """

    offset: int
    leader_epoch: int
    timer: str = ""


def damaged_snapshot(what: str) -> CorruptionError:
    """Return the error for a snapshot that cannot be decoded. ``what``: the part that is wrong, and how."""
    return CorruptionError(f"The snapshot is damaged: {what}. The service uses an older snapshot.")


@dataclass(frozen=True, slots=True)
class Effect:
    """An action outside the state machine, or an offered record.

    Attributes:
        number: Number that no other pending effect of the service has.
        id: Unique id. It stays the same if the effect runs again.
        name: Name that the service gave it.
        payload: Bytes that the service gave it.
        key: Key of an offered record.
        is_offer: True for an offered record.
        output_count: Number of outputs that must be written before it runs.
    """

    number: int
    id: str
    name: str
    payload: bytes
    key: bytes | None = None
    is_offer: bool = False
    output_count: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the effect in a snapshot, in bytes."""
        return _ENTRY.size + len(self.name.encode()) + len(self.payload) + len(self.key or b"")


class PendingEffects:
    """Effects of a service that have no result yet, in order.

    ``source``: prefix of each effect id (service, stream uid, partition).
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._effects: dict[int, Effect] = {}
        self._size_bytes = 0
        self._stored_count = 0
        """Number of effects so far, with the flag of the numbering. Without ``_BY_RECORD``, it is the number of the next effect."""
        self._last_offset = -1
        """Offset of the last record that requested effects."""
        self._used_numbers: set[int] = set()
        """Numbers of the effects that the last record has requested."""

    @property
    def count(self) -> int:
        """Number of effects that were ever added."""
        return self._stored_count & _COUNT_MASK

    @property
    def numbering(self) -> EffectNumbering:
        """Numbering of the effects that are added now."""
        return EffectNumbering.BY_RECORD if self._stored_count & _BY_RECORD else EffectNumbering.BY_COUNT

    def change_numbering(self, numbering: EffectNumbering) -> None:
        """Number the effects that are added from now on by ``numbering``. Pending effects keep their numbers."""
        if numbering is not self.numbering:
            flag = _BY_RECORD if numbering is EffectNumbering.BY_RECORD else _BY_COUNT_AGAIN
            self._stored_count = flag | self.count

    def __len__(self) -> int:
        return len(self._effects)

    def __iter__(self) -> Iterator[Effect]:
        return iter(list(self._effects.values()))

    def get(self, number: int) -> Effect | None:
        return self._effects.get(number)

    def has_room(self, count: int, size_bytes: int) -> bool:
        return len(self._effects) + count <= MAX_PENDING and self._size_bytes + size_bytes <= MAX_PENDING_BYTES

    def add(
        self, name: str, payload: bytes, key: bytes | None, cause: EffectCause, *, is_offer: bool, output_count: int
    ) -> None:
        """Add an effect or an offer that ``cause`` has requested.

        ``output_count``: number of outputs that must be written before it runs.
        """
        number = self._stored_count
        if self.numbering is EffectNumbering.BY_RECORD:
            number = self._number_by_record(name, payload, key, cause, is_offer=is_offer)
        self._add(Effect(number, f"{self._source}/{number}", name, payload, key, is_offer, output_count))
        self._stored_count += 1

    def _number_by_record(self, name: str, payload: bytes, key: bytes | None, cause: EffectCause, *, is_offer: bool) -> int:
        """Return a number for an effect: bits of the offset of its record, then bits of a digest.

        If the same record has requested an equal effect, or one with an equal digest, the digest is made again with a higher
        repetition.
        """
        if cause.offset != self._last_offset:
            self._last_offset = cause.offset
            self._used_numbers.clear()
        repetition = 0
        timer, name_bytes, key_size = cause.timer.encode(), name.encode(), -1 if key is None else len(key)
        while True:
            sizes = (len(timer), len(name_bytes), len(payload), key_size)
            head = _CONTENT.pack(cause.leader_epoch, repetition, is_offer, *sizes)
            content = b"".join((head, timer, name_bytes, payload, key or b""))
            digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
            place = cause.offset & (1 << _OFFSET_BITS) - 1
            number = place << _DIGEST_BITS | digest & (1 << _DIGEST_BITS) - 1
            if number not in self._used_numbers and number not in self._effects:
                self._used_numbers.add(number)
                return number
            repetition += 1

    def _add(self, effect: Effect) -> None:
        self._effects[effect.number] = effect
        self._size_bytes += effect.size_bytes

    def end(self, number: int) -> None:
        effect = self._effects.pop(number, None)
        if effect is not None:
            self._size_bytes -= effect.size_bytes

    def encode(self) -> bytes:
        """Return the effects as bytes for a snapshot, or b"" if there never was an effect.

        Format: u64 number of all effects so far, with the flag of the numbering. Then for each effect: u64 number, u64 outputs,
        u8 offer, u16 name size, u32 payload size, i32 key size or -1, name, payload, key.
        """
        if not self._stored_count:
            return b""
        parts = [_COUNT.pack(self._stored_count)]
        for effect in self._effects.values():
            name, key = effect.name.encode(), effect.key
            sizes = (len(name), len(effect.payload), -1 if key is None else len(key))
            parts += (
                _ENTRY.pack(effect.number, effect.output_count, effect.is_offer, *sizes),
                name,
                effect.payload,
                key or b"",
            )
        return b"".join(parts)

    def load(self, data: bytes) -> None:
        """Load the bytes of ``encode``. Raises CorruptionError if they are invalid."""
        try:
            if data:
                (self._stored_count,) = _COUNT.unpack_from(data)
            place = _COUNT.size
            while place < len(data):
                number, outputs, offer, name_size, payload_size, key_size = _ENTRY.unpack_from(data, place)
                place += _ENTRY.size
                ends = (
                    place + name_size,
                    place + name_size + payload_size,
                    place + name_size + payload_size + max(0, key_size),
                )
                name, payload, key = data[place : ends[0]], data[ends[0] : ends[1]], data[ends[1] : ends[2]]
                place = ends[2]
                effect_entry = Effect(
                    number,
                    f"{self._source}/{number}",
                    name.decode(),
                    payload,
                    None if key_size < 0 else key,
                    offer == 1,
                    outputs,
                )
                self._add(effect_entry)
        except (struct.error, UnicodeDecodeError):
            raise damaged_snapshot("its list of effects cannot be decoded") from None
        if self.encode() != data or any(effect.number >= self._stored_count for effect in self):
            raise damaged_snapshot("its list of effects does not match its counts")


def count_in(data: bytes) -> int:
    """Return the number of all effects so far from the beginning of the bytes of ``PendingEffects.encode``. Raises struct.error."""
    return int(_COUNT.unpack_from(data)[0]) & _COUNT_MASK


def result_headers(service: str, number: int) -> Pairs:
    """Return the headers of a record with the result of an effect, or of an offered record."""
    return ((SERVICE_EFFECT, f"{service}/{number}".encode()),)


def effect_of(record: Record, service: str) -> int | None:
    """Return the number of the effect of ``service`` whose result is in ``record``.

    -1: it is the result of another service, or cannot be decoded. None: the record is no result of an effect.
    """
    for name, value in record.headers:
        if name == SERVICE_EFFECT:
            whose, _, number = value.decode(errors="replace").rpartition("/")
            known = whose == service and number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS
            return int(number) if known else -1
    return None


def tick_headers(service: str) -> Pairs:
    """Return the headers of a tick, an empty record that only advances the log time of ``service``."""
    return ((SERVICE_TICK, service.encode()),)


def is_tick(record: Record) -> bool:
    """Return whether the record is a tick, which only advances the log time. ``on_record`` does not get such a record."""
    return any(name == SERVICE_TICK for name, _ in record.headers)
