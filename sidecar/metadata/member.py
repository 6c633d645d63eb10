"""RaftMember: a controller. It orders control requests in the group's log, applies them, and serves those who ask.

    propose -> (leader? into the log : forwarded on ``<ns>.control.node.<id>``) -> applied on every member -> image -> watchers, feed

The state machine is ``ClusterFsm``; what only the leader does (sessions, election clocks) is ``MetadataDuties``, which begins
once a barrier of the own term is applied, so that it decides on everything committed before [M12]. Every start ends with a
barrier that this process asked for: what is applied then holds all that was committed before, and a member whose folder is new or
was emptied may vote from there on (``probation.py``). One that is told later that its folder went back in time asks for another one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from liftpy.cluster.duties import MetadataDuties, joined
from liftpy.cluster.fsm import ClusterFsm
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.pages import describer
from liftpy.cluster.requests import kind_of
from liftpy.config import ReplicationConfig
from liftpy.errors import CorruptionError, ProtocolError, StorageError
from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.inboxes import InboxRule
from liftpy.wire.refusals import REFUSED, refused
from liftpy.wire.subjects import Subjects
from sidecar import clock
from sidecar.disk.files import make_folder
from sidecar.ending import end_tasks
from sidecar.metadata.control import ControlDesk
from sidecar.metadata.feed import FeedPublisher
from sidecar.metadata.forwarding import Forwarder, error_response
from sidecar.metadata.group import Watcher
from sidecar.metadata.inquiry import Inquiry
from sidecar.metadata.leaderless import Leaderless
from sidecar.metadata.outgoing import Outgoing
from sidecar.metadata.presence import Presence
from sidecar.metadata.stepping_aside import ask_to_step_aside
from sidecar.raft.driver import Driver
from sidecar.raft.journal import GroupJournal
from sidecar.raft.library import FAIL_REASON, MAX_APPEND_BYTES, Node, RaftCore, check_library, settings
from sidecar.raft.probation import Probation
from sidecar.raft.sealing import seal, unseal
from sidecar.raft.snapshot_file import SnapshotFile, decode_snapshot_file, load_snapshot_file, trim_journal, write_snapshot_file
from sidecar.raft.transport import SessionTransport
from sidecar.tasks import spawn

logger = logging.getLogger("liftpy.raft")

COMPACT_AFTER_ENTRIES = 10_000
_LEADER = 2
_TRANSFER_TIMEOUT_S = 2.0
_HAND_OVER_TIMEOUT_S = 1.5
_DUTY_TIMEOUT_S = 2.0
_DUTY_ORDERS = 64
"""Orders of its own under way, from which on the leader proposes no more until some are done: what is due stays due."""
_JOIN_ATTEMPT_S = 1.0
_SAY_AFTER_S = 2.0
_SAY_EVERY_S = 10.0
"""How often a start that goes on says what it waits for."""


class RaftMember:
    """One member of the metadata group, on a connection of its own. Satisfies ``Group``.

    ``folder``: the node's ``raft`` folder; ``may_answer``: whether a reply subject is an inbox of applications [A5]; ``fatal``:
    called once when disk or state machine fail: the process must stop. ``bootstrap_majority``: the operator's word that
    controllers which are missing at the first start have never been members. ``flush`` False is for benchmarks only.
    """

    def __init__(
        self,
        node_id: str,
        members: tuple[str, ...],
        folder: Path,
        connection: Client,
        subjects: Subjects,
        config: ReplicationConfig,
        fatal: Callable[[Exception], None],
        may_answer: Callable[[bytes], bool],
        *,
        elections: bool = False,
        bootstrap_majority: bool = False,
        compact_after_entries: int = COMPACT_AFTER_ENTRIES,
        flush: bool = True,
    ) -> None:
        check_library()
        self.node_id = node_id
        self._members = members
        self._folder = folder
        self._connection = connection
        self._subjects = subjects
        self._fsm = ClusterFsm(subjects.namespace, elections=elections)
        self._duties = MetadataDuties(config, self._fsm.rules)
        nodes = InboxRule((subjects.inboxes(),))
        self._presence = Presence(connection, subjects, self._duties.gone)
        self._inquiry = Inquiry(connection, subjects, self._duties.testified)
        self._forwarder = Forwarder(connection, subjects, node_id)
        self._outgoing = Outgoing(connection)
        self._feed = FeedPublisher(connection, subjects, self._outgoing, nodes.allows, lambda: self._fsm.image)
        self._leaderless = Leaderless()
        self._watchers: list[Watcher] = []
        self._shown = self._fsm.image
        """The image that the watchers have seen."""
        self._duty_since = -1
        """Term in which the duties have begun, -1 while this member does not lead."""
        self._leaving = False
        """It stops, and takes no duties any more."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._catching_up = True
        """A barrier is being asked for; ``start`` does so first."""
        make_folder(folder)
        self._probation = Probation(folder, members, majority=bootstrap_majority)
        self._open(compact_after_entries, flush)
        self._driver = Driver(self._core, self._transport, self._journal, self._send, self._ticked, fatal)
        self._desk = ControlDesk(
            connection, subjects, may_answer, lambda: self._core.leads, self._decide_here, self._describe_alone
        )

    # ---- opening -------------------------------------------------------------------------------------------------------
    def _open(self, compact_after_entries: int, flush: bool) -> None:
        folder = self._folder
        path = folder / "journal"
        if self._probation.has_been_member and not (path.exists() and path.stat().st_size):
            raise CorruptionError(f"{folder} has lost its journal: {self._what_to_do()}")
        self._journal = GroupJournal(path, flush=flush)
        self._probation.opened(self._journal)
        dump = folder / "snapshot"
        if dump.exists():
            decode_snapshot_file(dump.read_bytes())  # refuse it now: the library would swallow the error and go on without
        elif len(self._journal) and self._first_index() > 1:
            raise CorruptionError(f"{folder} has lost its snapshot: {self._what_to_do()}")
        self._transport = SessionTransport(self.node_id, self._members)
        conf = settings(self._journal, str(dump), self._save, self._load, self._state_changed, compact_after_entries)
        self._core = RaftCore(self.node_id, self._members, conf, self._transport, self)
        self._transport.attach(self._core, self._probation)
        self._probation.attach(self._core, tuple(self._transport.sessions.peers.values()))

    def _what_to_do(self) -> str:
        if len(self._members) == 1:
            return (
                "no other controller holds what it knew, and an older copy of it would know of less than was acknowledged. Without "
                "the folder the only controller begins anew, and knows of no stream; their records stay in the data folders"
            )
        return "this node must join under a new node id"

    def _first_index(self) -> int:
        first = self._journal[0]
        assert isinstance(first, tuple)
        return first[1]

    def _save(self, name: str, state: Any) -> None:
        last, previous, nodes = state
        ids = tuple(sorted(node.id for node in nodes))
        write_snapshot_file(Path(name), SnapshotFile(last, previous, ids, self._fsm.snapshot()))

    def _load(self, name: str) -> Any:
        snapshot = load_snapshot_file(Path(name))
        self._fsm.restore(snapshot.image)
        trim_journal(self._journal, snapshot.previous, snapshot.last)
        self._feed.producer.restored(self._fsm.image.index)
        return snapshot.last, snapshot.previous, {Node(i) for i in snapshot.nodes}

    # ---- the state machine ---------------------------------------------------------------------------------------------
    def apply(self, entry: bytes, index: int) -> bytes:
        """Called by the library for each committed entry, in order."""
        answer = self._fsm.apply(entry, index)
        self._feed.producer.applied(index, self._fsm.last_records)
        return answer

    def _state_changed(self, old: int, new: int) -> None:
        if new == _LEADER:
            logger.info("%s leads the metadata group in term %d", self.node_id, self._core.raftCurrentTerm)
            self._spawn(self._take_over(self._core.raftCurrentTerm))
        elif old == _LEADER:
            logger.info("%s does not lead the metadata group any more", self.node_id)
            self._resign()

    def _resign(self) -> None:
        """Grant no lease and propose nothing as the leader any more: also before a successor is asked for, which does not wait for
        an election time-out and so must not have leases to wait for either."""
        self._duty_since = -1
        self._duties.resign()

    async def _take_over(self, term: int) -> None:
        """Begin the leader's duties once everything that was committed before is applied here."""
        while self._core.leads and self._core.raftCurrentTerm == term and not self._leaving:
            response = await self._order(pb.ControlRequest(barrier=pb.Barrier()), _DUTY_TIMEOUT_S)
            still = self._core.leads and self._core.raftCurrentTerm == term and not self._leaving
            if response.error == pb.ControlResponse.OK and still:
                self._duty_since = term
                self._duties.lead(self._fsm.image, clock.now_ns(), term)
                self._feed.lead()
                return

    # ---- every tick ----------------------------------------------------------------------------------------------------
    def _send(self, receiver: str, frame: bytes) -> None:
        self._outgoing.put(self._subjects.raft(receiver, self.node_id), seal(receiver, self.node_id, frame))

    def _ticked(self) -> None:
        self._probation.look()
        if not (self._probation.over or self._catching_up or self._leaving):
            self._catching_up = True
            self._spawn(self._catch_up())
        self._forwarder.leader_is(self._core.leader_id)
        self._leaderless.ticked(self._core.leader_id != "", clock.now_ns())
        image, before = self._fsm.image, self._shown
        if image is not before:
            self._shown = image
            for watcher in self._watchers:
                watcher(before, image)
        if self._duty_since >= 0:
            now_ns = clock.now_ns()
            if image is not before:
                self._duties.image_changed(image, now_ns)
            deadline_ns = self._duties.next_deadline_ns()
            if deadline_ns is not None and deadline_ns <= now_ns and len(self._tasks) < _DUTY_ORDERS:
                for request in self._duties.due(now_ns):
                    self._spawn(self._order(request, _DUTY_TIMEOUT_S))
            self._presence.look(lambda: self._duties.overdue(now_ns))
            self._inquiry.ask(self._duties.questions())
            self._feed.publish(now_ns)

    def _spawn(self, work: Any) -> None:
        task = spawn(work, "an order to the metadata group")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- Group ---------------------------------------------------------------------------------------------------------
    @property
    def image(self) -> ClusterImage:
        """The image as applied here."""
        return self._fsm.image

    @property
    def leader(self) -> str:
        """The metadata leader as known here."""
        return self._core.leader_id

    @property
    def counters(self) -> dict[str, int]:
        """What the transport counted (sessions, refused messages, stale frames), and the entries that were no request."""
        found = dict(self._transport.sessions.counters + self._outgoing.counters + self._desk.counters + self._feed.counters)
        found.update(self._duties.counters)
        if self._driver.frames_lost:
            found[f"{REFUSED}too many frames at once"] = self._driver.frames_lost
        if self._fsm.refused_count:
            found["entries refused"] = self._fsm.refused_count
        return found

    @property
    def held(self) -> dict[str, int]:
        """The journal in memory and on disk, what is done (for repetitions), and frames that wait for a tick."""
        operations = self._fsm.image.operations
        return {
            "journal_entries": len(self._journal),
            "journal_bytes": self._journal.entry_bytes,
            "journal_file_bytes": self._journal.file_bytes,
            "window_operations": len(operations),
            "window_bytes": operations.size_bytes,
            "inbox_bytes": self._driver.inbox_bytes,
            "compactions": self._core.compactions,
        }

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image."""
        self._watchers.append(callback)

    def distrust(self) -> None:
        """Nobody can contradict what was committed."""

    async def start(self) -> None:
        """Listen and tick; returns when a barrier that was committed since is applied here."""
        await self._connection.subscribe(self._subjects.raft_inbox(self.node_id), cb=self._frame_received)
        await self._desk.open()
        await self._feed.start()
        self.bus_changed(True)
        self._driver.start()
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Ask for barriers until one is applied that ends probation, should this member be on it."""
        self._catching_up = True
        say_at = time.monotonic() + _SAY_AFTER_S
        while not self._driver.stopped:
            turn = self._probation.turn
            if await self.barrier(_JOIN_ATTEMPT_S):
                self._probation.barrier_applied(turn)
                if self._probation.over:
                    break
            if time.monotonic() >= say_at:
                say_at = time.monotonic() + _SAY_EVERY_S
                logger.warning("%s %s", self.node_id, self.waits_for())
        self._catching_up = False

    def waits_for(self) -> str:
        """What a start that goes on waits for, for people."""
        away = [peer.node_id for peer in self._transport.sessions.peers.values() if not peer.up]
        if not self._probation.over:
            return self._probation.waits_for()
        if self._core.leader_id:
            return f"waits for {self._core.leader_id}, which leads the metadata group, to commit with a majority"
        return f"waits for a leader of the metadata group; not connected: {', '.join(away) or 'nobody'}"

    def bus_changed(self, online: bool) -> None:
        """The connection was lost or is back (from its callbacks), perhaps to a server that takes smaller messages."""
        if online:
            self._transport.sessions.fit(self._connection.max_payload)
            self._feed.producer.fit(self._connection.max_payload)
        self._transport.sessions.set_online(online)

    def retire(self) -> None:
        """Take over from nobody, and don't campaign."""
        self._core.retired = True

    async def hand_over(self) -> None:
        """Let another member lead; denied while nobody has all entries, so it is asked for again."""
        self._leaving = True
        deadline = time.monotonic() + _HAND_OVER_TIMEOUT_S
        ask_at = 0.0
        peers = self._transport.sessions.peers.values()
        while not self._driver.stopped and any(peer.up for peer in peers) and time.monotonic() < deadline:
            if self._core.leads and time.monotonic() >= ask_at:
                self._resign()
                self._core.transferLeadership()
                self._driver.wake()
                ask_at = time.monotonic() + _HAND_OVER_TIMEOUT_S / 5
            elif self._core.leader_id not in ("", self.node_id):
                return
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Hand the leadership over, flush, close."""
        self._leaving = True
        if not self._driver.stopped and self._core.leads and len(self._members) > 1:
            self._resign()
            self._core.transferLeadership()
            self._driver.wake()
            deadline = time.monotonic() + _TRANSFER_TIMEOUT_S
            peers = self._transport.sessions.peers.values()
            while self._core.leads and any(peer.up for peer in peers) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        self._driver.stop()
        await self._presence.close()
        await self._inquiry.close()
        await self._desk.close()
        await end_tasks(self._tasks)
        await self._outgoing.close()
        try:
            self._journal.close()
        except StorageError as error:
            logger.error("closing the journal: %s", error)
        self._core.destroy()

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Have ``request`` decided, here or by the leader; see ``Group``."""
        return await self._forwarder.until_decided(request, timeout_s, self._decide_here)

    async def _decide_here(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse | None:
        """The leader's answer; None on another member."""
        if not self._core.leads or self._driver.stopped:
            return None
        if request.HasField("batch"):
            return self._with_members(await self._decide_batch(request, timeout_s))
        if self._duty_since >= 0:
            answer = self._duties.answer(request, self._fsm.image, clock.now_ns(), self._transport.confirmed_ns())
            if answer is not None:
                return self._with_members(answer)
        elif kind_of(request).looked_at_first:
            return error_response(request, pb.ControlResponse.UNAVAILABLE, "the metadata leader has only just been elected")
        return self._with_members(await self._order(request, timeout_s))

    async def _decide_batch(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        if self._duty_since < 0:
            return error_response(request, pb.ControlResponse.UNAVAILABLE, "the metadata leader has only just been elected")
        here, rest = self._duties.divide(request, self._fsm.image, clock.now_ns(), self._transport.confirmed_ns())
        return here if rest is None else joined(here, await self._order(rest, timeout_s))

    async def _order(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        """Put ``request`` into the log and wait until it is applied here."""
        if not request.operationId:
            request.operationId = secrets.token_bytes(16)
        if request.HasField("electLeader"):
            await ask_to_step_aside(self._connection, self._subjects, self._fsm.image, request.electLeader)
        request.timeNs = time.time_ns()
        changes = not kind_of(request).read_only
        command = request.SerializeToString()
        if len(command) >= MAX_APPEND_BYTES - 1:  # the library puts a byte in front
            return error_response(request, pb.ControlResponse.INVALID, f"a request of {len(command)} bytes is too large")
        if changes:
            self._duties.logged(request.operationId)
        try:
            answer, reason = await asyncio.wait_for(self._driver.propose(command), timeout_s)
        except TimeoutError:
            return error_response(request, pb.ControlResponse.OUTCOME_UNKNOWN, "no answer from the group in time")
        if reason == FAIL_REASON.SUCCESS and answer is not None:
            return frames.parse(answer, pb.ControlResponse)
        never = (FAIL_REASON.QUEUE_FULL, FAIL_REASON.MISSING_LEADER, FAIL_REASON.DISCARDED, FAIL_REASON.NOT_LEADER)
        if reason in never:
            self._duties.not_logged(request.operationId)
            return error_response(request, pb.ControlResponse.UNAVAILABLE, "the metadata leader changed")
        return error_response(request, pb.ControlResponse.OUTCOME_UNKNOWN, "the metadata leader changed meanwhile")

    async def barrier(self, timeout_s: float = 5.0) -> bool:
        """Commit a barrier, and wait until it is applied here."""
        response = await self.propose(pb.ControlRequest(barrier=pb.Barrier()), timeout_s)
        if response.error != pb.ControlResponse.OK:
            return False
        deadline = time.monotonic() + timeout_s
        while self._core.raftLastApplied < response.index:
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def status(self) -> list[pb.ControllerStatus]:
        """The members; terms and lags of others are known to the leader only."""
        core, peers = self._core, self._transport.sessions.peers
        members = []
        for node_id in self._members:
            own = node_id == self.node_id
            match = core.log.last_index if own else core.match_index(node_id)
            known = own or core.leads
            members.append(
                pb.ControllerStatus(
                    nodeId=node_id,
                    leader=node_id == core.leader_id,
                    term=core.raftCurrentTerm,
                    commitIndex=core.raftCommitIndex if own else min(match, core.raftCommitIndex),
                    appliedIndex=core.raftLastApplied if own else self._transport.applied[node_id] if core.leads else 0,
                    lag=max(core.log.last_index - match, 0) if known else 0,
                    connected=own or peers[node_id].up,
                )
            )
        return members

    def ticks(self) -> dict[str, float]:
        """How late the ticks came."""
        return {**self._driver.lateness.report(), "late": self._driver.late_tick_count}

    def _with_members(self, response: pb.ControlResponse) -> pb.ControlResponse:
        if response.HasField("cluster"):
            response.cluster.metadataLeader = self._core.leader_id
            del response.cluster.controllers[:]
            response.cluster.controllers.extend(self.status())
        response.metadataLeader = self._core.leader_id
        return response

    async def _frame_received(self, message: Any) -> None:
        sender = message.subject.rsplit(".", 1)[1]
        try:
            frame = unseal(self.node_id, sender, message.data)
        except ProtocolError as error:
            self._transport.sessions.counters[refused(error)] += 1
            return
        self._driver.frame_received(sender, frame)

    def _describe_alone(self, request: pb.ControlRequest) -> pb.ControlResponse | None:
        """Where nobody leads every member says what it knows: better than silence for an operator. Not a member that has only just lost
        sight of the leader, or woken up: what it knows may be old, and others know better."""
        description = describer(request)
        if not self._leaderless.for_long or description is None or request.linearizable:
            return None
        response = description(self._fsm.image)
        response.operationId, response.index = request.operationId, self._fsm.image.index
        return self._with_members(response)
