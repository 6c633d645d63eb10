"""A replica has compacted its log, and an unclean election removes the records that replaced the dropped ones.

a alone goes on, compacts, and drops what its newest records supersede. b is elected by command, without those records. a must not
keep what compaction has left of its log: a key whose last record is cut, and whose earlier one was dropped, would be gone on a and
there on b. It fetches its log anew. The same goes for a replica that has fetched from one that had compacted, everything or only a
part, and for what damage has left of a compacted log.

Shows D5, R3, C11.
"""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.batch import split_batches
from tests.scripts.stage import Stage
from tests.scripts.test_unclean_election_only_on_command import elect
from tests.simulation.replica.messages import KEYS

CONFIG = StreamConfig(compaction=True)


def last_per_key(s: Stage, node: str) -> dict[bytes | None, bytes | None]:
    log = s.replica(node).log
    found: dict[bytes | None, bytes | None] = {}
    for chunk in log.read(log.log_start_offset, 1 << 30).chunks:
        for batch in split_batches(chunk):
            found.update((record.key, record.value) for record in batch.records())
    return found


def compact(s: Stage, node: str) -> None:
    replica = s.replica(node)
    replica.commit.alone(replica.log.roll)
    s.run(0.1)
    assert replica.compact() > 0


def alone(s: Stage) -> tuple[str, str, str]:
    """All keys are known to all, then again to a alone, which compacts: no record of a's is older than what b and c lack."""
    a, b, c = s.leader, *s.followers
    s.publish(KEYS)
    s.settle()
    s.crash(b, c)
    s.until(lambda: s.isr == {a}, within_s=15)
    s.publish(KEYS - 1)
    compact(s, a)
    return a, b, c


def lead_uncleanly(s: Stage, node: str) -> None:
    s.until(lambda: not s.leader, within_s=15)
    assert elect(s, node, unclean=True).error == pb.ControlResponse.OK
    s.ghost.lost(KEYS)
    s.wait_for_leader(node)


def all_are_equal(s: Stage) -> None:
    s.until(lambda: s.isr == set(s.partition.replicas))
    s.settle()
    a, b, c = (last_per_key(s, node) for node in s.partition.replicas)
    assert len(a) == KEYS
    assert a == b == c


@pytest.mark.parametrize("restarted", [False, True], ids=["runs on", "was restarted"])
def test_follower_refetches_records_dropped_by_compaction_after_an_unclean_election(restarted: bool) -> None:
    with Stage(min_isr=1, reader=False, stream=CONFIG) as s:
        a, b, c = alone(s)
        if restarted:
            s.crash(a)
        else:
            s.partition_off(a)
        s.start(b, c)
        lead_uncleanly(s, b)
        s.rejoin(a)
        s.start(a)
        all_are_equal(s)


@pytest.mark.parametrize("all_of_it", [False, True], ids=["a part", "everything"])
def test_follower_refetches_records_that_it_had_fetched_compacted_after_an_unclean_election(all_of_it: bool) -> None:
    with Stage(min_isr=1, reader=False, stream=CONFIG) as s:
        a, b, c = alone(s)
        s.empty_disk(c)
        s.cluster.network.max_payload_bytes = 250  # a batch or two in each answer
        s.start(c)
        s.until(lambda: s.cluster.replica(c) is not None and s.end(c) > 0)
        if all_of_it:
            s.settle()
        else:
            s.hold("fetch", sender=c)
            assert s.end(c) <= KEYS, (
                "it has what compaction left of the first records, and nothing of what they were dropped for"
            )
        s.crash(a)
        s.start(b)
        lead_uncleanly(s, b)
        for held in s.holds:
            held.drop()
        s.start(a)
        all_are_equal(s)


@pytest.mark.parametrize("offset", [KEYS - 1, KEYS + 1], ids=["before the cut", "behind the cut"])
def test_follower_refetches_a_log_damaged_below_its_horizon_after_an_unclean_election(offset: int) -> None:
    with Stage(min_isr=1, reader=False, stream=CONFIG) as s:
        a, b, c = alone(s)
        s.crash(a)
        s.flip_bit(a, offset)
        s.start(b, c)
        lead_uncleanly(s, b)
        s.start(a)
        all_are_equal(s)


def test_follower_with_a_compacted_log_refetches_nothing_after_a_clean_election() -> None:
    with Stage(reader=False, stream=CONFIG) as s:
        a, b, _ = s.leader, *s.followers
        s.publish(2 * KEYS)
        s.settle()
        compact(s, a)
        s.restart(b)
        s.crash(a)
        s.wait_for_leader(*s.followers)
        s.publish(1)
        s.start(a)
        s.until(lambda: len(s.isr) == 3)
        assert s.counted("fresh start") == 0
