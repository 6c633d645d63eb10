"""``PeerSessions``: ordered sessions between controllers over NATS, which may lose messages. No duplicates and no gaps.

Each side draws a random epoch for each peer. When both have confirmed the epoch of the other side, the session is up.
DATA frames carry both epochs and a sequence number. A gap, silence, a lost connection or an unreadable frame ends the
session. The library then sees a disconnect and a connect. Frames of older sessions and of unknown senders are ignored.

A hello frame starts a session. It also contains the controller list in the settings and the state of the sender's
directory. A hello without a valid epoch changes nothing. Every frame contains the term of the sender. Frames with
impossible terms are ignored.

``sidecar.quorum.transport`` connects it with the library.
"""

from __future__ import annotations

import logging
import struct
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from liftpy.core.base.rate_limits import LogRateLimit
from liftpy.core.wire.decode_errors import REFUSED
from liftpy.errors import ProtocolError
from sidecar.quorum.codec import MAX_NUMBER

logger = logging.getLogger("liftpy.quorum")

CHUNK_BYTES = 256 * 1024
"""Maximum size of a message in one frame, in bytes. The NATS server's max_payload may require less."""
_SMALLEST_CHUNK_BYTES = 1024
_OVERHEAD_BYTES = 256
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
HELLO_PERIOD_S = 0.25
"""Interval of hellos without a session, in seconds. With a session, they are half as frequent."""
_EARLY_S = 0.05
"""Time by which a hello in a session may be early, in seconds, so that it leaves in the tick of an append message."""
SELDOM_HELLO_S = 2.0
"""Interval of unchanged hellos in a session with messages, in seconds. The messages show that both sides live."""
_DATA_FLOWS_S = 0.4
"""Time after the last message of a peer for which the peer counts as alive without a hello, in seconds."""
_REPEATED_HELLOS = 3
"""Number of equal hellos that are sent before they become less frequent. A hello may be lost."""
SILENCE_S = 1.5
_ANSWER_AGAIN_S = 0.02
_MAX_STRANGERS = 64
"""Maximum number of unknown epochs of one peer whose hellos are answered within _ANSWER_AGAIN_S."""
TERM_REACH = 1 << 24
"""Maximum difference between the term of a peer and that of this member. Frames with a higher term are ignored.

A member without contact needs months of elections to exceed it, but a single forged frame could. The limit grows with
each second in which the peer sends only such terms, so that no peer is excluded forever.
"""
_LOG_PERIOD_S = 1.0
_LOG_LIST_EVERY_S = 10.0

_FRAME = struct.Struct("<BBQQQQ")
"""Frame header: kind, flags, sender's epoch, receiver's epoch, sequence number, sender's term."""
_HELLO, _DATA, _MEMBERS = 1, 2, 3
_MAX_LIST_BYTES = 1024
_FIRST, _LAST, _NEW = 1, 2, 4


@dataclass(slots=True)
class Peer:
    """State of the session with one other controller. Times are monotonic, in seconds."""

    node_id: str
    own_epoch: int
    up: bool = False
    is_new: bool = False
    """True if the last hello of the peer said that its journal never had an entry."""
    heard: bool = False
    """True if the peer has answered this process. Hellos to an earlier process do not count."""
    term: int = 0
    """Raft term in the last valid hello of the peer. 0: its version sends none."""
    trusted: bool = True
    """True if the peer's messages and acks count, because its directory has the knowledge of its earlier processes."""
    other_list: bool = False
    """True if the settings of the peer name other controllers. Then there is no session with the peer."""
    beyond_since: float | None = None
    """Time since which the peer has sent only terms that are too high. None: its last term was valid."""
    epoch: int = 0
    sent: int = 0
    """Sequence number of the last DATA frame to the peer in this session."""
    received: int = 0
    received_at: float = -1e9
    data_at: float = -1e9
    """Time of the last DATA frame of this session."""
    hello_at: float = -1e9
    no_hello_at: float = -1e9
    """Time when a hello was due but not needed."""
    said: bytes = b""
    """Content of the last hello to the peer, without the term."""
    sent_hello_count: int = 0
    """Number of hellos in this session with that content."""
    last_hello_tail: bytes = b""
    """Data after the frame of the last hello of the peer."""
    strangers: dict[int, float] = field(default_factory=dict)
    """Epoch of a hello that does not name this member's epoch -> time of the answer, oldest first."""
    parts: list[bytes] | None = None
    """Received parts of an incomplete message. None: no message is incomplete."""
    parts_bytes: int = 0


@dataclass(slots=True)
class PeerSessions:
    """Sessions of one member with all its peers.

    Args:
        deliver: Function of (node_id, body, term) for each received message. It returns False to end the session.
        changed: Function of (node_id, up), called after every start and end of a session.
        draw: Returns a random 63-bit number.
    """

    node_id: str
    peer_ids: tuple[str, ...]
    deliver: Callable[[str, bytes, int], bool]
    changed: Callable[[str, bool], None]
    draw: Callable[[], int]
    is_new: Callable[[], bool] = lambda: False
    term: Callable[[], int] = lambda: 0
    """Function that returns the Raft term of this member, for its hellos."""
    by_log: Callable[[], int] = lambda: 0
    """Function that returns the index of the entry with the current member list. 0: the list comes from the settings."""
    tail_for: Callable[[str], bytes] = lambda _: b""
    """Function that returns the data after the frame of a hello to a peer. Older versions ignore this data."""
    compare_reports: Callable[[str, bytes], bool] = lambda *_: True
    """Function that returns whether a peer is trusted, from its name and the data after its hello.

    It raises ProtocolError for data that no member sends.
    """
    online: bool = False
    chunk_bytes: int = CHUNK_BYTES
    outbox: list[tuple[str, bytes]] = field(default_factory=list)
    """Frames to send, as (receiver, frame) in order. The driver sends them after the journal is flushed."""
    counters: Counter[str] = field(default_factory=Counter)
    peers: dict[str, Peer] = field(init=False)
    first: tuple[str, ...] = field(init=False)
    """Controller list of the settings."""
    _term_log_limit: LogRateLimit = field(default_factory=lambda: LogRateLimit(_LOG_PERIOD_S))
    """Time of the last log line about a term that is too high."""
    _list_log_limit: LogRateLimit = field(default_factory=lambda: LogRateLimit(_LOG_LIST_EVERY_S))

    def __post_init__(self) -> None:
        self.peers = {i: Peer(i, self.draw() | 1) for i in self.peer_ids}
        self.first = tuple(sorted((self.node_id, *self.peer_ids)))

    def follow(self, peer_ids: Collection[str]) -> None:
        """Set the other members of the group. Start sessions with new members, and end those with removed members."""
        for removed_peer in [peer for node_id, peer in self.peers.items() if node_id not in peer_ids]:
            self._end(removed_peer, "no member any more")
            del self.peers[removed_peer.node_id]
        for node_id in sorted(set(peer_ids) - set(self.peers)):
            self.peers[node_id] = Peer(node_id, self.draw() | 1)

    def send(self, node_id: str, body: bytes, term: int, now: float) -> bool:
        """Queue the message ``body`` for the peer in chunks. Return False if there is no session with the peer.

        ``term``: term of this member. ``now``: monotonic time in seconds.
        """
        peer = self.peers.get(node_id)
        if peer is None or not peer.up:
            return False
        for start in range(0, len(body), self.chunk_bytes):
            peer.sent += 1
            last = start + self.chunk_bytes >= len(body)
            flags = (0 if start else _FIRST) | (_LAST if last else 0)
            head = _FRAME.pack(_DATA, flags, peer.own_epoch, peer.epoch, peer.sent, term)
            self.outbox.append((node_id, head + body[start : start + self.chunk_bytes]))
        self.counters["messages_sent"] += 1
        return True

    def fit(self, max_payload_bytes: int) -> None:
        """Set the maximum message size of the NATS server in bytes. Larger messages are sent in chunks."""
        self.chunk_bytes = max(_SMALLEST_CHUNK_BYTES, min(CHUNK_BYTES, max_payload_bytes - _OVERHEAD_BYTES))

    def set_online(self, online: bool) -> None:
        """Set whether NATS is connected. A lost connection ends every session and drops unsent messages."""
        if not online:
            self.outbox.clear()
            for peer in self.peers.values():
                self._end(peer, "bus lost")
                peer.epoch = 0
        self.online = online

    def poll(self, now: float) -> None:
        """Send the hellos that are due, and end the sessions of silent peers. Call it on every tick."""
        if not self.online:
            return
        for peer in self.peers.values():
            if peer.up and now - peer.received_at > SILENCE_S:
                self._end(peer, "silence")
            if now - max(peer.hello_at, peer.no_hello_at) > (2 * HELLO_PERIOD_S - _EARLY_S if peer.up else HELLO_PERIOD_S):
                self._hello_if_needed(peer, now)

    def _hello_if_needed(self, peer: Peer, now: float) -> None:
        """Send a hello if the peer may need it.

        It is not needed while messages show that this member is alive and the peer has the content of the last hello.
        Only a hello describes the directory, so a changed hello is sent at once.
        """
        flows = peer.up and now - peer.data_at <= _DATA_FLOWS_S and now - peer.hello_at <= SELDOM_HELLO_S
        if flows and peer.sent_hello_count >= _REPEATED_HELLOS and peer.said == self._hello_content(peer):
            peer.no_hello_at = now
            return
        self._hello(peer, now)

    def _hello_content(self, peer: Peer) -> bytes:
        """Return the part of a hello that describes this member's directory and controller list."""
        return b"%d %d " % (self.is_new(), self.by_log()) + self.tail_for(peer.node_id)

    def receive(self, node_id: str, frame: bytes, now: float) -> None:
        """Process a frame from NATS. It never raises an error, whatever the frame contains."""
        peer = self.peers.get(node_id)
        if peer is None:
            self.counters[f"{REFUSED}unknown sender"] += 1
            if frame[:1] == bytes((_MEMBERS,)):
                self._same_list(node_id, frame, now)
            return
        if len(frame) < _FRAME.size:
            self.counters[f"{REFUSED}short frame"] += 1
            return
        kind, flags, epoch, own, sequence, term = _FRAME.unpack_from(frame)
        of_session = kind == _DATA and epoch == peer.epoch and own == peer.own_epoch
        if kind == _MEMBERS:
            if own == peer.own_epoch:
                self._list_received(peer, frame, now)
        elif term >= MAX_NUMBER or not (of_session or kind == _HELLO):
            self.counters[f"{REFUSED}stale frame"] += 1  # or of no session that there can be
        elif own != peer.own_epoch:
            self._answer_stranger(peer, epoch, now)
        elif not self._reaches(peer, term, now):
            self.counters[f"{REFUSED}terms out of reach"] += 1
        elif of_session:
            peer.received_at = peer.data_at = now
            self._data_received(peer, flags, sequence, term, frame[_FRAME.size :], now)
        elif peer.other_list:
            self.counters[f"{REFUSED}hellos"] += 1
        else:
            try:
                peer.trusted = self.compare_reports(node_id, frame[_FRAME.size :])
            except ProtocolError:
                self.counters[f"{REFUSED}hellos"] += 1
                return
            peer.is_new, peer.heard, peer.term = bool(flags & _NEW), True, term
            if peer.last_hello_tail != frame[_FRAME.size :]:  # the peer may need the next hello to this one's answer
                peer.last_hello_tail, peer.sent_hello_count = frame[_FRAME.size :], 0
            self._hello_received(peer, epoch, own, now)

    def _answer_stranger(self, peer: Peer, epoch: int, now: float) -> None:
        """Answer a hello that does not confirm the epoch of this side. Its sender is another process of the peer, or a forger.

        The real peer repeats its hello until it is answered.
        """
        self.counters[f"{REFUSED}hellos that answer nobody"] += 1
        if epoch == peer.own_epoch:
            return  # a hello of this side, said back to it: the answer, said back again, would carry the own epoch
        for old, answered_at in list(peer.strangers.items()):
            if now - answered_at <= _ANSWER_AGAIN_S:
                break
            del peer.strangers[old]
        if epoch not in peer.strangers and len(peer.strangers) < _MAX_STRANGERS:
            peer.strangers[epoch] = now
            self._hello(peer, now, epoch)

    def _reaches(self, peer: Peer, term: int, now: float) -> bool:
        """Return whether the peer can really have reached ``term``, which its frame contains. An impossibly high term is forged."""
        ahead = term - self.term()
        if ahead < TERM_REACH:
            peer.beyond_since = None
            return True
        if peer.beyond_since is None:
            peer.beyond_since = now
        if ahead < TERM_REACH * (1 + int(now - peer.beyond_since)):
            return True
        if self._term_log_limit.admit(now) is not None:
            logger.warning("impossible term rejected peer=%s peer_term=%d term=%d", peer.node_id, term, self.term())
        return False

    @property
    def _list(self) -> bytes:
        return ", ".join(self.first).encode()

    def _list_received(self, peer: Peer, frame: bytes, now: float) -> None:
        peer.other_list = not self._same_list(peer.node_id, frame, now)
        if peer.other_list and peer.up:
            self._end(peer, "another list of controllers")

    def _same_list(self, node_id: str, frame: bytes, now: float) -> bool:
        """Return whether the controller list in the ``frame`` of another member is the one of this side.

        Members with different lists reject each other, because they would count different majorities.
        """
        list_bytes, by_log = frame[_FRAME.size :], len(frame) >= _FRAME.size and _FRAME.unpack_from(frame)[4]
        if list_bytes == self._list or by_log or self.by_log():
            return True
        self.counters[f"{REFUSED}other lists of controllers"] += 1
        if self._list_log_limit.admit(now) is not None:
            logger.error(
                ("controllers differ here=%s there=%s node=%s: the two nodes reject each other until both lists match"),
                self._list.decode(),
                ascii(list_bytes[:_MAX_LIST_BYTES].decode(errors="replace")).strip("'"),
                node_id[:_MAX_LIST_BYTES],
            )
        return False

    def _hello(self, peer: Peer, now: float, known: int = 0) -> None:
        """Send a hello to the peer. ``known``: epoch to confirm, or 0 for the epoch that the peer has proved."""
        is_to_stranger = known != 0
        known = known or peer.epoch
        peer.hello_at = now
        content = self._hello_content(peer)
        peer.sent_hello_count = peer.sent_hello_count + 1 if peer.up and content == peer.said else 0
        peer.said = content
        if is_to_stranger or peer.sent_hello_count < _REPEATED_HELLOS:  # before the hello, which may begin the session
            head = _FRAME.pack(_MEMBERS, 0, peer.own_epoch, known, self.by_log(), self.term())
            self.outbox.append((peer.node_id, head + self._list))
        flags = _NEW if self.is_new() else 0
        frame = _FRAME.pack(_HELLO, flags, peer.own_epoch, known, 0, self.term())
        self.outbox.append((peer.node_id, frame + self.tail_for(peer.node_id)))

    def _hello_received(self, peer: Peer, epoch: int, own: int, now: float) -> None:
        if epoch != peer.epoch:
            if peer.up:
                self._end(peer, "peer began anew")
            peer.epoch = epoch
            self._hello(peer, now)
        peer.received_at = now
        if own == peer.own_epoch:
            self._begin(peer)

    def _data_received(self, peer: Peer, flags: int, sequence: int, term: int, body: bytes, now: float) -> None:
        if sequence <= peer.received:
            self.counters[f"{REFUSED}duplicate frame"] += 1
            return
        if sequence != peer.received + 1:
            self._end(peer, "gap")
            self._hello(peer, now)
            return
        peer.received = sequence
        self._begin(peer)
        whole = self._assemble(peer, flags, body)
        if whole is not None and not self.deliver(peer.node_id, whole, term):
            self._end(peer, "refused message")

    def _assemble(self, peer: Peer, flags: int, body: bytes) -> bytes | None:
        """Add a chunk to the message from the peer. Return the complete message if this was its last chunk, otherwise None."""
        if flags & _FIRST:
            if flags & _LAST:
                return body
            peer.parts, peer.parts_bytes = [], 0
        if peer.parts is None or peer.parts_bytes + len(body) > MAX_MESSAGE_BYTES:
            self._end(peer, "bad chunk")
            return None
        peer.parts.append(body)
        peer.parts_bytes += len(body)
        if not flags & _LAST:
            return None
        whole, peer.parts = b"".join(peer.parts), None
        return whole

    def _begin(self, peer: Peer) -> None:
        if not peer.up:
            peer.up = True
            self.counters["sessions_started"] += 1
            self.changed(peer.node_id, True)

    def _end(self, peer: Peer, why: str) -> None:
        was_up = peer.up
        peer.up, peer.own_epoch, peer.sent, peer.received, peer.parts = False, self.draw() | 1, 0, 0, None
        peer.no_hello_at, peer.sent_hello_count = -1e9, 0
        if was_up:
            self.counters[f"sessions ended: {why}"] += 1
            self.changed(peer.node_id, False)
