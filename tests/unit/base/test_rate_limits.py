"""Rate limits: token buckets, log lines, and waits after failures."""

from __future__ import annotations

import pytest

from liftpy.core.base.rate_limits import LogRateLimit, TokenBucket, doubled_wait_s, touch_entry

S = 1_000_000_000


def test_token_bucket_refills_with_time_up_to_its_burst() -> None:
    bucket = TokenBucket(2, 3)
    assert [bucket.take(1, 0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1, S // 2) for _ in range(2)] == [True, False]
    assert not bucket.take(1, 0)
    assert [bucket.take(1, 100 * S) for _ in range(4)] == [True, True, True, False]


def test_token_bucket_after_a_clock_step_back_still_gives_tokens() -> None:
    bucket = TokenBucket(1.0, 3)
    assert bucket.take(1, 10 * S)
    assert [bucket.take(1, 5 * S) for _ in range(3)] == [True, True, False]
    assert [bucket.take(1, at_ns) for at_ns in (5 * S + S // 2, 6 * S, 6 * S)] == [False, True, False]


def test_token_bucket_with_too_few_tokens_takes_none() -> None:
    bucket = TokenBucket(1, 5)
    assert not bucket.take(6, 0)
    assert bucket.take(5, 0)
    assert not bucket.has(1, S - 1)
    assert bucket.has(1, S)
    assert bucket.take(1, S), "has() took none"


def test_token_bucket_after_its_wait_has_a_token_and_not_a_millisecond_before() -> None:
    bucket = TokenBucket(50, 1)
    assert bucket.wait_ms(7) == 0
    assert bucket.take(1, 7)
    wait_ms = bucket.wait_ms(7)
    assert wait_ms == 21
    assert not bucket.has(1, 7 + (wait_ms - 2) * S // 1000)
    assert bucket.wait_ms(7 + wait_ms * S // 1000) == 0


def test_token_bucket_never_holds_more_than_its_burst_after_tokens_were_returned() -> None:
    bucket = TokenBucket(0, 2)
    assert bucket.take(2, 0)
    bucket.give_back(1)
    assert bucket.take(1, 0)
    bucket.give_back(50)
    assert [bucket.take(1, 0) for _ in range(3)] == [True, True, False]


def test_touch_entry_at_its_limit_drops_the_least_recently_used_entry() -> None:
    entries: dict[str, list[str]] = {}
    first = touch_entry(entries, "a", 2, list)
    touch_entry(entries, "b", 2, list)
    assert touch_entry(entries, "a", 2, list) is first
    touch_entry(entries, "c", 2, list)
    assert [*entries] == ["a", "c"]


def test_log_rate_limit_admits_its_lines_per_window_and_tells_how_many_were_suppressed() -> None:
    limit = LogRateLimit(10.0, lines=2)
    assert [limit.admit(0.0) for _ in range(5)] == [0, 0, None, None, None]
    assert limit.admit(9.999) is None
    assert [limit.admit(10.0) for _ in range(3)] == [4, 0, None]
    assert limit.admit(500.0) == 1


@pytest.mark.parametrize(("failures", "wait_s"), [(1, 0.5), (2, 1.0), (4, 4.0), (7, 30.0), (10_000, 30.0)])
def test_doubled_wait_grows_up_to_the_longest_wait(failures: int, wait_s: float) -> None:
    assert doubled_wait_s(failures, 0.5, 30.0) == wait_s
