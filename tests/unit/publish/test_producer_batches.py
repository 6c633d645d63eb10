"""Test batches of producers: stored once, in order, answered once when committed [A1, A2, A3]."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec, ReplicationConfig, StreamConfig
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from tests.batches import build_batch
from tests.unit.publish.batches import Bench, published

_Ack = client_pb2.Ack
P, INSTANCE = 77, 5
REPLY = b"_INBOX.a"
RECORDS: list[tuple[bytes | None, bytes | None, Any]] = [
    (b"%d" % n if n % 3 else None, b"k" if n % 2 else None, [("Nats-Msg-Id", b"m%d" % n)] if n % 4 == 0 else None)
    for n in range(40)
]


def batch_of(first: int, end: int, epoch: int = 0) -> bytes:
    values, keys, headers = zip(*RECORDS[first:end], strict=True)
    return build_batch(values, keys=keys, headers=headers, producer_id=P, producer_epoch=epoch, base_sequence=first)


def before(first: int) -> bytes:
    digest = RollingDigest()
    return (digest.over(parse_batch(batch_of(0, first)).columns, 0, first) if first else digest).encode()


def send(bench: Bench, first: int, end: int, epoch: int = 0, instance: int = INSTANCE, **head: Any) -> None:
    fields = {"producerInstance": instance, "producerDigest": before(first), "correlationId": f"{first}-{end}"} | head
    bench.arrive((REPLY, published(batch_of(first, end, epoch), **fields), b""))


def ask(bench: Bench, instance: int = INSTANCE) -> None:
    bench.arrive((REPLY, published(b"", askedProducer=P, producerInstance=instance), b""))


def at(offset: int, uid: str = "u") -> client_pb2.SourcePosition:
    return client_pb2.SourcePosition(streamUid=uid, partition=2, offset=offset, generation=3)


def begun(codec: Codec = Codec.NONE) -> Bench:
    bench = Bench(codec=codec)
    ask(bench)
    (answer,) = bench.commit()
    state = answer.producer
    assert (state.epoch, state.nextSequence, state.known, answer.ackError, answer.offset) == (0, 0, False, _Ack.OK, -1)
    assert RollingDigest.decode(state.digest) == RollingDigest()
    return bench


def values_in(bench: Bench) -> list[bytes | None]:
    return [value for batch in bench.batches for value in batch.values()]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_producer_batches_in_order_are_stored_with_their_sequences(codec: Codec) -> None:
    bench = begun(codec)
    send(bench, 0, 3)
    send(bench, 3, 10)
    assert [(b.header.producer_id, b.header.producer_epoch, b.header.base_sequence) for b in bench.batches] == [
        (P, 0, 0),
        (P, 0, 3),
    ]
    assert [event.conditional for event in bench.events] == [True, True], (
        "never held: what comes behind it would be out of order"
    )
    assert bench.answers() == []
    assert [(a.offset, a.recordCount, a.knownRecords, a.duplicate) for a in bench.commit()] == [
        (0, 3, 0, False),
        (3, 7, 0, False),
    ]


def test_producer_batch_sent_twice_is_stored_once_and_acked_after_its_commit() -> None:
    bench = begun()
    send(bench, 0, 3)
    send(bench, 0, 3)
    assert (len(bench.batches), bench.answers()) == (1, [])
    assert bench.ingest.counters.duplicates == 3
    first, again = bench.commit()
    assert (first.offset, first.duplicate) == (0, False)
    assert (again.offset, again.duplicate, again.recordCount, again.knownRecords) == (0, True, 3, 3)
    send(bench, 0, 3)
    (late,) = bench.commit()
    assert (late.offset, late.duplicate, late.correlationId) == (0, True, "0-3")


def test_producer_duplicate_is_acked_after_the_commit_of_the_producers_last_batch() -> None:
    bench = begun()
    send(bench, 0, 3)
    bench.commit()
    send(bench, 3, 5)
    send(bench, 0, 3)
    assert [event.last_offset for event in bench.repeated] == [-1, 4]
    assert bench.answers() == []
    bench.acks.release(AckPolicy.ALL, 3, 3, 0)
    assert bench.answers() == []
    assert [a.correlationId for a in bench.commit()] == ["3-5", "0-3"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_producer_batch_that_overlaps_stored_records_adds_only_its_new_records(codec: Codec) -> None:
    """Its process restarted and batches in another way."""
    bench = begun(codec)
    send(bench, 0, 9)
    bench.commit()
    ask(bench, instance=6)
    (told,) = bench.commit()
    assert (told.producer.epoch, told.producer.nextSequence, told.producer.known) == (1, 9, True)
    assert told.producer.digest == before(9)
    send(bench, 4, 14, epoch=1, instance=6)
    (ack,) = bench.commit()
    assert (ack.offset, ack.recordCount, ack.knownRecords, ack.duplicate) == (9, 10, 4 + 1, False)
    assert [(b.header.base_sequence, b.record_count, b.base_offset) for b in bench.batches] == [(0, 9, 0), (9, 5, 9)]
    stored = [(r.value, r.key, r.headers, r.subject) for b in bench.batches for r in b.records()]
    assert stored == [(value, key, tuple(headers or ()), "ev.1") for value, key, headers in RECORDS[:14]]
    log_state = bench.ingest._log_state
    assert log_state.ids.find(b"m12", 0) is not None
    assert log_state.ids.find(b"m12", 0).offset == 12  # type: ignore[union-attr]
    state = log_state.producers.state_of(P)
    assert state is not None
    assert state.digest is not None
    assert state.digest.encode() == before(14)


@pytest.mark.parametrize(
    ("first", "end", "epoch", "instance", "head", "error", "due"),
    [
        (6, 8, 0, INSTANCE, {}, _Ack.OUT_OF_ORDER, 5),
        (5, 8, 1, 6, {}, _Ack.PRODUCER_FENCED, 5),
        (0, 5, 0, INSTANCE, {"producerDigest": before(1)}, _Ack.DIVERGED_PRODUCER, 5),
        (3, 8, 0, INSTANCE, {"producerDigest": before(2)}, _Ack.DIVERGED_PRODUCER, 5),
        (5, 8, 65_535, INSTANCE, {}, _Ack.PRODUCER_FENCED, 5),
        (5, 8, 0, 6, {}, _Ack.PRODUCER_FENCED, 5),
    ],
)
def test_producer_batch_out_of_sequence_is_rejected_with_the_expected_sequence(
    first: int, end: int, epoch: int, instance: int, head: dict[str, Any], error: int, due: int
) -> None:
    bench = begun()
    send(bench, 0, 5)
    bench.commit()
    send(bench, first, end, epoch, instance, **head)
    (ack,) = bench.answers()
    assert (ack.ackError, ack.producer.nextSequence, ack.offset) == (error, due, -1)
    assert ack.detail
    assert values_in(bench) == [value for value, _, _ in RECORDS[:5]]


@pytest.mark.parametrize("position", [at(0), at(4, "u" * 128)])
def test_producer_question_returns_the_source_position_of_the_last_batch(position: client_pb2.SourcePosition) -> None:
    bench = begun()
    send(bench, 0, 3, producerPosition=position)
    bench.commit()
    bench.arrive((REPLY, published(b"", askedProducer=P, producerInstance=6, producerPosition=position), b""))
    (answer,) = bench.commit()
    assert (answer.ackError, answer.producer.nextSequence, answer.producer.position) == (_Ack.OK, 3, position)


def test_producer_without_an_epoch_is_rejected_as_unknown() -> None:
    bench = Bench()
    send(bench, 0, 5)
    (ack,) = bench.answers()
    assert (ack.ackError, bench.batches) == (_Ack.UNKNOWN_PRODUCER, [])


def test_producer_batch_out_of_sequence_at_a_leader_that_may_not_reject_gets_no_answer() -> None:
    bench = begun()
    bench.ingest.stop()
    bench.ingest.start()
    bench.ingest._listener = None
    bench.ingest.start()
    bench.replica.may_reject = False
    send(bench, 0, 5)
    assert (bench.answers(), bench.batches) == ([], [])


def test_producers_beyond_the_limit_are_rejected_as_overloaded() -> None:
    bench = begun()
    send(bench, 0, 1)
    bench.commit()
    bench.ingest._log_state.producers.max_count = 1
    bench.arrive((REPLY, published(b"", askedProducer=P + 1, producerInstance=1), b""))
    (ack,) = bench.answers()
    assert ack.ackError == _Ack.OVERLOADED
    assert "1 producers are known" in ack.detail


def test_producer_batches_beyond_the_limit_of_unacked_batches_are_rejected() -> None:
    bench = begun()
    send(bench, 0, 1)
    bench.commit()
    bound = bench.ingest._config.ingest_queue_records
    bench.acks.count = bound
    send(bench, 0, 1)
    assert (bench.acks.count, bench.answers()) == (bound, [])
    send(bench, 1, 2)
    assert [ack.ackError for ack in bench.answers()] == [_Ack.OVERLOADED], "that is not stored"
    ask(bench)
    assert (bench.acks.count, bench.answers()) == (bound, [])


def test_producer_duplicates_beyond_the_limit_of_unacked_batches_get_no_rejection() -> None:
    bench = begun()
    send(bench, 0, 2)
    bench.commit()
    bench.ingest._config = ReplicationConfig(ingest_queue_records=16)
    for first, end in [(0, 2)] * 17 + [(1, 4), (2, 4)]:
        head = {"producerInstance": INSTANCE, "producerDigest": before(first), "correlationId": f"{first}-{end}"}
        bench.ingest._message_arrived(b"ev.1", REPLY, published(batch_of(first, end), **head), b"")
    assert [(ack.ackError, ack.correlationId) for ack in bench.answers()] == [(_Ack.OVERLOADED, "2-4")]


@pytest.mark.parametrize(
    ("batch", "head", "text"),
    [
        (batch_of(0, 1), {"producerDigest": b"x" * 35}, "36 bytes"),
        (batch_of(0, 1), {"expectedOffset": 0}, "must not have an expected offset"),
        (build_batch([b"a"]), {"producerInstance": 1}, "no producer id"),
        (build_batch([b"a"]), {"producerDigest": before(0)}, "no producer id"),
        (build_batch([b"a"]), {"producerReset": True}, "no producer id"),
        (build_batch([b"a"]), {"askedProducer": 3}, "must not have a batch"),
        (batch_of(0, 1), {"producerPosition": at(-1)}, "an offset of 0 or more"),
        (batch_of(0, 1), {"producerPosition": at(0, "")}, "a stream uid"),
        (batch_of(0, 1), {"producerPosition": at(0, "u" * 129)}, "a stream uid"),
    ],
    ids=[
        "a short digest", "an offset", "an instance", "a digest", "a reset", "a question with a batch", "a negative source offset",
        "no source uid", "a long source uid",
    ],
)  # fmt: skip
def test_producer_batch_whose_header_contradicts_its_records_is_rejected(batch: bytes, head: dict[str, Any], text: str) -> None:
    bench = begun()
    bench.arrive((REPLY, published(batch, **head), b""))
    (ack,) = bench.answers()
    assert ack.ackError == _Ack.MALFORMED
    assert text in ack.detail
    assert bench.batches == []


def test_stream_without_acks_sends_no_ack_to_a_producer() -> None:
    bench = Bench(AckPolicy.NONE)
    ask(bench)
    send(bench, 0, 2)
    assert (bench.answers(), bench.commit(), bench.acks.count) == ([], [], 0)
    assert values_in(bench) == [value for value, _, _ in RECORDS[:2]]


def test_producer_duplicate_is_acked_after_the_stream_limits_were_lowered() -> None:
    bench = begun()
    send(bench, 0, 3)
    bench.commit()
    for settings in (StreamConfig(max_message_bytes=1), StreamConfig(optimistic_concurrency=True)):
        bench.ingest.settings_changed(settings)
        send(bench, 0, 3)
        (ack,) = bench.commit()
        assert (ack.ackError, ack.duplicate) == (_Ack.OK, True)
        send(bench, 3, 5)
        (ack,) = bench.answers()
        assert ack.ackError == (_Ack.TOO_LARGE if settings.max_message_bytes else _Ack.INCORRECT_OFFSET)
        assert len(bench.batches) == 1
