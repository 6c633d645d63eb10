"""``python -m tests.system.upgrade [--rounds 3] [--seed 1] [--seeds 1]``: a line for each step; exit 1 if anything is wrong."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from liftpy.spark.session import local_session, spark_problem
from tests.system.upgrade.run import Outcome, Run, first_starts
from tests.system.upgrade.wheel import BEFORE, install


def shown(outcome: Outcome) -> str:
    """The verdict, in a line."""
    return (
        f"{outcome.changes} changes of version, {outcome.kills} kills; {outcome.acknowledged} acknowledged, {outcome.lost} lost, "
        f"{outcome.found} found, longest gap of acks {outcome.longest_gap_s:.2f} s; finalize was refused "
        f"{len(outcome.refusals)} times; the new version ended with {outcome.new_ended_with} below its levels, the old one with "
        f"{outcome.old_ended_with} above its own; "
        f"images equal at level {outcome.level}, index {outcome.index}, digest {outcome.digest}; {outcome.beside}"
        + "".join(f"; WRONG: {what}" for what in outcome.wrong)
    )


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.upgrade", description=__doc__)
    parser.add_argument("--commit", default=BEFORE, help="whose wheel is the old version")
    parser.add_argument("--rounds", type=int, default=3, help="times up; between them down again")
    parser.add_argument("--soak-s", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--log", type=Path, help="write the nodes' logs there")
    parser.add_argument("--no-spark", action="store_true", help="no query beside the load")
    given = parser.parse_args()
    wrong = 0
    if not given.no_spark and (problem := spark_problem()):
        print(f"no query beside the load: {problem}", flush=True)
        given.no_spark = True
    spark = None if given.no_spark else local_session("upgrade")
    with tempfile.TemporaryDirectory(prefix="liftpy-old-") as folder:
        old = install(given.commit, Path(folder))
        print(
            f"wheel of {given.commit}: {old.wheel_bytes} bytes, {old.where}, speaks levels {old.least} to {old.most}",
            flush=True,
        )
        log = given.log.open("a", encoding="utf-8") if given.log else None
        first = asyncio.run(first_starts(old, lambda line: print(line, flush=True)))
        print("".join(f"WRONG: {what}\n" for what in first), end="", flush=True)
        wrong += bool(first)
        for seed in range(given.seed, given.seed + given.seeds):
            say = lambda line: print(line, flush=True)  # noqa: E731
            outcome = asyncio.run(Run(old, given.rounds, given.soak_s, seed, say, log, spark).go())
            print(f"seed {seed}: {shown(outcome)}", flush=True)
            for reason in sorted(set(outcome.refusals)):
                print(f"  finalize was refused: {reason}", flush=True)
            wrong += bool(outcome.wrong)
    if spark is not None:
        spark.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
