"""Which pieces of an earlier backup a new one keeps, and which files of a store nobody names any more. Pure.

Worked example: a backup had orders/0 in two full pieces [0, 900) and [900, 1700) and the tail [1700, 1800). Retention has moved the
log start to 950, HW is 2499. The new one keeps [900, 1700), goes on with the chain at its end, and reads [1700, 2500).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from liftpy.backup.manifest import CHAIN_BYTES, Manifest, PartitionCopy, StoredPiece, writer_of
from liftpy.wire.batch import RecordBatch

PIECE_BYTES = 64 * 1024 * 1024
"""A piece is full, and never written again, once it has so many bytes."""


def chained(chain: bytes, batch: RecordBatch) -> bytes:
    """The chain behind one more batch."""
    digest = hashlib.blake2b(chain, digest_size=CHAIN_BYTES)
    digest.update(batch.view)
    return digest.digest()


def kept_pieces(
    before: PartitionCopy | None, start: int, high_watermark: int, piece_bytes: int
) -> tuple[str, tuple[StoredPiece, ...]]:
    """(the chain before the first piece kept, the pieces) of a partition that now begins at ``start`` and is committed up to
    ``high_watermark`` (inclusive): full ones, as many as follow on each other; none of what retention has dropped as a whole."""
    if before is None:
        return PartitionCopy(partition=0, start=0, high_watermark=-1).before, ()
    chain, kept = before.before, []
    for piece in before.pieces:
        if piece.file.size_bytes < piece_bytes or piece.end > high_watermark + 1:
            break
        if piece.end <= start:
            chain = piece.chain
        else:
            kept.append(piece)
    return chain, tuple(kept)


def doomed_backups(ids: Iterable[str], keep: int) -> tuple[str, ...]:
    """All but the newest ``keep``; an id begins with its time."""
    ordered = sorted(ids)
    return tuple(ordered[: max(0, len(ordered) - keep)])


def unnamed_pieces(pieces: Mapping[str, int], manifests: Sequence[Manifest], unfinished: Iterable[str]) -> tuple[str, ...]:
    """Paths of the ``pieces`` (with sizes) that no manifest names and no unfinished backup has written; nothing that is no piece."""
    named = {path for manifest in manifests for path in manifest.files}
    spared = set(unfinished)
    return tuple(sorted(path for path in pieces if path not in named and (writer := writer_of(path)) and writer not in spared))
