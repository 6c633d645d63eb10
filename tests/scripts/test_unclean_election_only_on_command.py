"""All committed records are on one dead disk: another replica becomes leader only on an operator's command.

The others are alive and know that they may lack records. The partition goes Offline and keeps its ISR; when the member of it
returns, it is elected and nothing is lost. On command another one leads, and what only the dead one had is gone: recorded as
``unclean_elected``, and cut when it comes back.

Shows C3, C5, C10, C11, D24.
"""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import Stage
from tests.simulation.replica.cluster import STREAM

KILLS = ("election from all replicas",)


def alone(s: Stage) -> tuple[str, str, str]:
    """a has written two records that b and c don't have, and is dead."""
    a, b, c = s.leader, *s.followers
    s.publish(2)
    s.crash(b, c)
    s.until(lambda: s.isr == {a}, within_s=15)
    s.publish(2)
    s.crash(a)
    s.start(b, c)
    s.until(lambda: s.status is PartitionStatus.OFFLINE, within_s=15)
    return a, b, c


def elect(s: Stage, node: str, *, unclean: bool) -> pb.ControlResponse:
    request = pb.ElectLeader(stream=STREAM, uid=s.cluster.key.uid, partition=0, node=node, unclean=unclean)
    return s.command(pb.ControlRequest(electLeader=request))


def test_unclean_election_does_not_start_without_a_command() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = alone(s)
        s.always(lambda: s.status is PartitionStatus.OFFLINE and s.isr == {a}, 20)
        assert elect(s, "", unclean=False).error == pb.ControlResponse.NOT_ENOUGH_NODES
        s.start(a)
        s.wait_for_leader(a)
        assert not s.partition.unclean_elected
        s.until(lambda: s.isr == {a, b, c})
        assert len(s.ids(b)) == 4


def test_unclean_election_on_command_loses_records_and_is_recorded_in_the_metadata() -> None:
    with Stage(min_isr=1, reader=False) as s:
        a, b, c = alone(s)
        assert elect(s, b, unclean=True).error == pb.ControlResponse.OK
        s.wait_for_leader(b)
        assert s.partition.unclean_elected
        s.start(a)
        s.until(lambda: s.isr == {a, b, c})
        assert len(s.ids(a)) == 2, "what it alone had is gone, as somebody has commanded"
