"""The journal of the metadata group. Every entry, term and vote is on disk before another member can learn of it [M2, M4].

Changes collect in memory until ``sync``, which writes one frame with a checksum and flushes it. So at most the last
frame can be incomplete. The frames are those of ``liftpy/core/log/small_files.py``. Little endian::

    record   u8 kind   u64 a   u64 b   u32 n   n bytes
             ENTRY: a index, b term, command   CUT: drop entries from index a on   META: a term, b commit index, vote

The file is rewritten at its opening, and when a snapshot replaces its first entries: temporary file, flush, rename,
flush of the directory [M8, S12, S4]. After a failed write or flush nothing more is written [S13]. A bad frame before a
good one is damage. Then the journal does not open, because a controller that lost entries must not vote.

Promises of LeaderEpochs have their own journal, because a promise can wait for room on a full disk, and a failed
``sync`` of this journal is final.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from liftpy.core.base.instruments import Histogram
from liftpy.core.log.small_files import FRAME_HEAD_BYTES, frame_at, seal_frame
from liftpy.core.metadata.controller_list import ControllerList, list_of
from liftpy.errors import CorruptionError, StorageError, UnknownFormatError
from sidecar.disk.files import replace_file, sync_folder
from sidecar.quorum.codec import MAX_NUMBER, Entry

_MAGIC = b"LFRJ\x01\x00\x00\x00"
_RECORD = struct.Struct("<BQQI")
_ENTRY, _CUT, _META = 1, 2, 3
_NEW_FRAME_BYTES = 8 << 20
"""Approximate size of one frame in a rewritten file, in bytes."""
_APPEND_BYTES = 256 << 20
"""Maximum size of changes that are appended, in bytes. For larger changes, the journal rewrites the file."""
MAX_SPENT_BYTES = 4 << 20
"""Maximum number of unused bytes in the file, after which the journal rewrites it.

Unused bytes are replaced terms and commit indexes, and truncated entries. A group without requests writes 3 MB of them a day.
"""
CHANGE = b"\x02"
"""First byte of commands that change the controllers. The library defines the value."""


class GroupJournal:
    """Journal of the metadata group, which the Raft library writes.

    ``sync`` raises StorageError if the disk fails. After that, the process must not continue.
    """

    def __init__(self, path: Path, *, flush: bool = True, times: Histogram | None = None) -> None:
        self._path = path
        self._times = times or Histogram()
        self._flush = flush
        self._entries: list[Entry] = []
        self.changes: list[Entry] = []
        """Entries that change the members of the group, in log order."""
        self.changed: Callable[[], None] = lambda: None
        """Callback after ``changes`` has changed, before any other use of the journal."""
        self.entry_bytes = 0
        """Total size of all stored entries, in bytes."""
        self.file_bytes = 0
        """Size of the file in bytes, without changes that wait for the next ``sync``."""
        self.flushed_index = 0
        """Index up to which all entries are on disk."""
        self._pending: list[bytes] = []
        self._rewrite = True
        self._meta_changed = False
        self._term, self._vote, self._commit = 0, "", 1
        self._flushed_commit = 1
        """Commit index of the last frame on disk."""
        self._descriptor = -1
        self._closed = False
        self._failed = False
        """True if a write or flush has failed. Then the journal does not touch the file anymore."""
        if self._load():
            self.sync()

    # ---- the library's interface ---------------------------------------------------------------------------------------
    def add(self, command: bytes, idx: int, term: int) -> None:
        self._entries.append((command, idx, term))
        self.entry_bytes += _RECORD.size + len(command)
        self._pending.append(_RECORD.pack(_ENTRY, idx, term, len(command)) + command)
        if command[:1] == CHANGE:
            self.changes.append((command, idx, term))
            self.changed()

    def clear(self) -> None:
        """Drop all entries, because a snapshot replaces them."""
        self._entries, self.changes = [], []
        self.entry_bytes = self.flushed_index = 0
        self._rewrite = True
        self.changed()

    def deleteEntriesFrom(self, position: int) -> None:
        """Remove the entries from list position ``position`` on, because they conflict with the leader's log."""
        if position < len(self._entries):
            self._pending.append(_RECORD.pack(_CUT, self._entries[position][1], 0, 0))
            self.flushed_index = min(self.flushed_index, self._entries[position][1] - 1)
            self.entry_bytes -= _size_bytes(self._entries[position:])
            del self._entries[position:]
            self._changes_from(self.last_index + 1)

    def deleteEntriesTo(self, position: int) -> None:
        """Remove the entries before list position ``position``, because a snapshot contains them."""
        if position:
            self.entry_bytes -= _size_bytes(self._entries[:position])
            del self._entries[:position]
            self._rewrite = True
            first = self._entries[0][1] if self._entries else MAX_NUMBER
            self.changes = [change for change in self.changes if change[1] >= first]  # a snapshot holds the others

    def _changes_from(self, index: int) -> None:
        """Forget the controller changes at entry ``index`` and later, because these entries are removed."""
        if self.changes and self.changes[-1][1] >= index:
            self.changes = [change for change in self.changes if change[1] < index]
            self.changed()

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def setRaftCommitIndex(self, index: int) -> None:
        """Set the commit index, which the next ``sync`` stores. A restart uses the stored value only as a hint."""
        self._commit = index

    def getRaftCommitIndex(self) -> int:
        """Return the stored commit index, limited to the last entry [M9]."""
        return min(self._commit, self._entries[-1][1]) if self._entries else 1

    def setCurrentTerm(self, term: int, vote: str | None) -> None:
        """Set the Raft term and the vote in it. They are on disk before any message that shows them is sent [M2]."""
        self._term, self._vote, self._meta_changed = term, vote or "", True

    def getCurrentTerm(self) -> int:
        return self._term

    def forget_promises(self) -> None:
        """Reset the stored term to that of the last entry, and the stored vote to none.

        The caller knows that no message contained a later term or a vote.
        """
        self.setCurrentTerm(self._entries[-1][2] if self._entries else 0, None)

    def getVotedForNodeId(self) -> str | None:
        return self._vote or None

    def onOneSecondTimer(self) -> None:
        """Store a changed commit index from time to time, which shortens the replay after a restart. The library calls it."""
        self._meta_changed |= self._commit != self._flushed_commit

    def _destroy(self) -> None:
        self.close()

    # ---- disk ----------------------------------------------------------------------------------------------------------
    @property
    def last_index(self) -> int:
        """Index of the last entry. 0: there are no entries."""
        return self._entries[-1][1] if self._entries else 0

    @property
    def last_term(self) -> int:
        """Term of the last entry. 0: there are no entries."""
        return self._entries[-1][2] if self._entries else 0

    def sync(self) -> None:
        """Flush all changes to disk.

        Raise StorageError on failure. After a failure, every call raises it until the process restarts.
        """
        if self._failed:
            raise StorageError(f"Cannot write {self._path}: an earlier write failed. Check the disk, then restart the node.")
        self._failed = True
        try:
            spent = self.file_bytes - self.entry_bytes > MAX_SPENT_BYTES
            if self._rewrite or spent or sum(map(len, self._pending)) > _APPEND_BYTES:
                self._rewrite_file()
            elif self._pending or self._meta_changed:
                self._append_frame()
        except OSError as error:
            raise StorageError(
                f"Cannot write {self._path}: {error.strerror}. Check the disk, then restart the node."
            ) from error
        self._failed = False

    def _append_frame(self) -> None:
        frame = seal_frame(b"".join([*self._pending, self._meta()]))
        written = os.write(self._descriptor, frame)
        if written != len(frame):
            raise StorageError(
                f"Short write to {self._path}: {written} of {len(frame)} bytes. Check whether the disk is full, then "
                "restart the node."
            )
        if self._flush:
            began = time.monotonic()
            os.fdatasync(self._descriptor)
            self._times.observe(time.monotonic() - began)
        self.file_bytes += len(frame)
        self._after_write()

    def _rewrite_file(self) -> None:
        sync_folder(self._path.parent)  # the entries that go may be in a snapshot whose name is not durable yet
        self.file_bytes = 0
        replace_file(self._path, self._content())
        self._close_descriptor()
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._rewrite = False
        self._after_write()

    def _content(self) -> Iterator[bytes]:
        for piece in self._pieces():
            self.file_bytes += len(piece)
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        yield _MAGIC
        records: list[bytes] = []
        size = 0
        for command, index, term in self._entries:
            records.append(_RECORD.pack(_ENTRY, index, term, len(command)) + command)
            size += len(records[-1])
            if size > _NEW_FRAME_BYTES:
                yield seal_frame(b"".join(records))
                records, size = [], 0
        yield seal_frame(b"".join([*records, self._meta()]))

    def _after_write(self) -> None:
        self._pending, self._meta_changed, self.flushed_index = [], False, self.last_index
        self._flushed_commit = self._commit

    def _meta(self) -> bytes:
        vote = self._vote.encode()
        return _RECORD.pack(_META, self._term, self._commit, len(vote)) + vote

    def close(self) -> None:
        """Flush and close the file. Further calls do nothing.

        Raise StorageError if the flush fails. The file is closed in any case. After an earlier failed flush, nothing is
        flushed.
        """
        if not self._closed:
            try:
                if not self._failed:
                    self.sync()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close the file without a flush, as if the process had been killed."""
        self._closed = True
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    # ---- opening -------------------------------------------------------------------------------------------------------
    def _load(self) -> bool:
        """Read the journal file. Return False if it is missing or has no complete frame."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageError(f"Cannot read {self._path}: {error.strerror}. Check the disk and its permissions.") from error
        if not data:
            return False
        if data[: len(_MAGIC)] != _MAGIC:
            if data[:4] == _MAGIC[:4] and len(data) >= len(_MAGIC):
                raise UnknownFormatError(
                    f"{self._path} has another format version than this version of liftpy. Start the version that wrote it."
                )
            raise CorruptionError(f"{self._path} is not a journal of the metadata group. Check --data.")
        position = len(_MAGIC)
        while (records := _frame_at(data, position)) is not None:
            self._replay_frame(records, position)
            position += FRAME_HEAD_BYTES + len(records)
        if position < len(data) and _frame_behind(data, position):
            raise self._damage(position)
        return True

    def _damage(self, position: int, what: str = "") -> CorruptionError:
        return CorruptionError(
            f"{self._path} is damaged at position {position}{what}. This controller may have lost entries and "
            f"must not vote. If a majority of the controllers runs without this node, delete {self._path.parent} "
            "and start the node under the same id. Otherwise follow docs/runbooks/controllers-lost.md."
        )

    def _replay_frame(self, records: memoryview, position: int) -> None:
        try:
            for record in _records(records):
                self._replay(*record)
        except (ValueError, struct.error) as error:  # UnicodeDecodeError is a ValueError
            raise self._damage(position, f" ({error})") from None

    def _replay(self, kind: int, a: int, b: int, body: bytes) -> None:
        if a >= MAX_NUMBER or b >= MAX_NUMBER:
            raise ValueError(f"{a} or {b} is not a term or an index")
        if kind == _META:
            self._term, self._commit, self._vote = a, b, body.decode()
            self._flushed_commit = b
        elif kind in (_ENTRY, _CUT):
            while self._entries and self._entries[-1][1] >= a:
                self.entry_bytes -= _size_bytes([self._entries.pop()])
            self._changes_from(a)
            if kind == _ENTRY:
                self._add_loaded(body, a, b)
        else:
            raise ValueError(f"unknown kind of record {kind}")

    def _add_loaded(self, command: bytes, index: int, term: int) -> None:
        if not command or not index or (self._entries and index != self._entries[-1][1] + 1):
            raise ValueError(f"entry {index} is empty or does not follow the one before it")
        self._entries.append((command, index, term))
        self.entry_bytes += _RECORD.size + len(command)
        if command[:1] == CHANGE:
            self.changes.append((command, index, term))


def _size_bytes(entries: list[Entry]) -> int:
    return sum(_RECORD.size + len(command) for command, _, _ in entries)


def _frame_at(data: bytes, position: int) -> memoryview | None:
    """Return the records of the journal frame at ``position`` of ``data``. None: there is no valid frame."""
    return frame_at(data, position) or None  # every frame of this journal has records


def _frame_behind(data: bytes, fault: int) -> bool:
    """Return whether a valid journal frame begins in ``data`` after the damage at position ``fault``."""
    return any(_frame_at(data, position) is not None for position in range(fault + 1, len(data) - FRAME_HEAD_BYTES + 1))


def _records(view: memoryview) -> Iterator[tuple[int, int, int, bytes]]:
    position = 0
    while position < len(view):
        kind, a, b, size = _RECORD.unpack_from(view, position)
        position += _RECORD.size
        if position + size > len(view):
            raise ValueError("a record is longer than its frame")
        yield kind, a, b, bytes(view[position : position + size])
        position += size


def change_in(command: bytes, index: int) -> ControllerList | None:
    """Return the controller list that the journal entry ``command`` with this index sets. None: it sets none."""
    return list_of(bytes(command[1:]), index) if command[:1] == CHANGE else None


@dataclass(slots=True)
class LogControllers:
    """Computes the controller list of one controller from its log. The list decides its majorities [M10].

    The newest change in the journal counts, committed or not. Otherwise the snapshot counts, otherwise the settings. A
    truncation of the journal takes changes back. A node that joins a running group starts with the committed list of the feed.

    ``first``: list in the settings. ``in_snapshot``: list at the last entry of the snapshot.
    """

    first: ControllerList
    in_snapshot: ControllerList | None = None

    def newest(self, changes: list[Entry]) -> ControllerList:
        return self.at(None, changes)

    def at(self, index: int | None, changes: list[Entry]) -> ControllerList:
        """Return the controller list that applied when the log ended with ``index``. None: now.

        ``changes``: membership changes in the journal, in order.
        """
        in_entries = [change for command, at, _ in changes if (change := change_in(command, at)) is not None]
        known = [self.first, *([self.in_snapshot] if self.in_snapshot is not None else []), *in_entries]
        if index is not None:
            known = [one for one in known if one.index <= index]
        return max(known, key=lambda one: one.index, default=ControllerList(self.first.voters))
