"""Test which publisher gets which ack, and when [A1, A2, A5]."""

from __future__ import annotations

import json
from typing import Any

from liftpy.config import AckPolicy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.acks import AckResendBuffer, Envelope, PendingAcks, Publishers
from liftpy.core.publish.jetstream_headers import Rejection
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from tests.each import each


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


def test_ack_policy_header_selects_ack_after_flush_or_commit_or_no_ack() -> None:
    acks, bus = pending()
    policies = [AckPolicy.LEADER, AckPolicy.ALL, AckPolicy.NONE]
    acks.add(0, Publishers(AckPolicy.ALL, [b"_INBOX.l", b"_INBOX.a", b"_INBOX.n"], policies=policies))
    acks.release(AckPolicy.LEADER, 2, 1, 0)
    assert [subject for subject, _ in bus.take()] == ["_INBOX.l"]
    acks.release(AckPolicy.ALL, 2, 1, 0)
    assert [subject for subject, _ in bus.take()] == ["_INBOX.a"]
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
