"""``python -m tests.system.moving [--partitions 20] [--fill-mb 10]``: a line for each step; exit 1 if anything is wrong."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.system.moving.run import Outcome, Run, Size


def shown(outcome: Outcome) -> str:
    """The verdict, in a line."""
    verdicts = outcome.verdicts.values()
    lost = sum(verdict.lost for verdict in verdicts)
    acknowledged = sum(verdict.acknowledged for verdict in verdicts)
    examples = [text for verdict in verdicts for text in verdict.examples]
    return "; ".join(
        [
            f"{len(outcome.verdicts)} partitions, {acknowledged} acknowledged, {lost} lost",
            "all replicas equal, nothing changed" if outcome.right else "WRONG",
            *outcome.wrong,
            *examples[:5],
        ]
    )


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.moving", description=__doc__)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--fill-mb", type=float, default=10.0, help="in each partition, before anything moves")
    parser.add_argument("--log", type=Path, help="write the nodes' logs there")
    parser.add_argument("--deadline-s", type=float, default=300.0, help="of each step")
    parser.add_argument("--no-kills", action="store_true", help="nobody is killed in the middle of a rebalance or a drain")
    parser.add_argument("--spark", action="store_true", help="a Spark job reads as well: a streaming query, and batches")
    given = parser.parse_args()
    lines = given.log.open("a", encoding="utf-8") if given.log else None
    size = Size(
        partitions=given.partitions,
        fill_bytes=round(given.fill_mb * 1_000_000),
        deadline_s=given.deadline_s,
        spark=given.spark,
        kills=not given.no_kills,
    )
    run = Run(size, lambda line: print(line, flush=True), lambda node, line: print(node, line, file=lines) if lines else None)
    outcome = asyncio.run(run.go())
    print(shown(outcome), flush=True)
    return 0 if outcome.right else 1


if __name__ == "__main__":
    sys.exit(main())
