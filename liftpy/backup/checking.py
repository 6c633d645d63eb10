"""What is wrong with a file of a backup: a pure look at its bytes. Whatever is found names the file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping

from liftpy.backup.manifest import Manifest, StateCopy, StoredFile, StoredPiece
from liftpy.backup.planning import chained
from liftpy.errors import CorruptionError
from liftpy.ids import PartitionKey
from liftpy.ingest.producers import Producers, distance
from liftpy.ingest.state_file import State, decode_state, state_owner
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


def checked_state(copy: StateCopy, data: bytes, of: PartitionKey | None = None) -> State:
    """Return the producers and message ids in ``data``. Raises CorruptionError: other bytes than were written, or of something else
    than of the partition ``of``; UnknownFormatError: of a newer version."""
    check_file(copy.file, data)
    state = decode_state(data)
    if state is None or state.end_offset != copy.end or (of is not None and state.of != state_owner(of)):
        raise CorruptionError(f"{copy.file.path}: it is not the state of {of or 'a partition'} at {copy.end}")
    return state


def why_other_producers(kept: State, served: bytes) -> str:
    """Why a replica whose state is ``served`` does not know the producers of ``kept``, from which it was restored; '': it does.

    The replica has read on in its log since, so a producer may have gone on. It may have expired if time has passed in the log.
    """
    state = decode_state(served)
    if state is None:
        return "its state of producers can't be read"
    before, now = (_producers(one) for one in (kept, state))
    for producer_id in before.producer_ids:
        was, known = before.state_of(producer_id), now.state_of(producer_id)
        assert was is not None
        if known is None and now.time_ns > before.time_ns:
            continue
        if known is None or distance(known.next_sequence, was.next_sequence) < 0:
            next_sequence = 0 if known is None else known.next_sequence
            return f"producer {was.name or producer_id} goes on at sequence {next_sequence}, not {was.next_sequence}"
    return ""


def _producers(state: State) -> Producers:
    producers = Producers(0, sys.maxsize)
    version, data = state.parts.get(producers.name, (producers.version, None))
    if version == producers.version and data is not None:
        producers.restore(data, state.end_offset)
    return producers


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
