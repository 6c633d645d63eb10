"""``python -m tests.system.groups --rounds 30 [--seed N]``: a line for each round; exit 1 at the first violation.

Members of one group, each a process, read six partitions that keep growing, on three nodes; each part is committed by itself. A round
has a member come, go, be killed or stopped, or the node that coordinates them. Right is: a record that was committed is given to nobody
again, nobody is given one after somebody of a later generation, none is skipped, committed positions never fall, what stays with its
member is never stopped, a fail-over of the coordinator moves nothing. ``--into``: ``tests/system/groups/into.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from random import Random

from tests.system.groups import into
from tests.system.groups.ground import Ground, ViolationError
from tests.system.groups.judge import percentile
from tests.system.groups.rounds import FAULTS, drawn

REBALANCE_P50_S = 1.0


async def run(rounds: int, seed: int, only: list[str], log: Path | None, *, strict: bool = True) -> int:
    """All rounds on one cluster; the exit code. ``strict``: rebalances take 1 s in the middle, or it is a violation."""
    lines = log.open("a", encoding="utf-8") if log else None
    rng = Random(seed)
    ground = Ground(rng, lambda node, line: print(node, line, file=lines, flush=True) if lines else None)
    began = time.monotonic()
    try:
        await ground.open()
        for number in range(1, rounds + 1):
            name = only[(number - 1) % len(only)] if only else drawn(rng, len(ground.live))
            print(f"{number:3} {name:20}{await FAULTS[name](ground)}", flush=True)
            await ground.judge()
        await ground.stop_feeding()
        records = await ground.judge(at_the_end=True)
        middle_s = percentile(ground.rebalanced_s, 0.5)
        if strict and middle_s > REBALANCE_P50_S:
            raise ViolationError(f"rebalances took {middle_s:.2f} s in the middle, more than {REBALANCE_P50_S:g}")
    except ViolationError as violation:
        print(f"VIOLATION with seed {seed}: {violation}", flush=True)
        return 1
    finally:
        await ground.close()
    print(f"{rounds} rounds with seed {seed} in {time.monotonic() - began:.0f} s: {records} records, each given and committed")
    for what, figures in (
        ("rebalances", ground.rebalanced_s),
        ("records of partitions that stayed, late at most", ground.stayed_late_s),
        ("dead members taken over", ground.taken_over_s),
        ("next commit after a coordinator's end", ground.coordinator_away_s),
    ):
        shown = ", ".join(
            f"{name} {percentile(figures, share):.2f} s" for name, share in (("p50", 0.5), ("p90", 0.9), ("max", 1.0))
        )
        print(f"{what}: {len(figures)}, {shown}")
    return 0


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.groups", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS), help="only these, in turn")
    parser.add_argument("--log", type=Path, help="write the nodes' logs there")
    parser.add_argument("--into", action="store_true", help="members copy from stream to stream instead, and leaders die, too")
    given = parser.parse_args()
    if given.into:
        return asyncio.run(into.run(given.rounds, given.seed, given.log))
    return asyncio.run(run(given.rounds, given.seed, given.fault, given.log))


if __name__ == "__main__":
    sys.exit(main())
