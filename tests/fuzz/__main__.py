"""``python -m tests.fuzz [--count 1000000] [--only NAME] [--seed S]``: every decoder, the figures of each in a line."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.registry import all_decoders
from tests.fuzz.run import fuzz


def main() -> None:
    """Fuzz, print, and end with 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="part of a decoder's name, may be repeated")
    given = parser.parse_args()
    failed = False
    for decoder in all_decoders():
        if given.only and not any(word in decoder.name for word in given.only):
            continue
        try:
            f = fuzz(decoder, given.count, given.seed)
        except AssertionError as error:
            failed = True
            print(f"FAILED {str(error)[:1500]}", flush=True)
            continue
        slowest, most = f.slowest_s * 1000, f.most_bytes / 1024
        print(
            f"{f.name}: {f.count} inputs in {f.seconds:.0f} s, {f.taken} taken, slowest {slowest:.0f} ms, {most:.0f} KiB",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
