"""``python -m tests.mutants [--package P] [--only TEXT] [--jobs N] [--results FILE]``: put real bugs in, one at a time.

With ``--fresh`` those only that were written after the tests, with ``--first`` the others.

Each runs on a copy of the tree: the tests named with it, then the tests of its package that start no processes. Prints killed or
survived for each, and the kill rate by package. With ``--results`` a run that was stopped goes on where it was: what was decided on the
same text is not tried again, survivors only with ``--survivors``. Exit code 1 where one survives, 2 where one does not apply.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.mutants import running
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import PACKAGES, ROOT, Mutant


def digest(mutant: Mutant) -> str:
    """Of the text that was tried; '' where the mutant does not apply."""
    try:
        text = mutant.changed((ROOT / mutant.file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def decided(results: Path | None) -> dict[str, dict[str, str]]:
    """What an earlier run has written, by id; the last word counts."""
    if results is None or not results.exists():
        return {}
    return {row["id"]: row for row in map(json.loads, results.read_text(encoding="utf-8").splitlines())}


def worker(mutants: list[Mutant], turn: int, jobs: int, limit_s: float, results: Path, near_only: bool) -> None:
    """Try every ``jobs``-th of them; a line for each."""
    with tempfile.TemporaryDirectory(prefix="liftpy-mutants-") as folder:
        place = running.Place(Path(folder) / "tree")
        for mutant in mutants[turn::jobs]:
            outcome = place.attempt(mutant, limit_s, near_only=near_only)
            print(f"{outcome.verdict:9} {outcome.seconds:5.1f} s  {mutant.id:50} {outcome.by}", flush=True)
            row = {"id": mutant.id, "digest": digest(mutant), "verdict": outcome.verdict, "by": outcome.by}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def fan_out(mutants: list[Mutant], jobs: int, limit_s: float, results: Path, near_only: bool) -> None:
    """The workers are forks: each has its own copy of the tree."""
    children = []
    for turn in range(jobs):
        child = os.fork()
        if child == 0:
            try:
                worker(mutants, turn, jobs, limit_s, results, near_only)
                code = 0
            except BaseException as error:
                print(f"worker {turn}: {error!r}", file=sys.stderr, flush=True)
                code = 3
            sys.stdout.flush()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"a worker failed: {codes}")


def table(mutants: Iterable[Mutant], verdicts: dict[str, dict[str, str]]) -> str:
    """Killed of tried, by package; fresh ones apart."""
    lines = [f"{'package':10} {'killed':>12} {'rate':>6}   {'fresh':>9} {'rate':>6}"]
    counted = {True: [0, 0], False: [0, 0]}
    tried = [mutant for mutant in mutants if mutant.id in verdicts]
    for package in PACKAGES:
        cells = []
        for fresh in (False, True):
            those = [verdicts[m.id]["verdict"] for m in tried if m.package == package and m.fresh is fresh]
            killed = those.count("killed")
            counted[fresh][0] += killed
            counted[fresh][1] += len(those)
            cells += [f"{killed} of {len(those)}", f"{100 * killed / len(those):.0f} %" if those else "-"]
        if any(m.package == package for m in tried):
            lines.append(f"{package:10} {cells[0]:>12} {cells[1]:>6}   {cells[2]:>9} {cells[3]:>6}")
    rates = [f"{killed} of {of} ({100 * killed / of:.0f} %)" if of else "none" for killed, of in counted.values()]
    lines.append(f"fresh: {rates[0]}; the others: {rates[1]}")
    return "\n".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", choices=sorted(PACKAGES), action="append", help="of these packages only")
    parser.add_argument("--only", default="", help="whose id or file contains this")
    parser.add_argument("--fresh", action="store_true", help="those only that were written after the tests")
    parser.add_argument("--first", action="store_true", help="those only that the tests were written for")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--limit",
        type=float,
        default=120.0,
        help="seconds of a processor for the tests of a mutant; beyond them it counts as killed",
    )
    parser.add_argument("--results", type=Path, help="a line of JSON for each; a run that was stopped goes on")
    parser.add_argument("--survivors", action="store_true", help="try again who survived")
    parser.add_argument(
        "--near", action="store_true", help="of the package's tests only those that name the mutant's module: a quick look"
    )
    parser.add_argument("--no-baseline", action="store_true", help="do not run the packages' tests without a mutant first")
    options = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if (options.only in mutant.id or options.only in mutant.file)
        and (not options.package or mutant.package in options.package)
        and not (options.fresh and not mutant.fresh)
        and not (options.first and mutant.fresh)
    ]
    known = decided(options.results)
    skip = {"killed"} if options.survivors else {"killed", "survived"}
    to_try = [
        m for m in chosen if not (m.id in known and known[m.id]["verdict"] in skip and known[m.id]["digest"] == digest(m) != "")
    ]
    running.preload()
    with tempfile.TemporaryDirectory(prefix="liftpy-mutants-") as folder:
        if to_try and not options.no_baseline:
            place = running.Place(Path(folder) / "tree")
            for package in dict.fromkeys(mutant.package for mutant in to_try):
                green = place.green(package, 4 * options.limit)
                if green.verdict != "survived":
                    print(f"the tests of {package} fail without any mutant: {green.by}")
                    return 2
        results = options.results or Path(folder) / "results"
        fan_out(to_try, options.jobs, options.limit, results, options.near)
        verdicts = {name: row for name, row in decided(results).items() if name in {m.id for m in chosen}}
    print(table(chosen, verdicts))
    found = {row["verdict"] for row in verdicts.values()}
    return 2 if "error" in found else 1 if "survived" in found else 0


if __name__ == "__main__":
    sys.exit(main())
