"""Freeze what the code does: record it before a move or a rename, and check it afterwards.

    python -m tests.freeze record                    # everything: 2,000 seeds of replicas, 200 of each other simulator
    python -m tests.freeze check                     # the same, compared; exit code 1 on a difference that nobody expects
    python -m tests.freeze check --seeds 5           # fewer seeds, for a first impression
    python -m tests.freeze check --part help --diff  # one part, with the differences as text
    python -m tests.freeze expect --part help --why "stream copy has the option --rate (1a2b3c4d)"

What is recorded of ``wire``, ``protobuf``, ``replay``, ``help`` and ``metrics`` is that of commit 6ef61ecd, before
names and folders changed. ``tests/freeze/expected.json`` lists the expected differences: part, name, the reason, and a digest of
what is there now. So the check fails on a difference that is not listed, on one that became another, and on one that is no
difference any more. ``expect`` lists the differences that are not listed yet. What is
recorded of the simulators, of ``page`` and of ``client`` is of the commits that ``tests/freeze/recorded/README.md`` names.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from pathlib import Path

from tests.freeze.parts import PARTS, Values, digest

FOLDER = Path(__file__).resolve().parent
RECORDED = FOLDER / "recorded"
EXPECTED = FOLDER / "expected.json"
Expected = dict[str, str]
"""An expected difference. ``why``: the reason. ``now``: digest of what is there instead, or ``gone``."""
ExpectedByPart = dict[str, dict[str, Expected]]
SEEDED = {"replica", "raft", "members", "queues", "ordered"}


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


def unlisted(different: list[str], now: Values, listed: dict[str, Expected]) -> list[str]:
    """Return the differences that are not in the list, or not as the list has them."""
    return [name for name in different if name not in listed or listed[name]["now"] != shown_now(name, now)]


def shown_now(name: str, now: Values) -> str:
    """Return what the list of expected differences has of a value: its digest, or that there is none."""
    return digest(now[name]) if name in now else "gone"


def unexpected(part: str, before: Values, now: Values, expected: ExpectedByPart, *, partial: bool = False) -> list[str]:
    """Return a line for each difference that is not in the list, and for each entry of the list without a difference."""
    listed, different = expected.get(part, {}), differences(before, now, partial=partial)
    lines = [
        f"{part}: {name} differs" + (f" in another way than expected ({listed[name]['why']})" if name in listed else "")
        for name in unlisted(different, now, listed)
    ]
    if not partial:
        lines += [
            f"{part}: {name} is listed as an expected difference, and does not differ"
            for name in listed
            if name not in different
        ]
    return lines


def expect(part: str, before: Values, now: Values, expected: ExpectedByPart, why: str) -> int:
    """List the differences that are not listed yet, with their reason. Remove entries that are no difference. Return the number of new
    entries.
    """
    listed, different = expected.setdefault(part, {}), differences(before, now)
    new = unlisted(different, now, listed)
    kept = {name: entry for name, entry in listed.items() if name in different}
    expected[part] = dict(sorted({**kept, **{name: {"now": shown_now(name, now), "why": why} for name in new}}.items()))
    return len(new)


def _diff(name: str, before: str, now: str) -> str:
    return "\n".join(
        difflib.unified_diff(before.splitlines(), now.splitlines(), f"recorded: {name}", f"now: {name}", lineterm="")
    )


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "check", "expect"])
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="only this part; may be repeated")
    parser.add_argument("--seeds", type=int, default=200, help="seeds of each simulator, ten times as many of the replica's")
    parser.add_argument("--jobs", type=int, default=2, help="processes for seeds, default 2")
    parser.add_argument("--diff", action="store_true", help="print the differences as text")
    parser.add_argument("--why", help="expect: the reason of the differences, with the commit that made them")
    options = parser.parse_args()
    if (options.action == "expect") != bool(options.why):
        parser.error("expect needs --why, and only expect takes it")
    expected: ExpectedByPart = json.loads(EXPECTED.read_text(encoding="utf-8"))
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
        if options.action == "expect":
            print(f"{part:12} {expect(part, before, now, expected, options.why)} differences listed", flush=True)
            EXPECTED.write_text(json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
            continue
        different = differences(before, now, partial=fewer)
        lines = unexpected(part, before, now, expected, partial=fewer)
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
