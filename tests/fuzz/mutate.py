"""Ways to spoil bytes and messages: what the fuzzers of decoders and the messages of ``tests.fuzz.subjects`` are made of.

``bytes_of`` spoils any bytes; ``message_of`` makes a protobuf message of a class whose numbers are extreme, and ``spoiled`` changes one
that was valid. All of it follows from the random generator alone.
"""

from __future__ import annotations

import random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor as F
from google.protobuf.message import Message

NUMBERS = (0, 1, 127, 128, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = ("", ".", "*", ">", "a b", "\n", "\x00", "..", "../../x", "café", "x" * 65, "y" * 5000, "_INBOX.z", "\u2028")
_DEPTH = 4
M = TypeVar("M", bound=Message)
_INTEGERS = {
    F.TYPE_INT32: (-(2**31), 2**31 - 1), F.TYPE_SINT32: (-(2**31), 2**31 - 1), F.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    F.TYPE_UINT32: (0, 2**32 - 1), F.TYPE_FIXED32: (0, 2**32 - 1), F.TYPE_ENUM: (-(2**31), 2**31 - 1),
    F.TYPE_INT64: (-(2**63), 2**63 - 1), F.TYPE_SINT64: (-(2**63), 2**63 - 1), F.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    F.TYPE_UINT64: (0, 2**64 - 1), F.TYPE_FIXED64: (0, 2**64 - 1),
}  # fmt: skip


def bytes_of(rng: random.Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """``data`` with one to four changes: bits, bytes, numbers, pieces cut out, doubled, put in from ``others``."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(9):
            case 0 | 1 if found:
                found[at % len(found)] ^= 1 << rng.randrange(8)
            case 2:
                del found[at:]
            case 3:
                del found[at : at + rng.choice((1, 1, 2, 4, 8, 40))]
            case 4:
                found[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 8, 40)))
            case 5:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice((*NUMBERS, rng.getrandbits(64))) % (1 << 8 * size)
                found[at : at + size] = number.to_bytes(size, rng.choice(("big", "little")))
            case 6:
                found[at:at] = found[at : at + rng.choice((1, 8, 100))]
            case 7 if others:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                found[at : at + rng.choice((0, 8, 1 << 20))] = other[start : start + rng.choice((8, 64, 1 << 20))]
            case 8:
                found[at : at + 1] = rng.choice(
                    (b"\xff" * 9 + b"\x01", b"\x00", b"\x80" * 11, b'"', b"{", b"\\", b"-", b"9" * 30)
                )
    return bytes(found)


def number_of(rng: random.Random, kind: int) -> int:
    """A number at an edge of the field's type, or any."""
    low, high = _INTEGERS[kind]
    found = rng.choice((*NUMBERS, *(-n for n in NUMBERS), rng.getrandbits(64), rng.getrandbits(16)))
    return found if low <= found <= high else rng.choice((low, high))


def text_of(rng: random.Random, names: tuple[str, ...] = ()) -> str:
    """A name that is none, or one of ``names``."""
    return rng.choice((*TEXTS, *names))


def _value(rng: random.Random, field: Any, names: tuple[str, ...], depth: int) -> Any:
    match field.type:
        case F.TYPE_MESSAGE:
            return message_of(rng, field.message_type._concrete_class, names, depth - 1)
        case F.TYPE_STRING:
            return text_of(rng, names)
        case F.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 15, 16, 17, 100)))
        case F.TYPE_DOUBLE | F.TYPE_FLOAT:
            return rng.choice((0.0, -1.0, float("inf"), float("-inf"), float("nan"), 5e-324, 1.7e308))
        case F.TYPE_BOOL:
            return rng.random() < 0.5
    return number_of(rng, field.type)


def _fill(rng: random.Random, message: Message, field: Any, names: tuple[str, ...], depth: int) -> None:
    kind = field.message_type
    if kind is not None and depth <= 0:
        return
    count = rng.choice((1, 1, 2, 5)) if field.is_repeated else 1
    if kind is not None and kind.GetOptions().map_entry:
        for _ in range(count):
            key, value = (_value(rng, kind.fields_by_name[n], names, depth) for n in ("key", "value"))
            if isinstance(value, Message):
                getattr(message, field.name)[key].CopyFrom(value)
            else:
                getattr(message, field.name)[key] = value
    elif field.is_repeated:
        getattr(message, field.name).extend(_value(rng, field, names, depth) for _ in range(count))
    elif kind is not None:
        getattr(message, field.name).CopyFrom(_value(rng, field, names, depth))
    else:
        setattr(message, field.name, _value(rng, field, names, depth))


def message_of(rng: random.Random, of: type[M], names: tuple[str, ...] = (), depth: int = _DEPTH) -> M:
    """A message of class ``of`` with about half of its fields set, to values at the edges; texts from ``names`` too."""
    message = of()
    for field in of.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            _fill(rng, message, field, names, depth)
    return message


def spoiled(rng: random.Random, message: M, names: tuple[str, ...] = ()) -> M:
    """A copy with one field, at any depth, set anew."""
    found = type(message)()
    found.CopyFrom(message)
    place: Any = found
    while True:
        within = [v for f, v in place.ListFields() if f.type == F.TYPE_MESSAGE and not f.is_repeated]
        if not within or rng.random() < 0.3:
            break
        place = rng.choice(within)
    fields = place.DESCRIPTOR.fields
    if fields:
        field = rng.choice(fields)
        place.ClearField(field.name)
        _fill(rng, place, field, names, _DEPTH)
    return found
