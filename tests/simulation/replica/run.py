"""Runs one seed, reports the result, and shortens a failing one.

A seed and a commit are a whole history: the same plan gives the same trace, event by event.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from liftpy.errors import InvariantError
from tests.simulation.replica import operations
from tests.simulation.replica.availability import Availability
from tests.simulation.replica.cluster import Cluster
from tests.simulation.replica.disk import Disk
from tests.simulation.replica.faults import Nemesis
from tests.simulation.replica.operations import Mover
from tests.simulation.replica.plan import Fault, Plan, draw_plan
from tests.simulation.replica.trace import Trace


@dataclass(slots=True)
class Outcome:
    """Result of a run. ``violation`` None: every invariant held."""

    plan: Plan
    events: int
    violation: str | None
    counters: Counter[str] = field(default_factory=Counter)
    trace: Trace | None = None
    virtual_s: float = 0.0
    details: str = ""
    chaos_events: int = 0
    """Number of events after which the chaos ends. With this number the history can be repeated."""

    @property
    def invariant(self) -> str:
        """The name of the broken invariant, '' when none is."""
        words = (self.violation or "").split()
        return words[1] if len(words) > 1 and words[0] == "invariant" else ("crash" if words else "")

    def report(self) -> str:
        """Return a text for people."""
        plan = self.plan
        head = f"seed {plan.seed}, {self.events} events, {self.virtual_s:.1f} s: {self.violation or 'no violation'}"
        faults = "\n".join(f"  {fault}" for fault in plan.faults if fault.at_ns / 1e9 < self.virtual_s)
        return f"{head}\n{self.details}\nfaults:\n{faults}"


def run_plan(plan: Plan, events: int, *, trace: bool = False, make_disk: Callable[[str], Disk] = Disk) -> Outcome:
    """Run ``plan`` for about ``events`` events of chaos, then heal. ``make_disk``: from a seed."""
    kept = Trace() if trace else None
    cluster = Cluster(plan, kept, make_disk)
    start_ns = cluster.clock.now_ns
    violation, details = None, ""
    try:
        _run(cluster, events)
    except InvariantError as error:
        violation, details = str(error), cluster.describe()
    except Exception as error:  # a bug is a finding too
        violation, details = f"{type(error).__name__}: {error}", traceback.format_exc()
    counters = cluster.counters + cluster.network.counters + cluster.group.counters
    seconds = (cluster.clock.now_ns - start_ns) / 1e9
    happened = cluster.clock.events
    return Outcome(plan, happened, violation, counters, kept, seconds, details, min(events, happened))


def _run(cluster: Cluster, events: int) -> None:
    """Run about ``events`` events with faults, then heal and check the recovery."""
    cluster.boot()
    cluster.start_clients()
    nemesis, availability = Nemesis(cluster, cluster.plan.faults), Availability(cluster)
    if cluster.plan.moves:
        Mover(cluster)
    while cluster.clock.events < events:
        cluster.clock.step()
    nemesis.stopped = availability.stopped = True
    cluster.heal()
    operations.heal(cluster)
    cluster.become_whole()


def run_seed(seed: int, events: int = 20_000, *, trace: bool = False, profile: str | None = None) -> Outcome:
    """Run the plan that ``seed`` draws; ``profile`` None: drawn too."""
    return run_plan(draw_plan(seed, profile), events, trace=trace)


def shrink(failed: Outcome, max_runs: int = 200, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Return the shortest schedule that still breaks the same invariant: fewer events, no noise, fewer faults (ddmin)."""
    best, runs = failed, 0

    def attempt(plan: Plan) -> bool:
        nonlocal best, runs
        runs += 1
        outcome = run_plan(plan, best.chaos_events)
        if outcome.invariant == failed.invariant:
            best = outcome
            say(f"{runs}: {len(outcome.plan.faults)} faults, {outcome.events} events")
            return True
        return False

    happened = tuple(f for f in failed.plan.faults if f.at_ns / 1e9 < failed.virtual_s)
    attempt(replace(failed.plan, faults=happened))
    attempt(best.plan.calm())
    size = max(1, len(best.plan.faults) // 2)
    while size >= 1 and runs < max_runs:
        position, shorter = 0, False
        while position < len(best.plan.faults) and runs < max_runs:
            rest = _without(best.plan.faults, position, size)
            if attempt(replace(best.plan, faults=rest)):
                shorter = True
            else:
                position += size
        if not shorter:
            size //= 2
    return run_plan(best.plan, best.chaos_events, trace=True)


def _without(faults: tuple[Fault, ...], position: int, count: int) -> tuple[Fault, ...]:
    return faults[:position] + faults[position + count :]
