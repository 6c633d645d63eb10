"""``python -m tests.simulation.group [--seeds N] [--first K] [--only members]``: groups under faults, every promise checked.

Prints what happened how often, and each violation with its seed. Exit code 1 on a violation. ``--mutants``: plants each bug of the
catalogue, and says which seed notices it, and by which invariant.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable

from liftpy.errors import InvariantError
from tests.simulation.group import world

HISTORIES: dict[str, Callable[[int], Counter[str]]] = {"members": world.run}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--only", choices=sorted(HISTORIES))
    options = parser.parse_args()
    failed = 0
    for kind in [options.only] if options.only else sorted(HISTORIES):
        begin, seen = time.monotonic(), Counter[str]()
        for seed in range(options.first, options.first + options.seeds):
            try:
                seen += HISTORIES[kind](seed)
            except InvariantError as error:
                failed += 1
                print(f"{kind} {seed}: {error}")
        print("\n".join(f"{name:44} {count:10}" for name, count in sorted(seen.items())))
        print(f"{kind}: {options.seeds} seeds, {time.monotonic() - begin:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
