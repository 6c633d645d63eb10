"""What is wrong with a file of a backup: a pure look at its bytes. Whatever is found names the file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from liftpy.backup.manifest import Manifest, StoredFile, StoredPiece
from liftpy.backup.planning import chained
from liftpy.errors import CorruptionError
from liftpy.wire.batch import RecordBatch, split_batches


def missing_files(manifest: Manifest, sizes: Mapping[str, int]) -> list[str]:
    """What is not there, or of another size, in words; ``sizes``: of all that is there, by path."""
    return [
        f"{path}: it is missing" if path not in sizes else f"{path}: it has {sizes[path]} bytes, not {file.size_bytes}"
        for path, file in sorted(manifest.files.items())
        if sizes.get(path) != file.size_bytes
    ]


def check_file(file: StoredFile, data: bytes) -> None:
    """Raise CorruptionError unless ``data`` is what was written there."""
    if len(data) != file.size_bytes:
        raise CorruptionError(f"{file.path}: it has {len(data)} bytes, not {file.size_bytes}")
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise CorruptionError(f"{file.path}: its SHA-256 is not that of the manifest")


def checked_batches(piece: StoredPiece, data: bytes, before: str, last_epoch: int = 0) -> list[RecordBatch]:
    """The batches of a piece, after the chain ``before`` and a record of ``last_epoch``. Raises CorruptionError: other bytes than
    were written, a batch with a wrong CRC, an order that no log has, another chain."""
    path = piece.file.path
    check_file(piece.file, data)
    try:
        batches = split_batches(data)
    except CorruptionError as error:
        raise CorruptionError(f"{path}: {error}") from None
    chain, position, epoch = bytes.fromhex(before), piece.start, last_epoch
    for batch in batches:
        if batch.base_offset < position or batch.leader_epoch < epoch:
            raise CorruptionError(
                f"{path}: the batch at {batch.base_offset}, LeaderEpoch {batch.leader_epoch}, follows on nothing"
            )
        chain, position, epoch = chained(chain, batch), batch.next_offset, batch.leader_epoch
    if (position, epoch, chain.hex()) != (piece.end, piece.last_epoch, piece.chain):
        raise CorruptionError(f"{path}: it ends at {position}, LeaderEpoch {epoch}, with another chain than the manifest says")
    return batches
