"""The corpus: histories of log entries, and for each feature level the digests of what they came to. Read, written, compared.

A digest covers the answers of its block's entries and the image after the last one, so that a decision that comes to something else
on any entry shows within ``BLOCK`` entries: which is a new feature level, never a fix (``liftpy/core/metadata/features.py``).

``entries*.zst``: zstd of, for each history, its length in entries (4 bytes, big endian), then of each entry its size (4) and its bytes.
``level-N.digests``: one line for each history, the digests of its blocks in hex. A history begins with the entry that sets the level,
which is not in the file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

import zstandard

from liftpy.core.metadata.codec import image_to_bytes
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.features import FEATURES, Feature
from liftpy.core.wire._pb import cluster_pb2 as pb

BLOCK = 50
DIGEST_SIZE = 8
FOLDER = Path(__file__).parent
_NUMBER = struct.Struct(">I")
_HEX = 2 * DIGEST_SIZE

History = list[bytes]


ENTRIES = {name: FOLDER / f"{name}.zst" for name in ("entries", "entries-quotas", "entries-times", "entries-damage")}
"""Name -> histories: of all kinds, of quotas, of session times, of damaged logs."""


def path_of(level: int) -> Path:
    """Where the digests of a level lie."""
    return FOLDER / f"level-{level}.digests"


def digests_of(history: History, level: int, features: tuple[Feature, ...] = FEATURES) -> list[bytes]:
    """What the code that runs makes of the entries at the level: one digest for each block."""
    fsm = ClusterFsm(elections=True, features=features)
    digests, answers = [], hashlib.blake2b(digest_size=DIGEST_SIZE)
    for index, entry in enumerate(opening(level) + history, 1):
        answers.update(fsm.apply(entry, index))
        if index % BLOCK == 0 or index == len(history):
            answers.update(image_to_bytes(fsm.image))
            digests.append(answers.digest())
    assert fsm.failure_count == 0
    return digests


def opening(level: int) -> History:
    """The entry that sets the level."""
    rules = pb.ClusterRules(namespace="liftpy", elections=True)
    request = pb.ControlRequest(
        operationId=b"feature level...", timeNs=1, setFeatureLevel=pb.SetFeatureLevel(level=level, rules=rules)
    )
    request.setFeatureLevel.sessionTimes.CopyFrom(pb.SessionTimes(sessionMs=2000, leaseMs=900))
    return [request.SerializeToString()]


def write_entries(histories: list[History], path: Path) -> None:
    """Keep them."""
    parts = []
    for history in histories:
        parts.append(_NUMBER.pack(len(history)))
        parts += [_NUMBER.pack(len(entry)) + entry for entry in history]
    path.write_bytes(zstandard.ZstdCompressor(level=22).compress(b"".join(parts)))


def read_entries() -> Iterator[History]:
    """All histories."""
    for path in ENTRIES.values():
        yield from _read_file(path)


def _read_file(path: Path) -> Iterator[History]:
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
        yield [part(number()) for _ in range(number())]


def record(level: int) -> None:
    """Write what the code that runs makes of them at the level."""
    lines = (b"".join(digests_of(history, level)).hex() for history in read_entries())
    path_of(level).write_text("".join(f"{line}\n" for line in lines))


def differences(level: int) -> list[str]:
    """Where the code that runs comes to something else than what was recorded; of each history the first place."""
    found = []
    recorded = path_of(level).read_text().split()
    for number, (history, line) in enumerate(zip(read_entries(), recorded, strict=True)):
        now = b"".join(digests_of(history, level)).hex()
        wrong = next(
            (at for at in range(0, max(len(now), len(line)), _HEX) if now[at : at + _HEX] != line[at : at + _HEX]), None
        )
        if wrong is not None:
            block = wrong // _HEX
            found.append(f"level {level}, history {number}, entries {block * BLOCK + 1} to {(block + 1) * BLOCK}")
    return found
