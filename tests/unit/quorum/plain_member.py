"""Provide a Raft member whose state is a list of operations. Everything below the state machine is shipped code."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import Node, RaftCore, settings
from sidecar.quorum.probation import Probation
from sidecar.quorum.snapshot_file import SnapshotFile, load_snapshot_file, trim_journal, write_snapshot_file
from sidecar.quorum.transport import SessionTransport
from tests.simulation.raft.ghost import Violation


class Around(Protocol):
    """Provide the network of a member."""

    members: tuple[str, ...]
    folder: Path
    majority: bool
    compact_after: int
    random: Random
    ghost: dict[int, bytes]
    seen: Counter[str]

    @property
    def now(self) -> float: ...


@dataclass
class Machine:
    """Store the operations in order. ``ghost`` maps an index to the operation that any member ever applied there."""

    ghost: dict[int, bytes]
    applied: list[tuple[int, str]] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    """The operations in ``applied``."""

    def precompute(self, entry: bytes, index: int) -> bool:
        """Prepare an entry in one step."""
        return True

    def apply(self, entry: bytes, index: int) -> bytes:
        """Apply one entry. A Violation stops the member and the run."""
        if self.ghost.setdefault(index, entry) != entry:
            raise Violation(f"M5: index {index} holds {entry!r} here and {self.ghost[index]!r} elsewhere")
        if self.applied and self.applied[-1][0] >= index:
            raise Violation(f"M5: index {index} is applied after {self.applied[-1][0]}")
        if entry.hex() in self.held:
            raise Violation(f"applied twice: {entry!r} at {index}")
        self.applied.append((index, entry.hex()))
        self.held.add(entry.hex())
        return b"%d" % index


class Member:
    """Represent one process of a member, until its next crash."""

    def __init__(self, run: Around, node_id: str) -> None:
        self.run = run
        self.node_id = node_id
        folder = run.folder / node_id
        folder.mkdir(exist_ok=True)
        self.machine = Machine(run.ghost)
        self.probation = Probation(folder, run.members, majority=run.majority, draw=lambda: run.random.getrandbits(63))
        self.journal = GroupJournal(folder / "journal")
        self.probation.journal_opened(self.journal)
        self.transport = SessionTransport(
            node_id,
            run.members,
            clock=lambda: run.now,
            draw=lambda: run.random.getrandbits(63),
            stamp=lambda: round(run.now * 1e9),
        )
        conf = settings(self.journal, str(folder / "snapshot"), self._save, self._load, lambda *_: None, run.compact_after)
        self.core = RaftCore(node_id, run.members, conf, self.transport, self.machine)
        self.transport.attach(self.core, self.probation)
        self.probation.attach(self.core, self.transport.sessions.peers)
        self.transport.sessions.set_online(True)
        self.barriers: list[tuple[int, bytes]] = []
        """Those that this process has asked the leader for, each with the turn of its probation."""
        self.inbox: list[tuple[str, bytes]] = []
        self.answers: list[tuple[bytes, bytes | None, int]] = []

    def _save(self, name: str, state: Any) -> None:
        last, previous, nodes = state
        image = json.dumps(self.machine.applied).encode()
        write_snapshot_file(Path(name), SnapshotFile(last, previous, tuple(n.id for n in nodes), image))
        self.run.seen["snapshots taken"] += 1

    def _load(self, name: str) -> Any:
        snapshot = load_snapshot_file(Path(name))
        self.machine.applied = [(index, op) for index, op in json.loads(snapshot.image)]
        self.machine.held = {op for _, op in self.machine.applied}
        trim_journal(self.journal, snapshot.previous, snapshot.last)
        return snapshot.last, snapshot.previous, {Node(i) for i in snapshot.nodes}

    def look(self) -> None:
        """Do the work of ``RaftMember`` after a flushed tick."""
        self.probation.end_if_complete()
        for turn, barrier in self.barriers:
            if barrier.hex() in self.machine.held:
                self.probation.barrier_applied(turn)

    def ask_for_barrier(self, barrier: bytes, leader: Member) -> None:
        """Request a barrier on the control subject, like a starting member."""
        self.barriers.append((self.probation.turn, barrier))
        leader.propose(barrier)

    def propose(self, operation: bytes) -> None:
        """Propose an entry on this member. The answer is valid after the flush of the tick."""
        self.core.propose(operation, lambda answer, reason: self.answers.append((operation, answer, reason)))
