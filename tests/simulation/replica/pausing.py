"""Operators pause and resume partitions in the simulator."""

from __future__ import annotations

from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.simulation.replica.cluster import Cluster
from tests.simulation.replica.plan import PAUSE_STREAM, Fault

_UNTIL = (pb.UNTIL_RESUMED, pb.UNTIL_RESUMED, pb.UNTIL_PUBLISH, pb.UNTIL_PUBLISH_TO_ANY)
_SOON_NS = 20_000_000


def _apply(cluster: Cluster, stream: str, partitions: tuple[int, ...], pause: pb.Pause) -> bool:
    """Return whether the group has done it."""
    wish = pb.PausePartitions(stream=stream, partitions=partitions, pause=pause)
    request = pb.ControlRequest(pausePartitions=wish)
    return cluster.group.available and cluster.group.apply(request).error == pb.ControlResponse.OK


def _pause(cluster: Cluster, fault: Fault) -> bool:
    """Pause a stream or a partition, and resume it later or at once."""
    streams = sorted(cluster.group.image.streams.items())
    name, image = streams[int(fault.draw * 100) % len(streams)]
    chosen = int(fault.draw * 1000)
    partitions = () if chosen % 3 == 0 or not image.partitions else (chosen % len(image.partitions),)
    pause = _UNTIL[int(fault.draw * 10_000) % len(_UNTIL)]

    def resume() -> None:
        _apply(cluster, name, partitions, pb.NOT_PAUSED)

    cluster.clock.after(_SOON_NS if chosen % 4 == 0 else fault.for_ns, resume)
    return _apply(cluster, name, partitions, pause)


def heal(cluster: Cluster) -> None:
    """Resume everything."""
    for name in sorted(cluster.group.image.streams):
        _apply(cluster, name, (), pb.NOT_PAUSED)


STRIKES = {PAUSE_STREAM: _pause}
"""Faults by kind."""
