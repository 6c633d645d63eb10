"""Test one ack for consecutive messages of one inbox: each request gets the answer of its record [A1, A8]."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.publish.acks import Envelope, Publishers
from liftpy.core.publish.jetstream_headers import Rejection
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import FastEnvelope
from tests.ack_runs import answered_by
from tests.unit.publish.batches import Bench

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


def test_pending_acks_of_a_batch_rejected_by_the_leader_send_one_error_per_publisher() -> None:
    bench, wanted = Bench(), Envelope("", "", "ev.1", AckPolicy.ALL, 0, takes_runs=True)
    replies = [b"_INBOX.x.%d" % number for number in range(3)]
    bench.acks.reject(Publishers(AckPolicy.ALL, replies, [wanted] * 3), Rejection(RejectReason.NOT_LEADER, ""), "n2", 4)
    assert _told(bench) == {f"_INBOX.x.{number}": (-1, _Ack.NOT_LEADER) for number in range(3)}


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


def test_message_decoder_maps_message_ids_to_record_indexes_in_arrival_order() -> None:
    bench = Bench()
    id_of = [client_pb2.Header(name="Nats-Msg-Id", value=b"odd")]
    bench.arrive(other(1, key=b"k", keyed=True, headers=id_of), counted(2, msg_id=b"even"))
    raw = [(b"ev.1", *other(1, key=b"k", keyed=True, headers=id_of)), (b"ev.1", *counted(2, msg_id=b"even"))]
    assert list(bench.ingest.reader.read(raw, 0).ids.items()) == [(0, b"odd"), (1, b"even")]
    assert told(bench) == {"_INBOX.x.1": (0, 2)}
