"""Test the memory of a whole node: the limits of partitions shrink, and the largest queues shrink first."""

from __future__ import annotations

from pathlib import Path

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.publish.memory_budget import (
    LEAST_LIMIT_BYTES,
    READERS_SHARE,
    STANDBY_SHARE,
    MemoryBudget,
    NodePublishMemory,
    limit_of,
)
from liftpy.errors import ConfigError
from sidecar.runtime.memory import memory_bytes
from sidecar.runtime.settings import NodeSettings

MIB = 1 << 20


@pytest.mark.parametrize(
    ("held_mib", "is_limited", "takes"),
    [
        (0, False, [True, True, True]),
        (799, False, [True, True, True]),
        (900, True, [True, True, False]),
        (950, True, [True, False, False]),
        (999, True, [True, False, False]),
        (1000, True, [False, False, False]),
        (2000, True, [False, False, False]),
    ],
)
def test_memory_budget_near_its_limit_first_rejects_publishes_of_partitions_with_the_largest_queues(
    held_mib: int, is_limited: bool, takes: list[bool]
) -> None:
    node = MemoryBudget(1000 * MIB)
    node.update(NodePublishMemory(uncommitted=held_mib * MIB))
    assert node.is_limited is is_limited
    assert [node.takes(queued * MIB, 64 * MIB) or not node.is_limited for queued in (0, 20, 40)] == takes
    if held_mib == 900:
        assert node.takes(32 * MIB - 1, 64 * MIB)
        assert not node.takes(32 * MIB, 64 * MIB)


def test_memory_budget_below_80_percent_accepts_publishes_of_all_partitions_again() -> None:
    node = MemoryBudget(100)
    node.update(NodePublishMemory(held_back=100))
    assert node.open_part == 0
    node.update(NodePublishMemory(held_back=79))
    assert (node.is_limited, node.open_part) == (False, 1)


def test_memory_budget_counts_standby_and_reader_bytes_up_to_their_shares() -> None:
    node = MemoryBudget(1000)
    node.update(NodePublishMemory(unread=1, held_back=2, uncommitted=4, publishers=8, standby=16, readers=32))
    assert node.used_bytes == 63
    node.update(NodePublishMemory(standby=10**6, readers=10**6))
    assert node.used_bytes == round(1000 * STANDBY_SHARE) + round(1000 * READERS_SHARE)
    assert not node.is_limited, "they can't shut publishes out"
    nobody = MemoryBudget()
    nobody.update(NodePublishMemory(unread=1 << 60))
    assert not nobody.is_limited


def test_memory_limit_default_is_a_share_of_the_process_memory(tmp_path: Path) -> None:
    assert limit_of(0, 4000 * MIB) == 1000 * MIB
    assert limit_of(123, 4000 * MIB) == 123
    assert limit_of(0, 1) == LEAST_LIMIT_BYTES
    group, none = tmp_path / "memory.max", tmp_path / "absent"
    group.write_text("67108864\n")
    assert memory_bytes((none, group)) == 64 * MIB
    group.write_text("max\n")
    assert memory_bytes((group,)) == memory_bytes(()) > 64 * MIB


@pytest.mark.parametrize("wrong", [1, LEAST_LIMIT_BYTES - 1, -1])
def test_memory_limit_that_is_too_small_is_rejected(wrong: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory_limit_bytes"):
        NodeSettings("n1", tmp_path, memory_limit_bytes=wrong)


def test_memory_budget_age_of_unread_bytes_excludes_the_time_of_a_blocked_event_loop() -> None:
    node, s = MemoryBudget(late_s=1.0), NS_PER_S
    node.update_wait(100, 0, 10 * s)
    node.update_wait(100, 50, 11 * s)
    assert (node.waited_ns, node.is_late) == (s, False)
    node.update_wait(200, 99, 11 * s + s // 10)
    assert node.is_late
    node.update_wait(300, 150, 11 * s + s // 5)
    assert (node.waited_ns, node.is_late) == (s // 10, True)
    node.update_wait(300, 250, 11 * s + s // 4)
    assert (node.waited_ns, node.is_late) == (s // 20, False)
    node.update_wait(300, 299, 20 * s)
    assert (node.waited_ns, node.is_late) == (8 * s + 4 * s // 5, True)
    node.update_wait(900, 300, 90 * s)
    assert (node.waited_ns, node.is_late) == (0, False), "all that has come meanwhile is new"
    never = MemoryBudget()
    never.update_wait(1, 0, 0)
    never.update_wait(1, 0, 3600 * NS_PER_S)
    assert not never.is_late
