"""Thousands of partitions on real nodes: ``python -m tests.system.scale [--partitions 5000] [--nodes 3]``.

Creates them at full speed, kills one node, brings it back, kills all nodes at once, stops all at once; says how long each took,
how many terms the metadata group needed and what idle partitions cost, and ends with 1 if a gate was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.system.scale.run import Run, Sizes


def main() -> int:
    """Parse, run, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.scale", description=__doc__)
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--per-stream", type=int, default=10, help="partitions of a stream")
    parser.add_argument("--at-once", type=int, default=16, help="streams that are being created at the same time")
    parser.add_argument("--idle", type=float, default=15.0, help="seconds over which the cost of idling is measured, 0: not")
    parser.add_argument("--only", default="", help="phases after the creation, comma separated; all of them otherwise")
    parser.add_argument("--log", type=Path, help="file for the nodes' log")
    words = parser.parse_args()
    sizes = Sizes(words.partitions, words.nodes, words.per_stream, words.at_once, words.idle)
    with tempfile.TemporaryDirectory(prefix="liftpy-scale-") as folder:
        run = Run(sizes, Path(folder), words.log)
        missed = asyncio.run(run.all(tuple(filter(None, words.only.split(",")))))
    for gate in missed:
        print(f"MISSED: {gate}")
    print(f"load average {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
