"""Test replies of a service: recipients, repeated commands, and the client side."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.services.bad_records import SkipDecision, Unit
from liftpy.core.services.replies import Answer, AnswerTable, Reply, ReplyBuffer, decode_answers, message_id_of
from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, InboxRule
from liftpy.errors import ProtocolError, UnavailableError
from liftpy.service import DivergedError, Identity, Outbox, Record, Service, ServiceFailedError, ServiceMachine
from liftpy.service.reply_sender import Replier
from liftpy.service.settings import ServiceSettings
from liftpy.testing import ServiceTest
from tests.until import until

NS = 1_000_000_000


class Adder(Service):
    """A service that replies with the sum and emits it."""

    on_error = "skip"

    def on_start(self, snapshot: bytes | None) -> None:
        self.total = int(snapshot or 0)

    def on_record(self, record: Record) -> None:
        self.total += int(record.value or b"")
        self.emit(b"%d" % self.total)
        self.reply(record, b"%d" % self.total)

    def take_snapshot(self) -> bytes:
        return b"%d" % self.total


def record(offset: int, value: bytes = b"1", *, to: str | None = "_INBOX.a.1", name: str = "", at_ns: int = 0) -> Record:
    headers = (("Nats-Msg-Id", name.encode()),) if name else ()
    return Record(offset, at_ns, None, value, headers, "in", to, 1)


def machine_of(buffer: ReplyBuffer, snapshot: Any = None) -> ServiceMachine:
    made = ServiceMachine(Adder(), Identity("adder", "in", "u", 0), snapshot_interval_records=1000, outbox=Outbox("u/0"))
    made.replies = buffer
    made.start(snapshot)
    return made


def all_of(buffer: ReplyBuffer, emitted_end: int | None = None) -> list[tuple[int, str | None, bytes, str]]:
    found = []
    while (reply := buffer.next(emitted_end)) is not None:
        buffer.record_sent(reply)
        found.append((reply.offset, reply.to, reply.value, reply.error))
    return found


# ---- what a service replies ------------------------------------------------------------------------------------------------
def test_service_command_repeated_with_its_message_id_is_applied_once() -> None:
    buffer = ReplyBuffer()
    machine = machine_of(buffer)
    machine.apply([record(0, b"5", name="c1"), record(1, b"7", name="c2"), record(2, b"5", name="c1", to="_INBOX.b.9")])
    assert [answer[1:] for answer in all_of(buffer)] == [
        ("_INBOX.a.1", b"5", ""),
        ("_INBOX.a.1", b"12", ""),
        ("_INBOX.b.9", b"5", ""),
    ]
    assert machine.snapshot().state == b"12"
    assert machine.outbox is not None
    assert machine.outbox.output_count == 2
    assert machine.position == 3


def test_service_snapshot_contains_answers_only_for_records_with_message_ids() -> None:
    machine = machine_of(ReplyBuffer())
    machine.apply([record(0), record(1)])
    assert machine.snapshot().sections == (), "no message ids: nothing is kept"
    machine.apply([record(2, name="c1")])
    buffer = ReplyBuffer()
    again = machine_of(buffer, machine.snapshot())
    again.apply([record(3, name="c1")])
    assert again.snapshot().state == b"3"
    assert all_of(buffer) == [(3, "_INBOX.a.1", b"3", "")]


def test_service_command_that_is_skipped_gets_an_error_reply() -> None:
    buffer = ReplyBuffer()
    machine = machine_of(buffer)
    machine.skip(Unit(1))
    decision = Record(2, 0, None, b"", SkipDecision("adder", Unit(1)).headers(), "in", "_INBOX.x.1", 1)
    machine.apply([record(0), record(1, b"no number", name="c1"), decision])
    assert [(offset, error) for offset, _, _, error in all_of(buffer)] == [(0, ""), (1, "PASSED_OVER")]
    machine.apply([record(3, b"4", name="c1")])
    assert machine.snapshot().state == b"5", "it was not carried out, so the next try may be"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda s, r: (s.reply(r, b"x"), s.reply(r, b"y")), "once"),
        (lambda s, r: s.reply(r._replace(offset=7), b"x"), "reply() was called too late or twice"),
    ],
)
def test_service_reply_to_an_answered_or_other_record_fails_the_service(wrong: Any, why: str) -> None:
    class Wrong(Adder):
        on_error = "stop"

        def on_record(self, record: Record) -> None:
            wrong(self, record)

    with pytest.raises(ServiceFailedError, match=re.escape(why)):
        ServiceTest(Wrong).send(b"1")


def test_service_reply_from_a_timer_or_query_is_rejected() -> None:
    class Late(Adder):
        on_error = "stop"

        def on_record(self, record: Record) -> None:
            self.last = record
            self.set_timer("t", self.now_ns + NS)

        def on_timer(self, name: str) -> None:
            self.reply(self.last, b"late")

        def on_query(self, query: bytes) -> bytes:
            self.reply(self.last, b"now")
            return b""

    test = ServiceTest(Late).send(b"1")
    with pytest.raises(ServiceFailedError, match="reply is"):
        test.query(b"?")
    with pytest.raises(ServiceFailedError, match=r"reply\(\) was called too late or twice"):
        test.advance(2).send(b"1")


def test_service_test_harness_verify_with_different_replies_raises_diverged_error() -> None:
    test = ServiceTest(Adder).send(b"4").send(b"5", headers=[("Nats-Msg-Id", b"c")]).send(b"5", headers=[("Nats-Msg-Id", b"c")])
    assert [(reply.offset, reply.value) for reply in test.replies] == [(0, b"4"), (1, b"9"), (2, b"9")]
    test.verify(hash_seeds=1)

    class OfTheRole(Adder):
        def on_record(self, record: Record) -> None:
            self.reply(record, self.role.value.encode())

    with pytest.raises(DivergedError, match="The reply to the record"):
        ServiceTest(OfTheRole).send(b"1").verify(hash_seeds=0)


# ---- the buffer and the table ------------------------------------------------------------------------------------------------
def reply(offset: int, size: int = 1, at_ns: int = 0) -> Reply:
    return Reply(offset, "_INBOX.a.1", b"x" * size, at_ns=at_ns)


def test_service_pending_replies_above_the_limits_drop_the_oldest_reply() -> None:
    buffer = ReplyBuffer(max_replies=3, max_bytes=1000)
    for offset in range(5):
        buffer.add(reply(offset))
    assert [offset for offset, *_ in all_of(buffer)] == [2, 3, 4]
    for offset in range(5, 9):
        buffer.add(reply(offset, 400))
    assert [offset for offset, *_ in all_of(buffer)] == [7, 8]
    buffer.add(reply(9, 5000))
    assert len(buffer) == 1, "one is kept, however large"
    buffer.add(reply(10, at_ns=0))
    buffer.add(reply(11, at_ns=61 * NS))
    assert [offset for offset, *_ in all_of(buffer)] == [11], "nobody waits for so long"


def test_service_answer_table_above_its_limit_drops_the_oldest_answer() -> None:
    table = AnswerTable(max_answers=2)
    for number in range(3):
        table.add(Answer(number, f"ü{number}", b"v" * number))
    assert table.get("ü0") is None
    assert (len(table), table.get("ü2")) == (2, Answer(2, "ü2", b"vv"))
    again = decode_answers(table.encode())
    assert again.encode() == table.encode()
    small = AnswerTable(max_bytes=100)
    for number in range(30):
        small.add(Answer(number, str(number), b"x" * 20))
    assert len(small.encode()) <= 100
    assert len(small) == 2


@pytest.mark.parametrize("value", [b"\xff", b"x" * 257, b""])
def test_service_message_id_of_a_record_with_an_invalid_id_is_empty(value: bytes) -> None:
    assert message_id_of(Record(0, 0, None, b"", (("Nats-Msg-Id", value),), "in", None, 1)) == ""


# ---- the LEADER ------------------------------------------------------------------------------------------------------------
class Bus:
    """A transport. ``deaf``: sends fail. ``limit``: maximum message size."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, dict[str, str]]] = []
        self.deaf = False
        self.limit = 1000

    async def publish(self, subject: str, payload: bytes, *, headers: dict[str, str]) -> None:
        if self.deaf:
            raise UnavailableError("not connected")
        if len(payload) > self.limit:
            raise ProtocolError("too large")
        self.sent.append((subject, payload, headers))


async def test_service_reply_sender_sends_only_as_leader_and_waits_for_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liftpy.service.reply_sender._IDLE_CHECK_S", 3600.0)
    bus, buffer, instance = Bus(), ReplyBuffer(), SimpleNamespace(leads=False, emitted_end=1)
    settings = ServiceSettings("adder", "in", "n1", Path("unused"))
    replier = Replier(bus, settings, buffer, instance)  # type: ignore[arg-type]
    task = asyncio.create_task(replier.run())
    buffer.add(replace(reply(3), output_count=1))
    buffer.add(replace(reply(4), output_count=2, error="PASSED_OVER"))
    await asyncio.sleep(0.05)
    assert bus.sent == [], "a FOLLOWER answers nobody"
    bus.deaf = instance.leads = True
    replier.wake()  # as its host does when the leadership comes
    await asyncio.sleep(0.02)
    bus.deaf = False
    await until(lambda: bus.sent)
    assert bus.sent == [("_INBOX.a.1", b"x", {"Lift-Service": "adder", "Lift-Offset": "3", "Lift-Node": "n1"})]
    await asyncio.sleep(0.02)
    assert len(bus.sent) == 1, "an output of the second is not written yet"
    instance.emitted_end = 2
    await until(lambda: len(bus.sent) == 2)
    assert bus.sent[1][2]["Lift-Error"] == "PASSED_OVER"
    await asyncio.sleep(0.05)  # it waits for new replies
    for offset, to in enumerate(("orders.new", "_INBOX.*", "$SYS.x", "\udcff"), 5):
        buffer.add(replace(reply(offset), to=to))
    buffer.add(reply(20, 5000))
    buffer.add(reply(21))
    buffer.add(replace(reply(22, 5000), error="PASSED_OVER"))
    await until(lambda: len(bus.sent) == 5)
    assert [(headers.get("Lift-Error"), len(payload)) for _, payload, headers in bus.sent[2:]] == [
        ("REPLY_TOO_LARGE", 63),
        (None, 1),
        ("PASSED_OVER", 1000),
    ]
    assert replier.refused_count == 6
    task.cancel()


# ---- what the log keeps ----------------------------------------------------------------------------------------------------
def columns(policy: AckPolicy, *messages: tuple[bytes, bytes, bytes, bytes]) -> Any:
    reader = MessageDecoder(PartitionKey("in", "u", 0), "in", policy, InboxRule(DEFAULT_INBOX_PREFIXES))
    return reader, reader.read(messages, 0)


def test_publish_with_lift_reply_to_header_keeps_ack_inbox_and_reply_inbox() -> None:
    block = b"NATS/1.0\r\nLift-Reply-To: %b\r\n\r\n"
    reader, kept = columns(
        AckPolicy.ALL, (b"in", b"_INBOX.ack", b"x", block % b"_INBOX.a.2"), (b"in", b"", b"x", block % b"orders.new")
    )
    assert kept.replies == ["_INBOX.a.2", None]
    assert next(iter(kept.publishers.replies)) == b"_INBOX.ack"
    assert reader.refused_replies == 1
