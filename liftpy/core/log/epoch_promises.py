"""The journal of promised LeaderEpochs: one file for all partitions of a node.

A candidate must store its epoch before it acts [protocol: Promotion]. With one file, an election of thousands of partitions
needs a few flushes.

Format, little endian: magic ``LFPJ`` and version, then frames (``seal_frame`` in ``small_files.py``). A frame has for each promise the
LeaderEpoch, the length of the key, and the key. Reading stops at the first damaged frame. No node has acted on the
promises after it, because their flush had not completed.

``store`` returns when the frame is flushed. Opening rewrites the file atomically with one promise per partition, because
pages after a failed flush are not trusted [S4]. A failed flush is final: this process makes no more promises. After a full
disk, and when it has grown to ``_GROWTH`` times its size, the file is also rewritten.

The metadata group has its own journal, because damage before a good frame must stop a controller, and not only end
the reading.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from liftpy.core.log.small_files import FRAME_HEAD_BYTES, frame_at, seal_frame
from liftpy.core.log.storage import LogFile, Storage
from liftpy.errors import NoSpaceError, StorageError, UnknownFormatError

PROMISES_NAME = "promises"
_MAGIC = b"LFPJ"
_VERSION = 1
_HEAD = struct.Struct("<4sI")
_PROMISE = struct.Struct("<QH")
_LEAST_BYTES = 64 * 1024
_GROWTH = 4


def encode_promises(promises: Mapping[str, int]) -> bytes:
    """Return ``promises`` (key of a partition -> LeaderEpoch) as one frame of the journal."""
    keys = [(key.encode(), epoch) for key, epoch in promises.items()]
    return seal_frame(b"".join(_PROMISE.pack(epoch, len(key)) + key for key, epoch in keys))


def decode_promises(data: bytes | None) -> dict[str, int]:
    """Return key of a partition -> highest promised LeaderEpoch, from the content of a journal.

    Reading stops at the first damaged frame. Raises UnknownFormatError for a journal of another version [S11].
    """
    epochs: dict[str, int] = {}
    if data is None or len(data) < _HEAD.size:
        return epochs
    magic, version = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return epochs
    if version != _VERSION:
        raise UnknownFormatError(
            f"The file promises (LeaderEpochs that this node must not go below) has format version {version}, "
            f"but this version reads {_VERSION}. Start the newer version of liftpy."
        )
    position = _HEAD.size
    while (body := frame_at(data, position)) is not None and _add_promises(bytes(body), epochs):
        position += FRAME_HEAD_BYTES + len(body)
    return epochs


def _add_promises(body: bytes, held: dict[str, int]) -> bool:
    """Add the promises in the ``body`` of a frame to ``held`` (key -> LeaderEpoch). Return False, and add nothing, if it is invalid."""
    entries: list[tuple[str, int]] = []
    position = 0
    try:
        while position < len(body):
            epoch, length = _PROMISE.unpack_from(body, position)
            position += _PROMISE.size + length
            entries.append((body[position - length : position].decode(), epoch))
    except (struct.error, UnicodeDecodeError):
        return False
    if position != len(body):
        return False
    for key, epoch in entries:
        held[key] = max(epoch, held.get(key, 0))
    return True


class PromiseJournal:
    """Journal of the LeaderEpochs that this node has promised, in its own directory.

    One thread at a time calls ``store``, any thread calls ``epoch_of``. The constructor raises StorageError,
    UnknownFormatError.

    Args:
        storage: Directory of the journal.
        is_held: Returns whether the partition of a key is on this node. The journal drops promises of other partitions.
        others: Promises from other journals of this node (key -> LeaderEpoch). The new journal includes them.
    """

    def __init__(
        self, storage: Storage, is_held: Callable[[str], bool] = lambda key: True, others: Mapping[str, int] | None = None
    ) -> None:
        self._storage = storage
        names = storage.names()
        for name in names:
            if name.endswith(".tmp"):
                storage.remove(name)
        epochs = decode_promises(storage.load(PROMISES_NAME) if PROMISES_NAME in names else None)
        for key, epoch in (others or {}).items():
            epochs[key] = max(epoch, epochs.get(key, 0))
        self._promises = {key: epoch for key, epoch in epochs.items() if is_held(key)}
        self._file: LogFile | None = None
        """The open file. None: the file must be rewritten before anything can be appended."""
        self._bound_bytes = 0
        self._failed = ""
        try:
            self._rewrite_file()
        except NoSpaceError:
            pass  # `store` fails until the disk has room again

    @property
    def is_written(self) -> bool:
        return self._file is not None

    def epoch_of(self, key: str) -> int:
        return self._promises.get(key, 0)

    def store(self, promises: Mapping[str, int]) -> None:
        """Make ``promises`` (key -> LeaderEpoch) durable, all with one flush.

        Raises NoSpaceError, StorageError. After an error the caller must not act on any of them.
        """
        if self._failed:
            raise StorageError(
                "Cannot write the file promises (LeaderEpochs that this node must not go below), because an "
                f"earlier write failed: {self._failed}. Check the disk, then restart the node."
            )
        more = {key: epoch for key, epoch in promises.items() if epoch > self._promises.get(key, 0)}
        if not more:
            return
        frame = encode_promises(more)
        try:
            if self._file is None or self._file.size_bytes + len(frame) > self._bound_bytes:
                self._rewrite_file(more)
            else:
                self._file.append([frame])
                self._file.sync()
        except NoSpaceError:
            self.close()  # after a failed flush, no frame may follow in this file. The next call writes another file
            raise
        except StorageError as error:
            self._failed = str(error)
            raise
        self._promises |= more

    def _rewrite_file(self, more: Mapping[str, int] | None = None) -> None:
        epochs = self._promises | dict(more or {})
        data = _HEAD.pack(_MAGIC, _VERSION) + encode_promises(epochs)
        if decode_promises(data) != epochs:
            raise StorageError(
                "The file promises (LeaderEpochs that this node must not go below) differs after the write, so "
                "the old file remains. Check the disk."
            )  # [S16]
        self.close()
        self._storage.replace(PROMISES_NAME, data)
        self._file = self._storage.open(PROMISES_NAME)
        self._bound_bytes = max(len(data) * _GROWTH, _LEAST_BYTES)

    def forget(self, key: str) -> None:
        """Remove the promise for the partition ``key``, which this node no longer has. The next rewrite of the file omits it."""
        self._promises.pop(key, None)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
