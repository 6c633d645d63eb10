"""Placement of a large cluster, and plans of moves: ``python -m tests.bench.placement [--nodes N] [--partitions P] [--json]``.

Per policy: seconds, and how even the map is (most and fewest replicas and leaders of a node; partitions on fewer racks than they have
replicas). ``rendezvous`` hashes every partition with every node: 0.8 us each.

Then plans, for a map that was even on nine tenths of the nodes before the others joined: seconds, what moves beside the lower bound of
it, and what nodes hold afterwards: replicas, bytes (partitions have 0 to 2 GB), leaderships (of an uneven map, on the old nodes).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from random import Random
from typing import Any

from liftpy.core.metadata.placement import POLICIES, place
from liftpy.core.metadata.placement.facts import NodeFacts, PlacementRequest
from liftpy.core.metadata.placement.rebalance import plan_leaderships, plan_moves, plan_sizes

RACKS = 20


def rows(nodes: int, partitions: int) -> list[dict[str, Any]]:
    """One row per policy."""
    facts = [NodeFacts(node_id=f"node-{n:04}", rack=f"rack-{n % RACKS}", weight=1.0) for n in range(nodes)]
    return [_row(policy, facts, partitions) for policy in POLICIES]


def _row(policy: str, facts: list[NodeFacts], partitions: int) -> dict[str, Any]:
    wanted = PlacementRequest(policy=policy, stream="stream", partitions=partitions, replication_factor=3, start=1_000_003)
    began = time.perf_counter()
    placed = place(facts, wanted).replicas
    took_s = time.perf_counter() - began
    rack_of = {node.node_id: node.rack for node in facts}
    held = Counter({node.node_id: 0 for node in facts})
    led = Counter(held)
    for replicas in placed:
        held.update(replicas)
        led[replicas[0]] += 1
    return {
        "policy": policy,
        "seconds": round(took_s, 3),
        "replicas of a node": [min(held.values()), max(held.values())],
        "leaders of a node": [min(led.values()), max(led.values())],
        "on fewer racks": sum(len({rack_of[node] for node in replicas}) < len(replicas) for replicas in placed),
    }


def plans(nodes: int, partitions: int) -> list[dict[str, Any]]:
    """One row per plan."""
    facts = [NodeFacts(node_id=f"node-{n:04}", rack=f"rack-{n % RACKS}") for n in range(nodes)]
    old = facts[: max(3, nodes * 9 // 10)]
    wanted = PlacementRequest(policy="rack", stream="stream", partitions=partitions, replication_factor=3)
    held = {("stream", number): replicas for number, replicas in enumerate(place(old, wanted).replicas)}
    rng = Random(1)
    sizes = {key: rng.randrange(2_000_000_000) for key in held}
    found = []

    began = time.perf_counter()
    plan = plan_moves(facts, held)
    found.append(_plan("replicas", began, len(plan.moves), plan.fewest, {}, plan.held))

    began = time.perf_counter()
    sized = plan_sizes(facts, held, sizes)
    found.append(_plan("bytes", began, sized.moved_bytes, sized.fewest_bytes, {}, sized.held_bytes))

    led = {key: tuple(sorted(replicas)) for key, replicas in held.items()}
    before = Counter(replicas[0] for replicas in led.values())
    began = time.perf_counter()
    leaders = plan_leaderships(old, led)
    found.append(_plan("leaders", began, len(leaders.transfers), leaders.fewest, before, leaders.led))
    return found


def _plan(by: str, began: float, moved: int, fewest: int, before: dict[str, int], after: Any) -> dict[str, Any]:
    took_s = time.perf_counter() - began
    return {
        "plan by": by,
        "seconds": round(took_s, 3),
        "moved": moved,
        "fewest": fewest,
        **({"before": [min(before.values()), max(before.values())]} if before else {}),
        "after": [min(after.values()), max(after.values())],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = [*rows(given.nodes, given.partitions), *plans(given.nodes, given.partitions)]
    for row in found:
        print(json.dumps(row) if given.json else "  ".join(f"{name}: {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
