"""Placement of a large cluster: ``python -m tests.bench.placement [--nodes N] [--partitions P] [--json]``.

Per policy: seconds, and how even the map is (most and fewest replicas and leaders of a node; partitions on fewer racks than they have
replicas). ``rendezvous`` hashes every partition with every node: 0.8 us each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from typing import Any

from liftpy.cluster.placement import POLICIES, place
from liftpy.cluster.placement.facts import NodeFacts, Wanted

RACKS = 20


def rows(nodes: int, partitions: int) -> list[dict[str, Any]]:
    """One row per policy."""
    facts = [NodeFacts(node_id=f"node-{n:04}", rack=f"rack-{n % RACKS}", weight=1.0) for n in range(nodes)]
    return [_row(policy, facts, partitions) for policy in POLICIES]


def _row(policy: str, facts: list[NodeFacts], partitions: int) -> dict[str, Any]:
    wanted = Wanted(policy=policy, stream="stream", partitions=partitions, replication_factor=3, start=1_000_003)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = rows(given.nodes, given.partitions)
    for row in found:
        print(json.dumps(row) if given.json else "  ".join(f"{name}: {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
