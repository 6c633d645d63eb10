"""Test quotas: at most the rate and one burst in any period, in order, with the time to retry."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from liftpy.config import NS_PER_S, StreamConfig
from liftpy.core.publish import quota as quota_module
from liftpy.core.publish.message_decoder import RawMessage
from liftpy.core.publish.quota import BURST_S, MAX_WAIT_MS, Quota, quota_for
from liftpy.errors import ConfigError

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
def test_quota_of_a_partition_is_its_share_of_the_stream_quota() -> None:
    stream = StreamConfig(quota_records_per_s=3000, quota_bytes_per_s=600, quota_by_token=2)
    quota = quota_for(stream, 3, None)
    assert quota is not None
    assert (quota.terms, quota.scope) == (((1000, 200), 2), "token")
    assert quota_for(stream, 3, quota) is quota
    assert quota_for(stream, 4, quota) is not quota
    assert quota_for(StreamConfig(), 3, quota) is None
    one = quota_for(StreamConfig(quota_bytes_per_s=5), 1, quota)
    assert one is not None
    assert (one.terms, one.scope) == (((0, 5), 0), "stream")


def test_quota_setting_out_of_bounds_raises_config_error() -> None:
    assert quota_for(StreamConfig(quota_by_token=1), 1, None) is None
    for wrong in ({"quota_records_per_s": -1}, {"quota_bytes_per_s": 1 << 41}, {"quota_by_token": 257}):
        with pytest.raises(ConfigError, match="quota"):
            StreamConfig(**wrong)
