"""Test the effect of a quota on publishes: the first are stored, the others get a retry delay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.publish import acks
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.standby import FailoverBacklog
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from tests.unit.publish import test_producer_batches as producers
from tests.unit.publish.batches import Bench
from tests.unit.publish.test_ingest import turn
from tests.unit.publish.test_ingest_takeover import FakeSubscription, Leader, message

_Ack = client_pb2.Ack
PER_S = 8
"""Two are a burst."""


def a_bench(now_ns: int = 0, **settings: Any) -> Bench:
    bench = Bench()
    bench.ingest.wall_ns = lambda: now_ns
    bench.ingest.settings_changed(StreamConfig(quota_records_per_s=PER_S, **settings))
    return bench


def values(bench: Bench) -> list[bytes | None]:
    return [value for batch in bench.batches for value in batch.values()]


def enveloped(value: bytes, **fields: Any) -> bytes:
    return frames.encode(client_pb2.Message(value=value, stream="s", streamUid="u1", partition=1, offset=-1, **fields))


def json_of(bench: Bench) -> dict[bytes, dict[str, Any]]:
    lines, bench.lines = bench.lines, []
    parts = [line.split(b"\r\n") for line in lines]
    return {head.split()[1]: json.loads(body) for head, body, _ in parts}


def test_publish_over_quota_is_rejected_with_its_retry_delay() -> None:
    bench = a_bench()
    bench.arrive(*((b"_INBOX.%d" % number, b"%d" % number, b"") for number in range(5)))
    assert values(bench) == [b"0", b"1"]
    told = json_of(bench)
    assert {inbox: answer["retry_after_ms"] for inbox, answer in told.items()} == {
        b"_INBOX.2": 1, b"_INBOX.3": 126, b"_INBOX.4": 251,
    }  # fmt: skip
    assert told[b"_INBOX.2"]["error"] == {
        "code": 429, "err_code": 10167, "description": "the stream's quota is used up: too many requests",
    }  # fmt: skip
    counters = bench.ingest.counters
    assert (dict(counters.refused), dict(counters.dropped)) == ({"quota": 3}, {})
    assert (dict(counters.throttled), counters.rejected) == ({"stream": 3}, 3)
    bench.acks.release(AckPolicy.ALL, 1, 3, 0)
    assert [answer["seq"] for answer in json_of(bench).values()] == [1, 2]
    bench.ingest.wall_ns = lambda: 126_000_000
    bench.arrive((b"_INBOX.5", b"5", b""))
    assert values(bench) == [b"0", b"1", b"5"]


def test_publish_over_quota_in_an_envelope_gets_a_negative_ack_envelope() -> None:
    bench = a_bench()
    bench.arrive(*((b"_INBOX.%d" % number, enveloped(b"%d" % number, correlationId="c"), b"") for number in range(4)))
    answers = bench.answers()
    assert [(ack.ackError, ack.retryAfterMs, ack.correlationId, ack.offset) for ack in answers] == [
        (_Ack.QUOTA, 1, "c", -1), (_Ack.QUOTA, 126, "c", -1),
    ]  # fmt: skip


def test_publish_over_quota_without_reply_is_dropped_and_counted() -> None:
    bench = a_bench()
    seen: list[tuple[str, int]] = []
    bench.ingest.counters.on_drop = lambda reason, count: seen.append((reason, count))
    bench.arrive(*((b"", b"%d" % number, b"") for number in range(5)))
    assert (values(bench), bench.lines, seen) == ([b"0", b"1"], [], [("quota", 3)])
    assert dict(bench.ingest.counters.throttled) == {"stream": 3}


def test_duplicate_message_over_quota_is_acked_and_not_charged() -> None:
    bench = a_bench()
    block = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"
    bench.arrive((b"_INBOX.a", b"a", block % b"a"), (b"_INBOX.b", b"b", block % b"b"))
    bench.arrive((b"_INBOX.again", b"a", block % b"a"), (b"_INBOX.c", b"c", block % b"c"))
    assert set(json_of(bench)) == {b"_INBOX.c"}
    bench.acks.release(AckPolicy.ALL, 1, 3, 0)
    assert json_of(bench)[b"_INBOX.again"] == {"stream": "s:1", "seq": 1, "duplicate": True}
    bench.ingest.wall_ns = lambda: 2_000_000
    bench.arrive((b"_INBOX.c", b"c", block % b"c"))
    assert values(bench) == [b"a", b"b", b"c"], "who was refused may come again under the same id"


def test_batch_publish_over_quota_is_accepted_or_rejected_as_a_whole() -> None:
    bench = producers.begun()
    bench.ingest.settings_changed(StreamConfig(quota_records_per_s=PER_S))
    producers.send(bench, 0, 3)
    producers.send(bench, 3, 5)
    (refused,) = bench.answers()
    assert (refused.ackError, refused.retryAfterMs) == (_Ack.QUOTA, 126)
    assert bench.ingest.counters.refused["quota"] == 2
    assert producers.values_in(bench) == [value for value, _, _ in producers.RECORDS[:3]]
    bench.ingest.wall_ns = lambda: 200_000_000
    producers.send(bench, 3, 5)
    assert producers.values_in(bench) == [value for value, _, _ in producers.RECORDS[:5]]


def test_batch_publish_that_repeats_stored_records_is_accepted_over_quota() -> None:
    bench = producers.begun()
    bench.ingest.settings_changed(StreamConfig(quota_records_per_s=PER_S))
    producers.send(bench, 0, 3)
    producers.send(bench, 0, 5)
    assert bench.answers() == []
    assert producers.values_in(bench) == [value for value, _, _ in producers.RECORDS[:5]]
    producers.send(bench, 0, 3)
    assert bench.answers() == [], "it is a duplicate, which waits for its commit"
    producers.send(bench, 5, 6)
    (refused,) = bench.answers()
    assert refused.retryAfterMs == 376, "what was forced in is paid for"


async def test_quota_does_not_apply_to_messages_buffered_by_a_standby() -> None:
    hearing = FakeSubscription()
    fresh = [message(b"%d" % number) for number in range(6)]
    leader = Leader(FailoverBacklog(hearing, fresh=fresh), batch_max_records=4)
    leader.ingest.settings_changed(StreamConfig(quota_records_per_s=PER_S))
    await turn()
    hearing.sink(b"ev", b"_INBOX.x", b"x", b"")  # type: ignore[misc]
    await turn()
    await turn()
    assert leader.counts() == [4, 2]
    assert leader.ingest.counters.refused["quota"] == 1


def test_quota_rejection_without_a_lease_is_sent_when_the_lease_returns() -> None:
    bench = a_bench()
    bench.replica.may_refuse = False
    bench.arrive(*((b"_INBOX.%d" % number, b"%d" % number, b"") for number in range(4)))
    bench.ingest.settle()
    assert (bench.lines, bench.ingest.counters.refused["quota"]) == ([], 2)
    bench.replica.may_refuse = True
    bench.ingest.settle()
    assert {inbox: answer["retry_after_ms"] for inbox, answer in json_of(bench).items()} == {b"_INBOX.2": 1, b"_INBOX.3": 126}
    bench.ingest.settle()
    assert bench.lines == []


def test_quota_rejections_waiting_for_a_lease_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "MAX_DELAYED_REJECTIONS", 2)
    bench = a_bench()
    bench.replica.may_refuse = False
    bench.arrive((b"", b"v", b""), (b"", b"v", b""))
    bench.arrive((b"_INBOX.0", b"v", b""))
    bench.acks.drop()
    for number in range(1, 4):
        bench.arrive((b"_INBOX.%d" % number, b"v", b""))
    bench.replica.may_refuse = True
    bench.arrive((b"_INBOX.now", b"v", b""))
    assert set(json_of(bench)) == {b"_INBOX.1", b"_INBOX.2", b"_INBOX.now"}, "what is owed is bounded"


def test_quota_on_a_stream_with_standbys_rejects_no_publish() -> None:
    bench = a_bench()
    bench.replica.has_standby = True
    bench.arrive(*((b"_INBOX.%d" % number, b"%d" % number, b"") for number in range(4)))
    bench.ingest.settle()
    assert (bench.lines, bench.acks.has_delayed_rejections, bench.ingest.counters.refused["quota"]) == ([], False, 2)


def test_quota_change_at_runtime_does_not_refill_the_bucket() -> None:
    bench = a_bench()
    three = [(b"", b"v", b"")] * 3
    bench.arrive(*three)
    assert len(values(bench)) == 2
    bench.ingest.settings_changed(StreamConfig(quota_records_per_s=PER_S))
    bench.arrive(*three)
    assert len(values(bench)) == 2
    bench.ingest.settings_changed(StreamConfig(quota_records_per_s=PER_S), 2)
    bench.arrive(*three)
    assert len(values(bench)) == 3, "its share of two partitions is a burst of one"
    bench.ingest.settings_changed(StreamConfig())
    bench.arrive(*three)
    assert len(values(bench)) == 6


def test_quota_per_subject_token_counts_each_token_separately() -> None:
    bench = a_bench(quota_by_token=2)
    for subject, count in ((b"ev.a", 4), (b"ev.b", 1)):
        for _ in range(count):
            bench.ingest._message_arrived(subject, b"", subject, b"")
    bench.ingest._drain()
    assert values(bench) == [b"ev.a", b"ev.a", b"ev.b"]
    assert dict(bench.ingest.counters.throttled) == {"token": 2}


def test_overloaded_node_rejects_publishes_with_reply_and_stores_those_without() -> None:
    node = MemoryBudget()
    bench = Bench(memory=node)
    came = ((b"", b"p", b""), (b"_INBOX.1", b"v", b""), (b"_INBOX.2", b"w", b""), (b"_INBOX.3", enveloped(b"e"), b""))
    node.is_late = True
    bench.arrive(*came)
    assert values(bench) == [b"p"]
    assert [b"retry_after_ms" in line for line in bench.lines] == [True, True, False]
    assert (bench.ingest.counters.overloaded, dict(bench.ingest.counters.refused)) == (3, {"overloaded": 3})
    bench.replica.has_standby = True
    bench.arrive(*came)
    assert values(bench)[1:] == [b"p", b"v", b"w", b"e"], "who may not be told no is not refused for it"
    bench.replica.has_standby = False
    bench.arrive(came[1])
    assert len(values(bench)) == 5
    node.is_late = False
    bench.arrive(*came)
    assert len(values(bench)) == 9
