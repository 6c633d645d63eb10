"""Test that incremental metrics equal a full scan of all partitions, in random histories.

Stand-ins say what they change, for the arithmetic: they come, count, change roles and ISRs, go, get other labels, while looks are under
way. That the shipped parts say it where they have to: ``tests/conformance/test_changed_metrics.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.base.partition import Pause
from liftpy.core.replication.phases import RoleName
from sidecar.partition import metric_sums
from sidecar.partition.metric_sums import NodeCounts, StreamLabels
from sidecar.runtime import clock
from sidecar.status import figures as figures_module
from sidecar.status.figures import NodeFigures
from tests.each import each
from tests.unit.status.fake_reporter import Held, a_reporter, a_worker
from tests.unit.status.full_metrics_scan import kept, walked

_ROLES = (RoleName.LEADER, RoleName.LEADER, RoleName.FOLLOWER, RoleName.CANDIDATE)
_ISRS = (("n1", "n2", "n3"), ("n1", "n2"), ("n1",))


class History:
    """Some partitions that mark themselves."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.counts = NodeCounts(StreamLabels(self.rng.choice(((), ("s0", "s1")))))
        self.here: list[Any] = []
        self.looks: list[Iterator[None]] = []

    def step(self) -> None:
        rng = self.rng
        what = rng.choice(
            ("comes", "count", "count", "count", "state", "role", "lag", "told", "goes", "labels", "update", "update")
        )
        if what == "comes" or not self.here:
            worker = a_worker(f"s{rng.randrange(4)}", rng.randrange(1000), rng.choice(_ROLES))
            worker.standby.has_counted, lag = True, (3, 10**9, ())
            worker.replica.lag = lambda: lag
            self.here.append(worker)
            self.counts.opened(worker)
        elif what == "labels" and rng.random() < 0.2:
            self.counts.labels.patterns = rng.choice(((), ("s*",), ("s2", "s3")))
        elif what == "update":
            self.looks.append(self.counts.open.update())
        elif what == "goes":
            gone = self.here.pop(rng.randrange(len(self.here)))
            self.counts.closing(gone)
            self.counts.changed_partitions.add(gone)  # it may still count while it ends
            self.counts.closed(gone)
        else:
            self._change(rng.choice(self.here), what)
        if self.looks:
            look = rng.choice(self.looks)
            if next(look, "over") == "over":
                self.looks.remove(look)

    def _change(self, worker: Any, what: str) -> None:
        rng = self.rng
        if what == "count":
            for where, name in ((worker.ingest.counters, "records"), (worker.reads, "size_bytes"), (worker.log, "truncated_records"),
                                (worker.log_state.ids, "evicted_count"), (worker.states.writer, "failed")):  # fmt: skip
                setattr(where, name, getattr(where, name) + rng.randrange(3))
            worker.log.size_bytes, worker.acks.count = rng.randrange(9_000), rng.randrange(9)
            worker.log.log_end_offset += rng.randrange(3)
            worker.quarantined_files = rng.choice(((), ("x",)))
        elif what == "state":
            worker.state = replace(
                worker.state, isr=rng.choice(_ISRS), pause=rng.choice((Pause.NOT_PAUSED, Pause.UNTIL_RESUMED)),
                target=rng.choice(((), ("n4",))), joining=rng.choice(("", "n1")), copy_epoch=3,
            )  # fmt: skip
            worker.config = StreamConfig(min_isr=rng.choice((1, 2)))
        elif what == "role":
            worker.replica.role = rng.choice(_ROLES)
            worker.replica.phase = rng.choice(("-", "FOLLOWER_QUIET"))
        elif what == "lag":
            lag = rng.choice((0, 5, 9)), rng.randrange(10**9), tuple(rng.choices((1, 1 << 62), k=rng.randrange(3)))
            worker.replica.lag = lambda: lag
        else:
            rng.choice((worker.ingest.counters.refused, worker.ingest.counters.dropped))[rng.choice("ab")] += 1
            worker.services.known = True
        self.counts.changed_partitions.add(worker)


@each("seed", range(40))
def test_metrics_updated_incrementally_equal_a_full_scan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_sums, "READS_PER_STEP", 2)
    monkeypatch.setattr(metric_sums, "ROWS_PER_STEP", 3)
    history, now_ns = History(seed), clock.now_ns()
    for number in range(400):
        history.step()
        if number % 40 == 39:
            expected = walked(history.here, history.counts.labels, now_ns)
            assert kept(history.counts.open, now_ns) == expected, number


def test_metrics_gathering_of_many_changed_partitions_yields_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_sums, "READS_PER_STEP", 1)
    monkeypatch.setattr(metric_sums, "ROWS_PER_STEP", 4)
    counts = NodeCounts()
    workers = [a_worker("s", number) for number in range(10)]
    for worker in workers:
        counts.opened(worker)
    look = counts.open.update()
    for taken in (4, 8):
        next(look)
        assert (counts.open.unread_count, len(counts.changed_partitions)) == (taken, 10 - taken)
    read = sum(1 for _ in look)
    assert (read, counts.open.unread_count, len(counts.changed_partitions)) == (10, 0, 0)
    for worker in workers:
        counts.changed_partitions.add(worker)
    look = counts.open.update()
    for _ in range(1000):  # a look ends, however often all of them are touched meanwhile
        counts.changed_partitions.update(workers)
        if next(look, "ended") == "ended":
            break
    else:
        pytest.fail("it never ends")


def test_metrics_of_a_closed_partition_stay_in_the_totals_without_a_reference_to_the_partition() -> None:
    counts, one = NodeCounts(), a_worker()
    counts.opened(one)
    counts.closing(one)
    assert not counts.changed_partitions
    counts.changed_partitions.add(one)  # the last steps of its end
    counts.closed(one)
    assert not counts.changed_partitions, "nothing keeps it until the next scrape, which may never come"
    assert counts.all().total("ingest_records") == 10


async def test_metrics_scrape_stops_at_its_time_limit_and_the_next_scrape_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_module, "MOST_S", 0.0)
    held = Held([a_worker("s", number) for number in range(5 * metric_sums.READS_PER_STEP)])
    reporter = a_reporter([])
    reporter.partitions = held
    left = []
    for _ in range(3):  # all are touched each time, and wait once
        found = await NodeFigures(reporter).gather()
        left.append(found.numbers["scrape_stale_partitions"][()])
    assert left == [4 * metric_sums.READS_PER_STEP] * 3
    assert held.counts.all().total("ingest_records") == 3 * 10 * metric_sums.READS_PER_STEP, (
        "those that have waited longest come first"
    )
    list(held.counts.open.update())
    assert held.counts.all().total("ingest_records") == 10 * len(held)
