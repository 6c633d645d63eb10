"""Test quotas, and what publishers above a quota are told."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from liftpy.config import NS_PER_S, AckPolicy, StreamConfig
from liftpy.core.publish import acks
from liftpy.core.publish import quota as quota_module
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.publish.message_decoder import RawMessage
from liftpy.core.publish.quota import BURST_S, MAX_WAIT_MS, Quota, quota_for
from liftpy.core.publish.standby import FailoverBacklog
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ConfigError
from tests.unit.publish import test_producer_batches as producers
from tests.unit.publish.batches import Bench
from tests.unit.publish.ingest_bench import turn
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
    bench.replica.may_reject = False
    bench.arrive(*((b"_INBOX.%d" % number, b"%d" % number, b"") for number in range(4)))
    bench.ingest.settle()
    assert (bench.lines, bench.ingest.counters.refused["quota"]) == ([], 2)
    bench.replica.may_reject = True
    bench.ingest.settle()
    assert {inbox: answer["retry_after_ms"] for inbox, answer in json_of(bench).items()} == {b"_INBOX.2": 1, b"_INBOX.3": 126}
    bench.ingest.settle()
    assert bench.lines == []


def test_quota_rejections_waiting_for_a_lease_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "MAX_DELAYED_REJECTIONS", 2)
    bench = a_bench()
    bench.replica.may_reject = False
    bench.arrive((b"", b"v", b""), (b"", b"v", b""))
    bench.arrive((b"_INBOX.0", b"v", b""))
    bench.acks.drop()
    for number in range(1, 4):
        bench.arrive((b"_INBOX.%d" % number, b"v", b""))
    bench.replica.may_reject = True
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


MS = NS_PER_S // 1000
ONE = st.tuples(st.sampled_from((b"a", b"b", b"c")), st.integers(0, 3000))


def messages(count: int, size_bytes: int = 0, subject: bytes = b"ev") -> list[RawMessage]:
    return [(subject, b"", bytes(size_bytes), b"")] * count


def let_in(quota: Quota, came: list[RawMessage], now_ns: int) -> list[RawMessage]:
    """As a leader does: what is let in is asked for again without the others."""
    waits_ms = quota.charge(came, 0, now_ns)
    if waits_ms is None:
        return came
    within = [message for message, wait_ms in zip(came, waits_ms, strict=True) if not wait_ms]
    assert quota.charge(within, 0, now_ns) is None
    return within


def test_quota_accepts_a_burst_and_then_returns_retry_delays_at_its_rate() -> None:
    quota = Quota((1000, 0))
    waits_ms = quota.charge(messages(400), 0, 0)
    assert waits_ms is not None
    assert waits_ms[:250] == [0] * 250
    assert waits_ms[250:] == [1 + number for number in range(150)]
    assert quota.charge(messages(250), 0, 0) is None
    assert quota.charge(messages(1), 0, 0) == [1]
    assert quota.charge(messages(101), 0, 100 * MS) == [0] * 100 + [1]
    assert quota.charge(messages(100), 0, 100 * MS) is None


def test_quota_bytes_count_payload_and_headers_and_allow_large_messages() -> None:
    quota = Quota((0, 1000))
    large = [(b"ev", b"", bytes(1500), bytes(500))]
    assert quota.charge(large, 0, 0) is None
    assert quota.charge(messages(1, 10), 0, 0) == [1751]
    assert quota.charge(messages(1, 10), 0, 1750 * MS) == [1]
    assert quota.charge(messages(1, 10), 0, 1751 * MS) is None


def test_quota_counts_each_record_of_a_batch() -> None:
    quota = Quota((1000, 0))
    assert quota.charge(messages(1), 10_000, 0) is None
    assert quota.charge(messages(1), 1, 9750 * MS) == [1]
    assert quota.charge(messages(1), 1, 9751 * MS) is None
    assert quota.charge(messages(1), 100_000_000, 9760 * MS) is None
    assert quota.charge(messages(1), 1, 9770 * MS) == [MAX_WAIT_MS]


def test_quota_accepts_and_counts_forced_messages_above_its_rate() -> None:
    for quota in (Quota((1000, 0)), Quota((1000, 0), 1)):
        assert quota.charge(messages(1000), 0, 0, forced=True) is None
        assert quota.charge(messages(1), 0, 0) == [751]


def test_quota_applies_the_lower_of_two_rates() -> None:
    quota = Quota((1000, 100_000))
    assert len(let_in(quota, messages(1000, 1000), 0)) == 25
    quota = Quota((10, 100_000))
    assert len(let_in(quota, messages(1000, 10), 0)) == 3


def test_quota_after_a_clock_jump_accepts_at_most_one_burst() -> None:
    quota = Quota((1000, 0))
    assert len(let_in(quota, messages(1000), 10 * NS_PER_S)) == 250
    assert let_in(quota, messages(1000), 0) == []
    assert len(let_in(quota, messages(1000), 10 * MS)) == 10
    assert len(let_in(quota, messages(1000), 9 * NS_PER_S)) == 250


# ---- by token -------------------------------------------------------------------------------------------------------------------
def test_quota_by_subject_token_has_a_bucket_per_token_value() -> None:
    quota = Quota((1000, 0), 2)
    mixed = [message for number in range(400) for message in messages(1, 0, b"ev.%d.x" % (number % 2))]
    assert quota.charge(mixed, 0, 0) is None
    waits_ms = quota.charge(messages(60, 0, b"ev.0") + messages(60, 0, b"ev.1.y") + messages(300, 0, b"ev"), 0, 0)
    assert waits_ms is not None
    assert waits_ms == ([0] * 50 + [*range(1, 11)]) * 2 + [0] * 250 + [*range(1, 51)]


def test_quota_by_subject_token_charges_a_mixed_batch_per_token_value() -> None:
    quota = Quota((0, 1000), 2)
    came = [*messages(2, 200, b"ev.a"), *messages(2, 100, b"ev.b"), *messages(2, 200, b"ev.a")]
    assert quota.charge(came, 0, 0) == [0, 0, 0, 0, 151, 351]
    assert quota.charge(came[:4], 0, 0) is None
    assert quota.charge(messages(1, 1, b"ev.a"), 0, 0) == [151]
    assert quota.charge(messages(1, 1, b"ev.b"), 0, 0) is None


def test_quota_above_its_bucket_limit_drops_the_least_recently_used_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_module, "MAX_BUCKETS", 3)
    quota = Quota((4, 0), 1)
    for token, wait_ms in ((b"a", 0), (b"b", 0), (b"c", 0), (b"a", 251), (b"d", 0)):
        assert (quota.charge(messages(1, 0, token), 2, 0) or [0]) == [wait_ms]
    assert len(quota) == 3
    assert quota.charge(messages(1, 0, b"a"), 0, 0) == [251], "it was used after b"
    assert quota.charge(messages(1, 0, b"b"), 0, 0) is None, "it was forgotten, and is full"
    assert len(quota) == 3


def test_quota_bucket_of_a_long_subject_token_is_stored_as_a_digest() -> None:
    quota = Quota((4, 0), 1)
    for end in (b"1", b"2"):
        assert quota.charge(messages(1, 0, b"t" * 4000 + end), 2, 0) is None
    assert quota.charge(messages(1, 0, b"t" * 4000 + b"1"), 0, 0) == [251]
    assert max(map(len, quota._buckets)) < 40


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5000),
    st.integers(0, 100_000),
    st.sampled_from((0, 1)),
    st.lists(st.tuples(st.integers(0, 400), st.lists(ONE, max_size=60)), max_size=30),
)
def test_quota_accepts_at_most_its_rate_plus_one_burst_plus_one_message(
    records_per_s: int, bytes_per_s: int, by_token: int, steps: list[tuple[int, list[tuple[bytes, int]]]]
) -> None:
    quota = Quota((records_per_s, bytes_per_s), by_token)
    now_ms, stored = 0, []
    for passed_ms, sizes in steps:
        now_ms += passed_ms
        came: list[RawMessage] = [(subject, b"", bytes(size), b"") for subject, size in sizes]
        if not came:
            continue
        waits_ms = quota.charge(came, 0, now_ms * MS)
        within = came if waits_ms is None else [m for m, wait_ms in zip(came, waits_ms, strict=True) if not wait_ms]
        if waits_ms is not None:
            assert not within or quota.charge(within, 0, now_ms * MS) is None
            by_subject: dict[bytes, list[int]] = {}
            for message, wait_ms in zip(came, waits_ms, strict=True):
                by_subject.setdefault(message[0] if by_token else b"", []).append(wait_ms)
            assert all(waits == sorted(waits) for waits in by_subject.values()), "those before it have their turn before it"
        stored += within
        for subject in {message[0] for message in stored} if by_token else {None}:
            own = [message for message in stored if subject is None or message[0] == subject]
            seconds = BURST_S + now_ms / 1000
            assert len(own) <= max(records_per_s * seconds, 1 + records_per_s * now_ms / 1000) + 1 + 1e-6
            largest = max(len(message[2]) for message in own) if own else 0
            size_bytes = sum(len(message[2]) for message in own)
            assert not bytes_per_s or size_bytes <= max(bytes_per_s * seconds, 1 + bytes_per_s * now_ms / 1000) + largest + 1e-6


# ---- of a stream ----------------------------------------------------------------------------------------------------------------
def test_quota_setting_out_of_bounds_raises_config_error() -> None:
    assert quota_for(StreamConfig(quota_by_token=1), 1, None) is None
    for wrong in ({"quota_records_per_s": -1}, {"quota_bytes_per_s": 1 << 41}, {"quota_by_token": 257}):
        with pytest.raises(ConfigError, match="quota"):
            StreamConfig(**wrong)
