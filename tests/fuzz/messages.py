"""Messages that no client sends: damaged copies of frames on the bus, frames of each class with extreme contents, and random bytes.

``Overheard`` keeps the last frames of each kind of subject. ``Maker.frame`` makes a whole command of the NATS protocol, so that no
client library limits its subject, reply, headers and payload.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.core.wire.envelope import MessageType
from tests.fuzz.mutate import bytes_of, message_of, spoiled
from tests.fuzz.targets import Place

MAX_LINE, MAX_SUBJECT = 4_000, 3_900
"""In bytes. A server cuts off who sends a longer line than 4,096 bytes."""
_KEPT = 48
_CONTROL = frozenset({"control_admin", "control_node", "info"})
_CLASSES = tuple(frames._TYPES)
_BIG_SHARE, _HEADERS_SHARE = 0.002, 0.004
_FRESH_SHARE = 0.5
"""Of what was heard last: a session has not gone on since."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message on the bus."""

    subject: str
    reply: str
    payload: bytes


@dataclass
class Overheard:
    """The last messages, by the row of the table that their subject belongs to; ``""``: answers and what is in no row."""

    by_row: dict[str, deque[Said]] = field(default_factory=dict)
    _own: set[int] = field(default_factory=set)

    def said(self, subject: str, payload: bytes) -> None:
        """It was said by the garbage itself: what comes back of it is not worth to be heard."""
        self._own.add(hash((subject, payload)))

    def hear(self, row: str, said: Said) -> None:
        """Keep it, in the place of an older one."""
        if hash((said.subject, said.payload)) in self._own:
            return
        self.by_row.setdefault(row, deque(maxlen=_KEPT)).append(said)

    def of(self, row: str) -> deque[Said]:
        """What was said there; nothing: an empty queue."""
        return self.by_row.get(row) or deque()


class Maker:
    """``made`` counts the pieces by kind."""

    def __init__(self, rng: random.Random, place: Place, heard: Overheard, max_payload: int) -> None:
        self.made: Counter[str] = Counter()
        self.forges_answers = False
        """Whether whole frames with other contents go to inboxes in which somebody waits: only NATS's permissions protect those."""
        self._rng = rng
        self._place = place
        self._heard = heard
        self._max_payload = max_payload
        self._big = zlib.compress(b"\x00" * max_payload * 64)[: max_payload - 100]
        names = tuple(f"ghost-{number}" for number in range(50))
        self._names = (*names, place.subjects.namespace)

    def frame(self, row: str, subject: str) -> bytes:
        """One command for ``subject``, which is of the row ``row``."""
        rng = self._rng
        kind = rng.choice(
            ("noise", "empty", "cut", "spoiled", "spoiled", "contents", "extreme", "other", "version", "again", "reply")
        )
        own = self._heard.of(row)
        said = (own[-1] if rng.random() < _FRESH_SHARE else rng.choice(own)) if own else Said(subject, "", b"")
        every = [s for row_ in self._heard.by_row.values() for s in row_]
        reply, headers = said.reply, b""
        match kind:
            case "noise":
                payload = rng.randbytes(rng.choice((1, 3, 4, 7, 8, 9, 24, 42, 61, 300)))
            case "cut":
                payload = said.payload[: rng.randrange(len(said.payload) + 1)]
            case "spoiled":
                payload = bytes_of(rng, said.payload, tuple(s.payload for s in rng.sample(every, min(3, len(every)))))
            case "contents":
                payload, reply = self._contents(said.payload), self._own_inbox(said.reply)
            case "extreme":
                payload, reply = self._extreme(row), self._own_inbox(said.reply)
            case "other" if every:
                payload, reply = rng.choice(every).payload, self._own_inbox(said.reply)
            case "version":
                rest = bytes(rng.choice((0, 1, 4, 8, 12, 13, 255)) for _ in range(4))
                payload = rng.choice((envelope.MAGIC, rng.randbytes(4))) + rest + said.payload[8:]
            case "again" if said.payload:
                subject, payload = said.subject or subject, self._not_an_order(row, said.payload)
            case "reply":
                payload, reply = self._not_an_order(row, said.payload), self._odd_reply()
            case _:
                payload = b""
        if payload == said.payload and kind in ("spoiled", "cut"):
            kind, subject = "again", said.subject or subject
        if row in _CONTROL:
            payload = self._not_an_order(row, payload)
        if rng.random() < _BIG_SHARE:
            kind, payload = "big", envelope.header(rng.choice(tuple(MessageType))) + self._big
        if rng.random() < _HEADERS_SHARE:
            kind, headers, reply = "headers", self._headers(), self._own_inbox(reply)
        subject = self._subject(row, subject, kind)
        self._heard.said(subject, payload)
        self.made[kind] += 1
        return command(subject, reply, headers, payload)

    # ---- payloads ------------------------------------------------------------------------------------------------------
    def _contents(self, payload: bytes) -> bytes:
        """A valid frame with one field changed, in a valid envelope."""
        try:
            kind, body = envelope.decode(payload)
            of = next(of for of, number in frames._TYPES.items() if number is kind)
            message = frames.parse(body, of)
        except (frames.ProtocolError, StopIteration):
            return bytes_of(self._rng, payload)
        return frames.encode(spoiled(self._rng, message, self._names))

    def _own_inbox(self, reply: str) -> str:
        """One of the same kind, where nobody waits: who hears somebody's inbox, and says what is whole and right but for its contents,
        could as well say the answer, and only NATS's rights keep him from it."""
        prefix = self._place.subjects.inboxes()
        if self.forges_answers:
            return reply
        if not reply.startswith(prefix):
            return f"_INBOX.garbage.{self._rng.getrandbits(32)}" if reply else ""
        return f"{prefix}{reply.removeprefix(prefix).partition('.')[0]}.nobody.{self._rng.getrandbits(32)}"

    def _extreme(self, row: str) -> bytes:
        of = cluster_pb2.ControlRequest if row in _CONTROL else self._rng.choice(_CLASSES)
        message = message_of(self._rng, of, self._names)
        return envelope.encode(frames._TYPES[of], message.SerializeToString(), crc=self._rng.random() < 0.1)

    def _not_an_order(self, row: str, payload: bytes) -> bytes:
        """Empty in the place of an order that names real things: that is no garbage."""
        if row not in _CONTROL:
            return payload
        try:
            request = frames.decode(payload, cluster_pb2.ControlRequest)
        except frames.ProtocolError:
            return payload
        return b"" if _is_order(request, self._place) else payload

    # ---- what is around them -------------------------------------------------------------------------------------------
    def _subject(self, row: str, subject: str, kind: str) -> str:
        rng = self._rng
        if row == "inbox" and kind == "contents" and not self.forges_answers:
            return f"{subject}.nobody.{rng.getrandbits(63)}"
        if row == "inbox":
            live = self._heard.of(row)
            made_up = f"{subject}.{rng.randrange(99)}.{rng.getrandbits(63)}"
            return rng.choice(live).subject if live and rng.random() < 0.7 else made_up
        if row in ("raft", "control_node", "control_admin", "read_from") and rng.random() < 0.05:
            stem = subject.rpartition(".")[0]
            return f"{stem}." + rng.choice(
                ("x" * (MAX_SUBJECT - len(stem)), "ghost-7", "read", "é", "\x01", "n1\x7f", "N1", "-")
            )
        return subject

    def _odd_reply(self) -> str:
        place, rng = self._place, self._rng
        subjects = place.subjects
        return rng.choice(
            (
                place.data, subjects.info(), subjects.feed(), subjects.control_admin(), subjects.inbox("n1") + ".1.1",
                subjects.raft("n1", "n2"), "$SYS.REQ.SERVER.PING", "_INBOX", "_INBOX.", "_INBOX.*", "_INBOX.>", "_INBOX.a..b",
                "_INBOX.\x01", "_INBOX." + "x" * 2000, "_INBOX.é", "_INBOXx", ">", "*", "..", subjects.inbox("n1"), "_INBOX.garbage.x",
            )
        )  # fmt: skip

    def _headers(self) -> bytes:
        rng = self._rng
        lines = rng.choice(
            (
                b"A: b\r\n" * rng.choice((1, 1000, 12_000)),
                b"Nats-Msg-Id: " + b"x" * 60_000 + b"\r\n",
                b"Lift-Key: \xff\xfe\r\nLift-Ack: everybody\r\nLift-Tombstone: maybe\r\n",
                b"Nats-Expected-Last-Sequence: " + b"9" * 5000 + b"\r\n",
                b": empty\r\n\r\nNATS/1.0\r\n",
                b"no colon\r\n",
                b"A" * 30_000 + b": b\r\n",
                b"Status: 503\r\n",
            )
        )
        first = rng.choice((b"NATS/1.0\r\n", b"NATS/1.0 503\r\n", b"NATS/1.0 100 Idle\r\n", b"NATS/9.9\r\n"))
        return first + lines + b"\r\n"


def _is_order(request: cluster_pb2.ControlRequest, place: Place) -> bool:
    """Whether it names a stream or a node that there is, and is no mere question or heartbeat."""
    kind = request.WhichOneof("request")
    if kind in (None, "describeCluster", "describeStream", "heartbeat", "barrier"):
        return False
    text = request.SerializeToString()
    return any(name.encode() in text for name in (*place.nodes, place.stream))


def command(subject: str, reply: str, headers: bytes, payload: bytes) -> bytes:
    """PUB or HPUB, whatever the subject is."""
    where = f"{subject} {reply}".strip().encode()
    if len(where) > MAX_LINE:
        where = subject.encode()
    if headers:
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (where, len(headers), len(headers) + len(payload), headers, payload)
    return b"PUB %b %d\r\n%b\r\n" % (where, len(payload), payload)
