"""Test which worker process of a node hosts which partition."""

from __future__ import annotations

import pytest

from liftpy.core.base.worker_assignment import MOST_WORKERS, WHOLE, WorkerShare, share_of


@pytest.mark.parametrize("count", [1, 2, 3, 7, MOST_WORKERS])
def test_worker_process_assignment_gives_each_process_an_equal_number_of_partitions(count: int) -> None:
    shares = [WorkerShare(number, count) for number in range(count)]
    for stream in ("orders", "a", "with-dash_9"):
        held = [[share.number for share in shares if share.holds(stream, partition)] for partition in range(3 * count)]
        assert all(len(one) == 1 for one in held)
        assert sorted(one[0] for one in held) == sorted(3 * list(range(count)))
        for partition, (number,) in enumerate(held):
            assert number == share_of(stream, partition, count)
            assert [s.number for s in shares if s.holds_folder(f"{stream}-000a1f-1a21ed6d777/{partition}")] == [number], (
                "its log is the same one's"
            )


def test_worker_process_assignment_distributes_streams_of_one_partition_over_all_processes() -> None:
    numbers = {share_of(f"stream{n}", 0, 4) for n in range(64)}
    assert numbers == {0, 1, 2, 3}


def test_worker_process_assignment_of_a_partition_equals_the_recorded_assignment() -> None:
    """Two processes of one node compute equal assignments, and so do two versions."""
    assert [share_of("orders", n, 2) for n in range(4)] == [0, 1, 0, 1]
    assert [share_of("orders", n, 5) for n in range(4)] == [2, 3, 4, 0]


def test_worker_process_assignment_with_one_process_gives_all_partitions_to_the_process() -> None:
    assert WHOLE.holds("x", 4)
    assert WHOLE.holds_folder("lost+found/0")
    for name in ("strange/0", "orders-00000a-1a/x", "orders-00000a-1a"):
        assert [number for number in range(3) if WorkerShare(number, 3).holds_folder(name)] == [0]


@pytest.mark.parametrize(("number", "process_count"), [(0, 0), (1, 1), (-1, 2), (0, MOST_WORKERS + 1)])
def test_worker_process_assignment_with_an_invalid_process_number_is_rejected(number: int, process_count: int) -> None:
    with pytest.raises(ValueError, match="share"):
        WorkerShare(number, process_count)
