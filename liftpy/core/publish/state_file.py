"""State files ``state-<offset>``: checkpoints of message ids, producers and subjects. A restart replays only the log after
them.

A file may be missing, damaged, outdated or from another directory. The log is authoritative: a file that does not
provably match it is ignored and deleted. A file covers the log below ``end_offset``, at most the high watermark + 1. It
names the partition and the LeaderEpoch of its last record. Two logs with equal epochs at an offset are equal up to this
offset [D5]. One CRC covers the file. The newest matching file is used.

Producers and message ids must survive the deletion of their records [A16]. So records are deleted only after a state
that covers them is durable (``state_writer.py``). A copy whose log begins above 0 first receives the state of its
leader (``state_transfer.py``).

Format, little endian::

    magic "LFDS", version, u16 size and the partition's name, i64 end_offset, u64 LeaderEpoch, u32 number of parts
    each part: u16 size and its name, u32 version, u64 size and its bytes
    CRC-32C

Unknown parts are skipped. The part ``losses`` exists only if message ids or producers were dropped for lack of memory
(``log_state.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.log.small_files import STATE_PREFIX, open_small_file, seal_in_pieces
from liftpy.core.log.storage import Storage
from liftpy.core.wire.batch import parse_header
from liftpy.errors import CorruptionError, LiftError, StorageError, UnknownFormatError

MAX_STATE_BYTES = 512 * 1024 * 1024
"""Maximum size of a state file in bytes. A larger state is not written."""
_MAGIC = b"LFDS"
_SIZE = struct.Struct("<H")
_HEAD = struct.Struct("<qQI")
_PART = struct.Struct("<IQ")

Parts = Mapping[str, tuple[int, bytes]]
"""Name -> (version, bytes)."""


class State(NamedTuple):
    """Content of a state file, which covers the log below ``end_offset`` (exclusive).

    ``leader_epoch``: LeaderEpoch of the record before ``end_offset``.
    """

    owner: str
    end_offset: int
    leader_epoch: int
    parts: Parts


class StateCapture(NamedTuple):
    """State that is captured in memory and not written to a file yet. Any thread may call ``write``.

    ``parts``: name of a part -> (version, function that returns its bytes).
    """

    owner: str
    end_offset: int
    leader_epoch: int
    parts: Mapping[str, tuple[int, Callable[[], Sequence[bytes]]]]

    def write(self, storage: Storage) -> int:
        """Write the state file durably, read it back, and remove the other state files [S16].

        Returns:
            Size of the file in bytes. 0: it is too large and was not stored.

        Raises:
            StorageError: The disk failed, or the file can't be read back. The other files are unchanged.
        """
        parts = {name: (version, encode()) for name, (version, encode) in self.parts.items()}
        pieces = _pieces(self.owner, self.end_offset, self.leader_epoch, parts)
        size_bytes = sum(map(len, pieces))
        if size_bytes > MAX_STATE_BYTES:
            return 0
        name = state_name(self.end_offset)
        storage.replace(name, pieces)
        written = State(
            self.owner, self.end_offset, self.leader_epoch, {n: (v, b"".join(data)) for n, (v, data) in parts.items()}
        )
        if decode_state(storage.load(name)) != written:
            storage.remove(name)
            raise StorageError(
                f"State file {name} differs after the write and is removed. The node rebuilds it from the log. Check the disk."
            )
        remove_states(storage, keep=name)
        return size_bytes


def state_owner(key: PartitionKey) -> str:
    """Return the name of the partition ``key`` in state files. It contains the uid of the stream."""
    return f"{key.stream}-{key.uid}/{key.partition}"


def state_name(end_offset: int) -> str:
    """Return the name of the state file for the log below ``end_offset``."""
    return f"{STATE_PREFIX}{end_offset:020d}"


def encode_state(state: State) -> bytes:
    """Return the bytes of the state file for ``state``."""
    parts = {name: (version, (data,)) for name, (version, data) in state.parts.items()}
    return b"".join(_pieces(state.owner, state.end_offset, state.leader_epoch, parts))


def encode_parts(unwritten: StateCapture) -> bytes:
    """Return the bytes of the state file for ``unwritten``. Any thread may call it."""
    parts = {name: (version, encode()) for name, (version, encode) in unwritten.parts.items()}
    return b"".join(_pieces(unwritten.owner, unwritten.end_offset, unwritten.leader_epoch, parts))


def _pieces(owner: str, end_offset: int, leader_epoch: int, parts: Mapping[str, tuple[int, Sequence[bytes]]]) -> list[bytes]:
    pieces = [_text(owner), _HEAD.pack(end_offset, leader_epoch, len(parts))]
    for name, (version, data) in parts.items():
        pieces += [_text(name), _PART.pack(version, sum(map(len, data))), *data]
    return seal_in_pieces(_MAGIC, pieces)


def _text(text: str) -> bytes:
    data = text.encode()
    return _SIZE.pack(len(data)) + data


def decode_state(data: bytes | None) -> State | None:
    """Decode a state file. Return None if it is missing, incomplete or damaged.

    Raises UnknownFormatError for another version [S11].
    """
    body = open_small_file(_MAGIC, data)
    if body is None:
        return None
    try:
        owner, at = _text_at(body, 0)
        end_offset, leader_epoch, count = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        parts: dict[str, tuple[int, bytes]] = {}
        for _ in range(count):
            name, at = _text_at(body, at)
            version, size_bytes = _PART.unpack_from(body, at)
            at += _PART.size
            if name in parts or size_bytes > len(body) - at:
                return None
            parts[name] = version, body[at : at + size_bytes]
            at += size_bytes
    except (struct.error, UnicodeDecodeError):
        return None
    return State(owner, end_offset, leader_epoch, parts) if at == len(body) else None


def is_whole_state(data: bytes) -> bool:
    """Return whether ``data`` is a complete state file of any version."""
    try:
        return decode_state(data) is not None
    except UnknownFormatError:
        return True


def _text_at(body: bytes, at: int) -> tuple[str, int]:
    (size_bytes,) = _SIZE.unpack_from(body, at)
    end = at + _SIZE.size + size_bytes
    return body[at + _SIZE.size : end].decode(), end


def epoch_before(log: Log, end_offset: int) -> int:
    """Return the LeaderEpoch of the record before ``end_offset``, even if retention has deleted the record. 0: not known."""
    below = end_offset <= log.log_start_offset
    return log.epochs.before_start if below else log.epochs.epoch_at(end_offset - 1)


def why_not(state: State, name: str, owner: str, log: Log) -> str:
    """Return why the state file ``name`` with the content ``state`` does not fit the log of the partition ``owner``.

    '': it fits the log, or will when the log has grown.
    """
    end_offset = state.end_offset
    if state.owner != owner or state_name(end_offset) != name:
        return f"it is of {state.owner} at {end_offset}"
    if end_offset < max(log.log_start_offset, 1):
        return f"the log is {log.log_start_offset}..{log.log_end_offset}"
    if end_offset > log.log_end_offset:
        return ""
    if end_offset > log.log_start_offset and epoch_before(log, end_offset) != state.leader_epoch:
        return f"the record before it is of epoch {epoch_before(log, end_offset)}, not {state.leader_epoch}"
    if end_offset < log.log_end_offset:
        chunks = log.read(end_offset, 1, end_offset=log.log_end_offset).chunks
        # of a filler, only the part from this offset on is sent
        if not chunks or parse_header(chunks[0]).base_offset != end_offset:
            return "no batch begins there"
    return ""


def load_state(log: Log, owner: str) -> tuple[State | None, dict[str, str]]:
    """Return the newest state file that fits ``log``, and file name -> reason for each file that does not fit.

    The function deletes these and older files. It may run in any thread while no other code uses the log. Raises StorageError.
    ``owner``: name of the partition.
    """
    storage, unfit = log.storage, dict[str, str]()
    for name in sorted(state_names(storage), reverse=True):
        try:
            state = decode_state(storage.load(name))
            why = "it is torn or damaged" if state is None else why_not(state, name, owner, log)
        except (UnknownFormatError, CorruptionError) as error:
            state, why = None, str(error)
        if state is not None and not why:
            remove_states(storage, keep=name)
            return state, unfit
        unfit[name] = why
    remove_states(storage)
    return None, unfit


def state_names(storage: Storage) -> list[str]:
    """Return the names of all state files in the directory of a partition."""
    return [name for name in storage.names() if name.startswith(STATE_PREFIX) and not name.endswith(".tmp")]


def remove_states(storage: Storage, *, keep: str = "") -> None:
    """Remove all state files except ``keep`` ('': none is kept). A file that cannot be removed now is removed later."""
    with suppress(LiftError):
        obsolete_names = [name for name in state_names(storage) if name != keep]
        for name in obsolete_names:
            storage.remove(name)
        if obsolete_names:
            storage.sync_folder()
