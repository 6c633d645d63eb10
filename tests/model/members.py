"""One controller of the raft model: the shipped ``MemberLog`` (library, hardening, sessions, journal, snapshots, probation) on a
disk in memory.

A cell is a value: what a step does depends on nothing but the cell and the event, so each is taken once and remembered. A process
is kept as what its objects hold; a step puts that into objects again, which are made once for each node. Every attribute is spoken of
here: one that somebody adds is an error, and not left out.

Time stands still, and nothing is due but what the event says: a heartbeat, an election, a leadership that nobody has confirmed for too
long. So what holds here holds for every clock; leases, which are about time alone, are the lease model's. So the planned time of a tick
and the time of the last late tick decide nothing either: a heartbeat may come at any time, and a question that a late tick does not
grant is one that is lost. What a step does show is whether a leader takes the longer interval for its next append messages.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import pysyncobj.syncobj

from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.feed import FeedProducer
from liftpy.errors import CorruptionError, StorageError
from sidecar.metadata.member_log import MemberDirectory, MemberEnvironment, MemberLog
from sidecar.quorum.codec import seal, unseal
from sidecar.quorum.driver import tick_once
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import SETTLED_APPEND_EVERY_S, Node, RaftCore, check_library
from sidecar.quorum.peer_sessions import _FRAME, Peer
from sidecar.quorum.probation import DirectoryLineage, Probation
from sidecar.quorum.transport import SessionTransport
from tests.model.memory_disk import Files, Flushed, MemoryDisk, MemoryPath, in_use
from tests.model.search import Broken
from tests.model.structure import Interned

NOW = 1000.0
NODES = ("a", "b", "c")
_LEADER, _CANDIDATE = 2, 1
_FOLDER = MemoryPath("/raft")
Entry = tuple[int, int, bytes]
"""(index, term, command)."""
Frames = tuple[bytes, ...]
"""What a tick sends to one member: it comes as a whole, in order, or not at all."""


class View(NamedTuple):
    """What the checks look at. Of a node that is down: what it had shown to others."""

    up: bool
    counts: bool
    """It is not on probation."""
    leads: bool
    term: int
    vote: str
    entries: tuple[Entry, ...]
    commit: int
    applied_index: int
    applied: tuple[tuple[int, bytes], ...]


class Cell(NamedTuple):
    """A node. ``process`` (): none runs. ``asked``: (index, term) of the barrier that it waits for on probation."""

    name: str
    process: tuple[Any, ...]
    cached: tuple[Any, ...]
    flushed: tuple[Any, ...]
    starts: int
    asked: tuple[int, int] | tuple[()]
    shown: tuple[int, str]
    """(term, vote) that the last process had."""


class Stepped(NamedTuple):
    """``cell``: the number of what it became. ``moments``: numbers of what it would be, dead, in the middle."""

    cell: int
    sent: tuple[tuple[str, Frames], ...]
    moments: tuple[int, ...]
    settled: bool = False
    """It leads, and has taken the longer interval for its next append messages."""


class Machine:
    """A state machine that remembers everything that was applied; in the place of ``ClusterFsm``."""

    spoken = SUPPORTED_LEVELS
    feature_level = SUPPORTED_LEVELS.most
    digest = b""

    def __init__(self) -> None:
        self.applied: tuple[tuple[int, bytes], ...] = ()
        self.last_records = ()
        self.image = self

    @property
    def index(self) -> int:
        return self.applied[-1][0] if self.applied else 0

    def apply(self, entry: bytes, index: int) -> bytes:
        self.applied = (*self.applied, (index, entry))
        return b"done"

    def precompute(self, entry: bytes, index: int) -> bool:
        return True

    def snapshot(self) -> bytes:
        return b"".join(struct.pack("<QI", index, len(entry)) + entry for index, entry in self.applied)

    def restore(self, data: bytes) -> None:
        found, position = [], 0
        while position < len(data):
            index, size = struct.unpack_from("<QI", data, position)
            found.append((index, data[position + 12 : position + 12 + size]))
            position += 12 + size
        self.applied = tuple(found)


# ---- what a process is made of -------------------------------------------------------------------------------------------
_CORE = (
    "raftState", "raftCurrentTerm", "votedForNodeId", "votesCount", "raftCommitIndex", "raftLastApplied", "forceLogCompaction",
    "lastSerializedEntry", "needLoadDumpFile",
)  # fmt: skip
_CORE_NODES = ("raftNextIndex", "raftMatchIndex", "connectedNodes")
_CORE_RESET = (
    "raftElectionDeadline", "newAppendEntriesTime", "lastResponseTime", "numOneSecondDumps", "raftLeader", "leaderCommitIndex",
    "onReadyCalled", "noopIDx", "transferInProgress", "commandsWaitingCommit", "commandsWaitingReply", "commandsLocalCounter",
    "lastSerializedTime", "startTime",
)  # fmt: skip
"""About time; of no consequence; or about those who wait for an answer, of whom there are none."""
_CORE_FIXED = (
    "conf", "consumers", "encryptor", "selfNode", "otherNodes", "readonlyNodes", "nodeClass", "raftLog", "changeClusterIDx",
    "destroying", "recvTransmission", "onTickCallbacks", "onTickCallbacksLock", "serializer", "lastInitTryTime", "transport",
    "selfCodeVersion", "currentVersionFuncNames", "thread", "mainThread", "initialised", "commandsQueue", "lastReadonlyCheck",
    "properies", "enabledCodeVersion",
)  # fmt: skip
_CORE_OWN = (
    "_machine", "failure", "_turned", "rest_s", "_late", "_late_at",
    "_applied_bytes", "_uncompacted_bytes", "_applied_at", "_goes_on", "compactions",
    "_hand_over_term", "_hand_over_until", "_successor_was_asked",  # no member of the model hands over its leadership
    "on_probation", "retired", "pre_vote", "_by_log", "controllers", "followed", "members", "dismissed_at", "_node_id",
    "_link", "_poller", "_methodToID", "_idToMethod", "_idToConsumer",
)  # fmt: skip
_JOURNAL = ("_entries", "_pending", "_rewrite", "_meta_changed", "_term", "_vote", "_commit", "_failed")
_JOURNAL_OTHER = (
    "_flushed_commit",  # only the timer of one second reads it, which no member of the model has
    "_path",
    "_flush",
    "changes",
    "changed",
    "entry_bytes",
    "file_bytes",
    "flushed_index",
    "_descriptor",
    "_closed",
    "_times",
)
_LINEAGE = ("nonce", "earlier", "missed", "known", "_known_as", "_doubts", "_changed")
_PROBATION = ("over", "turn", "has_been_member")
_PEER = ("up", "is_new", "heard", "term", "trusted", "epoch")
_TRANSPORT = (
    "_clock", "sessions", "applied", "_stamp", "_echoes", "_confirmed", "_leader_contact_s", "_transfer_request_s", "_not_forwarded",
    "_nodes", "_core", "_hardening", "_probation", "_node_id", "_supported_levels", "levels", "checkpoints", "diverged",
)  # fmt: skip


def _known(what: Any, names: Iterable[str]) -> None:
    unknown = [name for name in vars(what) if name not in names and not name.startswith("_onNode")]
    if unknown:
        raise TypeError(f"{type(what).__name__} has {', '.join(unknown)}: say in the raft model what becomes of it")


def _core_name(name: str) -> str:
    return f"_SyncObj__{name}"


class _Library:
    """The state of a Raft core for which PySyncObj has no public names."""

    def __init__(self, core: RaftCore) -> None:
        object.__setattr__(self, "core", core)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, _core_name(name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.core, _core_name(name), value)


def library(core: RaftCore) -> Any:
    """Return the private state of PySyncObj in ``core``."""
    return _Library(core)


class Member:
    """The objects of one node, for whatever process it is at the moment. ``append_bytes``: of entries in one message, and of a snapshot
    in one; 0: as shipped."""

    def __init__(self, name: str, append_bytes: int = 0) -> None:
        self.name = name
        self._append_bytes = append_bytes
        self._draws = [1]
        disk = MemoryDisk(())
        with in_use(disk):
            self.log = self._opened()
        core, transport = self.log.core, self.log.transport
        names = {_core_name(n) for n in (*_CORE, *_CORE_NODES, *_CORE_RESET, *_CORE_FIXED)} | set(_CORE_OWN)
        _known(core, names)
        _known(core.pre_vote, ("_needed", "_granted", "asks"))
        _known(self.log.journal, (*_JOURNAL, *_JOURNAL_OTHER))
        _known(self.log.probation.lineage, (*_LINEAGE, "_path", "majority"))
        _known(self.log.probation, (*_PROBATION, "_marker", "lineage", "_alone", "_majority", "_core", "_by_id", "_joins"))
        _known(transport, (*_TRANSPORT, *(n for n in vars(transport) if n.startswith("_on"))))

    def _opened(self) -> MemberLog:
        opened = MemberDirectory(self.name, NODES, cast(Any, _FOLDER), compact_after_entries=1 << 30)
        around = MemberEnvironment(lambda: NOW, lambda: 1, lambda: self._draws.pop() if self._draws else 1)
        log = MemberLog(opened, cast(ClusterFsm, Machine()), FeedProducer(), lambda *_: None, around)
        log.transport.sessions.set_online(True)
        if self._append_bytes:
            library(log.core).conf.appendEntriesBatchSizeBytes = self._append_bytes
            library(log.core).serializer._Serializer__transmissionBatchSize = self._append_bytes
        return log

    def open_anew(self, nonce: int) -> None:
        """Another process on the folder that is in use."""
        self._draws = [nonce]
        self.log = self._opened()

    # ---- a process as a value --------------------------------------------------------------------------------------------
    def held(self) -> tuple[Any, ...]:
        """All that the process is. Of a role that is over nothing is kept: the next one begins anew."""
        core, journal, log = self.log.core, self.log.journal, self.log
        state = library(core).raftState
        assert not library(core).serializer._Serializer__pid
        assert not library(core).serializer._Serializer__transmissions
        if state != _CANDIDATE:
            library(core).votesCount = 0
        if state != _LEADER:
            library(core).raftNextIndex, library(core).raftMatchIndex = {}, {}
        lists = (
            frozenset((node.id, index) for node, index in library(core).raftNextIndex.items()),
            frozenset((node.id, index) for node, index in library(core).raftMatchIndex.items()),
            frozenset(node.id for node in library(core).connectedNodes),
        )
        peers = frozenset((peer.node_id, *(getattr(peer, name) for name in _PEER)) for peer in log.peers.values())
        snapshots = frozenset((name, bytes(parts)) for name, parts in log.transport._hardening._snapshots.items())  # type: ignore[union-attr]
        return (
            tuple(getattr(core, _core_name(name)) for name in _CORE),
            lists,
            tuple(_frozen(getattr(journal, name)) for name in _JOURNAL),
            tuple(_frozen(getattr(log.probation.lineage, name)) for name in _LINEAGE),
            tuple(getattr(log.probation, name) for name in _PROBATION),
            peers,
            snapshots,
            (frozenset(core.pre_vote._granted), core.pre_vote.asks),
            cast(Machine, log.fsm).applied,
        )

    def become(self, process: tuple[Any, ...], disk: MemoryDisk) -> None:
        """The process that this value is of."""
        attributes, lists, journal, lineage, probation, peers, snapshots, asked, applied = process
        log, core = self.log, self.log.core
        for name, value in zip(_CORE, attributes, strict=True):
            setattr(core, _core_name(name), value)
        library(core).raftNextIndex = {Node(node): index for node, index in lists[0]}
        library(core).raftMatchIndex = {Node(node): index for node, index in lists[1]}
        library(core).connectedNodes = {Node(node) for node in lists[2]}
        library(core).raftElectionDeadline, library(core).newAppendEntriesTime = math.inf, math.inf
        library(core).lastResponseTime = {Node(node): NOW for node in NODES if node != self.name}
        library(core).raftLeader = library(core).selfNode if attributes[0] == _LEADER else None
        library(core).numOneSecondDumps = 1 << 60
        library(core).commandsWaitingCommit.clear()
        core._uncompacted_bytes, core.failure, core.on_probation = 0, None, not probation[0]
        core.pre_vote._granted, core.pre_vote.asks = set(asked[0]), asked[1]
        for name, value in zip(_JOURNAL, journal, strict=True):
            setattr(log.journal, name, list(value) if isinstance(value, tuple) else value)
        log.journal.flushed_index = log.journal.last_index  # a tick is over
        for name, value in zip(_LINEAGE, lineage, strict=True):
            setattr(log.probation.lineage, name, dict(value) if isinstance(value, frozenset) else value)
        for name, value in zip(_PROBATION, probation, strict=True):
            setattr(log.probation, name, value)
        for node_id, *values in peers:
            for name, value in zip(_PEER, values, strict=True):
                setattr(log.peers[node_id], name, value)
        log.transport._hardening._snapshots = {name: bytearray(parts) for name, parts in snapshots}  # type: ignore[union-attr]
        log.transport.levels = {}  # for operators only; and an image without a digest makes no checkpoints
        log.transport._echoes, log.transport._confirmed = {}, {}
        log.transport._leader_contact_s = log.transport._transfer_request_s = -math.inf  # whoever asks for a vote has waited
        log.transport.sessions.outbox.clear()
        cast(Machine, log.fsm).applied = applied
        log.journal._descriptor = disk.open("journal", disk.O_WRONLY)

    # ---- what it does ----------------------------------------------------------------------------------------------------
    def take(self, event: tuple[Any, ...]) -> None:
        """One event, with the tick that it is part of."""
        core, frames, kind = self.log.core, (), event[0]
        if kind == "gets":
            frames = self._coming(event[1], event[2])
        elif kind == "beat":
            library(core).newAppendEntriesTime = 0.0
        elif kind == "asks":
            library(core).raftElectionDeadline = 1.0
        elif kind == "campaign":
            library(core).raftElectionDeadline = 0.0  # as one that the leader has asked for: nobody is asked first
        elif kind == "gives up":
            library(core).lastResponseTime = dict.fromkeys(library(core).lastResponseTime, -math.inf)
        elif kind == "propose":
            core.propose(event[1], lambda *_: None)
        elif kind == "compact":
            core.forceLogCompaction()
        elif kind == "barrier":
            self.log.probation.barrier_applied(self.log.probation.turn)
            return
        elif kind == "session ends":
            self.log.transport.sessions._end(self.log.peers[event[1]], "gap")
            return
        elif kind == "hello":
            self.log.transport.sessions._hello(self.log.peers[event[1]], NOW, 1)
            return
        elif kind == "hears":
            frames = tuple((event[1], frame) for frame in event[2])
        else:
            assert kind in ("start", "tick"), kind
        tick_once(core, self.log.transport, self.log.journal, frames)
        self.log.probation.end_if_complete()

    @property
    def settled(self) -> bool:
        """Whether it leads and waits for the longer interval. Without append messages in its last tick, it waits for ever."""
        return self.log.core.leads and math.isclose(self.log.core.until_append_s(), SETTLED_APPEND_EVERY_S, rel_tol=1e-6)

    def _coming(self, sender: str, batch: Frames) -> tuple[tuple[str, bytes], ...]:
        """Numbered as the session that they are of begins with their tick's: nothing else was under way."""
        self.log.peers[sender].received = _FRAME.unpack_from(batch[0])[4] - 1
        return tuple((sender, unseal(self.name, sender, seal(self.name, sender, frame))) for frame in batch)

    def sent(self) -> tuple[tuple[str, Frames], ...]:
        """What leaves, for each receiver; numbered from 1 on."""
        found: dict[str, list[bytes]] = {}
        for receiver, frame in self.log.transport.sessions.outbox:
            found.setdefault(receiver, []).append(frame)
        for peer in self.log.peers.values():
            peer.sent = peer.received = 0
            peer.hello_at = peer.received_at = NOW
        return tuple((receiver, tuple(found[receiver])) for receiver in sorted(found))

    def view(self) -> View:
        """For the checks."""
        core = self.log.core
        entries = tuple((index, term, command) for command, index, term in self.log.journal._entries)
        counts, applied = self.log.probation.over, cast(Machine, self.log.fsm).applied
        return View(
            True, counts, core.leads, core.raftCurrentTerm, library(core).votedForNodeId or "", entries, core.raftCommitIndex,
            core.raftLastApplied, applied,
        )  # fmt: skip


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return frozenset(value.items()) if isinstance(value, dict) else value


@contextmanager
def still() -> Iterator[None]:
    """The library's clock stands still, and nobody says to people what is tried here."""
    check_library()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with patch.object(pysyncobj.syncobj, "monotonicTime", lambda: NOW):
            yield
    finally:
        logging.disable(before)


# ---- files as values -----------------------------------------------------------------------------------------------------
class Contents:
    """What files say: journals that say the same are one, and names of nodes can be changed. Read and written by shipped code."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, bytes], Any] = {}
        self._bytes: dict[Any, bytes] = {}

    def said(self, name: str, content: bytes) -> Any:
        """By the file of this name; bytes where that is nothing known."""
        found = self._said.get((name, content))
        if found is None:
            found = self._said[name, content] = self._read(name, content)
            if not isinstance(found, bytes):
                self._bytes.setdefault((name, found), content)
        return found

    def _read(self, name: str, content: bytes) -> Any:
        disk = MemoryDisk(((name, content),))
        try:
            with in_use(disk):
                if name == "journal":
                    journal = GroupJournal(cast(Any, _FOLDER / name))
                    return tuple(
                        _frozen(getattr(journal, attribute)) for attribute in ("_entries", "_term", "_vote", "_commit")
                    )
                if name == "lineage":
                    lineage = DirectoryLineage(cast(Any, _FOLDER), lambda: 1)
                    read = DirectoryLineage.__new__(DirectoryLineage)
                    read.__dict__.update(vars(lineage), earlier=(), missed=())
                    MemoryPath.disk = MemoryDisk(((name, content),))
                    read._load()
                    return tuple(_frozen(getattr(read, attribute)) for attribute in _LINEAGE[:5])
        except (StorageError, CorruptionError):
            return content
        return content.decode() if name == "member" else content

    def content(self, name: str, said: Any) -> bytes:
        """Of a file that says so."""
        if isinstance(said, bytes):
            return said
        found = self._bytes.get((name, said))
        if found is None:
            found = self._bytes[name, said] = self._written(name, said)
        return found

    def _written(self, name: str, said: Any) -> bytes:
        if name == "member":
            return str(said).encode()
        disk = MemoryDisk(())
        with in_use(disk):
            if name == "journal":
                journal = GroupJournal(cast(Any, _FOLDER / name))
                journal._entries, journal._term, journal._vote, journal._commit = list(said[0]), *said[1:]
                journal._rewrite = True
                journal.sync()
            else:
                lineage = DirectoryLineage(cast(Any, _FOLDER), lambda: 1)
                for attribute, value in zip(_LINEAGE[:5], said, strict=True):
                    setattr(lineage, attribute, dict(value) if isinstance(value, frozenset) else value)
                lineage._changed = True
                lineage.sync()
        return disk.read(name)


@dataclass(frozen=True)
class _Kept:
    cell: Cell
    view: View


class Members:
    """All cells that were ever met, by number, and what steps do to them. ``append_bytes``: see ``Member``."""

    def __init__(self, append_bytes: int = 0) -> None:
        self._cells = Interned()
        self._steps: dict[tuple[int, Any], Stepped | Broken] = {}
        self._renamed: dict[tuple[int, int], int] = {}
        self._sketches: dict[int, int] = {}
        self._known_sketches = Interned()
        self._contents = Contents()
        with still():
            self._members = {name: Member(name, append_bytes) for name in NODES}

    def __getitem__(self, number: int) -> Cell:
        return cast(_Kept, self._cells[number]).cell

    def view(self, number: int) -> View:
        """For the checks."""
        return cast(_Kept, self._cells[number]).view

    def __len__(self) -> int:
        return len(self._cells)

    def new(self, name: str) -> int:
        """A node that has never been started."""
        return self._down(Cell(name, (), (), (), 0, (), (0, "")), (), (0, ""))

    def _down(self, cell: Cell, files: tuple[Any, ...], shown: tuple[int, str], starts: int | None = None) -> int:
        dead = Cell(cell.name, (), files, tuple((*file, True) for file in files), cell.starts, (), shown)
        journal = next((said for name, said in files if name == "journal" and isinstance(said, tuple)), None)
        entries = tuple((index, term, command) for command, index, term in journal[0]) if journal else ()
        view = View(False, False, False, *shown, entries, 0, 0, ())
        return self._cells.number(dead, _Kept(dead, view))

    def crashed(self, number: int) -> tuple[int, ...]:
        """What is left of it: by the end of the process, and by a power cut if that is something else."""
        cell, view = self[number], self.view(number)
        power_cut = tuple((name, said) for name, said, _ in cell.flushed)
        shown = (view.term, view.vote) if view.counts else (0, "")
        return tuple(dict.fromkeys(self._down(cell, files, shown) for files in (cell.cached, power_cut)))

    def emptied(self, number: int) -> int:
        """It is down, and its folder is empty."""
        return self._down(self[number], (), (0, ""))

    def asked(self, number: int, barrier: tuple[int, int]) -> int:
        """It waits for this barrier."""
        cell = self[number]._replace(asked=barrier)
        return self._cells.number(cell, _Kept(cell, self.view(number)))

    def step(self, number: int, event: tuple[Any, ...]) -> Stepped | Broken:
        """What ``event`` makes of a cell."""
        found = self._steps.get((number, event))
        if found is None:
            cell = self[number]
            try:
                found = self._take(cell, self.view(number), event)
            except Exception as error:  # the process would stop: nothing here is a reason for that
                found = Broken(f"{cell.name} stops: {type(error).__name__}: {error}")
            self._steps[number, event] = found
        return found

    def _take(self, cell: Cell, before: View, event: tuple[Any, ...]) -> Stepped | Broken:
        contents, starts = self._contents, cell.starts
        cached = tuple((name, contents.content(name, said)) for name, said in cell.cached)
        flushed = tuple((name, contents.content(name, said), same) for name, said, same in cell.flushed)
        disk, member = MemoryDisk(cached, flushed), self._members[cell.name]
        with in_use(disk), still():
            if event[0] == "start":
                starts += 1
                member.open_anew(2 * starts + 1)
                library(member.log.core).numOneSecondDumps = 1 << 60
                library(member.log.core).raftElectionDeadline = math.inf
            else:
                member.become(cell.process, disk)
            member.take(event)
            sent, after, settled = member.sent(), member.view(), member.settled
            process = member.held()
            if disk_open := member.log.journal._descriptor:
                assert disk_open >= 0
        why = _promises_broken(cell, before, after)
        if why:
            return Broken(why)
        asked = () if after.counts else cell.asked
        now = Cell(cell.name, process, self._form(disk.cached), self._flushed_form(disk.flushed), starts, asked, (0, ""))
        number = self._cells.number(now, _Kept(now, after))
        ends = {self._form(cached), self._form(disk.cached), self._form(disk.durable)}
        ends.add(tuple((name, said) for name, said, _ in cell.flushed))
        middle = dict.fromkeys(map(self._form, disk.moments))
        shown = (before.term, before.vote) if before.counts else (0, "")
        started = cell._replace(starts=starts)
        moments = tuple(self._down(started, files, shown) for files in middle if files not in ends) if cell.process else ()
        return Stepped(number, sent, moments, settled)

    def _form(self, files: Files) -> tuple[Any, ...]:
        return tuple((name, self._contents.said(name, content)) for name, content in files)

    def _flushed_form(self, files: Flushed) -> tuple[Any, ...]:
        return tuple((name, self._contents.said(name, content), same) for name, content, same in files)

    # ---- names ---------------------------------------------------------------------------------------------------------
    def renamed(self, number: int, names: Mapping[str, str], key: int) -> int:
        """The same cell in a group whose nodes have other names. ``key`` stands for ``names``."""
        found = self._renamed.get((number, key))
        if found is None:
            view, cell = self.view(number), Cell(*_rename(tuple(self[number]), names))
            kept = _Kept(cell, view._replace(vote=names.get(view.vote, view.vote)))
            found = self._renamed[number, key] = self._cells.number(cell, kept)
        return found

    def sketch(self, number: int) -> int:
        """What can be said of a cell without any name: cells with other sketches are other cells."""
        found = self._sketches.get(number)
        if found is None:
            own = self[number].name
            names = {name: "own" if name == own else "other" for name in NODES}
            found = self._sketches[number] = self._known_sketches.number(_rename(tuple(self[number]), names))
        return found


def _rename(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names[value.strip()] + "\n" if value.endswith("\n") else names.get(value, value)
    if isinstance(value, tuple):
        return tuple(_rename(item, names) for item in value)
    return frozenset(_rename(item, names) for item in value) if isinstance(value, frozenset) else value


def _promises_broken(cell: Cell, before: View, after: View) -> str:
    """Terms and votes stay, over restarts, too [M2]."""
    if not after.counts or (before.up and not before.counts):
        return ""
    term, vote = (before.term, before.vote) if before.up else cell.shown
    if after.term < term:
        return f"M2: the term of {cell.name} falls from {term} to {after.term}"
    if after.term == term and vote and after.vote != vote:
        return f"M2: {cell.name} had voted for {vote} in term {term}, and now for {after.vote or 'nobody'}"
    return ""


__all__ = ["NODES", "Cell", "Frames", "Members", "Peer", "Probation", "RaftCore", "SessionTransport", "View"]
