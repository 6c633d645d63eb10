"""The library's transport on top of ``Sessions``: messages through the strict codec, in and out, hardened on the way in."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from liftpy.errors import ProtocolError
from sidecar.raft import codec
from sidecar.raft.codec import Message
from sidecar.raft.hardening import Hardening
from sidecar.raft.library import FAIL_REASON, Node, RaftCore, Transport
from sidecar.raft.sessions import Sessions


class SessionTransport(Transport):
    """Makes of a lossy bus what the library needs: FIFO links that are up or down."""

    def __init__(
        self,
        node_id: str,
        members: tuple[str, ...],
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], int] = lambda: random.SystemRandom().getrandbits(63),
    ) -> None:
        super().__init__(None, None, [])
        self._clock = clock
        peers = tuple(i for i in members if i != node_id)
        self.sessions = Sessions(node_id, peers, self._deliver, self._changed, draw, self._journal_is_new, self._term)
        self.applied: dict[str, int] = dict.fromkeys(peers, 0)
        """Applied index of each peer as it last said to this leader; for the status."""
        self._not_forwarded: list[tuple[Node, int | None]] = []
        """Commands that the library wanted to forward: it lost the leadership with them in its queue. They are refused, and
        the proposer repeats them under their operation id."""
        self._nodes = {i: Node(i) for i in peers}
        self._core: RaftCore | None = None
        self._hardening: Hardening | None = None

    def attach(self, core: RaftCore) -> None:
        """The library's node is made: from now on messages can be delivered."""
        self._core = core
        self._hardening = Hardening(core, self._onMessageReceived, self.send, self.sessions.counters)

    # ---- the library's interface ---------------------------------------------------------------------------------------
    def addNode(self, node: Node) -> None:
        """The members are those of the configuration."""

    def dropNode(self, node: Node) -> None:
        """The members are those of the configuration."""

    def send(self, node: Node, message: Message) -> bool:
        """Put a message into the outbox; the journal is flushed before it leaves."""
        assert self._core is not None
        if message["type"] == "apply_command":
            self._not_forwarded.append((node, message.get("request_id")))
            return False
        if self._core.on_probation and message["type"] in ("request_vote", "response_vote"):
            return False
        if message["type"] == "next_node_idx":
            message = {**message, "applied_index": self._core.raftLastApplied}
            if self._core.on_probation and message["success"]:
                # No acknowledgement: "send me what comes next", which moves a leader of any version on, and which none counts.
                message["success"], message["reset"] = False, True
        return self.sessions.send(node.id, codec.encode(message), self._core.raftCurrentTerm, self._clock())

    # ---- in ------------------------------------------------------------------------------------------------------------
    def receive(self, sender: str, frame: bytes) -> None:
        """A frame from the bus; nothing is raised."""
        self.sessions.receive(sender, frame, self._clock())

    def poll(self) -> None:
        """Hellos, time-outs, and refusals of what is not forwarded; to be called on every tick."""
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
            self.sessions.counters["messages refused"] += 1
            return False
        if self._core.on_probation and message["type"] in ("request_vote", "response_vote", "timeout_now"):
            return True
        if message["type"] == "next_node_idx":
            self.applied[sender] = message["applied_index"]
        return self._hardening.deliver(self._nodes[sender], message, term)

    def _changed(self, node_id: str, up: bool) -> None:
        node = self._nodes[node_id]
        if up:
            if self._core is not None:
                self._core.forget_match(node)
            self._onNodeConnected(node)
            return
        self._onNodeDisconnected(node)
        if self._core is not None and self._hardening is not None:
            self._core.cancel_snapshot(node)
            self._hardening.session_ended(node_id)

    def _term(self) -> int:
        return 0 if self._core is None else int(self._core.raftCurrentTerm)

    def _journal_is_new(self) -> bool:
        return self._core is not None and self._core.log.last_index <= 1
