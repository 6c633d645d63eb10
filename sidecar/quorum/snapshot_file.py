"""Snapshot file of the metadata group: magic, version, CRC-32C, RaftSnapshot. It is checked completely before use."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import crc32c
from google.protobuf.message import DecodeError

from liftpy.core.metadata.codec import damaged_snapshot
from liftpy.core.metadata.controller_list import ControllerList, well_formed
from liftpy.core.wire._pb import raft_pb2 as pb
from liftpy.errors import CorruptionError, UnknownFormatError
from sidecar.disk.files import replace_file
from sidecar.quorum.codec import MAX_NUMBER, Entry
from sidecar.quorum.journal import GroupJournal

_HEAD = struct.Struct("<4sII")
_MAGIC, _VERSION = b"LFRS", 1
MAX_SNAPSHOT_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """Content of a snapshot file: the state after the entry ``last``.

    ``previous``: the entry before ``last``. ``image``: result of ``ClusterFsm.snapshot()``.
    """

    last: Entry
    previous: Entry
    nodes: tuple[str, ...]
    """Node ids of the voters."""
    image: bytes
    controllers: ControllerList | None = None
    """Controller list at ``last``. None: the list of the settings, which was never changed."""


def encode_snapshot_file(snapshot: SnapshotFile) -> bytes:
    """Return the bytes of a snapshot file with this content."""
    message = pb.RaftSnapshot(nodes=sorted(snapshot.nodes), image=snapshot.image)
    if snapshot.controllers is not None:
        controllers = snapshot.controllers
        message.learner, message.leaving, message.controllersIndex = controllers.learner, controllers.leaving, controllers.index
    for target, (command, index, term) in ((message.last, snapshot.last), (message.previous, snapshot.previous)):
        target.command, target.index, target.term = command, index, term
    body = message.SerializeToString(deterministic=True)
    return _HEAD.pack(_MAGIC, _VERSION, crc32c.crc32c(body)) + body


def decode_snapshot_file(data: bytes) -> SnapshotFile:
    """Decode a snapshot. Raise CorruptionError if it is damaged, UnknownFormatError for another version."""
    if len(data) < _HEAD.size:
        raise damaged_snapshot("it is shorter than its header")
    magic, version, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or crc32c.crc32c(body) != crc:
        raise damaged_snapshot("its checksum does not match")
    if version != _VERSION:
        raise UnknownFormatError(
            f"The metadata snapshot has version {version}, but this version reads {_VERSION}. Start the newer "
            "version of liftpy."
        )
    try:
        message = pb.RaftSnapshot.FromString(body)
    except DecodeError as error:
        raise damaged_snapshot(f"it cannot be decoded: {error}") from None
    last, previous = _entry(message.last), _entry(message.previous)
    if max(last[1:] + previous[1:]) >= MAX_NUMBER or not 0 < previous[1] == last[1] - 1:
        raise damaged_snapshot("its entries are not contiguous")
    return SnapshotFile(last, previous, tuple(message.nodes), message.image, _controllers(message, last[1]))


def _controllers(message: pb.RaftSnapshot, last_index: int) -> ControllerList | None:
    if not message.controllersIndex:
        return None
    controllers = ControllerList(tuple(message.nodes), message.learner, message.leaving, message.controllersIndex)
    if controllers.index > last_index or not well_formed(controllers):
        raise damaged_snapshot(f"its list of controllers is invalid: {controllers.as_text()}")
    return controllers


def _entry(entry: pb.RaftEntry) -> Entry:
    return entry.command, entry.index, entry.term


def write_snapshot_file(path: Path, snapshot: SnapshotFile) -> None:
    """Write the file, flush it and read it back [S16]. The library then renames it and trims the journal.

    Raises OSError. Raises CorruptionError if the content differs after writing.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o640)
    try:
        view = memoryview(encode_snapshot_file(snapshot))
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    file_content = decode_snapshot_file(path.read_bytes())
    if file_content != replace(snapshot, nodes=tuple(sorted(snapshot.nodes))):
        raise CorruptionError(
            "The metadata snapshot differs after the write, so the journal keeps its entries. Check the disk."
        )


def load_snapshot_file(path: Path) -> SnapshotFile:
    """Load the snapshot file, and write it again to be sure that it is on disk.

    This is needed because the journal is about to lose the entries that the snapshot contains [S12].
    """
    data = path.read_bytes()
    snapshot = decode_snapshot_file(data)
    replace_file(path, data)
    return snapshot


def trim_journal(journal: GroupJournal, previous: Entry, last: Entry) -> None:
    """Make the journal begin with the last two entries of a loaded snapshot, ``previous`` and ``last``.

    PySyncObj keeps the journal only if it begins with them. If the last process ended before it trimmed the journal, it does
    not, and PySyncObj would delete the journal.
    """
    for position in range(len(journal) - 1):
        first, second = journal[position], journal[position + 1]
        assert isinstance(first, tuple) and isinstance(second, tuple)  # noqa: PT018
        if first[1:] == previous[1:] and second[1:] == last[1:]:
            journal.deleteEntriesTo(position)
            return
