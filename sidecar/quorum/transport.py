"""Transport of the Raft library over ``PeerSessions``. It decodes strictly and checks received messages.

It also computes the basis of a leader's leases. A follower returns the timestamp of the leader's append message. So its
answer confirms the leadership at the time when the message was SENT. From then on, the follower votes for no other
member for VOTE_AGAIN_S. While a majority has newer confirmations, no other leader can be elected, except in an election
that the leader itself has requested.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.features import DEFAULT_LEVELS, SUPPORTED_LEVELS, LevelRange
from liftpy.core.metadata.state_checksum import NONE, AppliedDigests, Checkpoint
from liftpy.core.wire.decode_errors import REFUSED
from liftpy.errors import ProtocolError, StorageError
from sidecar.quorum import codec
from sidecar.quorum.codec import MAX_NUMBER, Message
from sidecar.quorum.library import FAIL_REASON, Node, RaftCore, Transport, may_grant
from sidecar.quorum.peer_sessions import PeerSessions
from sidecar.quorum.probation import Probation
from sidecar.quorum.snapshot_file import MAX_SNAPSHOT_BYTES, decode_snapshot_file
from sidecar.runtime import clock as clocks

logger = logging.getLogger("liftpy.quorum")

VOTE_AGAIN_S = 0.4
"""Time after an append message for which a follower votes for no member, in seconds.

It is at least ``confirmed_within_s`` of the nodes' sessions. It is 0.1 s below the shortest election timeout, because the last
append message of a leader may reach one follower later than another. After a larger difference, the first pre-vote of a
failover may fail. The next pre-vote follows within one election timeout.
"""
_DEFER_ELECTION_S = 0.1
"""Time after a granted vote for which this member does not campaign, in seconds. Two candidates would split the votes."""
_OF_VOTERS = ("request_vote", "response_vote", "pre_vote", "pre_vote_granted")
"""Kinds of messages that a member on probation neither sends nor processes."""
DIVERGENCES = "controllers with another image"
_TRANSFER_S = 2.0
"""Time after a transfer request for which an election counts as requested by the leader, in seconds."""


class SessionTransport(Transport):  # type: ignore[misc]  # the library has no types
    """Ordered connections between controllers for the library, over NATS."""

    def __init__(
        self,
        node_id: str,
        members: tuple[str, ...],
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], int] = lambda: random.SystemRandom().getrandbits(63),
        stamp: Callable[[], int] = clocks.now_ns,
        spoken: LevelRange = SUPPORTED_LEVELS,
    ) -> None:
        super().__init__(None, None, [])
        self._clock = clock
        self._node_id = node_id
        peers = tuple(i for i in members if i != node_id)
        self.sessions = PeerSessions(
            node_id, peers, self._deliver, self._session_changed, draw, self._journal_is_new, self._term
        )
        self.applied: dict[str, int] = dict.fromkeys(peers, 0)
        """Applied index of each peer, as last reported to this leader, for the status."""
        self.checkpoints = AppliedDigests(node_id)
        """Digests of the images of this member and its followers."""
        self.diverged: Callable[[int], None] = lambda _: None
        """Callback with an index, called when this member's image differs from that of a majority."""
        self.levels: dict[str, LevelRange] = {}
        """Peer -> feature levels that it reported in this session."""
        self._supported_levels = (spoken.least, spoken.most)
        self._stamp = stamp
        self._echoes: dict[str, int] = {}
        """Leader -> timestamp of its newest append message in this session."""
        self._confirmed: dict[str, tuple[int, int]] = {}
        """Follower -> (term, sending time in nanoseconds) of the newest append message that it has answered."""
        self._leader_contact_s = self._transfer_request_s = -1e9
        self._not_forwarded: list[tuple[Node, int | None]] = []
        """Commands that the library wants to forward to another leader, because this member lost the leadership.

        They are rejected. The proposer repeats them with their operation id.
        """
        self._nodes = {i: Node(i) for i in peers}
        self._core: RaftCore | None = None
        self._hardening: RaftMessageChecks | None = None
        self._probation: Probation | None = None

    def attach(self, core: RaftCore, probation: Probation | None = None) -> None:
        """Connect the sessions with the library, so that received messages reach it.

        ``probation``: checks the directories of all members. None: no checks.
        """
        self._core = core
        self._probation = probation
        core.followed = self.follow
        self.sessions.by_log = lambda: core.controllers.index
        self.follow(core.controllers)
        if probation is not None:
            self.sessions.tail_for, self.sessions.compare_reports = probation.lineage.tail_for, self._process_hello
        self._hardening = RaftMessageChecks(core, self._onMessageReceived, self.send, self.sessions.counters)

    def follow(self, controllers: ControllerList) -> None:
        """Set the members of the group. Sessions exist with them, and with the previous members until the change is committed."""
        assert self._core is not None
        peers = [i for i in self._core.members if i != self._node_id]
        self.sessions.follow(peers)
        for table in (self._nodes, self.applied, self._confirmed, self.levels):
            for removed_peer in set(table) - set(peers):
                del table[removed_peer]
        for node_id in set(peers) - set(self._nodes):
            self._nodes[node_id], self.applied[node_id] = Node(node_id), 0
        if self._probation is not None:
            self._probation.follow(controllers)

    # ---- the library's interface ---------------------------------------------------------------------------------------
    def addNode(self, node: Node) -> None:
        """Do nothing. The library calls this method for a new member, but ``follow`` sets the members."""

    def dropNode(self, node: Node) -> None:
        """Do nothing. The library calls this method for a removed member, but ``follow`` sets the members."""

    def send(self, node: Node, message: Message) -> bool:
        """Send a message of the library to ``node``, after the journal is flushed. Return False if it cannot be sent."""
        assert self._core is not None
        if message["type"] == "apply_command":
            self._not_forwarded.append((node, message.get("request_id")))
            return False
        if self._core.on_probation and message["type"] in _OF_VOTERS:
            return False
        if message["type"] == "append_entries":
            message = {**message, "sent_ns": self._stamp(), "checkpoint": self.checkpoints.agreed}
        elif message["type"] == "request_vote":
            message = {**message, "transfer": self._clock() - self._transfer_request_s < _TRANSFER_S}
        elif message["type"] == "next_node_idx":
            message = {**message, "applied_index": self._core.raftLastApplied}
            message["levels"], message["checkpoint"] = self._supported_levels, self.checkpoints.newest
            message["echo_ns"] = 0 if self._core.on_probation else self._echoes.get(node.id, 0)
            if self._core.on_probation and message["success"]:
                # No acknowledgement: "send me what comes next", which moves a leader of any version on, and which none counts.
                message["success"], message["reset"] = False, True
        return self.sessions.send(node.id, codec.encode(message), self._core.raftCurrentTerm, self._clock())

    # ---- in ------------------------------------------------------------------------------------------------------------
    def receive(self, sender: str, frame: bytes) -> None:
        """Process a frame from the controller ``sender``. The call never raises an error."""
        self.sessions.receive(sender, frame, self._clock())

    def poll(self) -> None:
        """Send hellos, end silent sessions, and reject the library's attempts to forward a command. Call it on every tick."""
        refused, self._not_forwarded = self._not_forwarded, []
        for node, request_id in refused:
            if request_id is not None:
                answer = {"type": "apply_command_response", "request_id": request_id, "error": FAIL_REASON.NOT_LEADER}
                self._onMessageReceived(node, answer)
        self.sessions.poll(self._clock())

    def _deliver(self, sender: str, body: bytes, term: int) -> bool:
        assert self._hardening is not None
        assert self._core is not None
        try:
            message = codec.decode(body)
        except ProtocolError:
            self.sessions.counters[f"{REFUSED}messages"] += 1
            return False
        if message.get("term", 0) > term:  # the frame's, which was found to be in reach
            self.sessions.counters[f"{REFUSED}messages"] += 1
            return False
        if self._core.on_probation and (message["type"] in _OF_VOTERS or message["type"] == "timeout_now"):
            return True
        if not self.sessions.peers[sender].trusted:
            return self._deliver_untrusted(sender, message, term)
        if message["type"] == "request_vote" and not self._may_vote_again(message):
            self.sessions.counters["votes_rejected_leader_known"] += 1
            return True
        if message["type"] == "pre_vote":
            self._pre_vote(sender, message)
            return True
        if message["type"] == "pre_vote_granted":
            self._core.pre_vote_granted(self._nodes[sender], message["term"])
            return True
        if message["type"] == "response_vote" and sender not in self._core.controllers.voters:
            self.sessions.counters["votes_of_non_voters"] += 1
            return True
        if message["type"] == "next_node_idx":
            self._process_report(sender, message)
            # One on probation does not count: if who differs from it gave way, too few might be left that do.
            self._compare(sender, message["checkpoint"] if message["success"] else NONE)
            self._process_answer(sender, message, term)
        elif message["type"] == "append_entries" and message["term"] >= self._core.raftCurrentTerm:
            self._leader_contact_s, self._echoes[sender] = self._clock(), message["sent_ns"]
            self._core.pre_vote.end()
            if self.checkpoints.differs_from(message.get("checkpoint", NONE)):
                self.diverged(message["checkpoint"][0])
        elif message["type"] == "timeout_now" and sender == self._core.leader_id:
            self._transfer_request_s = self._clock()
        return self._hardening.deliver(self._nodes[sender], message, term)

    def _process_report(self, sender: str, answer: Message) -> None:
        """Process the report of the follower ``sender``: its applied index, digest and feature levels."""
        self.applied[sender] = answer["applied_index"]
        least, most = answer["levels"]
        self.levels[sender] = LevelRange(least, most or least) if least else DEFAULT_LEVELS

    def _compare(self, sender: str, checkpoint: Checkpoint) -> None:
        """As the leader, compare the image digest that ``sender`` reports with those of the other members.

        ``checkpoint``: the reported (index, digest).
        """
        core, checkpoints = self._core, self.checkpoints
        assert core is not None
        if not core.leads:
            return
        checkpoints.record_report(sender, checkpoint)
        before, beside = checkpoints.mismatch_count, checkpoints.compare_reports(core.controllers.voters)
        if checkpoints.mismatch_count > before:
            self.sessions.counters[DIVERGENCES] += checkpoints.mismatch_count - before
            logger.error(
                "images of controllers differ problem=%s",
                checkpoints.halted or f"one differs from a majority, near index {checkpoints.newest[0]}",
            )
        if beside:
            self.diverged(checkpoints.newest[0])

    def _may_vote_again(self, request: Message) -> bool:
        """Return whether this member may answer the vote request. For VOTE_AGAIN_S after a leader's message, it may not."""
        assert self._core is not None
        quiet = self._clock() - self._leader_contact_s
        return bool(request["transfer"]) or self._core.leads or quiet >= VOTE_AGAIN_S

    def _pre_vote(self, sender: str, question: Message) -> None:
        """Answer the pre-vote question of ``sender``, which would like to become leader.

        If this member leads and ``sender`` has a later term, it steps down, because ``sender`` ignores leaders of lower terms.
        """
        core = self._core
        assert core is not None
        granted = may_grant(
            leads=core.leads,
            quiet_s=self._clock() - self._leader_contact_s,
            quiet_needed_s=VOTE_AGAIN_S,
            turn_is_late=core.turn_is_late,
            own=(core.log.last_term, core.log.last_index),
            asker=(question["last_log_term"], question["last_log_index"]),
        )
        if granted:
            core.defer_election(_DEFER_ELECTION_S)
            self.send(self._nodes[sender], {"type": "pre_vote_granted", "term": core.raftCurrentTerm})
            return
        self.sessions.counters["pre_votes_rejected"] += 1
        if core.leads:
            core.step_down(question["term"])

    def _process_answer(self, sender: str, answer: Message, term: int) -> None:
        assert self._core is not None
        if not self._core.leads or term != self._core.raftCurrentTerm:
            return
        now_ns = self._stamp()
        if answer["echo_ns"]:
            sent_ns = min(answer["echo_ns"], now_ns)
        else:  # an earlier version, which returns no timestamp. On probation, there is no success
            sent_ns = now_ns if answer["success"] else 0
        of_term, before_ns = self._confirmed.get(sender, (0, 0))
        self._confirmed[sender] = (term, max(sent_ns, before_ns if of_term == term else 0))

    @property
    def leader_contact_s(self) -> float:
        """Monotonic time of the last message of a leader, in seconds. Without one, it is a time in the distant past."""
        return self._leader_contact_s

    def has_leader_contact(self, within_s: float) -> bool:
        """Return whether a leader has sent a message within the last ``within_s`` seconds."""
        return self._clock() - self._leader_contact_s <= within_s

    def confirmed_ns(self) -> int:
        """As the leader, return the monotonic time in ns until which a majority certainly votes for no other leader."""
        assert self._core is not None
        term = self._core.raftCurrentTerm
        others = [i for i in self._core.controllers.voters if i != self._node_id]
        confirmations = [self._confirmed.get(i, (0, 0)) for i in others]
        known = sorted((ns if of_term == term else 0 for of_term, ns in confirmations), reverse=True)
        needed = (len(others) + 1) // 2
        if not needed:
            return self._stamp()
        return known[needed - 1] if len(known) >= needed else 0

    def _deliver_untrusted(self, sender: str, message: Message, term: int) -> bool:
        """Pass a message of a member whose directory is an old copy to the library, with restrictions.

        Such a member gets missing entries, but it cannot vote, commit, confirm or lead.
        """
        core, hardening, node = self._core, self._hardening, self._nodes[sender]
        assert core is not None
        assert hardening is not None
        if message["type"] != "next_node_idx":
            self.sessions.counters["messages_of_older_directory"] += 1
            return True
        self._process_report(sender, message)
        if message["success"]:
            message = {**message, "success": False, "reset": True}
        return core.without_confirming(node, lambda: hardening.deliver(node, message, term))

    def _process_hello(self, peer_id: str, tail: bytes) -> bool:
        assert self._probation is not None
        assert self._core is not None
        trusted = self._probation.process_hello(peer_id, tail)
        if not trusted:
            self._core.forget_match(self._nodes[peer_id])
        if trusted != self.sessions.peers[peer_id].trusted:
            self.sessions.counters["peer_directory_current" if trusted else "peer_directory_older"] += 1
            logger.warning(
                "raft directory of a peer peer=%s state=%s",
                peer_id,
                "current: accepting its votes and acknowledgements again"
                if trusted
                else "older: perhaps an older copy was restored. Ignoring its votes and acknowledgements until it has caught up",
            )
        return trusted

    def sync(self) -> None:
        """Flush the changed nonces of peers to disk, before a message depends on them."""
        if self._probation is not None:
            self._probation.lineage.sync()

    def _session_changed(self, node_id: str, up: bool) -> None:
        node = self._nodes[node_id]
        if up:
            if self._core is not None:
                self._core.forget_match(node)
            self._onNodeConnected(node)
            return
        self._onNodeDisconnected(node)
        self._echoes.pop(node_id, None)
        self.levels.pop(node_id, None)
        self.checkpoints.forget(node_id)
        if self._core is not None and self._hardening is not None:
            self._core.cancel_snapshot(node)
            self._hardening.session_ended(node_id)

    def _term(self) -> int:
        return 0 if self._core is None else int(self._core.raftCurrentTerm)

    def _journal_is_new(self) -> bool:
        return self._core is not None and self._core.log.last_index <= 1


# Corrections of Raft messages before the library processes them, because the library does not keep these rules:
#
# - Truncate only on a real conflict: entries that the log has already are removed from a message [M3].
# - A successful answer never moves ``nextIndex`` back, and counts only in its term.
# - A snapshot is assembled and verified before the library writes its file. It is ignored if the log already has its
#   entries, and never raises the commit index over unmatched entries [M4].


Handler = Callable[[Node, Message], None]


class RaftMessageChecks:
    """Corrects the Raft messages of one member's peers before the library gets them."""

    def __init__(self, core: RaftCore, handler: Handler, reply: Callable[[Node, Message], Any], counters: Counter[str]) -> None:
        self._core = core
        self._handler = handler
        self._reply = reply
        self._counters = counters
        self._snapshots: dict[str, bytearray] = {}
        """Sender -> received bytes of an incomplete snapshot, up to MAX_SNAPSHOT_BYTES."""

    def session_ended(self, node_id: str) -> None:
        """Drop the incomplete snapshot from the node, because the session with it has ended."""
        self._snapshots.pop(node_id, None)

    def deliver(self, node: Node, message: Message, term: int) -> bool:
        """Correct ``message`` from ``node`` and pass it to the library. Return False to end the session.

        ``term``: term of the sender, from the frame.
        """
        core = self._core
        match message["type"]:
            case "next_node_idx" if term != core.raftCurrentTerm:
                self._counters["append_answers_of_other_term"] += 1
                return True
            case "next_node_idx" if not 0 < message["next_node_idx"] <= core.log.last_index + 1:
                self._counters["append_answers_beyond_log"] += 1
                return False
            case "next_node_idx" if message["success"] and not message["reset"] and core.leads:
                before = core.next_index(node)
                self._handler(node, message)
                if core.next_index(node) < before:
                    core.set_next_index(node, before)
                return True
            case "append_entries" if "serialized" in message:
                return self._snapshot(node, message)
            case "append_entries" if message["prevLogIdx"] is not None and message["term"] >= core.raftCurrentTerm:
                return self._append(node, message)
        self._handler(node, message)
        return True

    # ---- entries -------------------------------------------------------------------------------------------------------
    def _append(self, node: Node, message: Message) -> bool:
        log = self._core.log
        first, last, previous = self._first(), log.last_index, message["prevLogIdx"]
        if first < previous <= last and self._term_at(previous) != message["prevLogTerm"]:
            if previous > self._core.raftLastApplied:
                # The leader has none of the entries from here on. Without the truncation, the library repeats 'reset' answers
                # that name the same index, and never gets further.
                log.deleteEntriesFrom(previous - first)
                self._counters["conflicting_entries_truncated"] += 1
            self._handler(node, message)
            return True
        if not first <= previous < last or self._term_at(previous) != message["prevLogTerm"]:
            self._handler(node, message)
            return True
        self._strip_known_entries(message, last)
        if not message["entries"] and message["prevLogIdx"] < last:
            self._beat(node, message, min(message["commit_index"], message["prevLogIdx"]))
            self._acknowledge(node, message["prevLogIdx"])
            return True
        self._handler(node, message)
        return True

    def _strip_known_entries(self, message: Message, last: int) -> None:
        entries, count = message["entries"], 0
        while count < len(entries) and entries[count][1] <= last and self._term_at(entries[count][1]) == entries[count][2]:
            count += 1
        if count:
            message["prevLogIdx"], message["prevLogTerm"] = entries[count - 1][1], entries[count - 1][2]
            message["entries"] = entries[count:]
            self._counters["entries_known"] += count

    def _first(self) -> int:
        entry = self._core.log[0]
        assert isinstance(entry, tuple)
        return entry[1]

    def _term_at(self, index: int) -> int:
        entry = self._core.log[index - self._first()]
        assert isinstance(entry, tuple)
        return entry[2]

    def _beat(self, node: Node, message: Message, commit_index: int) -> None:
        """Pass an append message from the leader to the library without its entries, as a heartbeat."""
        self._handler(node, {"type": "append_entries", "term": message["term"], "commit_index": commit_index})

    def _acknowledge(self, node: Node, index: int) -> None:
        self._reply(node, {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True})

    # ---- snapshots -----------------------------------------------------------------------------------------------------
    def _snapshot(self, node: Node, message: Message) -> bool:
        if message["term"] < self._core.raftCurrentTerm:
            return True
        piece, known_commit_index = message["serialized"], min(message["commit_index"], self._core.raftCommitIndex)
        if not piece:
            self._beat(node, message, known_commit_index)
            return True
        data, is_first, is_last = piece
        if is_first:
            self._snapshots[node.id] = bytearray()
        parts = self._snapshots.get(node.id)
        if parts is None or len(parts) + len(data) > MAX_SNAPSHOT_BYTES:
            self._counters["snapshot_chunks_out_of_order"] += 1
            return False
        parts += data
        if not is_last:
            self._beat(node, message, known_commit_index)
            return True
        return self._whole_snapshot(node, message, bytes(self._snapshots.pop(node.id)), known_commit_index)

    def _whole_snapshot(self, node: Node, message: Message, data: bytes, known_commit_index: int) -> bool:
        try:
            index, term = decode_snapshot_file(data).last[1:]
        except StorageError:
            self._counters["snapshots_rejected"] += 1
            return False
        if index >= MAX_NUMBER or term > message["term"]:
            self._counters["snapshots_rejected"] += 1
            return False
        log, first = self._core.log, self._first()
        if index <= self._core.raftLastApplied or (first <= index <= log.last_index and self._term_at(index) == term):
            self._counters["snapshots_known"] += 1
            self._beat(node, message, known_commit_index)
            self._acknowledge(node, index)
            return True
        self._counters["snapshots_installed"] += 1
        commit_index = min(message["commit_index"], index)
        install = {"type": "append_entries", "term": message["term"], "commit_index": commit_index}
        self._handler(node, {**install, "serialized": (data, True, True)})
        return True
