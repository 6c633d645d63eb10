"""Freeze what the code does: record it before a move or a rename, and check it afterwards.

    python -m tests.freeze record                    # everything: 2,000 seeds of replicas, 200 of each other simulator
    python -m tests.freeze check                     # the same, compared; exit code 1 on a difference that nobody expects
    python -m tests.freeze check --seeds 5           # fewer seeds, for a first impression
    python -m tests.freeze check --part help --diff  # one part, with the differences as text

``tests/freeze/expected.json`` lists expected differences: part, name, and the reason. The check also fails on an entry of this list
that is no difference any more.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from pathlib import Path

from tests.freeze.parts import PARTS, Values

FOLDER = Path(__file__).resolve().parent
RECORDED = FOLDER / "recorded"
EXPECTED = FOLDER / "expected.json"
SEEDED = {"replica", "whole", "raft", "members", "queues", "ordered"}


def read(part: str, folder: Path = RECORDED) -> Values:
    """Return what was recorded of a part."""
    found = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
    return {str(name): str(value) for name, value in found.items()}


def write(part: str, values: Values, folder: Path = RECORDED) -> None:
    """Record the values of a part, one line each."""
    folder.mkdir(exist_ok=True)
    text = json.dumps(values, indent=0, ensure_ascii=False, sort_keys=True)
    (folder / f"{part}.json").write_text(text + "\n", encoding="utf-8")


def differences(before: Values, now: Values, *, partial: bool = False) -> list[str]:
    """Return the names whose values differ. ``partial``: names that are missing now are no difference."""
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name) and not (partial and name not in now)]


def unexpected(part: str, different: list[str], expected: dict[str, dict[str, str]], *, partial: bool = False) -> list[str]:
    """Return a line for each difference that is not in the list, and for each entry of the list without a difference."""
    listed = expected.get(part, {})
    lines = [f"{part}: {name} differs" for name in different if name not in listed]
    if not partial:
        lines += [
            f"{part}: {name} is listed as an expected difference, and does not differ"
            for name in listed
            if name not in different
        ]
    return lines


def _diff(name: str, before: str, now: str) -> str:
    return "\n".join(
        difflib.unified_diff(before.splitlines(), now.splitlines(), f"recorded: {name}", f"now: {name}", lineterm="")
    )


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="only this part; may be repeated")
    parser.add_argument("--seeds", type=int, default=200, help="seeds of each simulator, ten times as many of the replica's")
    parser.add_argument("--jobs", type=int, default=2, help="processes for seeds, default 2")
    parser.add_argument("--diff", action="store_true", help="print the differences as text")
    options = parser.parse_args()
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    failed: list[str] = []
    for part in options.part or PARTS:
        began = time.monotonic()
        now = PARTS[part](options.seeds, options.jobs)
        seconds = time.monotonic() - began
        if options.action == "record":
            write(part, now)
            print(f"{part:12} {len(now):5} values recorded in {seconds:.0f} s", flush=True)
            continue
        before, fewer = read(part), part in SEEDED
        different = differences(before, now, partial=fewer)
        lines = unexpected(part, different, expected, partial=fewer)
        print(
            f"{part:12} {len(now):5} values compared in {seconds:.0f} s, {len(different)} differ, {len(lines)} unexpected",
            flush=True,
        )
        if options.diff:
            for name in different:
                print(_diff(name, before.get(name, ""), now.get(name, "")))
        failed += lines
    print("\n".join(failed[:50]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
