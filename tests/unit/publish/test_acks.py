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


def test_negative_ack_is_sent_in_the_format_of_its_publish() -> None:
    acks, bus = pending()
    envelope = Envelope("c1", "", "ev", AckPolicy.ALL, 5)
    acks.reject(
        Publishers(AckPolicy.ALL, [b"_INBOX.p", b"", b"_INBOX.e"], [None, None, envelope]),
        Rejection(RejectReason.NOT_LEADER, ""),
        "n2",
        4,
    )
    (_, plain), (_, enveloped) = bus.take()
    assert json.loads(plain)["error"]["code"] == 503
    ack = frames.decode(enveloped, client_pb2.Ack)
    assert (ack.ackError, ack.leader, ack.offset) == (client_pb2.Ack.NOT_LEADER, "n2", -1)


def test_rejection_of_each_reason_has_a_jetstream_err_code() -> None:
    acks, bus = pending()
    for reason in RejectReason:
        acks.reject(Publishers(AckPolicy.ALL, [b"_INBOX.p"]), Rejection(reason, ""))
    assert all(json.loads(body)["error"]["err_code"] > 10_000 for _, body in bus.take())


def test_pending_acks_that_were_dropped_are_not_sent_at_the_commit() -> None:
    acks, bus = pending()
    acks.add(0, Publishers(AckPolicy.ALL, [b"_INBOX.a"]))
    acks.drop()
    acks.release(AckPolicy.ALL, 10, 1, 0)
    assert bus.take() == []
    assert acks.count == 0


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
