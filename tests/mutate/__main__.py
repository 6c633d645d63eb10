"""Make small mistakes in the shipped code, one at a time, and report the ones that no test notices.

    python -m tests.mutate --since main~5                      # mutants of the lines that changed since a revision
    python -m tests.mutate --package liftpy/core/log --count 40 --seed 1
    python -m tests.mutate --package sidecar/disk/files.py --list
    python -m tests.mutate --package sidecar/partition sidecar/metadata --count 30 --world 3   # and shipped nodes

The mistakes are made from the syntax tree: turned comparisons, dropped calls, missing raises, constants that are off by one. The tool
tries each one in a copy of the tree against the tests that import the module. ``--wide`` adds the other tests of the package.
``--world N`` adds the scripts and N seeds of shipped nodes in virtual time, for mutants that no test notices. ``--only-world`` leaves
the tests out. The exit code is 1 if a mutant survives,
2 if the tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutate.operators import Mutant, make_mutants
from tests.mutate.runner import ROOT, Tree, preload, scripts_that_run


def shipped_files(package: str, root: Path = ROOT) -> list[str]:
    """Return the modules below ``package`` (a folder, a file, or '' for all), without generated code."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "liftpy", "sidecar"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(
        name
        for name in listed.stdout.splitlines()
        if name.endswith(".py")
        and "_pb/" not in name
        and (root / name).exists()
        and (not package or name == package or name.startswith(package.rstrip("/") + "/"))
    )


def changed_lines(since: str, root: Path = ROOT) -> dict[str, set[int]]:
    """Return the lines of each file that were added or changed since the revision ``since``."""
    diff = subprocess.run(
        ["git", "diff", "-U0", since, "--", "liftpy", "sidecar"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, set[int]] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line[4:].removeprefix("b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(match[1]), int(match[2] or 1)
            found.setdefault(file, set()).update(range(first, first + count))
    return found


def choose(packages: list[str], since: str | None, count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Return the mutants to try: those of the packages or of the changed lines, and at most ``count`` of them, drawn by ``seed``."""
    changed = changed_lines(since, root) if since is not None else None
    mutants: list[Mutant] = []
    for file in sorted({file for package in packages or [""] for file in shipped_files(package, root)}):
        if changed is not None and file not in changed:
            continue
        made = make_mutants(file, (root / file).read_text(encoding="utf-8"))
        mutants += made if changed is None else [mutant for mutant in made if mutant.line in changed[file]]
    if count and count < len(mutants):
        mutants = sorted(random.Random(seed).sample(mutants, count), key=lambda mutant: (mutant.file, mutant.start))
    return mutants


def _digest(mutant: Mutant) -> str:
    text = mutant.apply((ROOT / mutant.file).read_text(encoding="utf-8"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _known(results: Path) -> dict[str, dict[str, str]]:
    if not results.exists():
        return {}
    return {row["digest"]: row for row in map(json.loads, results.read_text(encoding="utf-8").splitlines())}


def _try_all(mutants: list[Mutant], turn: int, jobs: int, results: Path, options: argparse.Namespace) -> None:
    tests: list[str] = options.tests
    path: Path | None = options.script_lines
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path else []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree = Tree(Path(folder) / "tree")
        for mutant in mutants[turn::jobs]:
            outcome = tree.attempt(
                mutant,
                options.limit,
                wide=options.wide,
                tests=tests,
                seeds=options.world,
                only_world=options.only_world,
                scripts=scripts_that_run(mutant, (ROOT / mutant.file).read_text(encoding="utf-8"), rows) if rows else None,
            )
            print(f"{outcome.verdict:9} {outcome.seconds:5.1f} s  {mutant.id}  {outcome.by}", flush=True)
            row: dict[str, object] = {"id": mutant.id, "digest": _digest(mutant), "verdict": outcome.verdict, "by": outcome.by}
            if tests:
                row["failed"] = outcome.failed
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _fan_out(mutants: list[Mutant], results: Path, options: argparse.Namespace) -> None:
    children = []
    for turn in range(options.jobs):
        child = os.fork()
        if child == 0:
            code = 3
            try:
                _try_all(mutants, turn, options.jobs, results, options)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"a worker failed: exit codes {codes}")


def _summary(mutants: list[Mutant], verdicts: dict[str, str]) -> str:
    by_folder: dict[str, list[str]] = {}
    for mutant in mutants:
        by_folder.setdefault(mutant.file.rpartition("/")[0], []).append(verdicts.get(mutant.id, "error"))
    lines = []
    for folder, found in sorted(by_folder.items()):
        killed, tried = found.count("killed"), len(found)
        lines.append(f"{folder:32} {killed} of {tried} noticed ({100 * killed / tried:.0f} %)")
    return "\n".join(lines)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", help="revision: only the lines that changed since then")
    parser.add_argument("--package", nargs="*", default=[], help="folders or files; default: liftpy and sidecar")
    parser.add_argument("--count", type=int, default=0, help="how many mutants to draw; 0 (default): all")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw, default 1")
    parser.add_argument("--wide", action="store_true", help="also run the other tests of the package")
    parser.add_argument(
        "--tests", nargs="*", default=[], help="run these files and folders of tests instead, and all tests in them"
    )
    parser.add_argument(
        "--world", type=int, default=0, help="seeds of tests.simulation.world for mutants that no test notices, default 0"
    )
    parser.add_argument(
        "--script-lines",
        type=Path,
        help="output of tests.simulation.world.scripts --reached FOLDERS --json: run only the scripts that run the mutated lines",
    )
    parser.add_argument("--only-world", action="store_true", help="run the scripts and seeds of shipped nodes, and no tests")
    parser.add_argument("--jobs", type=int, default=1, help="processes, default 1")
    parser.add_argument("--limit", type=float, default=120.0, help="CPU seconds of one mutant's tests, default 120")
    parser.add_argument("--results", type=Path, help="file with one JSON line a mutant; a later run skips the mutants in it")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    mutants = choose(options.package, options.since, options.count, options.seed)
    if options.list:
        print("\n".join(mutant.id for mutant in mutants))
        return 0
    preload()
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        results = options.results or Path(folder) / "results"
        known = _known(results)
        to_try = [mutant for mutant in mutants if _digest(mutant) not in known]
        if to_try:
            tree = Tree(Path(folder) / "tree")
            files = list(dict.fromkeys(mutant.file for mutant in to_try)) if not options.only_world else []
            green = tree.run_unchanged(files, 8 * options.limit, wide=options.wide)
            if green.verdict not in ("survived", "no tests"):
                print(f"the tests fail without a mutant: {green.by}")
                return 2
            _fan_out(to_try, results, options)
        known = _known(results)
        verdicts = {mutant.id: known[_digest(mutant)]["verdict"] for mutant in mutants if _digest(mutant) in known}
    unnoticed = [name for name, verdict in verdicts.items() if verdict != "killed"]
    print(_summary(mutants, verdicts))
    for name in unnoticed:
        print(f"not noticed ({verdicts[name]}): {name}")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
