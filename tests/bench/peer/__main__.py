"""liftpy beside JetStream: ``python -m tests.bench.peer [--clients] [--seconds S] [--rounds N] [--json]``.

The cases ``acked``, ``producer`` and ``consume`` of ``liftpy bench``: three systems in turn, each with three replicas on this machine:
liftpy as it comes (flushed on the in-sync replicas before the ack), JetStream with ``sync_interval: always`` (the same promise) and
JetStream as it comes (written, flushed within two minutes: a power cut may take what was acknowledged). And single messages through a
client library, an ack for each, whose counterpart is nats-py's ``js.publish_async``: what they cost the client's process, and all
processes together. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from rich.console import Console

from sidecar.bench.cases import CASES, BenchOptions, Case, Row, measure_process
from sidecar.bench.running import report
from sidecar.bench.systems import DEFAULT_SYSTEMS, OURS, STREAM, ComparisonOptions, System
from sidecar.cli.bench import show

WINDOWS = (1, 64, 4000)
CLIENTS = ("publisher", "ids", "gather")
"""Of liftpy, as ``tests.bench.peer.client`` calls them; each beside nats-py."""
_SIZE_BYTES, _WINDOW = 100, 4000


def clients(system: System, asked: BenchOptions) -> Iterator[Row]:
    """Single messages through a client library, in a process of its own."""
    hows = CLIENTS if system.kind == OURS else ("nats-py",)
    for how in hows:
        words = [sys.executable, "-m", "tests.bench.peer.client", str(system.ports[0]), STREAM]
        run = measure_process([*words, *map(str, (asked.seconds, _SIZE_BYTES, _WINDOW)), how], None, system.pids)
        figures = {
            "per_s": run["acked"] / run["took_s"],
            "cpu_us": run["all_cpu_s"] / run["acked"] * 1e6,
            "client_cpu_us": run["cpu_s"] / run["acked"] * 1e6,
            "grown_mb": run["grown_mb"],
        }
        for mine in (how,) if system.kind == OURS else CLIENTS:
            yield {"case": f"client, {_SIZE_BYTES} B, {mine}", "figures": figures}


def cases(*, only_clients: bool) -> dict[str, Case]:
    """In the order in which they run."""
    found = {} if only_clients else {name: CASES[name] for name in ("acked", "producer", "consume")}
    return {**found, "clients": clients}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", action="store_true", help="single messages through a client library, and nothing else")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    asked = BenchOptions(given.seconds, windows=WINDOWS)
    wanted = cases(only_clients=given.clients)
    found = report(DEFAULT_SYSTEMS, wanted, asked, given.rounds, ComparisonOptions(), lambda text: print(text, file=sys.stderr))
    if given.json:
        print(json.dumps(found))
    else:
        show(found, Console(file=sys.stdout))


if __name__ == "__main__":
    main()
