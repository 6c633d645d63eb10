"""Placement policy ``manual``: a map made by hand.

Nothing is computed; everything is checked, and every defect is named at once, with its entry. Entries come in the order of their
partitions, the first one with the first number that is wanted (0 for a new stream). Every partition has the same number of replicas,
all different, of nodes that are there. Nodes that are not live are taken only where that is allowed.

Source: the replica assignment of Fluvio, its rules and texts; vectors in ``tests/vectors/placement.json``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from liftpy.cluster.placement.facts import Assigned, NodeFacts, Replicas, Wanted, in_order
from liftpy.cluster.placement.placement_error import Defect, ManualError

EMPTY = "no assigned partitions found"


def manual(nodes: Sequence[NodeFacts], wanted: Wanted) -> list[Replicas]:
    """The map as it was given; ``nodes``: all of them, dead or alive. Raise ManualError with all its defects."""
    defects = [*_shape(wanted), *_nodes({node.node_id: node for node in nodes}, wanted)]
    if defects:
        raise ManualError(sorted(defects, key=lambda defect: defect.entry))
    return [entry.replicas for entry in wanted.assignment]


def _shape(wanted: Wanted) -> Iterator[Defect]:
    """What is wrong whatever nodes there are."""
    entries, first = wanted.assignment, wanted.first
    if not entries:
        yield Defect(-1, EMPTY)
        return
    if entries[0].partition != first:
        yield Defect(0, f"assigned partitions must start with id {first}")
    if not entries[0].replicas:
        yield Defect(0, "assigned replicas must have at least one node id")
    factor = wanted.replication_factor or next((len(entry.replicas) for entry in entries if entry.replicas), 0)
    for number, entry in enumerate(entries):
        if number and entry.partition != entries[number - 1].partition + 1:
            yield Defect(number, "assigned partition ids must be in sequence and without gaps")
        if len(entry.replicas) != factor and (number or entry.replicas):
            yield Defect(number, f"all assigned replicas must have the same number of node ids: {factor}")
        if len(set(entry.replicas)) < len(entry.replicas):
            yield Defect(number, f"duplicate node ids found in {_at(entry)}")


def _nodes(nodes: dict[str, NodeFacts], wanted: Wanted) -> Iterator[Defect]:
    """What is wrong with these nodes."""
    given: Counter[str] = Counter()
    for number, entry in enumerate(wanted.assignment):
        for node_id in in_order(list(set(entry.replicas))):
            node = nodes.get(node_id)
            if node is None:
                yield Defect(number, f"unknown node id: {node_id} in {_at(entry)}")
                continue
            if not node.live and not wanted.allow_offline:
                yield Defect(number, f"node id: {node_id} is not live, in {_at(entry)}: --allow-offline takes it all the same")
            if node.leaving:
                yield Defect(number, f"node id: {node_id} is being drained, in {_at(entry)}: give it to another one")
            given[node_id] += 1
            if given[node_id] > node.room(given[node_id]):
                yield Defect(number, f"no room on node id: {node_id} in {_at(entry)}: it takes {node.budget} partitions")


def _at(entry: Assigned) -> str:
    return f"assigned partition with id: {entry.partition}"
