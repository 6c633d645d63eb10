"""A node finds damage in one of its two logs. It is the only replica of the other partition.

If only bytes in the middle of a log have changed, the node names this log in its registration. Then it leaves the ISR of this
partition, and the other partition gets its leader back at once. If the end of a log is lost, the disk has forgotten flushed
writes. No check can see whether the end of the other log is lost, too. So all logs count as incomplete, and the other
partition waits for an operator.

Shows C7, C10, L1.
"""

from __future__ import annotations

from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.log.segment import log_name
from liftpy.core.log.small_files import CHECKPOINT_NAME, decode_checkpoint
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import Stage

OTHER = "audit"


def _create_other(s: Stage, node: str) -> None:
    """Create a second stream whose only replica is on ``node``."""
    s.cluster.stream_configs[OTHER] = s.cluster.stream_config
    request = pb.CreateStream(
        name=OTHER, subject=f"shop.{OTHER}", partitions=1, replicationFactor=1, placement="manual",
        manual=[pb.ReplicaList(replicas=[node])],
    )  # fmt: skip
    assert s.command(pb.ControlRequest(createStream=request)).error == pb.ControlResponse.OK
    s.until(lambda: _other(s).leader == node)


def _other(s: Stage) -> PartitionState:
    return s.cluster.group.partition(OTHER, 0)


def _stored_high_watermark(s: Stage, node: str) -> int:
    checkpoint = decode_checkpoint(s.storage(node).load(CHECKPOINT_NAME))
    return -1 if checkpoint is None else checkpoint.high_watermark


def test_damage_in_the_middle_of_one_log_leaves_the_other_partition_online() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        _create_other(s, c)
        s.publish(6)
        s.settle()
        s.crash(c)
        s.flip_bit(c, 2)
        s.isolate(c)
        s.start(c)
        s.until(lambda: s.isr == {a, b})
        s.reconnect(c)
        s.until(lambda: _other(s).leader == c and _other(s).status is PartitionStatus.ONLINE)
        assert _other(s).incomplete == ()
        s.until(lambda: s.isr == {a, b, c})
        assert s.ids(c) == [1, 2, 3, 4, 5, 6]


def test_lost_end_of_one_log_makes_the_other_partition_wait_for_an_operator() -> None:
    with Stage(min_isr=1, ends_whole=False) as s:
        c = s.followers[1]
        _create_other(s, c)
        s.publish(6)
        s.settle()
        s.until(lambda: _stored_high_watermark(s, c) == 5)
        s.crash(c)
        del s.storage(c).files[log_name(0)].data[-3:]
        s.start(c)
        s.until(lambda: _other(s).status is PartitionStatus.OFFLINE)
        assert _other(s).incomplete == (c,)
