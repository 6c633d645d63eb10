"""``python -m tests.system.service_chaos --rounds 30 [--seed N]``: print a line for each round; exit 1 at the first violation."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from random import Random

from tests.system.service_chaos.catalogue import FAULTS
from tests.system.service_chaos.ground import Ground
from tests.system.service_chaos.model import ViolationError
from tests.system.service_chaos.rounds import drawn, one_round


async def run(rounds: int, seed: int, only: list[str], log: Path | None) -> int:
    """All rounds on one cluster; the exit code."""
    lines = log.open("a", encoding="utf-8") if log else None
    ground = Ground(Random(seed), lambda node, line: print(node, line, file=lines) if lines else None)
    faults = [[FAULTS[name]] for name in only] * rounds if only else drawn(Random(seed), rounds)
    began, number = time.monotonic(), 0
    try:
        await ground.open()
        for number, struck in enumerate(faults, 1):
            print(await one_round(ground, number, struck), flush=True)
            if number == rounds:
                break
    except ViolationError as violation:
        print(f"VIOLATION with seed {seed}: {violation}", flush=True)
        return 1
    finally:
        await ground.close()
    model = ground.model
    print(
        f"{number} rounds with seed {seed} in {time.monotonic() - began:.0f} s: {len(ground.acked)} commands acknowledged, "
        f"{len(model.outputs)} outputs, {len(model.decided)} records passed over, version {model.version}: "
        "states and outputs of all nodes are the model's"
    )
    return 0


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.service_chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS), help="only these, in turn")
    parser.add_argument("--log", type=Path, help="write the nodes' logs there")
    given = parser.parse_args()
    return asyncio.run(run(given.rounds, given.seed, given.fault, given.log))


if __name__ == "__main__":
    sys.exit(main())
