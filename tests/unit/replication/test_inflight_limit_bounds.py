"""Test the limits of inflight publishes, the slow-consumer guard, combined fetches and slow disks."""

from __future__ import annotations

from liftpy.config import ReplicationConfig
from liftpy.core.replication import events as ev
from liftpy.core.replication.inflight_limits import (
    RECORD_OVERHEAD_BYTES,
    InflightLimits,
    LoadShedding,
    NodeInflight,
    size_in_memory,
)
from liftpy.core.replication.quiescence import CombinedFetches, IdleFetch
from tests.unit.replication.stepping import KEY


def publishes(count: int, size: int, *, plain: bool = True) -> ev.PublishesReceived:
    return ev.PublishesReceived(
        token=1, record_count=count, size_bytes=size, received_wall_ns=0, plain_count=count if plain else 0
    )


def test_inflight_limits_return_to_zero_after_all_bytes_are_replicated() -> None:
    config = ReplicationConfig(ingest_queue_bytes=1 << 20, ingest_buffer_bytes=1 << 22)
    node = NodeInflight()
    intakes = [InflightLimits(node, config) for _ in range(2)]
    event = publishes(3, 1000)
    assert size_in_memory(event) == 1000 + 3 * RECORD_OVERHEAD_BYTES
    for intake in intakes:
        assert intake.hold(event, 0)
        intake.appended(4, 100)
        intake.appended(9, 200)
    assert (node.held_bytes, node.unreplicated_bytes) == (2 * size_in_memory(event), 600)
    intakes[0].committed(3)
    assert intakes[0].uncommitted_bytes == 300
    intakes[0].committed(4)
    assert (intakes[0].uncommitted_bytes, node.unreplicated_bytes) == (200, 500)
    assert intakes[0].next() is event
    assert (node.held_bytes, node.released_bytes, intakes[0].held_bytes) == (size_in_memory(event), size_in_memory(event), 0)
    for intake in intakes:
        list(intake.close())
    assert (node.held_bytes, node.unreplicated_bytes, node.full_count) == (0, 0, 0)


def test_slow_consumer_guard_lowers_its_limit_after_a_disconnect_at_or_below_the_limit() -> None:
    overflow = LoadShedding()
    overflow.record_pong(1000, 0, 10)
    overflow.record_pong(5, 0, 9)
    assert overflow.backlog_bytes == 1000
    before = overflow.limit_bytes
    overflow.cut_at(1 << 40)
    assert overflow.limit_bytes == before
    overflow.cut_at(before)
    lower = overflow.limit_bytes
    assert lower < before
    overflow.cut_at(before)
    assert overflow.limit_bytes == lower
    overflow.cut_at(0)
    assert 0 < overflow.limit_bytes < lower


def quiet(count: int) -> tuple[CombinedFetches, list[IdleFetch]]:
    fetches = CombinedFetches(ReplicationConfig())
    made = [IdleFetch(type(KEY)("s", "u", number), 1, 1 + number) for number in range(count)]
    for fetch in made:
        assert fetches.add(fetch, "n2", 0)
    return fetches, made


def test_combined_fetches_ignore_a_late_failure_of_an_earlier_request() -> None:
    fetches, made = quiet(3)
    first, _ = fetches.start_turn(fetches.interval_ns)
    for question in first:
        fetches.process_answer(question, ())
    fetches.start_turn(2 * fetches.interval_ns)
    assert fetches.process_no_responders(first[0]) is None
    assert len(fetches) == 3
    second, _ = fetches.start_turn(3 * fetches.interval_ns)
    ended = fetches.process_no_responders(second[0])
    assert ended is not None
    assert set(ended.fetches) == set(made)
