"""MemberLog: everything that one member needs for the log of the group: directory, journal, library, state machine,
probation.

``member.py`` and the simulator open it. Opening fails if the journal or the snapshot is missing or damaged, because the
member must not continue then. It implements ``MemberLogView``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liftpy.core.base.instruments import Instruments
from liftpy.core.metadata.controller.cluster_events import RecentEvents, events_of
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.controller_list import CONTROLLERS, ControllerList, GroupView, first_list, waits_for, well_formed
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import CorruptionError, MetadataDivergedError
from sidecar.disk.files import make_folder
from sidecar.quorum.journal import GroupJournal, LogControllers
from sidecar.quorum.library import Node, RaftCore, settings
from sidecar.quorum.peer_sessions import Peer
from sidecar.quorum.probation import MARKER, Probation, mark_diverged, quarantine_diverged
from sidecar.quorum.rescue import rescue_event
from sidecar.quorum.snapshot_file import (
    SnapshotFile,
    decode_snapshot_file,
    load_snapshot_file,
    trim_journal,
    write_snapshot_file,
)
from sidecar.quorum.transport import SessionTransport
from sidecar.runtime import clock as clocks

COMPACT_AFTER_ENTRIES = 10_000
UNLED_S = 2.0
"""Time without a leader after which a member asks whether it was removed from the group, in seconds."""


def _draw() -> int:
    return random.SystemRandom().getrandbits(63)


@dataclass(frozen=True, slots=True)
class MemberDirectory:
    """Arguments for opening the log of a controller.

    Args:
        folder: Its ``raft`` directory.
        members: Controller list in the settings.
        bootstrap_majority: True if unreachable controllers never belonged to the group.
        flush: False only for benchmarks.
        joins: Controllers of the running group, from the feed.
    """

    node_id: str
    members: tuple[str, ...]
    folder: Path
    bootstrap_majority: bool = False
    compact_after_entries: int = COMPACT_AFTER_ENTRIES
    flush: bool = True
    joins: ControllerList | None = None
    instruments: Instruments = field(default_factory=Instruments)


@dataclass(frozen=True, slots=True)
class MemberEnvironment:
    """Functions for the clock and random numbers of a controller. The simulator replaces them."""

    monotonic: Callable[[], float] = time.monotonic
    now_ns: Callable[[], int] = clocks.now_ns
    """Function that returns the monotonic time, in nanoseconds."""
    draw: Callable[[], int] = _draw
    """Function that returns 63 random bits."""


THIS_MACHINE = MemberEnvironment()


class MemberLog:
    """The log of one controller with everything that it needs: journal, library, state machine, probation.

    ``fsm``: state machine that applies committed entries. ``feed``: publishes the results. The constructor raises
    CorruptionError and StorageError.
    """

    def __init__(
        self,
        opened: MemberDirectory,
        fsm: ClusterFsm,
        feed: FeedProducer,
        state_changed: Callable[[int, int], None],
        surroundings: MemberEnvironment = THIS_MACHINE,
        events: RecentEvents | None = None,
    ) -> None:
        node_id, around = opened.node_id, surroundings
        self.node_id = node_id
        self.settings = opened.members
        """Controller list of the settings."""
        self.fsm = fsm
        self._feed = feed
        self._events = events
        self._folder = opened.folder
        opened.instruments.divergences += quarantine_diverged(opened.folder)
        make_folder(opened.folder)
        self.journal = self._open_journal(opened.flush, opened.instruments)
        with ExitStack() as opening:
            opening.callback(self.journal.abandon)
            self._by_log = by_log = LogControllers(opened.joins or first_list(opened.members))
            dump = self._checked_dump(by_log)
            voters = by_log.newest(self.journal.changes).voters
            joins = opened.joins is not None or node_id not in voters
            majority = opened.bootstrap_majority
            self.probation = Probation(opened.folder, voters, majority=majority, joins=joins, draw=around.draw)
            self.probation.journal_opened(self.journal)
            members = opened.members if opened.joins is None else voters
            self.transport = SessionTransport(
                node_id, members, clock=around.monotonic, draw=around.draw, stamp=around.now_ns, spoken=fsm.spoken
            )
            conf = settings(self.journal, str(dump), self._save, self._load, state_changed, opened.compact_after_entries)
            self.core = RaftCore(node_id, voters, conf, self.transport, self, by_log)
            self.transport.diverged = self._mark_diverged
            self.transport.attach(self.core, self.probation)
            self.probation.attach(self.core, self.peers)
            opening.pop_all()

    # ---- opening -------------------------------------------------------------------------------------------------------
    def _open_journal(self, flush: bool, instruments: Instruments) -> GroupJournal:
        path = self._folder / "journal"
        if (self._folder / MARKER).exists() and not (path.exists() and path.stat().st_size):
            raise CorruptionError(f"The raft directory {self._folder} has lost its journal. {self._repair_text()}")
        return GroupJournal(path, flush=flush, times=instruments.journal_flushes)

    def _checked_dump(self, by_log: LogControllers) -> Path:
        dump = self._folder / "snapshot"
        if dump.exists():
            # Read it now: the library would swallow an error and go on without, and counts before it reads.
            by_log.in_snapshot = decode_snapshot_file(dump.read_bytes()).controllers
        elif len(self.journal) and self._first_index() > 1:
            raise CorruptionError(f"The raft directory {self._folder} has lost its snapshot. {self._repair_text()}")
        return dump

    def _repair_text(self) -> str:
        if len(self.settings) == 1:
            return (
                "This cluster has only one controller, so no other node has a copy. Restore the metadata from a backup (runbook "
                "controllers-lost). The records stay in the data directories."
            )
        return (
            f"If a majority of the controllers runs without this node, delete {self._folder} and start the node with the same id. "
            "Otherwise follow docs/runbooks/controllers-lost.md."
        )

    def _first_index(self) -> int:
        first = self.journal[0]
        assert isinstance(first, tuple)
        return first[1]

    # ---- the state machine ---------------------------------------------------------------------------------------------
    def apply(self, entry: bytes, index: int) -> bytes:
        before = self.fsm.image
        answer = self.fsm.apply(entry, index)
        self.transport.checkpoints.entry_applied(before.index, index, self.fsm.image.digest)
        if self.fsm.image.feature_level != before.feature_level:
            self.core.forceLogCompaction()  # what versions before it can't read is to stand in the snapshot, which they refuse, at once
        self._feed.entry_applied(index, self.fsm.last_records)
        if self._events is not None:
            events = events_of(before, entry, answer, self.fsm.last_records, index, self._events.causes)
            self._events.note_entry(index, events)
        return answer

    def precompute(self, entry: bytes, index: int) -> bool:
        """Compute a part of the decision on the next entry ahead of ``apply``. Return True when the decision is complete.

        The library calls it until it returns True.
        """
        return self.fsm.precompute(entry, index)

    def _mark_diverged(self, index: int) -> None:
        """Store in the directory that this member's image differs from that of a majority, since entry ``index``."""
        if self.core.failure is None:
            mark_diverged(self._folder, index)
            self.core.failure = MetadataDivergedError(
                f"The metadata image of {self.node_id} differs from the majority at index {index}. The node "
                "quarantines its raft directory and loads the snapshot of the other controllers."
            )

    def _save(self, name: str, state: Any) -> None:
        last, previous, _ = state
        controllers = self.core.controllers_at(last[1])
        changed = controllers if controllers.index else None
        write_snapshot_file(Path(name), SnapshotFile(last, previous, controllers.voters, self.fsm.snapshot(), changed))
        self.core.snapshot_holds(changed)

    def _load(self, name: str) -> Any:
        snapshot = load_snapshot_file(Path(name))
        self.fsm.restore(snapshot.image)
        self.core.snapshot_holds(snapshot.controllers)
        trim_journal(self.journal, snapshot.previous, snapshot.last)
        self._feed.snapshot_loaded(self.fsm.image.index)
        if self._events is not None:
            self._events.restart_after_snapshot(self.fsm.image.index, self.fsm.image.time_ns)
            if (event := rescue_event(self._folder, self.fsm.image.index)) is not None:
                self._events.add_event(event)
        return snapshot.last, snapshot.previous, {Node(i) for i in sorted(snapshot.nodes)}

    # ---- GroupLog ------------------------------------------------------------------------------------------------------
    @property
    def leads(self) -> bool:
        """True if this member believes that it leads. Another member may have been elected since."""
        return self.core.leads

    @property
    def term(self) -> int:
        return int(self.core.raftCurrentTerm)

    @property
    def leader_id(self) -> str:
        return self.core.leader_id

    @property
    def image(self) -> ClusterImage:
        return self.fsm.image

    def confirmed_ns(self) -> int:
        """Return the monotonic time in ns until which a majority certainly votes for no other leader [D22]."""
        return self.transport.confirmed_ns()

    def view(self) -> GroupView:
        """Return what this member knows about all members of the group, such as which are live.

        A member on probation acknowledges nothing, so it does not count as live.
        """
        core, now = self.core, self.core.controllers
        reachable = [i for i, peer in self.peers.items() if peer.up and peer.trusted]
        live = frozenset(i for i in reachable if i == now.learner or core.match_index(i)) | {self.node_id}
        caught_up = bool(now.learner) and core.match_index(now.learner) >= core.raftCommitIndex
        levels = {i: self.transport.levels.get(i) for i in now.members if i != self.node_id}
        checkpoints = self.transport.checkpoints
        halted = checkpoints.halted if core.leads else ""
        voters_without_digest = checkpoints.voters_without_digest(now.voters) if halted else frozenset[str]()
        return GroupView(now, self.leader_id, live, caught_up, core.blocked, halted, voters_without_digest, levels)

    @property
    def is_member(self) -> bool:
        """True if this node is a controller, by its log or by a later message of the leader."""
        core = self.core
        removed = core.controllers.index <= core.raftCommitIndex and not core.controllers.names(self.node_id)
        return not (removed or core.dismissed_at)

    def has_leader_contact(self, since: float) -> bool:
        """Return whether this member leads, or has received a message of a leader since the monotonic time ``since``."""
        return self.leads or self.transport.leader_contact_s >= since

    def process_leader_description(self, response: pb.ControlResponse) -> bool:
        """Process ``response``, the leader's description of the group. Return whether this node was removed from the group.

        If the log of this member ends before the current controller list, it accepts messages of the members of that
        list.
        """
        known = CONTROLLERS.from_pb(response.cluster.image.controllers)
        if response.error != pb.ControlResponse.OK or not well_formed(known):
            return self.core.dismissed_at > 0
        if not known.names(self.node_id):
            self.core.record_dismissal(known.index, response.index)
        elif known.index > self.core.controllers.index:  # it is committed, as the list of one that joins
            self._by_log.first = known
            self.journal.changed()
        return self.core.dismissed_at > 0

    # ---- what others ask -----------------------------------------------------------------------------------------------
    @property
    def applied_index(self) -> int:
        """Index of the last applied entry. 1: none was applied."""
        return int(self.core.raftLastApplied)

    @property
    def peers(self) -> dict[str, Peer]:
        return self.transport.sessions.peers

    def waits_for(self) -> str:
        """Return a text for operators: the reason why the start of this member is not complete."""
        if not self.probation.over:
            return self.probation.waits_for()
        if self.leader_id:
            return f"waits for {self.leader_id}, which leads the metadata group, to commit with a majority"
        away = ", ".join(peer.node_id for peer in self.peers.values() if not peer.up) or "nobody"
        return f"waits for a leader of the metadata group; not connected: {away}"

    def status(self) -> list[pb.ControllerStatus]:
        """Return the state of all members. Only the leader knows terms and lags of other members."""
        core, now = self.core, self.core.controllers
        waits = waits_for(self.view()) if core.leads else ""
        members = []
        for node_id in now.members:
            own = node_id == self.node_id
            match = core.log.last_index if own else core.match_index(node_id)
            known = own or core.leads
            members.append(
                pb.ControllerStatus(
                    nodeId=node_id,
                    leader=node_id == core.leader_id,
                    term=core.raftCurrentTerm,
                    commitIndex=core.raftCommitIndex if own else min(match, core.raftCommitIndex),
                    appliedIndex=core.raftLastApplied if own else self.transport.applied.get(node_id, 0) if core.leads else 0,
                    lag=max(core.log.last_index - match, 0) if known else 0,
                    connected=own or (node_id in self.peers and self.peers[node_id].up),
                    learner=node_id == now.learner,
                    leaving=node_id == now.leaving,
                    waitsFor=waits if node_id in (now.learner, now.leaving) else "",
                )
            )
        return members

    @property
    def held(self) -> dict[str, int]:
        """Return the sizes of the journal in memory and on disk, and of the answers to finished operations."""
        operations = self.fsm.image.operations
        return {
            "journal_entries": len(self.journal),
            "journal_bytes": self.journal.entry_bytes,
            "journal_file_bytes": self.journal.file_bytes,
            "window_operations": len(operations),
            "window_bytes": operations.size_bytes,
            "compactions": self.core.compactions,
        }
