"""What stopping a node would do to others: partitions that could not commit any more, and the metadata group's majority. Pure.

Whoever restarts nodes one after another asks before each. A partition with one replica is no reason against it: it is away while its
node is, and whoever made it so chose that.
"""

from __future__ import annotations

from liftpy.cluster.image import ClusterImage
from liftpy.partition import PartitionStatus


def why_not(image: ClusterImage, node_id: str, controllers: dict[str, bool]) -> list[str]:
    """Reasons in words, [] if nobody would miss it. ``controllers``: the members that vote, and whether each is connected."""
    if node_id not in image.nodes:
        return [f"{node_id} is not known"]
    reasons = []
    for stream, partition in image.partitions_of(node_id):
        name = f"{stream.name}/{partition.partition}"
        if node_id not in partition.replicas or len(partition.replicas) == 1:
            continue
        if partition.status is not PartitionStatus.ONLINE:
            reasons.append(f"{name} has no leader now")
            continue
        left = [node for node in partition.isr if node != node_id and image.is_live(node)]
        least = partition.min_isr(stream.config)
        if node_id in partition.isr and len(left) < least:
            reasons.append(f"{name} would have {len(left)} in-sync replicas of {least} that it needs")
    if node_id in controllers:
        left_count = sum(connected for name, connected in controllers.items() if name != node_id)
        majority = len(controllers) // 2 + 1
        if len(controllers) > 1 and left_count < majority:
            reasons.append(
                f"the metadata group would have {left_count} of its {len(controllers)} members, and needs {majority}"
            )
    return reasons
