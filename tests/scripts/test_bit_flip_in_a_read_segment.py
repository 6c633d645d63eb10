"""A bit flips in a segment that a running node serves to a follower or a reader.

A follower, or a reader, that is served the wrong bytes says so with its next request; the server reads the block again, finds its own
damage, gives its role up, comes back without what is wrong and gets it from the others. The scrub finds it with nobody's help. A
complaint without damage costs the read of a block once a second, and nothing else.

Shows S14, D1, L1, L2.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage
from tests.simulation.replica.clients import SimReader
from tests.simulation.replica.clock import MS

RECORDS = 6
EVERYTHING = list(range(1, RECORDS + 1))


def is_repaired(s: Stage, node: str) -> None:
    s.until(lambda: s.counted("restarts to repair") == 1)
    s.until(lambda: s.cluster.replica(node) is not None and len(s.isr) == 3)
    s.settle()
    assert all(s.ids(n)[:RECORDS] == EVERYTHING for n in s.partition.replicas)


@pytest.mark.parametrize("header", [False, True], ids=["body", "header"])
@pytest.mark.parametrize("offset", [0, 2, RECORDS - 1], ids=["first", "middle", "last"])
@pytest.mark.parametrize("walked", [False, True], ids=["written", "walked"])
def test_bit_flip_in_a_segment_read_by_a_follower_is_repaired_and_the_follower_catches_up(
    walked: bool, offset: int, header: bool
) -> None:
    with Stage(reader=False) as s:
        a, _, c = s.leader, *s.followers
        s.publish(RECORDS)
        s.settle()
        if walked:
            s.restart(a)
            a = s.wait_for_leader()
            s.until(lambda: len(s.isr) == 3)
            c = s.followers[-1]
        s.crash(c)
        s.empty_disk(c)
        s.flip_bit(a, offset, running=True, header=header)
        s.start(c)
        is_repaired(s, a)
        assert s.counted("complaints: damage found") + s.counted("storage failure") >= 1
        s.publish(1)


def test_bit_flip_in_a_segment_read_by_a_client_is_repaired_and_others_serve_the_client() -> None:
    with Stage(reader=False) as s:
        _, b, _ = s.leader, *s.followers
        s.publish(RECORDS)
        s.settle()
        s.flip_bit(b, 2, running=True)
        s.cluster.readers += [SimReader(s.cluster, f"r{number}", s.cluster.key, 20 * MS) for number in range(6)]
        s.until(lambda: all(reader.next_offset == RECORDS for reader in s.cluster.readers))
        assert s.counted("read: damaged") > 0
        is_repaired(s, b)


@pytest.mark.parametrize("leads", [False, True])
def test_bit_flip_found_by_the_scrub_is_repaired(leads: bool) -> None:
    with Stage() as s:
        node = s.leader if leads else s.followers[0]
        s.publish(RECORDS)
        s.settle()
        assert s.replica(node).scrub()
        s.flip_bit(node, 2, running=True)
        assert not s.replica(node).scrub()
        is_repaired(s, node)


def test_false_damage_reports_cause_a_bounded_number_of_rechecks() -> None:
    with Stage() as s:
        a = s.leader
        s.publish(RECORDS)
        s.settle()
        for offset in (*range(RECORDS), -5, 1 << 60):
            for _ in range(20):
                assert s.ask(a, boundsOnly=True, badOffset=offset) is not None
        assert s.leader == a
        assert s.counted("restarts to repair") == 0
        assert 1 <= s.counted("complaints: own copy is right") <= 1 + s.now_s
        assert s.counted("complaints: too many") > 50
        assert s.counted("complaints: about offsets that are not here") == 40
