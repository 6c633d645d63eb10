"""Test that counters of a node never decrease when partitions and processes end, in random histories.

A node of one to three processes holds partitions that come, count, change their roles, are deleted or moved away (which counts on until
its log is closed), while scrapes run through all of it, in slices. A worker process may be silent for some scrapes. Each sum that a
scrape shows is at least that of the one before; in the end all that was ever counted is there.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.replication.phases import RoleName
from sidecar.partition import metric_sums
from sidecar.status import figures as figures_module
from sidecar.status.figures import Figures, NodeFigures
from sidecar.status.merged_status import add_figures, figures_to_json
from sidecar.status.metric_names import COUNTER, TABLE
from tests.long import sampled
from tests.unit.status.fake_reporter import a_reporter, a_worker

_STEPS = 60
_ROLES = (RoleName.LEADER, RoleName.FOLLOWER, RoleName.CANDIDATE)
Sums = dict[tuple[str, ...], float]


class Process:
    """Provide one process of a node: stand-ins for partitions and the shipped metrics code."""

    def __init__(self, rng: random.Random, streams: tuple[str, ...], truth: Counter[str]) -> None:
        self.reporter = a_reporter([], streams)
        self.held = self.reporter.partitions
        self.figures = NodeFigures(self.reporter)
        self.told: dict[str, Any] = {}
        self._rng, self._truth = rng, truth

    def step(self) -> None:
        """Change one random partition."""
        rng, held = self._rng, self.held
        partitions = [*held, *held.counts.being_closed]
        what = rng.choice(("comes", "counts", "counts", "counts", "role", "goes", "has gone"))
        if what == "comes" or not partitions:
            made = a_worker(f"s{rng.randrange(3)}", rng.randrange(1000), rng.choice(_ROLES))
            made.ingest.counters.records = made.reads.record_count = made.log.truncated_records = 0
            made.standby.report = lambda lost=0: {"held_bytes": 1, "lost": lost}
            made.standby.has_counted = False
            made.ingest.counters.refused.clear()
            held.append(made)
        elif what == "counts":
            self._count(rng.choice(partitions))
        elif what == "role":
            one = rng.choice(partitions)
            one.replica.role = rng.choice(_ROLES)
        elif what == "goes" and held:  # deleted, or moved to another node; it counts until it has stopped
            held.counts.closing(gone := rng.choice(held))
            held.remove(gone)
        elif held.counts.being_closed:
            held.counts.closed(rng.choice(held.counts.being_closed))

    def _count(self, one: Any) -> None:
        count, truth = self._rng.randrange(1, 9), self._truth
        one.ingest.counters.records += count
        one.reads.record_count += 2 * count
        one.log.truncated_records += 3 * count
        one.ingest.counters.refused["overloaded"] += count
        lost = one.standby.report()["lost"] + count
        one.standby.report = lambda: {"held_bytes": 1, "lost": lost}
        one.standby.has_counted = True
        self.reporter.instruments.acks[AckPolicy.ALL].observe(0.001, count)
        for name, times in (("ingest_records_total", 1), ("read_records_total", 2), ("truncated_records_total", 3),
                            ("publish_rejected_total", 1), ("standby_overflow_total", 1), ("acks", 1)):  # fmt: skip
            truth[name] += times * count


def sums_of(found: Figures) -> Sums:
    """Return all values that must not decrease."""
    numbers = {(name, *labels): figure for name, row in found.numbers.items() if TABLE[name].kind == COUNTER
               for labels, figure in row.items()}  # fmt: skip
    buckets = {(name, *labels, str(at)): float(count) for name, row in found.histograms.items()
               for labels, one in row.items() for at, count in enumerate(one.counts)}  # fmt: skip
    return numbers | buckets


async def scrape(processes: list[Process], silent: set[int]) -> Sums:
    """Return a scrape of the first process: its own metrics and the last reports of the others."""
    found = await processes[0].figures.gather()
    for number, process in enumerate(processes[1:], 1):
        if number not in silent:
            process.told = json.loads(json.dumps(figures_to_json(await process.figures.gather())))
        add_figures(found, process.told)
    return sums_of(found)


@pytest.mark.parametrize("streams", [(), ("s0", "s1")], ids=["no-labels", "labels"])
def test_metrics_counters_never_fall_when_partitions_and_processes_end(
    streams: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "ANSWER_SLICE_S", 0.0)
    monkeypatch.setattr(figures_module, "MOST_S", 60.0)
    monkeypatch.setattr(metric_sums, "READS_PER_STEP", 2)  # many turns of the loop in a scrape

    async def history(seed: int) -> None:
        rng, truth = random.Random(seed), Counter[str]()
        processes = [Process(rng, streams, truth) for _ in range(rng.choice((1, 2, 3)))]
        seen: list[Sums] = []
        for _ in range(_STEPS):
            rng.choice(processes).step()
            if rng.random() < 0.3:
                silent = {number for number in range(1, len(processes)) if rng.random() < 0.3}
                scraping = asyncio.ensure_future(scrape(processes, silent))
                while not scraping.done():
                    if rng.random() < 0.3:
                        rng.choice(processes).step()
                    await asyncio.sleep(0)
                seen.append(scraping.result())
        seen.append(await scrape(processes, set()))
        for before, after in pairwise(seen):
            fallen = {name: (figure, after.get(name)) for name, figure in before.items() if after.get(name, -1) < figure}
            assert not fallen, f"seed {seed}"
        total: Counter[str] = Counter()
        for (name, *_), figure in seen[-1].items():
            total["acks" if name == "ack_duration_seconds" else name] += figure
        assert {name: total[name] for name in truth} == dict(truth), f"seed {seed}"

    for seed in sampled(range(25), 3):
        asyncio.run(history(seed))
