"""``python -m tests.unit.cli.golden [NOUN...] [--rewrite]``: run the golden scripts and print how their output differs.

A script is a text file of this folder, one for each noun of the command line. It runs against a cluster of its own, which has three
shipped nodes in virtual time (``tests.simulation.world``). ``--rewrite`` writes the present output into the scripts.

    Text at the beginning of a line is a comment.
    $ liftpy stream list --json          a command, as a user types it. $ printf 'a\\nb\\n' | liftpy publish orders
      {"name": "orders"}                 a line of its standard output, or of one of its files ($ cat FILE)
    ! Error: ...                         a line of its standard error
    = 1                                  its exit code, if it is not 0
    @ kill n2                            something that happens to the cluster: a method ``on_...`` of ``session.Session``

A line of JSON is shown with a line for each part. ``normalize`` replaces what differs between two runs of the same command: times,
identifiers and measured durations. Empty lines, and lines with the progress of a move, are left out. A line of the standard error
that repeats the line before it is left out, too, because the number of lines with the progress of a purge depends on time.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
import traceback
from pathlib import Path

from tests.simulation.world.machine import interposition
from tests.unit.cli.golden.script import FOLDER, run_script
from tests.unit.cli.golden.session import Session  # first: it changes the standard library


def _transcript(name: str, seed: int) -> str:
    session = Session(seed)
    try:
        return run_script((FOLDER / f"{name}.txt").read_text(encoding="utf-8"), session)
    finally:
        session.close()


def _begin(name: str, folder: Path, seed: int) -> int:
    """Write the present transcript of a script into ``folder``, in a process of its own. Return its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        (folder / f"{name}.txt").write_text(_transcript(name, seed), encoding="utf-8")
        status = 0
    except BaseException:
        print(f"script {name}:", file=sys.stderr)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        interposition.real_exit(status)


def main() -> int:
    """Run the scripts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nouns", nargs="*", metavar="NOUN", help="only these scripts")
    parser.add_argument("--rewrite", action="store_true", help="write the present output into the scripts")
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write the transcripts there, and compare nothing")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the order of events, default 1. Each gives the same output"
    )
    options = parser.parse_args()
    names = options.nouns or sorted(path.stem for path in FOLDER.glob("*.txt"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.into or (FOLDER if options.rewrite else Path(scratch))
        failed = [name for name in names if os.waitpid(_begin(name, folder, options.seed), 0)[1]]
        for name in sorted({*names} - {*failed}) if folder == Path(scratch) else ():
            before, now = (path / f"{name}.txt" for path in (FOLDER, folder))
            pair = [path.read_text(encoding="utf-8").splitlines() for path in (before, now)]
            different = list(difflib.unified_diff(*pair, f"golden: {name}", f"now: {name}", lineterm=""))
            if different:
                print("\n".join(different))
                failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
