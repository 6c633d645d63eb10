"""Compare this version of liftpy with another one: ``python -m tests.bench.versions OTHER_PYTHON``.

OTHER_PYTHON is the interpreter of a virtual environment with the other version. Both clusters run at the same time, and publishers
use them in turns, in short windows. A machine that becomes slower for a minute slows both. Each ratio is the median over pairs of
neighboring windows, this version divided by the other one. CPU times come from the scheduler, in nanoseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Figures = dict[str, float]

_CLUSTER = Path(__file__).with_name("cluster.py")
_RELAY = Path(__file__).parents[3] / "sidecar" / "bench" / "delay_relay.py"
_CLIENTS = Path(__file__).with_name("clients.py")
_PLAIN_WINDOW, _PLAIN_EACH = 4000, 1000


@dataclass
class Cluster:
    """A running cluster: the port of its NATS server, and its processes."""

    port: int
    nodes: dict[str, int]
    nats_server: int


@contextmanager
def running(python: str, flush_ms: float, delay_ms: float) -> Iterator[Cluster]:
    """Start a cluster with the interpreter ``python``, and stop it afterwards. The other arguments are those of ``cluster.py``."""
    path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
    words = [python, str(_CLUSTER), str(flush_ms), str(delay_ms), str(_RELAY)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", env={**os.environ, "PATH": path}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if line.startswith("ready ")), None)
            if ready is None:
                raise SystemExit(f"The cluster of {python} did not start.")
            yield Cluster(**json.loads(ready.removeprefix("ready ")))
        finally:
            with suppress(BrokenPipeError):
                process.stdin.write("end\n")
                process.stdin.flush()


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process. A thread that ends in between is left out."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(cluster: Cluster, window: int, size_bytes: int, seconds: float, think_ms: float) -> Figures:
    """Publish for ``seconds`` and return the figures. ``window``: messages in flight, or 0 for publishes without acks."""
    pids = [*cluster.nodes.values(), cluster.nats_server]
    before = [cpu_s(pid) for pid in pids]
    words = [str(cluster.port), "bench", str(seconds), str(size_bytes), str(window or _PLAIN_WINDOW)]
    words += [] if window else [str(_PLAIN_EACH)]
    words = ["-m", "sidecar.bench.load", "publish", *words] if not think_ms else [str(_CLIENTS), *words, str(think_ms)]
    run = subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(run.stdout.splitlines()[-1])
    *nodes, nats_server = ((cpu_s(pid) - start) / found["acked"] * 1e6 for pid, start in zip(pids, before, strict=True))
    latency = {name: value for name, value in found.items() if name.endswith("_ms")}
    figures = {"records_per_s": found["acked"] / found["took_s"], "nodes_cpu_us": sum(nodes), "leader_cpu_us": max(nodes)}
    return figures | {"nats_server_cpu_us": nats_server} | latency


def compare(this: Cluster, other: Cluster, window: int, size_bytes: int, seconds: float, rounds: int, think_ms: float) -> None:
    """Print the medians of both versions, and the median ratio, for one window."""
    measure(this, window, size_bytes, seconds, think_ms)
    measure(other, window, size_bytes, seconds, think_ms)
    pairs: list[tuple[Figures, Figures]] = []
    for number in range(rounds):
        both = (this, other) if number % 2 else (other, this)
        first, second = (measure(cluster, window, size_bytes, seconds, think_ms) for cluster in both)
        pairs.append((first, second) if both[0] is this else (second, first))
    print(f"{size_bytes} B, {f'{window:,} in flight' if window else 'without acks'}, {rounds} pairs of {seconds} s")
    for name in pairs[0][0]:
        mine, theirs = (statistics.median(pair[place][name] for pair in pairs) for place in (0, 1))
        ratios = sorted(pair[0][name] / pair[1][name] for pair in pairs)
        low, high = ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]
        print(
            f"  {name:<20} this {mine:>12,.2f}  other {theirs:>12,.2f}  ratio {statistics.median(ratios):.3f} ({low:.2f}..{high:.2f})"
        )


def main() -> None:
    """Parse the options and compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.versions", description=__doc__)
    parser.add_argument("other", metavar="OTHER_PYTHON", help="interpreter of the virtual environment with the other version")
    parser.add_argument(
        "--this", default=sys.executable, metavar="PYTHON", help="interpreter of this version (default: the running one)"
    )
    parser.add_argument(
        "--windows", default="1,64,4000,0", help="messages in flight, 0: publishes without acks (default: %(default)s)"
    )
    parser.add_argument("--size", type=int, default=100, metavar="BYTES", help="message size (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a window (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="pairs of windows (default: %(default)s)")
    parser.add_argument(
        "--flush-ms", type=float, default=0.0, metavar="MS", help="minimum duration of a flush (default: that of the disk)"
    )
    parser.add_argument(
        "--delay-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="network delay of each direction to the NATS server (default: 0)",
    )
    parser.add_argument(
        "--think-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="let each message in flight belong to a client of its own, with this mean pause after each ack (default: blocks)",
    )
    options = parser.parse_args()
    pythons = [str(Path(python).absolute()) for python in (options.this, options.other)]
    with ExitStack() as stack:
        this, other = (stack.enter_context(running(python, options.flush_ms, options.delay_ms)) for python in pythons)
        for window in map(int, options.windows.split(",")):
            compare(this, other, window, options.size, options.seconds, options.rounds, options.think_ms)


if __name__ == "__main__":
    main()
