"""Test acks and negative acks of publishes, and batched acks [A1, A2, A5, A8]."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.acks import AckResendBuffer, Envelope, PendingAcks, Publishers
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import FastEnvelope
from liftpy.core.wire.rejections import Rejection, RejectReason
from tests.ack_runs import answered_by
from tests.each import each
from tests.unit.publish.batches import Bench


class FakeBus:
    """Keeps what would be sent: (subject, payload)."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def send_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            verb, subject, size = head.split()
            assert verb == b"PUB"
            assert rest == rest[: int(size)] + b"\r\n"
            self.sent.append((subject.decode(), rest[: int(size)]))

    def take(self) -> list[tuple[str, bytes]]:
        sent, self.sent = self.sent, []
        return sent


def pending() -> tuple[PendingAcks, FakeBus]:
    bus: Any = FakeBus()
    return PendingAcks(bus, PartitionKey("s", "u1", 0), "ev"), bus


def test_ack_to_a_jetstream_publisher_is_sent_after_the_commit() -> None:
    acks, bus = pending()
    acks.add(10, Publishers(AckPolicy.ALL, [b"_INBOX.a", b"", b"_INBOX.b"]))
    acks.add(13, Publishers(AckPolicy.ALL, [b"_INBOX.c"]))
    acks.release(AckPolicy.ALL, 9, 1, 0)
    acks.release(AckPolicy.LEADER, 13, 1, 0)
    acks.release(AckPolicy.ALL, 11, 1, 0)  # inside a batch: it is committed as a whole
    assert bus.take() == []
    acks.release(AckPolicy.ALL, 12, 1, 0)
    assert bus.take() == [("_INBOX.a", b'{"stream":"s","seq":11}'), ("_INBOX.b", b'{"stream":"s","seq":13}')]
    assert acks.count == 1
    acks.release(AckPolicy.ALL, 13, 1, 0)
    assert bus.take() == [("_INBOX.c", b'{"stream":"s","seq":14}')]
    assert acks.count == 0


def test_rejection_of_each_reason_has_a_jetstream_err_code() -> None:
    acks, bus = pending()
    for reason in RejectReason:
        acks.reject(Publishers(AckPolicy.ALL, [b"_INBOX.p"]), Rejection(reason, ""))
    assert all(json.loads(body)["error"]["err_code"] > 10_000 for _, body in bus.take())


def test_ack_resend_buffer_returns_acks_of_the_last_interval_once() -> None:
    unsure = AckResendBuffer(age_ns=100)
    for at_ns, lines in ((0, b"a"), (50, b"bb"), (100, b"c"), (150, b"d")):
        unsure.note(lines, at_ns)
    assert unsure.size_bytes == 4, "what was written 100 before is kept still"
    assert unsure.again(160) == b"cd"
    assert (unsure.again(160), unsure.size_bytes) == (b"", 0)


def test_ack_resend_buffer_above_its_size_limit_drops_the_oldest_acks() -> None:
    unsure = AckResendBuffer(bound_bytes=5)
    for lines in (b"aa", b"bbb", b"c"):
        unsure.note(lines, 0)
    assert (unsure.size_bytes, unsure.again(0)) == (4, b"bbbc")
    unsure.note(b"too large", 0)
    assert (unsure.size_bytes, unsure.again(0)) == (0, b"")


def answers(bus: FakeBus) -> list[client_pb2.Ack]:
    return [frames.decode(body, client_pb2.Ack) for _, body in bus.take()]


def test_ack_envelope_has_the_position_of_the_record() -> None:
    acks, bus = pending()
    asked = Envelope("c1", "_INBOX.e", "ev.x", AckPolicy.LEADER, 5)
    acks.add(41, Publishers(AckPolicy.ALL, [b"", b"_INBOX.e"], [None, asked], [AckPolicy.ALL, AckPolicy.LEADER]))
    acks.release(AckPolicy.LEADER, 42, 9, 6)
    assert answers(bus) == [
        client_pb2.Ack(
            stream="s", streamUid="u1", partition=0, partitionSubject="ev", msgSubject="ev.x", offset=42, ackInbox="_INBOX.e",
            correlationId="c1", ackPolicy=client_pb2.LEADER, receptionTimestamp=5, commitTimestamp=6, leaderEpoch=9,
        )
    ]  # fmt: skip


def test_negative_ack_envelope_has_the_reason_and_the_leader() -> None:
    acks, bus = pending()
    asked = Envelope("c1", "_INBOX.e", "ev.x", AckPolicy.ALL, 5)
    acks.reject(Publishers(AckPolicy.ALL, [b"_INBOX.e"], [asked]), Rejection(RejectReason.WRONG_STREAM, "not here"), "n2", 4, 7)
    assert answers(bus) == [
        client_pb2.Ack(
            stream="s", streamUid="u1", partition=0, partitionSubject="ev", msgSubject="ev.x", offset=-1, ackInbox="_INBOX.e",
            correlationId="c1", ackPolicy=client_pb2.ALL, receptionTimestamp=5, ackError=client_pb2.Ack.WRONG_STREAM,
            leaderEpoch=4, epoch=7, leader="n2", detail="not here",
        )
    ]  # fmt: skip


@each(
    ("reason", "code", "err_code"),
    [
        (RejectReason.UNKNOWN, 500, 10077),
        (RejectReason.INCORRECT_OFFSET, 400, 10071),
        (RejectReason.TOO_LARGE, 400, 10054),
        (RejectReason.READ_ONLY, 400, 10077),
        (RejectReason.BELOW_MIN_ISR, 503, 10008),
        (RejectReason.NO_SPACE, 503, 10047),
        (RejectReason.NOT_LEADER, 503, 10008),
        (RejectReason.MALFORMED, 400, 10003),
        (RejectReason.OVERLOADED, 429, 10167),
        (RejectReason.WRONG_STREAM, 400, 10060),
    ],
)
def test_rejection_for_a_jetstream_client_has_code_err_code_and_description(
    reason: RejectReason, code: int, err_code: int
) -> None:
    acks, bus = pending()
    for detail in ("", "the detail"):
        acks.reject(Publishers(AckPolicy.ALL, [b"_INBOX.p"]), Rejection(reason, detail))
    general, detailed = (json.loads(body) for _, body in bus.take())
    assert general.pop("retry_after_ms", 0) == (50 if reason is RejectReason.OVERLOADED else 0)
    assert {**general, "error": {**general["error"], "description": ""}} == {
        "stream": "s", "seq": 0, "error": {"code": code, "err_code": err_code, "description": ""}
    }  # fmt: skip
    assert general["error"]["description"]
    assert detailed["error"]["description"] == "the detail"


def test_pending_acks_count_only_publishers_with_reply_and_ack_policy() -> None:
    acks, bus = pending()
    acks.add(0, Publishers(AckPolicy.ALL, [b"", b""]))
    acks.add(2, Publishers(AckPolicy.NONE, [b"_INBOX.n"]))
    acks.add(3, Publishers(AckPolicy.ALL, [b"", b"_INBOX.n"], policies=[AckPolicy.ALL, AckPolicy.NONE]))
    assert acks.count == 0
    acks.add(5, Publishers(AckPolicy.ALL, [b"_INBOX.a", b"_INBOX.l"], policies=[AckPolicy.ALL, AckPolicy.LEADER]))
    assert acks.count == 4, "the batch waits under both"
    acks.release(AckPolicy.LEADER, 6, 1, 0)
    assert (bus.take(), acks.count) == ([("_INBOX.l", b'{"stream":"s","seq":7}')], 2)
    acks.release(AckPolicy.ALL, 6, 1, 0)
    assert (bus.take(), acks.count) == ([("_INBOX.a", b'{"stream":"s","seq":6}')], 0)


_Ack = client_pb2.Ack
ORDINARY = FastEnvelope("s", 1, "u1", AckPolicy.ALL, runs=True)


def counted(number: int, inbox: bytes = b"_INBOX.x", msg_id: bytes = b"", value: bytes = b"v") -> tuple[bytes, bytes, bytes]:
    return b"%b.%d" % (inbox, number), ORDINARY.envelope(value, msg_id), b""


def other(number: int, *, block: bytes = b"", **fields: Any) -> tuple[bytes, bytes, bytes]:
    said = {
        "stream": "s",
        "streamUid": "u1",
        "partition": 1,
        "ackPolicy": client_pb2.ALL,
        "value": b"v",
        "offset": -1,
        "runs": True,
    }
    return b"_INBOX.x.%d" % number, frames.seal(client_pb2.Message(**said | fields)), block


def told(bench: Bench, policy: AckPolicy = AckPolicy.ALL) -> dict[str, tuple[int, int]]:
    """Where each Ack goes -> (offset, records); those that are no acks say (-1, error)."""
    bench.acks.release(policy, bench.end - 1, 3, 0)
    return _told(bench)


def _told(bench: Bench) -> dict[str, tuple[int, int]]:
    subjects = [line.split(b" ", 2)[1].decode() for line in bench.lines]
    acks = bench.answers()
    assert len({*subjects}) == len(subjects)
    return {
        subject: (-1, ack.ackError) if ack.ackError else (ack.offset, ack.recordCount)
        for subject, ack in zip(subjects, acks, strict=True)
    }


def test_batched_ack_acknowledges_consecutive_messages_of_one_inbox_in_one_message() -> None:
    bench = Bench()
    bench.arrive(*(counted(number) for number in range(98, 103)))
    assert bench.acks.count == 5
    assert told(bench) == {"_INBOX.x.98": (0, 5)}
    assert bench.acks.count == 0
    bench.arrive(counted(103))
    assert told(bench) == {"_INBOX.x.103": (5, 0)}, "one alone is answered as ever"


def test_batched_ack_includes_messages_with_keys_and_headers() -> None:
    bench = Bench()
    bench.arrive(
        counted(1), other(2, key=b"k", keyed=True), other(3, headers=[client_pb2.Header(name="h", value=b"1")]), counted(4)
    )
    assert told(bench) == {"_INBOX.x.1": (0, 4)}


@pytest.mark.parametrize(
    ("between", "answers"),
    [
        (
            (b"_INBOX.y.2", ORDINARY.envelope(b"v", b""), b""),
            {"_INBOX.x.1": (0, 0), "_INBOX.y.2": (1, 0), "_INBOX.x.2": (2, 0)},
        ),
        (counted(9), {"_INBOX.x.1": (0, 0), "_INBOX.x.9": (1, 0), "_INBOX.x.2": (2, 0)}),
        ((b"", b"plain", b""), {"_INBOX.x.1": (0, 0), "_INBOX.x.2": (2, 0)}),
    ],
)
def test_batched_ack_ends_before_a_message_with_another_inbox_or_a_gap_in_reply_numbers(
    between: tuple[bytes, bytes, bytes], answers: dict[str, tuple[int, int]]
) -> None:
    bench = Bench()
    bench.arrive(counted(1), between, counted(2))
    assert told(bench) == answers


@pytest.mark.parametrize(
    "single",
    [
        other(2, correlationId="c"),
        other(2, runs=False),
        other(2, ackPolicy=client_pb2.LEADER),
        other(2, ackInbox="_INBOX.x.2"),
        other(2, block=b"NATS/1.0\r\nh: 1\r\n\r\n"),
    ],
)
def test_batched_ack_excludes_messages_with_other_ack_options(single: tuple[bytes, bytes, bytes]) -> None:
    bench = Bench()
    bench.arrive(counted(1), single, counted(3), counted(4))
    leader, everybody = told(bench, AckPolicy.LEADER), told(bench)
    assert leader | everybody == {"_INBOX.x.1": (0, 0), "_INBOX.x.2": (1, 0), "_INBOX.x.3": (2, 2)}


def test_batched_ack_stops_before_a_rejected_message_which_gets_its_own_error() -> None:
    bench = Bench()
    bench.arrive(counted(1), counted(2), other(3, tombstone=True), counted(4), counted(5))
    answers = told(bench)
    assert answers.pop("_INBOX.x.3") == (-1, _Ack.MALFORMED)
    assert sum(len(answered_by(reply.encode(), records)) for reply, (_, records) in answers.items()) == 4
    assert bench.end == 4


def test_batched_ack_stops_before_a_duplicate_which_gets_its_own_ack() -> None:
    bench = Bench()
    bench.arrive(counted(1, msg_id=b"a"))
    assert told(bench) == {"_INBOX.x.1": (0, 0)}
    bench.arrive(counted(2, msg_id=b"b"), counted(3, msg_id=b"a"), counted(4, msg_id=b"c"), counted(5, msg_id=b"d"))
    assert told(bench) == {"_INBOX.x.3": (0, 0), "_INBOX.x.2": (1, 0), "_INBOX.x.4": (2, 2)}


def test_batched_ack_of_rejected_messages_is_replaced_by_one_error_per_message() -> None:
    bench = Bench()
    bench.ingest.reader.max_message_bytes = 1
    bench.arrive(*(counted(number) for number in range(3)))
    assert told(bench) == {f"_INBOX.x.{number}": (-1, _Ack.TOO_LARGE) for number in range(3)}


def test_batched_acks_are_not_sent_to_older_clients() -> None:
    bench, older = Bench(), FastEnvelope("s", 1, "u1", AckPolicy.ALL)
    bench.arrive(*((b"_INBOX.x.%d" % number, older.envelope(b"v", b""), b"") for number in range(3)))
    assert told(bench) == {f"_INBOX.x.{number}": (number, 0) for number in range(3)}
    bench.arrive((b"_INBOX.x.3", older.envelope(b"v", b""), b""), counted(4), counted(5), (b"_INBOX.x.6", b"plain", b""))
    bench.acks.release(AckPolicy.ALL, bench.end - 1, 3, 0)
    assert [line.split(b" ", 2)[1] for line in bench.lines] == [b"_INBOX.x.3", b"_INBOX.x.4", b"_INBOX.x.6"]


def test_batched_ack_does_not_mix_the_leader_and_the_all_ack_policy() -> None:
    bench = Bench()
    ordinary = FastEnvelope("s", 1, "u1", AckPolicy.LEADER, runs=True)
    bench.arrive(*((b"_INBOX.x.%d" % number, ordinary.envelope(b"v", b""), b"") for number in range(3)))
    assert told(bench, AckPolicy.LEADER) == {"_INBOX.x.0": (0, 3)}
    assert told(bench) == {}
