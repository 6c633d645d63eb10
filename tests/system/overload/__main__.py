"""Overload a cluster of real processes and report what happened: see the package."""

from __future__ import annotations

import argparse
import asyncio

from sidecar.dev.cluster import DevCluster
from tests.system.overload import flood


def main() -> int:
    """Return 0 if all is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.overload")
    parser.add_argument("--minutes", type=float, default=5.0, help="of three times the peak  [default: 5]")
    parser.add_argument("--ids", action="store_true", help="each message has an id")
    given = parser.parse_args()
    with DevCluster(3, settings=flood.SETTINGS) as cluster:
        out = asyncio.run(flood.run(cluster, 60 * given.minutes, has_ids=given.ids))
    print(out.text())
    wrong = out.wrong() + out.slow()
    print("\n".join(wrong) or "all as it should be")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
