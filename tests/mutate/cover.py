"""Find the tests that notice no mutant alone: ``python -m tests.mutate.cover RESULTS...``.

RESULTS are files that ``python -m tests.mutate --tests ... --results FILE`` wrote. The command chooses a small set of tests that
notices every mutant that was noticed. It prints for each test file how many tests are in the set, and with ``--list`` the tests that
are not. Such a test is a candidate for deletion. Read it first: a mutant is only a sample of the possible mistakes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path


def choose_cover(noticed_by: dict[str, set[str]], keep: tuple[str, ...] = ()) -> list[str]:
    """Return a small set of tests that notices every mutant, largest gain first.

    Args:
        noticed_by: The tests that notice each mutant.
        keep: Prefixes of ids of tests that stay in any case, so they come first.
    """
    gains: dict[str, set[str]] = {}
    for mutant, tests in noticed_by.items():
        for test in tests:
            gains.setdefault(test, set()).add(mutant)
    open_mutants = (
        {mutant for mutant, tests in noticed_by.items() if not any(test.startswith(keep) for test in tests)}
        if keep
        else set(noticed_by)
    )
    chosen: list[str] = []
    while open_mutants:
        best = max(sorted(gains), key=lambda test: len(gains[test] & open_mutants))
        open_mutants -= gains[best]
        chosen.append(best)
    return chosen


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument(
        "--under", default="tests/unit", help="folder of the tests to judge, default tests/unit; all others stay"
    )
    parser.add_argument("--list", action="store_true", help="print the tests that are not in the set")
    options = parser.parse_args()
    rows = [json.loads(line) for path in options.results for line in path.read_text(encoding="utf-8").splitlines()]
    noticed_by = {row["id"]: {test.partition("[")[0] for test in row["failed"]} for row in rows if row.get("failed")}
    stay = tuple({test for tests in noticed_by.values() for test in tests if not test.startswith(options.under)})
    chosen = choose_cover(noticed_by, stay)
    words = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", options.under]
    collected = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    tests = sorted({line.partition("[")[0] for line in collected.splitlines() if "::" in line})
    total, needed = Counter(test.partition("::")[0] for test in tests), Counter(test.partition("::")[0] for test in chosen)
    for file in sorted(total):
        print(f"{needed[file]:4} of {total[file]:4}  {file}")
    print(f"{len(noticed_by)} mutants noticed, {len(chosen)} of {len(tests)} tests notice all of them")
    if options.list:
        print("\n".join(test for test in tests if test not in chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
