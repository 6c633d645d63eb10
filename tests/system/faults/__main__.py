"""``python -m tests.system.faults --fault NAME --rounds N``: run rounds of a fault, print the figures, exit 1 if anything was lost."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from tests.system.faults.catalogue import FAULTS
from tests.system.faults.rounds import MEASURES, Figures, Outcome, Plan, percentiles, run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.system.faults", description=__doc__)
    parser.add_argument("--list", action="store_true", help="show the faults and stop")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="may be given more than once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first round, which chooses its variant")
    parser.add_argument("--pause-s", type=float, default=30.0, help="how long pauses and cuts last")
    parser.add_argument("--workers", type=int, default=32, help="publishes in flight")
    parser.add_argument("--pace-s", type=float, default=0.02, help="pause of each worker after an ack")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the nodes, LIFTPY_...")
    parser.add_argument(
        "--node-workers", type=int, default=0, metavar="N", help="processes of each node; 0: as its settings say"
    )
    parser.add_argument("--log", type=Path, help="write the nodes' logs there")
    parser.add_argument("--json", type=Path, help="write all figures there")
    return parser.parse_args()


def _cell(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.3f}"


def _tell(figures: Figures) -> None:
    """One row; * marks the metadata leader."""
    measures = " ".join(_cell(getattr(figures, name)) for name in MEASURES)
    counts = f"{figures.acked:7d} {figures.refused:7d} {figures.unanswered:10d}"
    nodes = "+".join(name + "*" * (name == figures.metadata_leader) for name in figures.nodes)
    print(f"{figures.round:5d} {nodes:10s} {measures} {counts}  {figures.note}", flush=True)


def _summary(outcome: Outcome) -> None:
    for name, text in MEASURES.items():
        ranks = percentiles(outcome.column(name))
        if ranks:
            print(f"{name:9s} " + "  ".join(f"{rank} {value:.3f}" for rank, value in ranks.items()) + f"   ({text})")
    verdict = outcome.verdict
    print(
        f"acknowledged {verdict.acknowledged}, log end {verdict.log_end_offset}, replicas {verdict.replicas}: "
        f"lost {verdict.lost}, changed {verdict.changed}, acked twice {verdict.acked_twice}, stored twice {verdict.stored_twice}, "
        f"unequal {verdict.unequal or 'none'}, damaged {verdict.damaged or 'none'}"
    )
    for example in verdict.examples:
        print(f"  {example}")
    print(f"other answers: {dict(outcome.counters)}; never answered {outcome.never_answered}; {outcome.seconds:.0f} s")
    if outcome.problem:
        print(f"ENDED EARLY: {outcome.problem}")


def main() -> int:
    """Run what was asked for."""
    arguments = _arguments()
    if arguments.list or not arguments.fault:
        for fault in FAULTS.values():
            print(f"{fault.name:22s} {fault.text}")
        return 0
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    if arguments.node_workers:
        settings["LIFTPY_WORKERS"] = str(arguments.node_workers)
    began = time.monotonic()
    outcomes = []
    log = arguments.log.open("a", encoding="utf-8") if arguments.log else None

    def on_line(node: str, line: str) -> None:
        if log is not None:
            log.write(f"{time.monotonic() - began:9.3f} {node} {line}\n")

    def told(figures: Figures) -> None:
        if log is not None:
            log.write(f"{time.monotonic() - began:9.3f} ---- {figures}\n")
            log.flush()
        _tell(figures)

    for name in arguments.fault:
        plan = Plan(
            fault=name,
            rounds=arguments.rounds,
            first=arguments.first,
            pause_s=arguments.pause_s,
            workers=arguments.workers,
            pace_s=arguments.pace_s,
            settings=settings,
        )
        print(f"\n{name}: {FAULTS[name].text}")
        print("round node       " + " ".join(f"{m:>6s}" for m in MEASURES) + "   acked refused unanswered")
        outcomes.append(asyncio.run(run(plan, on_line, told)))
        _summary(outcomes[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps([outcome.as_json() for outcome in outcomes], indent=1) + "\n", encoding="utf-8")
    return 0 if all(outcome.verdict.right and not outcome.problem for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
