"""Effects: actions of a service outside its state machine, and records that it offers to its own input. Pure.

A state machine must not do I/O. It can schedule an effect: the LEADER runs ``on_effect`` after the record is committed and
its outputs are written. The LEADER appends the result to the input, with the header ``Lift-Service-Effect:
<service>/<number>``. The first result ends the effect on all nodes. Later ones are ignored. A new LEADER runs effects
without a result again. So a handler runs at least once, and its result counts exactly once. The action must tolerate a
repetition, so it sends ``effect.id`` along.

An offer is an effect without a handler: its payload is the record, and ``on_record`` receives it once.

Example: record 17 schedules effect 3. The LEADER charges the card and dies. The new LEADER charges again under the same id,
and the bank recognizes it. Record 40 says "charged". A late result of the first LEADER, record 41, is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import SERVICE_EFFECT, SERVICE_TICK, Pairs
from liftpy.errors import CorruptionError

MAX_PENDING = 10_000
MAX_PENDING_BYTES = 8 * 1024 * 1024
MAX_NAME_BYTES = 256
_COUNT = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQBHIi")
COUNT_SIZE_BYTES = _COUNT.size
_MAX_DIGITS = 19


def damaged_snapshot(what: str) -> CorruptionError:
    """Return the error for a snapshot that cannot be decoded. ``what``: the part that is wrong, and how."""
    return CorruptionError(f"The snapshot is damaged: {what}. The service uses an older snapshot.")


@dataclass(frozen=True, slots=True)
class Effect:
    """An action outside the state machine, or an offered record.

    Attributes:
        number: Number of the effect among all effects of the service.
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
        self.count = 0
        """Number of effects that were ever added. It is the number of the next effect."""

    def __len__(self) -> int:
        return len(self._effects)

    def __iter__(self) -> Iterator[Effect]:
        return iter(list(self._effects.values()))

    def get(self, number: int) -> Effect | None:
        return self._effects.get(number)

    def has_room(self, count: int, size_bytes: int) -> bool:
        return len(self._effects) + count <= MAX_PENDING and self._size_bytes + size_bytes <= MAX_PENDING_BYTES

    def add(self, name: str, payload: bytes, key: bytes | None, *, is_offer: bool, output_count: int) -> None:
        """Add an effect or an offer, with the next number.

        ``output_count``: number of outputs that must be written before it runs.
        """
        self._add(Effect(self.count, f"{self._source}/{self.count}", name, payload, key, is_offer, output_count))
        self.count += 1

    def _add(self, effect: Effect) -> None:
        self._effects[effect.number] = effect
        self._size_bytes += effect.size_bytes

    def end(self, number: int) -> None:
        effect = self._effects.pop(number, None)
        if effect is not None:
            self._size_bytes -= effect.size_bytes

    def encode(self) -> bytes:
        """Return the effects as bytes for a snapshot, or b"" if there never was an effect.

        Format: u64 number of all effects so far. Then for each effect: u64 number, u64 outputs, u8 offer, u16 name size, u32
        payload size, i32 key size or -1, name, payload, key.
        """
        if not self.count:
            return b""
        parts = [_COUNT.pack(self.count)]
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
                (self.count,) = _COUNT.unpack_from(data)
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
        if self.encode() != data or any(effect.number >= self.count for effect in self):
            raise damaged_snapshot("its list of effects does not match its counts")


def count_in(data: bytes) -> int:
    """Return the number of all effects so far from the beginning of the bytes of ``PendingEffects.encode``. Raises struct.error."""
    return int(_COUNT.unpack_from(data)[0])


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
