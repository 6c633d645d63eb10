"""What a decoder is to the fuzzer, and what several of them are made of."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crc32c

from liftpy.core.wire import envelope
from tests.fuzz.mutate import message_of

Damage = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Decoder:
    """``call`` gives what the bytes mean, or raises one of ``errors`` and nothing else. ``again``: the bytes of such a meaning, which
    have to mean the same. ``mend``: makes sums and sizes right again, so that damage gets past them. ``make``: damages a sample in a
    way of its own. ``state_s``: memory that it may hold beside what it is given, in bytes."""

    name: str
    samples: Sequence[bytes]
    call: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...] = ()
    again: Callable[[Any], bytes] | None = None
    mend: Callable[[bytes], bytes] | None = None
    make: Damage | None = None
    covers: tuple[str, ...] = ()
    memory_bytes: int = 64 << 20


FOLDER = Path(tempfile.mkdtemp(prefix="liftpy-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
RNG = random.Random(7)
NAMES = ("n1", "n2", "orders", "u1", "orders.*", "0000000000000000")


def messages(of: type[Any], count: int = 12) -> list[Any]:
    return [message_of(RNG, of, NAMES) for _ in range(count)]


def mended(data: bytes) -> bytes:
    """An envelope's sum."""
    if data[:4] == envelope.MAGIC and len(data) > 12 and data[5] == 12 and data[6] & 1:
        return data[:8] + struct.pack(">I", crc32c.crc32c(data[12:])) + data[12:]
    return data


JSONS = (b"Infinity", b"NaN", b"1e999", b"[" * 20_000, b'{"a":' * 20_000, b"9" * 5000, b"null", b"true", b'"x"', b"{}", b"[]")


def damaged_json(rng: random.Random, sample: bytes) -> bytes:
    """One value of a JSON text is another one."""
    places = [i for i, byte in enumerate(sample) if byte in b'0123456789"[{']
    at = rng.choice(places) if places else 0
    end = at + rng.choice((1, 1, 2, 5, len(sample)))
    return sample[:at] + rng.choice(JSONS) + sample[end:]
