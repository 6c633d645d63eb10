"""Overload a cluster of real processes and say what became of it: see the package."""

from __future__ import annotations

import argparse
import asyncio

from sidecar.dev.cluster import DevCluster
from tests.system.overload import flood, quota


def main() -> int:
    """0: all as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.overload")
    parser.add_argument("--minutes", type=float, default=5.0, help="of three times the peak  [default: 5]")
    parser.add_argument("--ids", action="store_true", help="each message has an id")
    parser.add_argument("--quota", action="store_true", help="a stream held to its quota instead")
    parser.add_argument("--seconds", type=float, default=30.0, help="with --quota  [default: 30]")
    given = parser.parse_args()
    if given.quota:
        with DevCluster(3) as cluster:
            held = asyncio.run(quota.run(cluster, given.seconds))
        print(held.text())
        wrong = held.wrong() + held.slow()
    else:
        with DevCluster(3, settings=flood.SETTINGS) as cluster:
            out = asyncio.run(flood.run(cluster, 60 * given.minutes, has_ids=given.ids))
        print(out.text())
        wrong = out.wrong() + out.slow()
    print("\n".join(wrong) or "all as it should be")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
