"""Effects: what a service wants done in the world outside, and records that it offers to its own input. Pure.

Goal: a state machine may do no I/O, and its state may depend on nothing but its log; yet it has to charge a card, and to know what came
of it. Constraint: who does it may die before, while and after it is done; nobody can do it exactly once but the world itself.

Algorithm: an effect is part of the state from the record that asked for it until the record that brings its result (``Pending``). The
LEADER runs the handler (``on_effect``) once the record is committed and its outputs are written, and appends what it returns to the
input, with the header ``Lift-Service-Effect: <service>/<number>``. The first such record ends the effect, on all nodes alike
(``on_effect_result``); later ones, of a LEADER that was slow, mean nothing. A new LEADER runs again what has no result. So a handler
runs at least once, its result counts exactly once; what it does outside has to bear a second time (send ``effect.id`` along, it is
always the same).

An offer is an effect without a handler: its payload is the record itself, and ``on_record`` gets it, once.

Worked example: record 17 asks for effect 3. The LEADER charges the card and dies. Its successor charges again, under the same id, which
the bank knows; record 40 says "charged". A late record of the first LEADER, 41, is passed over.
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
_MAX_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Effect:
    """``number``: its place among all effects of the service; ``id``: the same over any rerun, nobody else's. ``key``: an offer's.
    ``output_count``: outputs that have to be written before it is run."""

    number: int
    id: str
    name: str
    payload: bytes
    key: bytes | None = None
    is_offer: bool = False
    output_count: int = 0

    @property
    def size_bytes(self) -> int:
        """What it takes in a snapshot."""
        return _ENTRY.size + len(self.name.encode()) + len(self.payload) + len(self.key or b"")


class Pending:
    """The effects without a result, in order. ``source``: service, stream uid and partition, as they stand in every id."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._effects: dict[int, Effect] = {}
        self._size_bytes = 0
        self.count = 0
        """Effects so far: the number of the next one."""

    def __len__(self) -> int:
        return len(self._effects)

    def __iter__(self) -> Iterator[Effect]:
        return iter(list(self._effects.values()))

    def get(self, number: int) -> Effect | None:
        """None: it has its result, or never was."""
        return self._effects.get(number)

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Whether so many more, with so many bytes of payload, are within the bounds."""
        return len(self._effects) + count <= MAX_PENDING and self._size_bytes + size_bytes <= MAX_PENDING_BYTES

    def add(self, name: str, payload: bytes, key: bytes | None, *, is_offer: bool, output_count: int) -> None:
        """One more."""
        self._put(Effect(self.count, f"{self._source}/{self.count}", name, payload, key, is_offer, output_count))
        self.count += 1

    def _put(self, effect: Effect) -> None:
        self._effects[effect.number] = effect
        self._size_bytes += effect.size_bytes

    def end(self, number: int) -> None:
        """It has its result."""
        effect = self._effects.pop(number, None)
        if effect is not None:
            self._size_bytes -= effect.size_bytes

    def encode(self) -> bytes:
        """For a snapshot: u64 count, then (u64 number, u64 outputs, u8 offer, u16 size of the name, u32 of the payload, i32 of the
        key or -1, name, payload, key) each. b"" where there never was one."""
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
        """What ``encode`` wrote; raise CorruptionError for anything else."""
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
                found = Effect(
                    number,
                    f"{self._source}/{number}",
                    name.decode(),
                    payload,
                    None if key_size < 0 else key,
                    offer == 1,
                    outputs,
                )
                self._put(found)
        except (struct.error, UnicodeDecodeError):
            raise CorruptionError(
                "The snapshot is damaged: its list of effects cannot be decoded. The service uses an older snapshot."
            ) from None
        if self.encode() != data or any(effect.number >= self.count for effect in self):
            raise CorruptionError(
                "The snapshot is damaged: its list of effects does not match its counts. The service uses an older snapshot."
            )


def result_headers(service: str, number: int) -> Pairs:
    """Of the record that brings an effect's result, or of an offered record."""
    return ((SERVICE_EFFECT, f"{service}/{number}".encode()),)


def effect_of(record: Record, service: str) -> int | None:
    """Number of the effect of ``service`` that ``record`` ends; -1: it is another service's, or can't be read; None: no result."""
    for name, value in record.headers:
        if name == SERVICE_EFFECT:
            whose, _, number = value.decode(errors="replace").rpartition("/")
            known = whose == service and number.isascii() and number.isdigit() and len(number) <= _MAX_DIGITS
            return int(number) if known else -1
    return None


def tick_headers(service: str) -> Pairs:
    """Of a record that only lets log time go on."""
    return ((SERVICE_TICK, service.encode()),)


def is_tick(record: Record) -> bool:
    """Whether no ``on_record`` sees it."""
    return any(name == SERVICE_TICK for name, _ in record.headers)
