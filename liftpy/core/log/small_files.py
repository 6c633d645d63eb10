"""The small files of a partition directory: checkpoints and segment indexes. A torn file counts as missing.

``high-watermark``: high watermark, log start and last stored LeaderEpoch. ``leader-epochs``: the epoch cache of the
last checkpoint. ``compaction-horizon``: see ``compaction_point.py``. ``<base>.index``: the result of scanning a sealed
segment. Format: magic, version, body, CRC-32C. Little endian.

Append journals (``epoch_promises.py``, ``sidecar/quorum/journal.py``) consist of frames, with one checksum and one
flush for several records: u32 CRC-32C of the rest, u32 size of the body, body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import crc32c
import numpy as np

from liftpy.core.log.leader_epochs import NO_EPOCH, EpochCache
from liftpy.core.log.storage import Storage
from liftpy.errors import UnknownFormatError

CHECKPOINT_NAME = "high-watermark"
EPOCHS_NAME = "leader-epochs"
STATE_PREFIX = "state-"
"""Prefix of checkpoints of state that is derived from the log (``liftpy/core/publish/state_file.py``)."""
_VERSION = 1
_HEAD = struct.Struct("<4sI")
_CHECKPOINT = struct.Struct("<qqQ")
_INDEX = struct.Struct("<qqQqqQII")
_EPOCH = struct.Struct("<Qq")
_ENTRY = np.dtype([("base_offset", "<i8"), ("position", "<i8"), ("max_timestamp_ns", "<i8")])
_CRC = struct.Struct("<I")
_FRAME_HEAD = struct.Struct("<II")
_FRAME_SIZE = struct.Struct("<I")
FRAME_HEAD_BYTES = _FRAME_HEAD.size


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The offsets and the epoch of a log in its ``high-watermark`` file.

    ``high_watermark``: inclusive, -1: none. ``log_start_offset``: inclusive. ``persisted_epoch``: LeaderEpoch that the replica
    has promised to follow, 0: none.
    """

    high_watermark: int = -1
    log_start_offset: int = 0
    persisted_epoch: int = 0


class IndexEntry(NamedTuple):
    """An entry of the sparse index: a batch with ``base_offset`` begins at ``position``.

    No record before the batch has a timestamp above the maximum of the entry.
    """

    base_offset: int
    position: int
    max_timestamp_ns: int


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """Content of the index file of a segment. ``next_offset``: exclusive. ``entries``: sparse index, ascending."""

    base_offset: int
    next_offset: int
    size_bytes: int
    first_timestamp_ns: int
    max_timestamp_ns: int
    record_count: int
    epochs: tuple[tuple[int, int], ...]
    entries: tuple[IndexEntry, ...]


def seal_small_file(magic: bytes, body: bytes) -> bytes:
    """Return a small file's bytes: ``magic`` (4 bytes), version, ``body``, CRC."""
    return b"".join(seal_in_pieces(magic, (body,)))


def seal_in_pieces(magic: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the content of a small file in pieces, so that a large ``body`` is never copied as a whole."""
    head = _HEAD.pack(magic, _VERSION)
    crc = crc32c.crc32c(head)
    for piece in body:
        crc = crc32c.crc32c(piece, crc)
    return [head, *body, _CRC.pack(crc)]


def open_small_file(magic: bytes, data: bytes | None) -> bytes | None:
    """Return the body of a small file. None: the file is missing, incomplete or damaged.

    ``magic``: expected first 4 bytes. Raises UnknownFormatError for a valid file of another version [S11].
    """
    if data is None or len(data) < _HEAD.size + _CRC.size:
        return None
    if _CRC.unpack_from(data, len(data) - _CRC.size)[0] != crc32c.crc32c(data[: -_CRC.size]):
        return None
    stored_magic, version = _HEAD.unpack_from(data)
    if stored_magic != magic:
        return None
    if version != _VERSION:
        raise UnknownFormatError(
            f"A file of kind {magic.decode()} has format version {version}, but this version reads {_VERSION}. "
            "Start the newer version of liftpy."
        )
    return data[_HEAD.size : -_CRC.size]


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of the ``high-watermark`` file for ``checkpoint``."""
    return seal_small_file(
        b"LFHW", _CHECKPOINT.pack(checkpoint.high_watermark, checkpoint.log_start_offset, checkpoint.persisted_epoch)
    )


def decode_checkpoint(data: bytes | None) -> Checkpoint | None:
    """Return the checkpoint in ``data``, the content of a ``high-watermark`` file. None: it is missing or damaged."""
    body = open_small_file(b"LFHW", data)
    return Checkpoint(*_CHECKPOINT.unpack(body)) if body is not None and len(body) == _CHECKPOINT.size else None


def encode_epochs(entries: Sequence[tuple[int, int]]) -> bytes:
    """Return the bytes of the ``leader-epochs`` file. ``entries``: (LeaderEpoch, offset of its first record), ascending."""
    return seal_small_file(b"LFEP", b"".join(_EPOCH.pack(*entry) for entry in entries))


def decode_epochs(data: bytes | None) -> tuple[tuple[int, int], ...] | None:
    """Return the entries of a ``leader-epochs`` file. None: the file is missing, damaged or has invalid entries."""
    body = open_small_file(b"LFEP", data)
    return tuple(_EPOCH.iter_unpack(body)) if body is not None and len(body) % _EPOCH.size == 0 else None


def encode_index(summary: SegmentSummary) -> bytes:
    """Return the content of the ``.index`` file of a segment."""
    head = _INDEX.pack(
        summary.base_offset,
        summary.next_offset,
        summary.size_bytes,
        summary.first_timestamp_ns,
        summary.max_timestamp_ns,
        summary.record_count,
        len(summary.epochs),
        len(summary.entries),
    )
    epochs = b"".join(_EPOCH.pack(*entry) for entry in summary.epochs)
    entries = np.array([(e.base_offset, e.position, e.max_timestamp_ns) for e in summary.entries], dtype=_ENTRY)
    return seal_small_file(b"LFIX", head + epochs + entries.tobytes())


def decode_index(data: bytes | None) -> SegmentSummary | None:
    """Return the summary in ``data``, the content of an ``.index`` file. None: it is missing or damaged."""
    body = open_small_file(b"LFIX", data)
    if body is None or len(body) < _INDEX.size:
        return None
    base, next_offset, size_bytes, first_ns, max_ns, record_count, epoch_count, entry_count = _INDEX.unpack_from(body)
    epochs_end = _INDEX.size + epoch_count * _EPOCH.size
    if len(body) != epochs_end + entry_count * _ENTRY.itemsize:
        return None
    epochs = tuple(_EPOCH.iter_unpack(body[_INDEX.size : epochs_end]))
    entries = tuple(IndexEntry(*row) for row in np.frombuffer(body, dtype=_ENTRY, offset=epochs_end).tolist())
    return SegmentSummary(base, next_offset, size_bytes, first_ns, max_ns, record_count, epochs, entries)


class Checkpoints:
    """The two files ``high-watermark`` and ``leader-epochs`` of one log. It writes them only if their content changed.

    ``checkpoint`` and ``epochs`` (bytes of the file, None: missing) are their content when the log was opened.
    """

    __slots__ = ("_checkpoint", "_epochs", "_storage")

    def __init__(self, storage: Storage, checkpoint: Checkpoint, epochs: bytes | None) -> None:
        self._storage = storage
        self._checkpoint = checkpoint
        self._epochs = decode_epochs(epochs) or ()

    @property
    def high_watermark(self) -> int:
        """High watermark in the file, inclusive."""
        return self._checkpoint.high_watermark

    def store(self, checkpoint: Checkpoint) -> None:
        """Store the checkpoint durably in the file ``high-watermark``, if HW or log start have changed.

        If only the promised LeaderEpoch is new, nothing is written, because the journal of promises has it.
        """
        last_checkpoint = self._checkpoint
        if (checkpoint.high_watermark, checkpoint.log_start_offset) != (
            last_checkpoint.high_watermark,
            last_checkpoint.log_start_offset,
        ):
            self._storage.replace(CHECKPOINT_NAME, encode_checkpoint(checkpoint))
            self._checkpoint = checkpoint

    def store_epochs(self, epochs: EpochCache, log_start_offset: int) -> None:
        """Store ``epochs`` durably in the file ``leader-epochs``, if they changed.

        Tools read the file. At a start, the log scans its segments instead. An empty log has nothing to scan, so the file also
        stores the epoch of the record before its start.
        """
        entries = epochs.entries
        if not entries and epochs.before_start:
            entries = ((epochs.before_start, log_start_offset - 1),)
        if entries != self._epochs:
            self._storage.replace(EPOCHS_NAME, encode_epochs(entries))
            self._epochs = entries

    def epoch_below(self, log_start_offset: int) -> int:
        """Return the epoch of the newest record below ``log_start_offset``, 0 if it is not known."""
        return next((epoch for epoch, start in reversed(self._epochs) if start < log_start_offset), NO_EPOCH)


# ---- frames ----------------------------------------------------------------------------------------------------------


def seal_frame(body: bytes) -> bytes:
    """Return the frame that contains ``body``."""
    sized = _FRAME_SIZE.pack(len(body)) + body
    return _FRAME_SIZE.pack(crc32c.crc32c(sized)) + sized


def frame_at(data: bytes | memoryview, position: int) -> memoryview | None:
    """Return the body of the frame at ``position`` of ``data``. None: the frame is incomplete or damaged."""
    start = position + FRAME_HEAD_BYTES
    if start > len(data):
        return None
    crc, size_bytes = _FRAME_HEAD.unpack_from(data, position)
    end = start + size_bytes
    if end > len(data):
        return None
    view = memoryview(data)
    return view[start:end] if crc32c.crc32c(view[position + _FRAME_SIZE.size : end]) == crc else None
