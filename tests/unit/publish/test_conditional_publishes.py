"""Test conditional publishes by the last sequence of a subject or the last message id [A7]."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish import conditions, last_per_subject
from liftpy.core.publish.acks import Publishers
from liftpy.core.publish.jetstream_headers import PublishConditions, expected_in, rejection_after_sequence
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.message_decoder import MessageColumns
from liftpy.core.replication.effects import AppendBatch
from liftpy.core.replication.events import PublishesReceived
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.rejections import RejectReason
from liftpy.core.wire.subjects import has_wildcards, matcher
from liftpy.testing.memory import memory_cluster
from tests.unit.publish.ingest_bench import Bench as IngestBench
from tests.unit.publish.ingest_bench import turn

OF = "Nats-Expected-Last-Subject-Sequence"
NAMED = f"{OF}-Subject"
LAST_ID = "Nats-Expected-Last-Msg-Id"


class Bench(IngestBench):
    """Over a log, on ``ev.>``; what is published in one turn arrives together."""

    def __init__(self, subject: str = "ev.>", room: int = 1 << 20, **more: Any) -> None:
        super().__init__(**more)
        self.log = Log.open(MemoryStorage(), StreamConfig(segment_bytes=4096))[0]
        self.log_state = self.ingest._log_state = LogState(
            self.log, 10**15, 1 << 20, lambda: 0, subject=subject, partition_subject_index_bytes=room
        )
        self.asked: list[PublishesReceived] = []
        self._inboxes = 0

    def feed(self, event: Any) -> None:
        self.asked.append(event)
        if isinstance(event, PublishesReceived) and self.append:
            effect = AppendBatch(token=event.token, base_offset=self.end, leader_epoch=1, timestamp_ns=event.received_wall_ns)
            batch = self.ingest.encode_batch(effect)
            self.log.append(batch)
            self.batches.append(batch)
            self.end = self.log.log_end_offset
            self.ingest.appended(effect, batch)

    def send(self, subject: str, *headers: tuple[str, object], answered: bool = True, payload: bytes = b"v") -> None:
        self._inboxes += 1
        block = b"NATS/1.0\r\n%b\r\n" % b"".join(f"{name}: {value}\r\n".encode() for name, value in headers) if headers else b""
        self.bus.sink(subject.encode(), b"_INBOX.%d" % self._inboxes if answered else b"", payload, block)

    async def says(self, subject: str, *headers: tuple[str, object]) -> Any:
        """Sequence, or (code, err_code, text)."""
        self.send(subject, *headers)
        await turn()
        return self.answers()[-1]

    def answers(self) -> list[Any]:
        """In the order of the publishes."""
        self.acks.release(self.ingest.reader._policy, self.end - 1, 1, 0)
        found = {}
        for line in self.bus.lines:
            head, body, _ = line.split(b"\r\n", 2)
            said = json.loads(body)
            error = said.get("error")
            found[int(head.split()[1][7:])] = (error["code"], error["err_code"], error["description"]) if error else said["seq"]
        self.bus.lines.clear()
        return [found[number] for number in sorted(found)]


def wrong(last: int) -> tuple[int, int, str]:
    return 400, 10071, f"wrong last sequence: {last}"


async def test_publish_with_a_wrong_expected_subject_sequence_is_rejected_on_a_wildcard_stream() -> None:
    bench = Bench()
    assert await bench.says("ev.a") == 1
    assert await bench.says("ev.b") == 2
    assert await bench.says("ev.a", (OF, 2)) == wrong(1)
    assert await bench.says("ev.a", (OF, "abc")) == wrong(1)
    assert await bench.says("ev.a", (OF, "9" * 20)) == wrong(1)
    assert await bench.says("ev.a", (OF, 1)) == 3
    assert await bench.says("ev.new", (OF, 1)) == wrong(0)
    assert await bench.says("ev.new", (OF, 0)) == 4
    assert await bench.says("ev.new", (OF, 0)) == wrong(4)
    assert await bench.says("ev.c", (OF, 4), (NAMED, "ev.new")) == 5
    assert await bench.says("ev.c", (OF, 5), (NAMED, "ev.*")) == 6
    assert await bench.says("ev.c", (OF, 5), (NAMED, ">")) == wrong(6)
    assert await bench.says("ev.b", ("Nats-Expected-Last-Sequence", 6), (OF, 9)) == wrong(2)
    assert await bench.says("ev.c", (OF, 0), (NAMED, "ev.c.*")) == 7
    assert await bench.says("ev.c", (OF, ""), (NAMED, "ev.c")) == (
        400, 10193, "missing sequence for expected last sequence per subject",
    )  # fmt: skip
    assert bench.end == 7
    assert all(event.conditional for event in bench.asked[2:]), "it never waits with the core"
    assert not any(event.conditional for event in bench.asked[:2])


async def test_publish_with_a_wrong_expected_subject_sequence_is_rejected_on_a_single_subject_stream() -> None:
    bench = Bench("ev")
    assert await bench.says("ev", (OF, 0)) == 1
    assert await bench.says("ev", (OF, 0)) == wrong(1)
    assert await bench.says("ev", (OF, 1)) == 2
    assert await bench.says("ev", (OF, 0), (NAMED, "other")) == 3
    assert await bench.says("ev", (OF, 3), (NAMED, "*")) == 4
    assert bench.log_state.subjects.state == "off"


async def test_condition_check_includes_earlier_publishes_of_the_same_socket_read() -> None:
    bench = Bench()
    bench.send("ev.a", (OF, 0))
    bench.send("ev.b")
    bench.send("ev.a", (OF, 1))
    bench.send("ev.c", (OF, 3), (NAMED, "ev.*"))
    await turn()
    assert bench.answers() == [1, 2, 3, 4]
    assert bench.counts() == [4], "all of it holds: one batch"
    bench.send("ev.a", (OF, 3))
    bench.send("ev.a", (OF, 3))
    bench.send("ev.b")
    await turn()
    assert bench.answers() == [5, wrong(5), 6]
    assert [event.conditional for event in bench.asked] == [True, True, False]


async def test_publish_with_a_wrong_expected_last_message_id_is_rejected_with_error_10070() -> None:
    bench = Bench()
    assert await bench.says("ev.a", (LAST_ID, "x")) == (400, 10070, "wrong last msg ID: ")
    assert await bench.says("ev.a", ("Nats-Msg-Id", "one"), (LAST_ID, "")) == 1
    assert await bench.says("ev.a", (LAST_ID, "two")) == (400, 10070, "wrong last msg ID: one")
    assert await bench.says("ev.b", ("Nats-Msg-Id", "two"), (LAST_ID, "one")) == 2
    assert bench.asked[-1].conditional
    assert await bench.says("ev.b") == 3
    assert await bench.says("ev.b", (LAST_ID, "two")) == (400, 10070, "wrong last msg ID: "), "the last record has none"
    bench.send("ev.a", ("Nats-Msg-Id", "x"))
    bench.send("ev.a", ("Nats-Msg-Id", "y"), (LAST_ID, "x"))
    bench.send("ev.a", (LAST_ID, "x"))
    await turn()
    assert bench.answers() == [4, 5, (400, 10070, "wrong last msg ID: y")]
    bench.send("ev.a", ("Nats-Msg-Id", "z"))
    bench.send("ev.a", (LAST_ID, "y"))
    await turn()
    assert bench.answers() == [6, (400, 10070, "wrong last msg ID: z")], "what stands before it in its batch counts"


async def test_conditional_publish_without_reply_that_fails_is_dropped_and_counted() -> None:
    bench = Bench()
    bench.send("ev.a", (OF, 7), answered=False)
    bench.send("ev.a", (LAST_ID, "x"), answered=False)
    await turn()
    assert bench.end == 0
    assert bench.ingest.counters.dropped == {"incorrect_offset": 2}


async def an_indexing_bench() -> Bench:
    """302 records of as many subjects, of which the leader has indexed the last only."""
    bench = Bench()
    bench.log_state.first_read_bytes = 1
    for number in range(302):
        bench.send(f"ev.{number}", payload=b"v" * 100)
        if number % 20 == 0 or number > 299:
            await turn()
    bench.answers()
    return bench


async def test_conditional_publish_of_an_unindexed_subject_is_answered_after_indexing() -> None:
    bench = await an_indexing_bench()
    for headers in (((OF, 0),), ((OF, 0),), ((OF, 303), (NAMED, "ev.*"))):
        bench.send("ev.new", *headers)
    await turn()
    assert bench.answers() == []
    assert not bench.ingest.is_idle
    assert await bench.says("ev.301", (OF, 302)) == 303
    while not bench.log_state.read_missing_records():
        pass
    assert bench.answers() == [304, wrong(304), wrong(304)]
    assert bench.ingest.is_idle
    assert await bench.says("ev.other", (OF, 0)) == 305
    assert bench.ingest.counters.dropped == {}


async def test_conditional_publish_after_a_record_of_its_subject_is_answered_during_indexing() -> None:
    bench = await an_indexing_bench()
    bench.send("ev.new")
    bench.send("ev.new", (OF, 303))
    await turn()
    assert bench.answers() == [303, 304]


@pytest.mark.parametrize("bound", ["WAIT_PUBLISHES", "WAIT_BYTES", "WAIT_NS"])
async def test_conditional_publish_above_the_indexing_wait_limit_is_rejected_with_503(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(last_per_subject, bound, 0)
    bench = await an_indexing_bench()
    bench.send("ev.new", (OF, 0))
    await turn()
    bench.log_state.read_missing_records(1)
    (answer,) = bench.answers()
    assert answer[:2] == (503, 10008)
    assert "Try again" in answer[2]
    assert bench.ingest.is_idle
    assert bench.log_state.index_wait.share.size_bytes == 0


@pytest.mark.parametrize("left", [False, True])
async def test_conditional_publishes_waiting_for_the_index_are_rejected_when_the_leader_resigns(left: bool) -> None:
    bench = await an_indexing_bench()
    bench.send("ev.new", (OF, 0))
    await turn()
    if left:
        bench.ingest.leave()
    else:
        bench.ingest.stop()
    assert [answer[0] for answer in bench.answers()] == ([503] if left else [])
    while not bench.log_state.read_missing_records():
        pass
    assert bench.answers() == []
    assert bench.end == 302


async def test_publish_that_expects_a_new_subject_is_stored_at_the_first_attempt() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, cluster.nats() as nats:
        await client.create_stream("events", "ev.>")
        js = nats.jetstream(timeout=10)
        for _ in range(8):
            await js.publish("ev.old", os.urandom(60_000))
        ack = await js.publish("ev.new", b"v", headers={OF: "0"})
        assert ack.seq == 9


async def test_conditional_publish_on_a_stream_with_too_many_subjects_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(room=4096)
    for number in range(50):
        await bench.says(f"ev.{number}")
    full = await bench.says("ev.1", (OF, 2))
    assert full[:2] == (503, 10023)
    assert "partition_subject_index_bytes" in full[2]
    assert await bench.says("ev.1") == 51
    assert await bench.says("ev.1", ("Nats-Expected-Last-Sequence", 51)) == 52
    many = Bench()
    monkeypatch.setattr(conditions, "MANY", 2)
    for number in range(3):
        await many.says(f"ev.{number}", (OF, 0))
    assert (await many.says("ev.0", (OF, 3), (NAMED, "ev.*")))[:2] == (400, 10003)
    assert await many.says("ev.0", (OF, 3), (NAMED, "ev.2")) == 4


def unmet(log_state: Any, subjects: list[str], of_others: dict[int, PublishConditions], end_offset: int) -> dict[int, Any]:
    """What does not hold of messages to ``subjects``."""
    count = len(subjects)
    publishers = Publishers(AckPolicy.ALL, [b""] * count)
    columns = MessageColumns(values=[b""] * count, publishers=publishers, subjects=subjects, of_others=of_others)
    return conditions.unmet_conditions(columns, log_state, end_offset)


def test_condition_check_with_a_wildcard_filter_covers_at_most_ten_thousand_subjects() -> None:
    log_state = Bench(room=1 << 24).log_state
    log_state.last_of("ev.0")
    log_state.subjects.read_below(0, {f"ev.{number}": number for number in range(10_000)})

    def judged(sequence: int) -> tuple[object, ...]:
        return unmet(log_state, ["ev.x"], {0: PublishConditions(sequence, "ev.*", b"")}, 10_000).get(0, ())

    assert (judged(10_000), judged(9_999)[1:]) == ((), ("wrong last sequence: 10000", None))
    log_state.subjects.read_below(0, {"ev.more": 10_000})
    text = "An expected last sequence with wildcards needs a stream with at most 10000 subjects. Name one subject."
    assert judged(10_001) == judged(9_999) == (RejectReason.UNSUPPORTED, text, (400, 10003))


async def test_publish_with_a_wrong_expected_subject_sequence_in_envelope_headers_is_rejected() -> None:
    bench = Bench("ev")
    for sequence, offset in (("0", 0), ("0", -1), ("1", 1)):
        message = client_pb2.Message(value=b"v", ackInbox="_INBOX.1", ackPolicy=client_pb2.ALL)
        message.headers.add(name=OF, value=sequence.encode())
        bench.bus.sink(b"ev", b"", frames.encode(message), b"")
        await turn()
        bench.acks.release(bench.ingest.reader._policy, bench.end - 1, 1, 0)
        (line,) = bench.bus.lines
        bench.bus.lines.clear()
        ack = frames.decode(line.split(b"\r\n", 1)[1][:-2], client_pb2.Ack)
        assert (ack.offset if not ack.ackError else -1) == offset
        assert RejectReason(ack.ackError or 2) is RejectReason.INCORRECT_OFFSET
    stored = parse_batch(bench.batches[-1])
    assert stored.record_count == 1


def test_condition_header_that_occurs_twice_counts_with_its_first_value() -> None:
    assert expected_in([]) is None
    assert expected_in([("nats-expected-last-subject-sequence", b"1"), (NAMED, b"x"), (LAST_ID, b""), (OF, b"")]) is None
    assert expected_in([(OF, b"1"), (OF, b"2")]) == PublishConditions(1, "", b"")
    assert expected_in([(LAST_ID, b"a"), (NAMED, b"x\xff")]) == PublishConditions(None, "x\udcff", b"a")
    assert expected_in([(OF, b"-1")]) == PublishConditions(-1, "", b"")
    assert rejection_after_sequence([(NAMED, b"x"), (OF, b"1")]) is None
    assert rejection_after_sequence([(NAMED, b"x"), (OF, b"")]) is not None


def test_expected_sequence_filter_with_wildcards_matches_subjects_as_nats_does() -> None:
    assert [has_wildcards(subject) for subject in ("a", "a.b", "a.*", "*.b", "a.>", ">", "a*.b>", "a.>.b")] == [
        False, False, True, True, True, True, False, False,
    ]  # fmt: skip
    assert [matcher("a.*.c")(s) for s in ("a.b.c", "a.b.c.d", "a.b.d", "xa.b.c", "a.b.b.c")] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert [matcher("a.>")(s) for s in ("a", "a.b", "a.b.c", "b.a.b")] == [False, True, True, False]
    assert matcher("a.+")("a.b") is False
    assert matcher("a.+")("a.+") is True
    assert matcher(">")("a.\n.\udcff") is True
    assert [matcher("a.>")(s) for s in ("a.", "a..b")] == [matcher("a.*")(s) for s in ("a.", "b.c")] == [False, False]
    assert [matcher("*.>.c")(s) for s in ("a.b.c", "a.>.c")] == [False, True]


async def test_publish_with_a_filter_of_many_wildcards_is_answered_within_a_second() -> None:
    bench = Bench(room=1 << 24)
    await bench.says(".".join(["ev", *"a" * 200]), (OF, 0))
    for subject_filter, last in ((">.>.>.>.>.>.>.>.x", 0), (".".join("*" * 30_000), 0), (".".join("*" * 201), 1)):
        began = time.process_time()
        answer = await bench.says("ev.b", (OF, 99), (NAMED, subject_filter))
        assert answer[-1] == f"wrong last sequence: {last}", answer
        assert time.process_time() - began < 1.0


def test_condition_check_of_a_thousand_filters_takes_less_than_half_a_second() -> None:
    """[A21]"""
    log_state = Bench(room=1 << 24).log_state
    log_state.last_of("ev.0")
    log_state.subjects.read_below(0, {f"ev.{number}.x": number for number in range(10_000)})
    subjects = [f"ev.new.{number}" for number in range(1000)]

    def judged(filters: list[str]) -> tuple[float, list[str]]:
        began = time.process_time()
        unfit = unmet(
            log_state, subjects, {index: PublishConditions(0, named, b"") for index, named in enumerate(filters)}, 10_000
        )
        return time.process_time() - began, [reason.name for reason, *_ in unfit.values()]

    took_s, reasons = judged(["*.y.*"] * 1000)
    assert (took_s < 0.5, reasons) == (True, []), "one lookup for all"
    took_s, reasons = judged([f"*.{number}.y" for number in range(1000)])
    assert took_s < 0.5
    assert 900 < reasons.count("OVERLOADED") == len(reasons)
    log_state = Bench(room=1 << 24).log_state
    log_state.last_of("ev.0")
    log_state.subjects.read_below(0, {f"ev.{number}.x": number for number in range(10_000)})
    took_s, reasons = judged([f"ev.{number}z.>" for number in range(1000)])
    assert (took_s < 0.5, reasons) == (True, []), "subjects that begin otherwise are not compared"
