"""The corpus of a feature level: histories of log entries, and a digest for each block of them. Read, written, held against the code.

A digest covers the answers of its block's entries and the image after the last one, so that a decision that comes to something else on
any entry shows within ``BLOCK`` entries: which is a new feature level, never a fix (``liftpy/cluster/features.py``).

File: zstd of, for each history, its length in entries (4 bytes, big endian), then of each entry its size (4) and its bytes, then one
digest (8) for each block, the last one included however short it is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

import zstandard

from liftpy.cluster.codec import image_to_bytes
from liftpy.cluster.fsm import ClusterFsm

BLOCK = 50
DIGEST_SIZE = 8
FOLDER = Path(__file__).parent
_NUMBER = struct.Struct(">I")

History = list[bytes]


def path_of(level: int) -> Path:
    """Where the corpus of a level lies."""
    return FOLDER / f"level-{level}.zst"


def digests_of(history: History) -> list[bytes]:
    """What the code that runs makes of the entries: one digest for each block."""
    fsm = ClusterFsm(elections=True)
    digests, answers = [], hashlib.blake2b(digest_size=DIGEST_SIZE)
    for index, entry in enumerate(history, 1):
        answers.update(fsm.apply(entry, index))
        if index % BLOCK == 0 or index == len(history):
            answers.update(image_to_bytes(fsm.image))
            digests.append(answers.digest())
    return digests


def write(path: Path, histories: list[History]) -> None:
    """Record what the code that runs makes of them."""
    parts = []
    for history in histories:
        parts.append(_NUMBER.pack(len(history)))
        parts += [_NUMBER.pack(len(entry)) + entry for entry in history]
        parts += digests_of(history)
    path.write_bytes(zstandard.ZstdCompressor(level=22).compress(b"".join(parts)))


def read(path: Path) -> Iterator[tuple[History, list[bytes]]]:
    """The histories, and the digests that were recorded with them."""
    data = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=1 << 26)
    position = 0

    def number() -> int:
        nonlocal position
        position += _NUMBER.size
        return int(_NUMBER.unpack_from(data, position - _NUMBER.size)[0])

    def part(size: int) -> bytes:
        nonlocal position
        position += size
        return data[position - size : position]

    while position < len(data):
        history = [part(number()) for _ in range(number())]
        yield history, [part(DIGEST_SIZE) for _ in range(-(-len(history) // BLOCK))]


def differences(path: Path) -> list[str]:
    """Where the code that runs comes to something else than what was recorded; of each history the first place."""
    found = []
    for number, (history, recorded) in enumerate(read(path)):
        now = digests_of(history)
        for block, (was, is_now) in enumerate(zip(recorded, now, strict=True)):
            if was != is_now:
                found.append(f"history {number}, entries {block * BLOCK + 1} to {min((block + 1) * BLOCK, len(history))}")
                break
    return found
