"""``python -m tests.simulation.world.scripts [NAMES]``: play the scripts of shipped nodes, each in a process of its own.

It prints each script with its result, its seed and its CPU time. ``--long``: also the scripts that take long. ``--json``: one line of
JSON for each. ``--trace NAME``: print its history. Exit code 1 if a script fails.

The seed of the world decides which node leads the metadata group, all delays, and all random numbers. By default each script has a
seed between 1 and 8, which follows from its name. ``--seed N``: play all of them with this seed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.simulation.world.machine import interposition

_SEEDS = 8


def _seed_of(name: str) -> int:
    """Return the seed of a script: 1 to ``_SEEDS``."""
    return 1 + zlib.crc32(name.encode()) % _SEEDS


def _play(name: str, seed: int, *, traced: bool = False) -> Any:
    from tests.simulation.world import scripts
    from tests.simulation.world.scripts.stage import SCRIPTS, Stage
    from tests.simulation.world.world import World

    assert scripts
    work, cast = SCRIPTS[name]
    world = World(seed, cast.profile, traced=traced)
    world.has_events_stream = bool(cast.settings.get("events_stream", False))
    world.stops_early = True
    try:
        return world.run(lambda one: Stage(one, cast).play(work))
    finally:
        world.clean()


def _load() -> list[str]:
    """Import all scripts. Return their names."""
    from tests.simulation.world import scripts
    from tests.simulation.world.scripts.stage import SCRIPTS

    for module in pkgutil.iter_modules(scripts.__path__):
        if module.name not in ("__main__", "stage"):
            importlib.import_module(f"{scripts.__name__}.{module.name}")
    return list(SCRIPTS)


def main() -> int:
    """Play the scripts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="names of scripts or parts of them, in this order; default: all that do not take long"
    )
    parser.add_argument("--long", action="store_true", help="play also the scripts that take long")
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON for each script, with --reached also the lines that it runs"
    )
    parser.add_argument("--trace", help="name of a script: print its history line by line")
    parser.add_argument(
        "--reached", nargs="+", default=[], help="folders of the shells: list the lines in them that no script runs"
    )
    parser.add_argument("--seed", type=int, help=f"seed of all worlds, default: 1 to {_SEEDS}, which follows from the name")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first script that fails")
    options = parser.parse_args()
    interposition.install()
    import tests.simulation.world.world  # noqa: F401  # before the modules are adapted

    interposition.adapt()
    from tests.simulation.world.__main__ import in_a_fork, measured
    from tests.simulation.world.reached import report
    from tests.simulation.world.scripts.stage import SCRIPTS

    names = _load()
    if options.trace:
        seed = options.seed if options.seed is not None else _seed_of(options.trace)
        outcome = in_a_fork(lambda: _play(options.trace, seed, traced=True))
        print("\n".join([*outcome.lines, *outcome.violations]))
        return 1 if outcome.violations else 0
    failed, cpu_s = 0, 0.0
    reached: dict[str, set[int]] = {}
    ordinary = [name for name in names if options.long or not SCRIPTS[name][1].long]
    named = dict.fromkeys(name for part in options.names for name in names if part in name)
    for name in named if options.names else ordinary:
        seed = options.seed if options.seed is not None else _seed_of(name)
        outcome = in_a_fork(_player(name, seed, measured, options.reached))
        violations = ["the simulator itself has failed"] if outcome is None else outcome.violations
        failed += bool(violations)
        cpu_s += 0 if outcome is None else outcome.cpu_s
        for file, lines in outcome.reached.items() if outcome is not None else ():
            reached.setdefault(file, set()).update(lines)
        if options.json:
            row: dict[str, object] = {"script": name, "seed": seed, "violations": violations}
            if options.reached and outcome is not None:
                row["reached"] = {file: sorted(lines) for file, lines in outcome.reached.items()}
            print(json.dumps(row), flush=True)
        else:
            found = "".join(f"\n    {text}" for text in violations[:8])
            took = f"{outcome.cpu_s:.1f} s" if outcome is not None else ""
            print(f"{'FAILED' if violations else 'ok'} {name} seed={seed} {took}{found}", flush=True)
        if violations and options.first_failure:
            break
    if options.reached and not options.json:
        print(report(options.reached, reached))
    if not options.json:
        print(f"{failed} scripts fail, {cpu_s:.1f} s of CPU")
    return 1 if failed else 0


def _player(name: str, seed: int, measured: Any, folders: list[str]) -> Callable[[], SimpleNamespace]:
    return lambda: measured(folders, lambda: _play(name, seed))


if __name__ == "__main__":
    sys.exit(main())
