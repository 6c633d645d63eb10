"""One seed in a process of its own. Not in ``__main__``: a spawned process does not import the main module of a package."""

from __future__ import annotations

from collections import Counter

from tests.simulation.replica.run import run_seed


def run_job(job: tuple[int, int, str | None]) -> tuple[int, int, float, str, Counter[str]]:
    """Run (seed, events, profile): seed, events that happened, seconds of cluster time, the report of a violation or '', what was
    seen."""
    seed, events, profile = job
    outcome = run_seed(seed, events, profile=profile)
    text = outcome.report() if outcome.violation else ""
    return outcome.plan.seed, outcome.events, outcome.virtual_s, text, outcome.counters
