"""The wall clock of a node is years off: retention by age deletes nothing.

A clock that differs from a majority's is in doubt (``liftpy/core/base/clock_trust.py``), and so is one that jumped while
nobody can be asked. By
size, and to where an operator asked for, logs go on being shortened; and a clock that others agree with again counts at once.

Shows D1, D28.
"""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from tests.scripts.stage import Stage

YEAR_S = 365 * 86_400
AGE_S = 120
BY_AGE = StreamConfig(min_isr=2, retention_age_s=AGE_S)


def keep_house(s: Stage, *nodes: str) -> list[int]:
    """A round on each of ``nodes``; where their logs begin then."""
    for node in nodes:
        process = s.cluster.nodes[node].process
        assert process is not None
        process.keep_house()
    return [s.replica(node).log.log_start_offset for node in nodes]


@pytest.mark.parametrize("off_s", [10 * YEAR_S, -10 * YEAR_S])
def test_leader_with_a_wrong_clock_stamps_records_with_the_time_of_other_nodes(off_s: float) -> None:
    """Records of the past would expire at once on all replicas. Records of the future would stay as long."""
    with Stage(stream=BY_AGE) as s:
        a, b, c = s.leader, *s.followers
        keep_house(s, a, b, c)
        s.wall_clock(a, off_s)
        s.publish(3)
        s.settle()
        assert keep_house(s, a, b, c) == [0, 0, 0], "they are new"
        s.run(AGE_S)
        s.settle()
        assert keep_house(s, b, c) == [3, 3], "and now they are old"


def test_clock_jump_on_an_isolated_node_deletes_no_records_by_age() -> None:
    with Stage(stream=BY_AGE) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        keep_house(s, a, b, c)
        s.partition_off(c)
        s.wall_clock(c, 10 * YEAR_S)
        s.run(AGE_S / 2 + 10)
        assert keep_house(s, c) == [0], "nobody can say that it is right"
        s.wall_clock(c, 0)
        s.run(AGE_S / 2)
        assert keep_house(s, c) == [3], "it goes with the monotonic clock again, which a majority agreed with"
        s.rejoin(c)


@pytest.mark.parametrize("off_s", [10 * YEAR_S, 3600.0, -10 * YEAR_S])
@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_clock_jump_on_a_node_deletes_no_records_by_age(off_s: float, whose: str) -> None:
    with Stage(stream=BY_AGE) as s:
        a, b, c = s.leader, *s.followers
        wrong = a if whose == "leader" else b
        s.publish(3)
        s.run(3)
        assert keep_house(s, a, b, c) == [0, 0, 0]
        s.wall_clock(wrong, off_s)
        assert keep_house(s, a, b, c) == [0, 0, 0]
        s.restart(wrong)
        s.until(lambda: s.isr == {a, b, c})
        assert keep_house(s, a, b, c) == [0, 0, 0], "a process that never saw it right neither"
        s.wall_clock(wrong, 0)
        s.run(AGE_S)
        s.settle()
        assert keep_house(s, a, b, c) == [3, 3, 3], "it is right again, and they are old"


def test_wrong_clock_on_one_node_does_not_stop_retention_by_age_on_others() -> None:
    with Stage(stream=BY_AGE) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.wall_clock(a, -YEAR_S)
        s.run(AGE_S + 3)
        assert keep_house(s, a, b, c) == [0, 3, 3], "two of three agree, and what is old goes"


def test_wrong_clock_does_not_stop_retention_by_size_or_delete_records() -> None:
    with Stage(stream=StreamConfig(min_isr=2, retention_age_s=AGE_S, retention_records=1, segment_bytes=4096)) as s:
        a = s.leader
        s.wall_clock(a, 10 * YEAR_S)
        for _ in range(80):
            s.publish(1)
        s.settle()
        (start,) = keep_house(s, a)
        assert 0 < start < 80, "as many as there may be"


def test_suspended_host_applies_retention_by_age_after_its_resume() -> None:
    with Stage(stream=BY_AGE) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        keep_house(s, a, b, c)
        s.suspend(c)
        s.run(2 * AGE_S)
        s.resume(c)
        assert keep_house(s, a, b, c) == [3, 3, 3]


def test_frozen_virtual_machine_applies_retention_by_age_only_with_the_time_of_others() -> None:
    """Its monotonic clock stopped, as in a stopped virtual machine. Then its wall clock is corrected and jumps."""
    with Stage(stream=BY_AGE) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.wall_clock(c, -3600)
        assert keep_house(s, c) == [0]
        for node in (a, b):
            s.partition_off(node)
        s.wall_clock(c, 0)
        process = s.cluster.nodes[c].process
        assert process is not None
        s.run(AGE_S)
        assert process.time_of_age_ns() == 0, "nobody has agreed yet"
        for node in (a, b):
            s.rejoin(node)
        s.until(lambda: keep_house(s, c) == [3])


def test_wrong_clocks_on_two_of_three_nodes_stop_retention_by_age() -> None:
    with Stage(stream=BY_AGE) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.wall_clock(a, YEAR_S)
        s.wall_clock(b, -YEAR_S)
        s.run(AGE_S + 3)
        assert keep_house(s, a, b, c) == [0, 0, 0]
        s.wall_clock(b, 0)
        assert keep_house(s, a, b, c) == [0, 3, 3]


def test_single_node_cluster_deletes_by_age_until_its_clock_jumps() -> None:
    with Stage(nodes=1, stream=StreamConfig(min_isr=1, retention_age_s=AGE_S)) as s:
        s.publish(3)
        s.settle()
        s.run(AGE_S)
        assert keep_house(s, s.leader) == [3]
        s.publish(3)
        s.settle()
        s.wall_clock(s.leader, 10 * YEAR_S)
        assert keep_house(s, s.leader) == [3], "it jumped, and there is nobody to ask"
