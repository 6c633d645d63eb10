"""Test the rejection of unread messages: exactly those with a reply subject of rejecting partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.subscription import Subscription

from liftpy.config import AckPolicy
from liftpy.core.publish.memory_budget import (
    LEAST_WAIT_MS,
    MemoryBudget,
    NodePublishMemory,
)
from liftpy.core.publish.ports import can_be_rejected_unread
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import MAGIC, FastEnvelope
from sidecar.transport.parser import IngestParser, SinkParser
from tests.long import examples
from tests.unit.publish.batches import Bench, published
from tests.unit.publish.test_quota import enveloped
from tests.unit.transport.fake_client import FakeClient

MS = 1_000_000
HEADERS = b"NATS/1.0\r\n\r\n"
ID = b"NATS/1.0\r\nNats-Msg-Id: m1\r\n\r\n"
NEW = b"NATS/1.0\r\nA: b\r\nNats-Msg-Id: m2\r\n\r\n"
UNCLEAR = [
    b"NATS/1.0\r\nNats-Msg-Id: m2\r\nNats-Msg-Id: m1\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id:\tm2\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: m2 \r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n",
    b"NATS/1.0\r\nX-Nats-Msg-Id: m2\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % (b"m" * 1025),
]
ASKS = b"MSG ev 1 _INBOX.a.1 3\r\nabc\r\n"


class ParserBench:
    """A parser with the sinks 1 ("ev"), 2 (any subject) and 3 ("w.*"), and what they were given."""

    def __init__(self, kind: Any = SinkParser) -> None:
        self.client = FakeClient()
        self.client._subs |= {sid: Subscription(self.client, sid, "?") for sid in (1, 2, 3)}
        self.got: list[tuple[bytes, ...]] = []
        self.parser: Any = kind(self.client, dict.fromkeys((b"1", b"2", b"3"), self.sink))
        self.parser.expect(1, "ev")
        self.parser.expect(3, "w.*")

    def sink(self, *message: bytes) -> None:
        if message[2] == b"bug":
            raise KeyError("a bug")
        self.got.append(message)

    @property
    def counted(self) -> tuple[int, int]:
        return self.client.stats["in_msgs"], self.client.stats["in_bytes"]


class SwitchableRefuser:
    """Refuses while it is told to."""

    def __init__(self, log: list[Any], name: int) -> None:
        self.shut = True
        self._log, self._name = log, name

    def rejects_now(self) -> bool:
        return self.shut

    def is_new(self, message_id: bytes) -> bool:
        return message_id != b"m1"

    def reject_unread(self, replies: Sequence[bytes]) -> None:
        if b"bug" in replies:
            raise KeyError("a bug")
        self._log.append((self._name, list(replies)))


class OverloadedParser(ParserBench):
    """Subscriptions 1 and 3 refuse; 2 does not."""

    def __init__(self) -> None:
        super().__init__(IngestParser)
        self.refused: list[tuple[int, list[bytes]]] = []
        self.doors = {sid: SwitchableRefuser(self.refused, sid) for sid in (1, 3)}
        for sid, door in self.doors.items():
            self.parser.set_rejector(sid, door)
        self.parser.pauses = True


async def test_ingest_parser_in_overload_rejects_requests_of_one_subject_together() -> None:
    made = OverloadedParser()
    stream = b"".join(b"MSG ev 1 _INBOX.a.%d %d\r\n%b\r\n" % (number, number, b"x" * number) for number in range(4))
    stream += b"HMSG ev 1 _INBOX.e 12 14\r\n%bab\r\n" % HEADERS
    stream += b"HMSG ev 1 _INBOX.f %d %d\r\n%bab\r\n" % (len(NEW), len(NEW) + 2, NEW)
    stream += b"MSG w.x 3 _INBOX.b 1\r\na\r\nMSG w.y 3 _INBOX.c 1\r\na\r\nMSG any 2 _INBOX.d 1\r\na\r\n"
    await made.parser.parse(stream)
    plain = [b"_INBOX.a.%d" % number for number in range(4)]
    assert made.refused == [(1, plain), (1, [b"_INBOX.e", b"_INBOX.f"]), (3, [b"_INBOX.b"]), (3, [b"_INBOX.c"])]
    assert made.got == [(b"any", b"_INBOX.d", b"a", b"")]
    assert (made.parser.refused, made.parser.received, made.counted) == (8, 9, (9, 25 + len(NEW)))


async def test_ingest_parser_rejection_that_raises_is_reported_and_skips_only_its_requests() -> None:
    made = OverloadedParser()
    bug = b"MSG ev 1 bug 1\r\na\r\n"
    await made.parser.parse(bug + b"MSG w.x 3 _INBOX.b 1\r\na\r\n")
    assert (made.client.failed, made.refused, made.counted) == ([b"ev"], [(3, [b"_INBOX.b"])], (2, 2))


_WORD = st.sampled_from([b"_INBOX.a", b"_INBOX.b.77", b"r\nx", b"", b"\xff", b"r" * 255, b"r" * 256])
_PAYLOAD = st.sampled_from([b"", b"a", b"\r\n", ASKS, MAGIC + b"e", MAGIC[:2], b"x" * 70, b"MSG ev 1 _INBOX.f 500\r\n"])
_FRAME = st.tuples(
    st.sampled_from([(b"ev", b"1"), (b"any.x", b"2"), (b"w.x", b"3"), (b"w.y", b"3")]),
    _WORD,
    _PAYLOAD,
    st.sampled_from([b"", HEADERS, ID, NEW, *UNCLEAR]),
)


def _bytes_of(frame: Any) -> bytes:
    (subject, sid), reply, payload, block = frame
    words = [b"HMSG" if block else b"MSG", subject, sid, *([reply] if reply else [])]
    sizes = [b"%d" % len(block)] if block else []
    return b" ".join([*words, *sizes, b"%d" % len(block + payload)]) + b"\r\n" + block + payload + b"\r\n"


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(_FRAME, max_size=12), st.lists(st.integers(0, 400), max_size=4), st.data())
async def test_ingest_parser_in_overload_handles_each_message_once_for_any_split_of_the_bytes(
    frames: list[Any], cuts: list[int], data: Any
) -> None:
    stream, made = b"".join(map(_bytes_of, frames)), OverloadedParser()
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    for start, end in zip([0, *ends], ends, strict=False):
        if data.draw(st.booleans()) and not made.parser._chunks:
            made.parser.feed(stream[start:end]) or await made.parser.parse()
        else:
            await made.parser.parse(stream[start:end])
    due: list[Any] = []
    for (subject, sid), reply, payload, block in frames:
        unread = (
            sid != b"2"
            and len(reply) <= 255
            and b"\n" not in reply
            and bool(reply)
            and not payload.startswith(MAGIC)
            and can_be_rejected_unread(block, made.doors[1].is_new)
        )
        due.append((int(sid), reply) if unread else (subject, reply, payload, block))
    assert made.got == [one for one in due if len(one) == 4]
    assert [(sid, reply) for sid, replies in made.refused for reply in replies] == [one for one in due if len(one) == 2]
    sizes = [len(payload) + len(block) for _, _, payload, block in frames]
    assert (made.counted, made.parser.received) == ((len(frames), sum(sizes)), len(frames))


# ---- who is refused ----------------------------------------------------------------------------------------------------------
class OverloadedIngest(Bench):
    """An ``Ingest`` whose node may be late."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.node = MemoryBudget(100, late_s)
        super().__init__(memory=self.node)

    def hold_back(self) -> None:
        """Keep what arrives from now on in flight."""
        self.ingest._feed = lambda event: None

    def lose_message_ids(self) -> None:
        """Let the node drop stored message ids, because its memory is full."""
        self.ingest._log_state.ids._lost_ns = self.ingest.wall_ns()


def _is_late(bench: OverloadedIngest) -> None:
    bench.node.is_late = True


def _has_no_room(bench: OverloadedIngest) -> None:
    bench.node.update(NodePublishMemory(uncommitted=100))


def _many_wait(bench: OverloadedIngest) -> None:
    bench.ingest._raw = [(b"ev.1", b"", b"v", b"")] * bench.ingest._config.ingest_queue_records


def _much_waits(bench: OverloadedIngest) -> None:
    bench.ingest._raw_bytes = bench.ingest._config.ingest_queue_bytes


def _waits_for_its_commit(bench: OverloadedIngest) -> None:
    bench.node.late_ns, bench.node.is_pressed = 1000 * MS, True
    bench.ingest.counters.times.now_ns = lambda: 7000 * MS
    bench.arrive((b"_INBOX.1", b"v", b""))
    assert bench.acks.since_ns() == 7000 * MS
    bench.ingest.counters.times.now_ns = lambda: 7501 * MS


@pytest.mark.parametrize("why", [_is_late, _has_no_room, _many_wait, _much_waits, _waits_for_its_commit])
def test_overload_rejects_publishes_while_the_queue_delay_is_above_its_limit_or_a_queue_is_full(
    why: Callable[[OverloadedIngest], None],
) -> None:
    bench = OverloadedIngest()
    door = bench.ingest
    assert not door.rejects_now()
    why(bench)
    assert door.rejects_now()
    bench.replica.has_standby = True
    assert not door.rejects_now(), "somebody else may store it"
    bench.replica.has_standby = False
    bench.ingest.reader._policy = AckPolicy.NONE
    assert not door.rejects_now(), "nobody is answered here: nobody waits"


def test_overload_with_acks_above_the_delay_limit_rejects_publishes_even_without_memory_pressure() -> None:
    """At the start of a flood the queue is before the commit, and few bytes wait unread."""
    bench = OverloadedIngest(late_s=1.0)
    door = bench.ingest
    seen = []
    for step in range(100):
        at_ms = 7000 + 50 * step
        bench.ingest.counters.times.now_ns = lambda now_ms=at_ms: now_ms * MS  # type: ignore[misc]
        seen.append(door.rejects_now())
        bench.node.update_wait(0, 0, at_ms * MS)
        if seen[-1]:
            break
        bench.arrive((b"_INBOX.1", b"v", b""))
        if step > 22:  # commits go on, 1.1 s late
            bench.acks.release(AckPolicy.ALL, step - 23, 3, 0)
    assert 28 < len(seen) < 36, "older than a second since step 21, and it moves since step 23"
    assert bench.node.is_pressed


def test_overload_rejection_has_a_retry_delay_and_is_sent_only_to_inboxes() -> None:
    bench = OverloadedIngest()
    bench.node.waited_ns = 700_000_000
    bench.ingest.reject_unread([b"_INBOX.1", b"shop.orders", b"_INBOX.2"])
    assert [line.split()[1] for line in bench.lines] == [b"_INBOX.1", b"_INBOX.2"]
    assert all(b'"code": 429' in line and line.endswith(b'"retry_after_ms":700}\r\n') for line in bench.lines)
    sizes = [line.split(b"\r\n") for line in bench.lines]
    assert all(int(head.rsplit(b" ", 1)[1]) == len(body) for head, body, _ in sizes)
    counters = bench.ingest.counters
    assert (counters.overloaded, dict(counters.refused), dict(counters.dropped)) == (3, {"overloaded": 3}, {})
    assert bench.ingest.reader.refused_replies == 1


def test_overload_rejection_without_a_lease_is_sent_when_the_lease_returns() -> None:
    bench = OverloadedIngest()
    bench.replica.may_reject = False
    bench.ingest.reject_unread([b"_INBOX.1"])
    assert bench.lines == []
    bench.replica.may_reject = True
    bench.ingest.settle()
    assert [line.split()[1] for line in bench.lines] == [b"_INBOX.1"]


# ---- by message ids ----------------------------------------------------------------------------------------------------------
def block(message_id: bytes) -> bytes:
    return b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id


def test_overload_message_id_is_new_only_if_neither_stored_nor_in_flight() -> None:
    bench = OverloadedIngest()
    is_new = bench.ingest.is_new
    bench.arrive((b"_INBOX.1", b"v", block(b"m1")))
    assert (is_new(b"m1"), is_new(b"m2")) == (False, True)
    bench.hold_back()
    bench.arrive((b"_INBOX.2", b"v", block(b"m2")))
    assert (is_new(b"m2"), is_new(b"m3")) == (False, True)
    bench.ingest._message_arrived(b"ev.1", b"_INBOX.3", b"v", block(b"m3"))
    assert not is_new(b"m4"), "what has come and was not taken yet is not looked through"
    bench.ingest._drain()
    assert (is_new(b"m3"), is_new(b"m4")) == (False, True)
    bench.lose_message_ids()
    assert not is_new(b"m4"), "one of those that went for want of room may be it"


def _is_stored(bench: OverloadedIngest) -> None:
    bench.arrive((b"_INBOX.1", b"v", block(b"m1")))


def _is_in_flight(bench: OverloadedIngest) -> None:
    bench.hold_back()
    _is_stored(bench)


@pytest.mark.parametrize(
    ("first", "messages", "rejected"),
    [
        (None, [(b"1", b"m1"), (b"2", b"m1"), (b"3", b"m2")], [b"1", b"2", b"3"]),
        (_is_stored, [(b"1", b"m1"), (b"3", b"m2")], [b"3"]),
        (_is_stored, [(b"2", b"m1"), (b"3", b"m2")], [b"3"]),
        (_is_stored, [(b"2", b"m1"), (b"3.$FI", b"")], [b"3.$FI"]),
        (_is_in_flight, [(b"2", b"m1"), (b"3", b"m2")], [b"3"]),
    ],
    ids=["new ids", "a repeated publish", "a duplicate", "a duplicate next to a JetStream fast batch", "a duplicate in flight"],
)
def test_overload_with_message_ids_rejects_those_that_are_neither_stored_nor_in_flight(
    first: Callable[[OverloadedIngest], None] | None, messages: list[tuple[bytes, bytes]], rejected: list[bytes]
) -> None:
    bench = OverloadedIngest()
    if first is not None:
        first(bench)
    bench.node.is_late = True
    bench.arrive(*((b"_INBOX." + inbox, b"v", block(message_id) if message_id else b"") for inbox, message_id in messages))
    assert [line.split()[1] for line in bench.lines] == [b"_INBOX." + inbox for inbox in rejected]
    assert bench.ingest.counters.overloaded == len(messages)


def test_overload_does_not_answer_a_message_id_that_may_be_stored() -> None:
    bench = OverloadedIngest()
    _is_stored(bench)
    bench.lose_message_ids()
    bench.node.is_late = True
    bench.arrive((b"_INBOX.2", b"v", block(b"m1")), (b"_INBOX.3", b"v", block(b"m2")), (b"_INBOX.4", b"v", b""))
    assert [line.split()[1] for line in bench.lines] == [b"_INBOX.4"]
    assert dict(bench.ingest.counters.dropped) == {"message_ids_lost": 1}


def test_overload_rejects_each_envelope_with_a_negative_ack_envelope() -> None:
    bench = OverloadedIngest()
    bench.arrive((b"_INBOX.0", enveloped(b"v", headers=[client_pb2.Header(name="Nats-Msg-Id", value=b"m1")]), b""))
    bench.lines.clear()
    bench.node.is_late = True
    read: list[int] = []
    reading = bench.ingest.reader.read
    bench.ingest.reader.read = lambda messages, now: (read.append(len(messages)), reading(messages, now))[1]  # type: ignore[method-assign, func-returns-value]
    form = FastEnvelope("s", 1, "u1", AckPolicy.ALL)
    bench.arrive(
        (b"_INBOX.1", form.envelope(b"1", b""), b""),
        (b"_INBOX.2", form.envelope(b"2", b"m2"), b""),
        (b"_INBOX.3", enveloped(b"3", correlationId="c3"), b""),
        (b"_INBOX.4", form.envelope(b"4", b"m1"), b""),
        (b"_INBOX.5", enveloped(b"5", correlationId="c5", ackInbox="_INBOX.else"), b""),
        (b"_INBOX.6", published(b"no batch", correlationId="c6"), b""),
        (b"_INBOX.7", form.envelope(b"7", b""), b""),
    )
    said = [(line.split()[1], ack) for line, ack in zip(list(bench.lines), bench.answers(), strict=True)]
    assert [(inbox, ack.correlationId, ack.ackError) for inbox, ack in said] == [
        (b"_INBOX.1", "", client_pb2.Ack.OVERLOADED), (b"_INBOX.2", "", client_pb2.Ack.OVERLOADED),
        (b"_INBOX.3", "c3", client_pb2.Ack.OVERLOADED), (b"_INBOX.else", "c5", client_pb2.Ack.OVERLOADED),
        (b"_INBOX.7", "", client_pb2.Ack.OVERLOADED), (b"_INBOX.6", "c6", client_pb2.Ack.OVERLOADED),
    ]  # fmt: skip
    assert all(ack.retryAfterMs == LEAST_WAIT_MS and ack.offset == -1 for _, ack in said)
    assert read == [6, 1], "a whole batch is read alone"
