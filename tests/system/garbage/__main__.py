"""Send garbage to a cluster under load and say what became of it: see the package."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Mapping

from sidecar.dev.cluster import DevCluster
from tests.system.garbage.floods import FLOODS
from tests.system.garbage.run import Outcome, Run

NODES = 4
"""Three controllers, and one that follows the feed."""
SETTINGS = {"LIFTPY_RUN_GROUP_COORDINATORS": "false", "LIFTPY_REPLICATION_GROUPS_PARTITIONS": "1"}
"""Garbage has the stream of groups made: what its coordinators say then is theirs, and is not counted here."""
PER_S = 3_000


class Lines:
    """Counts what the nodes log, by the second in which they said it: when it is read here depends on how busy this process is."""

    def __init__(self, show: bool) -> None:
        self._show = show
        self._counts: Counter[tuple[str, str]] = Counter()
        self.kinds: Counter[str] = Counter()

    def take(self, node: str, line: str) -> None:
        """One line."""
        self._counts[node, line[: len("2026-11-26 10:00:00")]] += 1
        self.kinds[" ".join(line.split()[2:9])] += 1
        if self._show:
            print(f"{node} | {line}", file=sys.stderr)

    def forget(self) -> None:
        """Begin to count: what a start says is no part of it."""
        self._counts.clear()
        self.kinds.clear()

    @property
    def most_in_a_second(self) -> int:
        """Of one node."""
        return max(self._counts.values(), default=0)

    @property
    def count(self) -> int:
        """All."""
        return self._counts.total()


def send_garbage(
    frames: int, *, per_s: int = PER_S, seed: int, rows: frozenset[str] = frozenset(), verbose: bool = False
) -> Outcome:
    """A cluster of its own; ``rows``: only on subjects of these rows of the table, empty: on all."""
    lines = Lines(verbose)
    with DevCluster(NODES, settings=SETTINGS, on_line=lines.take) as cluster:
        outcome = asyncio.run(Run(cluster, frames, per_s, seed, rows, lines.forget).run())
        outcome.ended = cluster.ended_nodes()
    outcome.log_lines, outcome.most_lines_in_a_second = lines.count, lines.most_in_a_second
    outcome.said = dict(lines.kinds.most_common(8))
    return outcome


def send_floods(floods: Mapping[str, int], *, per_s: int = PER_S, verbose: bool = False) -> Outcome:
    """A cluster of its own; names of ``FLOODS`` -> how many frames of each."""
    lines = Lines(verbose)
    with DevCluster(NODES, settings=SETTINGS, on_line=lines.take) as cluster:
        run = Run(cluster, 0, per_s, 1, frozenset(), lines.forget, floods)
        outcome = asyncio.run(run.run())
        outcome.ended = cluster.ended_nodes()
    outcome.log_lines, outcome.most_lines_in_a_second = lines.count, lines.most_in_a_second
    outcome.said = dict(lines.kinds.most_common(8))
    return outcome


def main() -> None:
    """Parse, send, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument(
        "--per-s", type=int, default=PER_S, help="frames in a second at most: what is overheard has to stay fresh"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", action="append", default=[], help="a row of the table of subjects (its builder), may be repeated"
    )
    parser.add_argument("--verbose", action="store_true", help="print what the nodes log")
    parser.add_argument("--flood", choices=sorted(FLOODS), help="this flood of whole frames in the place of garbage")
    parser.add_argument("--count", type=int, default=0, help="of the flood's frames; 0: its long form")
    given = parser.parse_args()
    if given.flood:
        count = given.count or FLOODS[given.flood].count
        outcome = send_floods({given.flood: count}, per_s=given.per_s, verbose=given.verbose)
    else:
        rows = frozenset(given.only)
        outcome = send_garbage(given.frames, per_s=given.per_s, seed=given.seed, rows=rows, verbose=given.verbose)
    print(outcome.text())
    wrong = outcome.wrong()
    print("\n".join(wrong) or "nothing is wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
