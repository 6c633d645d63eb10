"""Placement policies ``rack`` and ``rack-strict``: neighbours in one long row of nodes stand in different racks.

Goal: the replicas of a partition are on different racks, so that the loss of a rack takes one of them; and every node leads
and follows equally many partitions.

Algorithm ``rack``, three stages:

1. Matrix: one row per rack, its nodes in order. Longer rows come first, equal ones by the rack's name.
2. Diagonal: with R rows and C the length of the longest, for d = 0 .. C-1 go down the rows r = 0 .. R-1 and take the cell
   ``(r + d) mod C``; a row that is too short is read round and round. A node that has been taken is skipped. What comes of it is a
   row of all nodes.
3. Window: partition p has the replicas ``row[(start + p + r) mod n]``, r = 0 .. RF - 1.

Where all racks are equally large and RF <= R, every window has RF different racks. Where they are not, some have not.

Algorithm ``rack-strict``: as ``rack``, but who stands in a rack that the partition has already is passed over. So all replicas are on
different racks, always; the price is that a node that is alone in its rack holds more than others. It is refused where there are more
replicas than racks.

Worked example, racks a: 0, b: 1 2, c: 3 4 5, RF 3: rows c, b, a; diagonals 3 2 0 | 4 1 (0) | 5 (2) (0); the row is 3 2 0 4 1 5::

    partition       0      1      2      3      4      5
    rack          3 2 0  2 0 4  0 4 1  4 1 5  1 5 3  5 3 2
    rack-strict   3 2 0  2 0 4  0 4 1  4 1 0  1 5 0  5 2 0

Source: the rack-aware replica assignment of Fluvio 0.11; vectors in ``tests/vectors/placement.json``.
"""

from __future__ import annotations

from collections.abc import Sequence

from liftpy.cluster.placement.facts import NodeFacts, Replicas, Wanted
from liftpy.cluster.steps import PER_STEP, Steps


def rack(nodes: Sequence[NodeFacts], wanted: Wanted) -> Steps[list[Replicas]]:
    """The replicas of each partition; see ``Policy``. Every node has a rack."""
    row = [node.node_id for node in row_of(nodes)]
    count, factor = len(row), wanted.replication_factor
    twice = row + row
    placed: list[Replicas] = []
    for partition in range(wanted.partitions):
        at = (wanted.start + partition) % count
        placed.append(tuple(twice[at : at + factor]))
        if len(placed) % PER_STEP == 0:
            yield
    return placed


def rack_strict(nodes: Sequence[NodeFacts], wanted: Wanted) -> Steps[list[Replicas]]:
    """The replicas of each partition; see ``Policy``. Every node has a rack, and there are as many racks as replicas."""
    row = row_of(nodes)
    windows: dict[int, Replicas] = {}
    placed: list[Replicas] = []
    for partition in range(wanted.partitions):
        at = (wanted.start + partition) % len(row)
        if at not in windows:
            windows[at] = _window(row, at, wanted.replication_factor)
        placed.append(windows[at])
        if len(placed) % PER_STEP == 0:
            yield
    return placed


def row_of(nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Stages 1 and 2: all nodes, neighbours on different racks as far as the racks' sizes allow."""
    racks: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        racks.setdefault(node.rack, []).append(node)
    rows = [racks[name] for name in sorted(racks, key=lambda name: (-len(racks[name]), name))]
    columns = len(rows[0])
    taken: dict[str, NodeFacts] = {}
    for diagonal in range(columns):
        for number, row in enumerate(rows):
            node = row[(number + diagonal) % columns % len(row)]
            taken.setdefault(node.node_id, node)
    return list(taken.values())


def _window(row: Sequence[NodeFacts], at: int, factor: int) -> Replicas:
    chosen: dict[str, str] = {}
    for step in range(len(row)):
        node = row[(at + step) % len(row)]
        if node.rack not in chosen:
            chosen[node.rack] = node.node_id
            if len(chosen) == factor:
                break
    return tuple(chosen.values())
