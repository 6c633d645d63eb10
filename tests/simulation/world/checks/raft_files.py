"""Reads the raft directory of a controller as its documents describe the files, and says what is wrong with it.

The parser of the journal is written from the description of the format, without the code that writes it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crc32c

from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import CorruptionError
from sidecar.disk.files import decode_checked_json
from sidecar.quorum.library import is_applied
from sidecar.quorum.snapshot_file import SnapshotFile, decode_snapshot_file

_MAGIC = b"LFRJ\x01\x00\x00\x00"
_FRAME = struct.Struct("<II")
"""CRC-32C of the rest, size of the body in bytes."""
_RECORD = struct.Struct("<BQQI")
"""Kind, two numbers, size of the body in bytes."""
_ENTRY, _CUT, _META = 1, 2, 3
_MOST_SPENT_BYTES = 4 << 20
"""Maximum number of bytes in a journal that hold no present entry."""
_MOST_NONCES = 64 + 9
"""Maximum number of nonces of earlier processes: those that are kept, and those that other controllers know."""
_FILES = {"journal", "snapshot", "member", "lineage", "rescued"}


class _WrongJournalError(Exception):
    """The journal differs from its description."""


@dataclass(slots=True)
class Journal:
    """Content of a journal.

    Attributes:
        entries: Index of an entry -> (term, command).
        term: Term of the controller.
        vote: Member for which it has voted in this term, '' for none.
        commit_index: Index up to which it knows that entries are committed.
    """

    entries: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    term: int = 0
    vote: str = ""
    commit_index: int = 0

    @property
    def last_index(self) -> int:
        """Index of the last entry, 0 without entries."""
        return max(self.entries, default=0)

    @property
    def entry_bytes(self) -> int:
        """Size of the records of all entries, in bytes."""
        return sum(_RECORD.size + len(command) for _, command in self.entries.values())


def read_journal(data: bytes) -> Journal:
    """Read the bytes of a journal. Raise an error if they are not as described."""
    if not data.startswith(_MAGIC):
        raise _WrongJournalError(f"it begins with {data[: len(_MAGIC)]!r}")
    journal, at = Journal(), len(_MAGIC)
    while at < len(data):
        crc, size_bytes = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + size_bytes
        if end > len(data) or crc32c.crc32c(data[at + 4 : end]) != crc:
            raise _WrongJournalError(f"the frame at {at} is damaged")
        _read_records(journal, data[at + _FRAME.size : end])
        at = end
    return journal


def _read_records(journal: Journal, records: bytes) -> None:
    at = 0
    while at < len(records):
        kind, a, b, size_bytes = _RECORD.unpack_from(records, at)
        body = records[at + _RECORD.size : at + _RECORD.size + size_bytes]
        at += _RECORD.size + size_bytes
        if kind == _META:
            if a < journal.term:
                raise _WrongJournalError(f"the term {a} follows {journal.term}")
            journal.term, journal.commit_index, journal.vote = a, b, body.decode()
        elif kind in (_ENTRY, _CUT):
            for index in [index for index in journal.entries if index >= a]:
                del journal.entries[index]
            if kind == _ENTRY:
                if journal.entries and a != journal.last_index + 1:
                    raise _WrongJournalError(f"entry {a} follows {journal.last_index}")
                journal.entries[a] = b, body
        else:
            raise _WrongJournalError(f"a record has the kind {kind}")


def wrong_raft_directory(raft: Path, node: str, image: ClusterImage) -> list[str]:
    """Return what is wrong with the raft directory of a controller that has stopped cleanly with ``image``."""
    found = {path.name for path in raft.iterdir()}
    wrong = [f"raft/ has {name}" for name in sorted(found - _FILES)]
    wrong += [f"raft/ lacks {name}" for name in ("journal", "lineage") if name not in found]
    if wrong:
        return wrong
    if "member" in found and (text := (raft / "member").read_text()) != f"{node}\n":
        wrong.append(f"raft/member names {text!r}")
    wrong += _wrong_lineage(raft / "lineage", node)
    data = (raft / "journal").read_bytes()
    try:
        journal = read_journal(data)
        snapshot = decode_snapshot_file((raft / "snapshot").read_bytes()) if "snapshot" in found else None
    except (_WrongJournalError, CorruptionError, struct.error, UnicodeDecodeError) as error:
        return [*wrong, f"raft/journal or raft/snapshot: {error}"]
    wrong += _wrong_numbers(journal)
    spent_bytes = len(data) - journal.entry_bytes
    if spent_bytes > _MOST_SPENT_BYTES + _FRAME.size:
        wrong.append(f"raft/journal has {spent_bytes} bytes without an entry")
    if snapshot is not None:
        wrong += _wrong_beginning(journal, snapshot)
    elif min(journal.entries, default=1) > 1:
        wrong.append(f"raft/journal begins with entry {min(journal.entries)}, and there is no snapshot")
    return wrong or _wrong_replay(journal, snapshot, image)


def wrong_running_directory(raft: Path, sizes: dict[str, Any], *, term: int, commit_index: int, vote: str) -> list[str]:
    """Return what the raft directory of a controller that runs contains differently from its memory.

    Args:
        raft: The directory.
        sizes: Sizes of the metadata log that the controller reports.
        term: Raft term of the group.
        commit_index: Index of the last committed entry.
        vote: Member for which the controller has voted in this term. '': unknown.
    """
    try:
        journal = read_journal((raft / "journal").read_bytes())
    except (_WrongJournalError, struct.error, UnicodeDecodeError) as error:
        return [f"raft/journal: {error}"]
    wrong = []
    found, known = (len(journal.entries), journal.entry_bytes), (sizes["journal_entries"], sizes["journal_bytes"])
    if found != known:
        wrong.append(f"raft/journal has (entries, bytes of entries) {found}, and the controller holds {known}")
    if journal.term != term or (vote and journal.vote != vote):
        wrong.append(f"raft/journal has the term {journal.term} and a vote for {journal.vote!r}, expected {term} and {vote!r}")
    if journal.commit_index != commit_index:
        wrong.append(f"raft/journal knows that {journal.commit_index} is committed, and the group has committed {commit_index}")
    return wrong


def wrong_nonces(folders: dict[str, Path]) -> list[str]:
    """Return which controllers of a quiet group do not know the newest process of another one. ``folders``: raft directories."""
    lineages = {node: decode_checked_json((raft / "lineage").read_bytes()) for node, raft in folders.items()}
    wrong = [f"raft/lineage of {node} misses {fields['missed']}" for node, fields in lineages.items() if fields["missed"]]
    for node, fields in lineages.items():
        for peer, other in lineages.items():
            pair = fields["known"].get(peer), other["known_as"].get(node)
            if peer != node and pair != (other["nonce"], other["nonce"]):
                wrong.append(
                    f"raft/lineage of {node} and {peer}: {peer} is known by the nonces {pair}, and has {other['nonce']}"
                )
    return wrong


def _wrong_lineage(path: Path, node: str) -> list[str]:
    fields = decode_checked_json(path.read_bytes())
    nonces = [fields["nonce"], *fields["earlier"]]
    if len(set(nonces)) != len(nonces) or not all(nonces) or len(nonces) > _MOST_NONCES:
        return [f"raft/lineage has the nonces {nonces}"]
    return [f"raft/lineage knows the peer {peer}" for peer in fields["known"] if peer == node]


def _wrong_numbers(journal: Journal) -> list[str]:
    wrong = []
    terms = [term for term, _ in journal.entries.values()]
    if terms != sorted(terms) or max(terms, default=0) > journal.term:
        wrong.append(f"raft/journal has the term {journal.term}, and entries of the terms {sorted(set(terms))}")
    if journal.commit_index > journal.last_index:
        wrong.append(f"raft/journal ends at {journal.last_index}, and {journal.commit_index} is committed")
    return wrong


def _wrong_beginning(journal: Journal, snapshot: SnapshotFile) -> list[str]:
    """Return what is wrong with the place at which the journal continues the snapshot: it has the last two entries of it."""
    for _, index, term in (snapshot.previous, snapshot.last):
        if journal.entries.get(index, (term, b""))[0] != term:
            return [f"raft/snapshot ends with entry {index} of term {term}, and raft/journal has another one"]
    if snapshot.previous[1] not in journal.entries:
        return [f"raft/snapshot ends with {snapshot.last[1]}, and raft/journal begins with {min(journal.entries)}"]
    return []


def _wrong_replay(journal: Journal, snapshot: SnapshotFile | None, image: ClusterImage) -> list[str]:
    """Return whether the next start of the controller would compute another image than the one that it had."""
    fsm, index = ClusterFsm(), 0
    if snapshot is not None:
        fsm.restore(snapshot.image)
        index = snapshot.last[1]
    for at in range(index + 1, image.index + 1):
        if at not in journal.entries and at > 1:
            return [f"raft/journal lacks entry {at}, which was applied"]
        command = journal.entries.get(at, (0, b""))[1]
        if command and is_applied(command, at):
            fsm.apply(command[1:], at)
    if fsm.image.index <= image.index and fsm.image.digest != image.digest:
        return [f"a replay of raft/ gives another image at {fsm.image.index} than the process had at {image.index}"]
    return []
