"""Test how many records a queue worker prefetches."""

from __future__ import annotations

from liftpy.client.queue import PrefetchLimit

MS = 1_000_000


def after(pace: PrefetchLimit, count: int, each_ms: float, takes: int, begin_ns: int = 0) -> int:
    """When the next take comes, in ns, after so many of ``count``."""
    for number in range(takes):
        pace.took(count, begin_ns + round(number * each_ms * MS))
    return begin_ns + round(takes * each_ms * MS)


def test_queue_prefetch_size_equals_the_example_in_the_docs() -> None:
    quick, slow = PrefetchLimit(64), PrefetchLimit(64)
    assert quick.ahead(after(quick, 1, 5, 4)) == 37, "three done in 20 ms: the fourth is not yet"
    assert slow.ahead(after(slow, 1, 1990, 8)) == 0


def test_queue_prefetch_size_is_zero_at_the_start_and_after_a_pause() -> None:
    pace = PrefetchLimit(64)
    assert pace.ahead(0) == 0
    for takes in range(1, 4):
        pace = PrefetchLimit(64)
        assert pace.ahead(after(pace, 10, 1, takes)) == 0
    end = after(pace, 10, 1, 8)
    assert pace.ahead(end) > 0
    assert pace.ahead(end + 3_000 * MS) == 0
    pace.took(10, end + 3_000 * MS)
    assert pace.ahead(end + 3_001 * MS) == 0, "it begins anew"
