"""``python -m tests.simulation.world [--seeds N] [--first K] [--profile P]``: shipped nodes in virtual time, under a seed.

Each seed runs in a process of its own, forked from one that has imported everything. Prints what happened how often, and each
violation. ``--profile swarm`` draws a profile for each seed (``profiles.py``). ``--trace SEED`` prints one history line by line.
``--digests`` prints the digest of each trace. ``--results FILE`` appends a line for each seed to a file. ``--with FEATURE`` runs only
seeds of ``swarm`` whose profile has this feature. ``--planted`` puts known faults back, one after another, until a seed finds each.
``--partitions N`` runs a large cluster that loses a node (``large.py``).
Exit code 1 on a violation, or for a planted fault that no seed finds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.simulation.world.machine import interposition
from tests.simulation.world.profiles import FEATURES, draw_profile
from tests.simulation.world.reached import Reached, report

_MOST_CPU_S = 1_800
"""CPU time after which the system ends the process of a seed, in seconds."""


def in_a_fork(work: Any) -> Any:
    """The outcome that ``work`` returns, done in a forked process; None if the simulator itself fails."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            result = json.dumps(vars(work()))
            with open(writing, "w") as pipe:
                pipe.write(result)
            status = 0
        except BaseException:
            print("the simulator itself has failed", file=sys.stderr)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            interposition.real_exit(status)
    os.close(writing)
    with open(reading) as pipe:
        data = pipe.read()
    _, _, used = os.wait4(child, 0)
    return SimpleNamespace(**json.loads(data), cpu_s=used.ru_utime + used.ru_stime) if data else None


def measured(folders: list[str], work: Any) -> Any:
    """The outcome of ``work``, with the lines of the folders that it has run."""
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    reached = Reached(folders)
    if folders:
        reached.start()
    outcome = work()
    outcome.reached = {file: sorted(lines) for file, lines in reached.lines.items()}
    return outcome


def _report(outcome: Any) -> str:
    found = "\n    ".join(outcome.violations[:8])
    return f"seed {outcome.seed} of {outcome.profile}: {len(outcome.violations)} violations\n    {found}"


def _append_result(path: Path, seed: int, outcome: Any) -> None:
    """Append what a seed has found to a file, as one line of JSON."""
    row: dict[str, Any] = {"seed": seed, "violations": ["the simulator itself has failed"]}
    if outcome is not None:
        numbers = {
            "cpu_s": round(outcome.cpu_s, 2),
            "virtual_s": round(outcome.virtual_s, 2),
            "node_s": round(outcome.node_s, 2),
        }
        row = {"seed": seed, "violations": outcome.violations[:8], "digest": outcome.digest, **numbers}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _chosen_seeds(first: int, count: int, feature: str) -> list[int]:
    """The first seeds of the profile ``swarm`` that have a feature. '': any seeds."""
    if not feature:
        return list(range(first, first + count))
    drawn = (seed for seed in itertools.count(first) if getattr(draw_profile(seed), feature))
    return list(itertools.islice(drawn, count))


def _find_planted(run: Any, seeds: list[int], names: list[str]) -> int:
    """Exit code 1 if a known fault is found by no seed."""
    from tests.simulation.world.planted import PLANTED

    missed = 0
    for name in names or PLANTED:
        for number, seed in enumerate(seeds, 1):
            outcome = run(seed, plant=PLANTED[name])
            if outcome is None or outcome.violations:
                found = "the simulator fails" if outcome is None else outcome.violations[0][:150]
                print(f"{name}: found by seed {seed}, the {number}. one: {found}", flush=True)
                break
        else:
            missed += 1
            print(f"{name}: not found by {len(seeds)} seeds", flush=True)
    return 1 if missed else 0


def _run_large(options: argparse.Namespace) -> int:
    """Exit code 1 if the history of a large cluster breaks a rule."""
    from tests.simulation.world.large import Size, run_large

    size = Size(options.nodes, options.partitions, options.minutes)
    outcome = in_a_fork(lambda: run_large(options.first, size, options.open_files))
    if outcome is not None:
        print(_report(outcome))
        if options.digests:
            print(options.first, outcome.digest)
    return 1 if outcome is None or outcome.violations else 0


def main() -> int:
    """Run the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--profile", default="all")
    parser.add_argument("--busy", type=float, default=0.0, help="virtual seconds of load and faults; default: of the profile")
    parser.add_argument("--trace", type=int)
    parser.add_argument(
        "--with", dest="feature", choices=FEATURES, default="", help="run only seeds of swarm with this feature"
    )
    parser.add_argument(
        "--planted", nargs="*", help="put each known fault, or those with these names, back; say which seed finds it"
    )
    parser.add_argument("--results", type=Path, help="append a line of JSON for each seed to this file")
    parser.add_argument("--stops-early", action="store_true", help="end a history at its first violation")
    parser.add_argument("--digests", action="store_true")
    parser.add_argument(
        "--reached", nargs="+", default=[], help="folders of the shells: list the lines in them that no seed runs"
    )
    parser.add_argument("--partitions", type=int, default=0, help="a large cluster with this number of partitions loses a node")
    parser.add_argument("--nodes", type=int, default=100, help="nodes of the large cluster")
    parser.add_argument("--minutes", type=float, default=5.0, help="virtual minutes of the large cluster")
    parser.add_argument(
        "--open-files", type=int, default=4_000, help="log files that the large cluster has open at once; 0: all"
    )
    options = parser.parse_args()
    interposition.install()
    import tests.simulation.world.world as worlds

    interposition.adapt()

    def run(seed: int, *, traced: bool = False, plant: Any = None) -> Any:
        stops_early = options.stops_early or plant is not None
        return in_a_fork(
            lambda: (
                (plant and plant())
                or measured(
                    options.reached,
                    lambda: worlds.run_world(
                        seed, options.profile, busy_s=options.busy, traced=traced, stops_early=stops_early
                    ),
                )
            )
        )

    if options.trace is not None:
        outcome = run(options.trace, traced=True)
        print("\n".join(outcome.lines))
        print(_report(outcome), outcome.digest)
        return 1 if outcome.violations else 0
    if options.partitions:
        return _run_large(options)
    seeds = _chosen_seeds(options.first, options.seeds, options.feature)
    if options.planted is not None:
        return _find_planted(run, seeds, options.planted)
    seen: Counter[str] = Counter()
    reached: dict[str, set[int]] = {}
    failed, virtual_s, node_s, began, began_cpu = [], 0.0, 0.0, time.monotonic(), os.times()
    for seed in seeds:
        outcome = run(seed)
        if options.results:
            _append_result(options.results, seed, outcome)
        if outcome is None:
            failed.append(seed)
            continue
        seen += Counter(outcome.counters)
        for file, lines in outcome.reached.items():
            reached.setdefault(file, set()).update(lines)
        virtual_s, node_s = virtual_s + outcome.virtual_s, node_s + outcome.node_s
        if options.digests:
            print(seed, outcome.digest, flush=True)
        if outcome.violations:
            failed.append(seed)
            print(_report(outcome), flush=True)
    if not options.digests:
        for what, count in sorted(seen.items()):
            print(f"{count:>10}  {what}")
    if options.reached:
        print(report(options.reached, reached))
    ended = os.times()
    cpu_s = ended.children_user + ended.children_system - began_cpu.children_user - began_cpu.children_system
    print(
        f"{options.seeds} seeds of {options.profile}, {virtual_s:.0f} s of cluster time ({node_s:.0f} node-seconds) in "
        f"{time.monotonic() - began:.0f} s, {cpu_s:.1f} s of CPU: {node_s / max(cpu_s, 0.01):.1f} node-seconds per second of CPU; "
        f"violations: {failed or 0}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
