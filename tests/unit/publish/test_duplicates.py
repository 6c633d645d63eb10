"""Test a message that is sent again: it is stored once and answered `duplicate` once the first is committed [A3]."""

from __future__ import annotations

import json
from typing import Any

from liftpy.config import AckPolicy
from liftpy.core.replication.effects import AppendBatch
from liftpy.core.replication.events import DuplicateReceived, PublishesReceived
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.rejections import RejectReason
from tests.batches import build_batch
from tests.unit.publish.ingest_bench import Bench as IngestBench
from tests.unit.publish.ingest_bench import turn


class Bench(IngestBench):
    """With a core that appends what comes, or holds it (``append`` False) until ``release`` or ``refuse``."""

    def __init__(self, **more: Any) -> None:
        self.again: list[int] = []
        self.held: list[PublishesReceived] = []
        super().__init__(**more)

    def feed(self, event: PublishesReceived | DuplicateReceived) -> None:
        if isinstance(event, DuplicateReceived):
            self.again.append(event.last_offset)
        elif self.append:
            super().feed(event)
        else:
            self.held.append(event)

    def release(self) -> None:
        held, self.held = self.held, []
        for event in held:
            effect = AppendBatch(token=event.token, base_offset=self.end, leader_epoch=1, timestamp_ns=event.received_wall_ns)
            batch = self.ingest.encode_batch(effect)
            self.ingest.appended(effect, batch)
            self.batches.append(batch)
            self.end += event.record_count

    def send(self, payload: bytes, message_id: str = "", reply: bytes = b"", more: str = "") -> None:
        own = f"Nats-Msg-Id: {message_id}\r\n" if message_id else ""
        block = f"NATS/1.0\r\n{own}{more}\r\n".encode()
        self.publish(payload, reply, block if message_id or more else b"")

    def values(self) -> list[bytes | None]:
        return [value for batch in self.batches for value in parse_batch(batch).values()]

    def commit(self, through: int | None = None, policy: AckPolicy = AckPolicy.ALL) -> None:
        self.acks.release(policy, self.end - 1 if through is None else through, 1, 0)

    def answers(self) -> dict[str, Any]:
        """Inbox -> the one answer; sequence, or error code, with D for a duplicate."""
        found: dict[str, Any] = {}
        for line in self.bus.lines:
            head, body, _ = line.split(b"\r\n", 2)
            inbox = head.split()[1].decode()
            assert inbox not in found, "exactly one answer"
            if body.startswith(b"{"):
                answer = json.loads(body)
                found[inbox] = answer["error"]["err_code"] if "error" in answer else answer["seq"]
                if answer.get("duplicate"):
                    found[inbox] = f"{answer['seq']}D"
            else:
                ack = frames.decode(body, client_pb2.Ack)
                found[inbox] = f"{ack.offset + 1}D" if ack.duplicate else ack.offset + 1
        return found


async def test_duplicate_message_id_is_stored_once_and_acked_with_the_first_sequence() -> None:
    bench = Bench()
    bench.send(b"v", "a", b"_INBOX.1")
    await turn()
    bench.send(b"other", "a", b"_INBOX.2")
    bench.send(b"w", "b", b"_INBOX.3")
    bench.send(b"v", "a")
    await turn()
    assert bench.values() == [b"v", b"w"]
    assert bench.again == [0]
    assert bench.answers() == {}, "nobody before the commit"
    assert bench.acks.count == 3
    bench.commit(0)
    assert bench.answers() == {"_INBOX.1": 1, "_INBOX.2": "1D"}
    bench.commit()
    assert bench.answers()["_INBOX.3"] == 2
    assert (bench.acks.count, bench.ingest.counters.duplicates, bench.ingest.is_idle) == (0, 2, True)
    assert not bench.ingest.counters.dropped


async def test_duplicate_message_id_is_marked_in_an_ack_envelope() -> None:
    bench = Bench()
    for number in range(2):
        message = client_pb2.Message(
            offset=-1,
            ackPolicy=client_pb2.ALL,
            value=b"v",
            correlationId=f"c{number}",
            headers=[client_pb2.Header(name="Nats-Msg-Id", value=b"a")],
        )
        bench.publish(frames.encode(message), b"_INBOX.%d" % number)
        await turn()
    bench.commit()
    acks = [frames.decode(line.split(b"\r\n", 1)[1][:-2], client_pb2.Ack) for line in bench.bus.lines]
    assert [(ack.offset, ack.duplicate, ack.correlationId, ack.ackError) for ack in acks] == [
        (0, False, "c0", 0),
        (0, True, "c1", 0),
    ]


async def test_duplicate_message_ids_in_one_socket_read_are_stored_once() -> None:
    bench = Bench()
    for number, message_id in enumerate("abaab"):
        bench.send(b"%d" % number, message_id, b"_INBOX.%d" % number)
    await turn()
    assert bench.values() == [b"0", b"1"]
    bench.commit()
    assert bench.answers() == {"_INBOX.0": 1, "_INBOX.1": 2, "_INBOX.2": "1D", "_INBOX.3": "1D", "_INBOX.4": "2D"}


async def test_duplicate_of_a_message_in_flight_gets_the_ack_or_the_error_of_the_first() -> None:
    bench = Bench(append=False)
    bench.send(b"x", "", b"_INBOX.0")
    bench.send(b"v", "a", b"_INBOX.1")
    await turn()
    bench.send(b"v", "a", b"_INBOX.2")
    await turn()
    assert len(bench.held) == 1
    assert bench.again == []
    bench.release()
    assert bench.answers() == {}
    bench.commit()
    assert bench.answers() == {"_INBOX.0": 1, "_INBOX.1": 2, "_INBOX.2": "2D"}
    bench.send(b"w", "b", b"_INBOX.3")
    await turn()
    bench.send(b"w", "b", b"_INBOX.4")
    await turn()
    (held,) = bench.held
    bench.ingest.reject(held.token, RejectReason.BELOW_MIN_ISR, "", 0)
    assert {bench.answers()["_INBOX.3"], bench.answers()["_INBOX.4"]} == {10008}
    bench.held.clear()
    bench.send(b"w", "b", b"_INBOX.5")
    await turn()
    assert len(bench.held) == 1, "what was refused is no record"
    bench.send(b"w", "b", b"_INBOX.6")
    await turn()
    bench.ingest.drop(bench.held[0].token)
    bench.held.clear()
    bench.commit()
    assert "_INBOX.6" not in bench.answers()
    assert bench.ingest.is_idle
    bench.send(b"w", "b", b"_INBOX.7")
    await turn()
    bench.ingest.stop()
    bench.ingest.start()
    bench.send(b"w", "b", b"_INBOX.8")
    await turn()
    assert len(bench.held) == 2, "after another leadership nothing is in hand"


async def test_duplicate_in_one_socket_read_is_stored_if_the_first_is_rejected() -> None:
    bench = Bench()
    refused: list[int] = []

    def refuse_first(event: Any) -> None:
        if isinstance(event, PublishesReceived) and not refused:
            refused.append(event.token)
            bench.ingest.reject(event.token, RejectReason.OVERLOADED, "", 0)
        else:
            Bench.feed(bench, event)

    bench.ingest._feed = refuse_first
    bench.send(b"1", "a", b"_INBOX.1")
    bench.send(b"2", "a", b"_INBOX.2")
    await turn()
    bench.commit()
    assert bench.values() == [b"2"]
    assert bench.answers() == {"_INBOX.1": 10167, "_INBOX.2": 1}


async def test_duplicate_check_runs_after_expected_stream_and_before_expected_sequence() -> None:
    bench = Bench()
    bench.send(b"v", "a", b"_INBOX.1", "Nats-Expected-Last-Sequence: 0\r\n")
    await turn()
    bench.send(b"v", "a", b"_INBOX.2", "Nats-Expected-Last-Sequence: 0\r\n")
    bench.send(b"v", "a", b"_INBOX.3", "Nats-Rollup: all\r\n")
    bench.send(b"v", "a", b"_INBOX.4", "Nats-Expected-Stream: x\r\n")
    bench.send(b"v", "a", b"_INBOX.5", "Nats-TTL: 1s\r\n")
    bench.send(b"v", "b", b"_INBOX.6", "Nats-Expected-Last-Sequence: 0\r\n")
    await turn()
    bench.commit()
    expected = {"_INBOX.2": "1D", "_INBOX.3": "1D", "_INBOX.4": 10060, "_INBOX.5": 10166, "_INBOX.6": 10071}
    assert bench.answers() == {"_INBOX.1": 1} | expected


async def test_duplicate_is_acked_by_its_own_ack_policy_not_that_of_the_first() -> None:
    bench = Bench()
    bench.send(b"v", "a", b"_INBOX.1")
    await turn()
    for number, policy in enumerate(("leader", "all", "none"), 2):
        bench.send(b"v", "a", b"_INBOX.%d" % number, f"Lift-Ack: {policy}\r\n")
    await turn()
    bench.commit(policy=AckPolicy.LEADER)
    assert bench.answers() == {"_INBOX.2": "1D"}
    bench.commit()
    assert bench.answers() == {"_INBOX.2": "1D", "_INBOX.1": 1, "_INBOX.3": "1D"}


async def test_duplicate_is_acked_when_the_whole_batch_of_the_first_is_committed() -> None:
    bench = Bench()
    for number in range(3):
        bench.send(b"%d" % number, f"m{number}")
    await turn()
    bench.send(b"0", "m0", b"_INBOX.1")
    await turn()
    assert bench.again == [2]
    bench.commit(1)
    assert bench.answers() == {}
    bench.commit(2)
    assert bench.answers() == {"_INBOX.1": "1D"}


async def test_duplicate_unacked_at_the_end_of_the_leadership_gets_no_ack() -> None:
    bench = Bench()
    bench.send(b"v", "a")
    await turn()
    bench.send(b"v", "a", b"_INBOX.1")
    await turn()
    bench.acks.drop()
    bench.commit()
    assert (bench.answers(), bench.acks.count) == ({}, 0)


async def test_duplicate_acks_beyond_the_ingest_queue_limit_are_not_sent() -> None:
    bench = Bench(ingest_queue_records=16)
    bench.send(b"v", "a")
    await turn()
    for number in range(40):
        bench.send(b"v", "a", b"_INBOX.%d" % number)
        if number % 10 == 9:
            await turn()
    await turn()
    assert bench.acks.count == 16
    bench.commit()
    assert set(bench.answers().values()) == {"1D"}
    assert len(bench.answers()) == 16
    for number in range(100, 140):  # more than one read may bring
        bench.send(b"v", "a", b"_INBOX.%d" % number)
        bench.send(b"v", "new", b"_INBOX.x%d" % number)
    await turn()
    bench.commit()
    answers = bench.answers()
    assert not [inbox for inbox, answer in answers.items() if answer == 10167 and "x" not in inbox], "it is stored: never no"
    assert 10167 in answers.values()
    held = Bench(append=False, ingest_queue_records=16)
    held.send(b"v", "a")
    await turn()
    for number in range(40):
        held.send(b"v", "a", b"_INBOX.%d" % number)
        await turn()
    held.release()
    assert held.acks.count == 16


async def test_service_command_with_a_message_id_is_stored_each_time() -> None:
    """The service knows the id and answers again. Other publishers are deduplicated."""
    bench = Bench()
    for number in range(3):
        message = client_pb2.Message(
            ackPolicy=client_pb2.ALL,
            offset=-1,
            value=b"v",
            replySubject="_INBOX.answer",
            headers=[client_pb2.Header(name="Nats-Msg-Id", value=b"a")],
        )
        bench.publish(frames.encode(message), b"_INBOX.%d" % number)
    await turn()
    bench.send(b"v", "a", b"_INBOX.3")
    await turn()
    bench.commit()
    assert bench.answers() == {"_INBOX.0": 1, "_INBOX.1": 2, "_INBOX.2": 3, "_INBOX.3": "3D"}


async def test_batch_publish_with_message_ids_is_stored_without_deduplication() -> None:
    """A service forwards what it reads with its headers."""
    bench = Bench()
    rows = build_batch([b"v", b"w", b"x"], headers=[[("Nats-Msg-Id", b"a")], [("h", b"1")], [("Nats-Msg-Id", b"a")]])
    for number in range(2):
        head = client_pb2.BatchPublish(ackPolicy=client_pb2.ALL, ackInbox=f"_INBOX.b{number}")
        bench.publish(frames.batch_publish(head, rows), b"")
        await turn()
    bench.send(b"v", "a", b"_INBOX.3")
    await turn()
    bench.commit()
    answers = bench.answers()
    assert answers["_INBOX.3"] == "6D", "the newest record that has it"


async def test_message_id_that_is_too_long_is_rejected_and_an_empty_one_ignored() -> None:
    bench = Bench()
    bench.send(b"v", "x" * 1025, b"_INBOX.1")
    bench.send(b"v", "x" * 1024, b"_INBOX.2")
    bench.publish(b"v", b"_INBOX.3", b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n")
    bench.publish(b"v", b"_INBOX.4", b"NATS/1.0\r\nNats-Msg-Id:\r\n\r\n")
    await turn()
    bench.commit()
    assert bench.answers() == {"_INBOX.1": 10054, "_INBOX.2": 1, "_INBOX.3": 2, "_INBOX.4": 3}


async def test_duplicate_message_id_without_a_dedup_window_is_stored_again() -> None:
    bench = Bench()
    bench.log_state.ids.window_ns = 0
    for number in range(2):
        bench.send(b"v", "a", b"_INBOX.%d" % number)
        await turn()
    assert bench.values() == [b"v", b"v"]
