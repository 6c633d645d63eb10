"""Test the metrics sampler: one row per second with the values of the metrics, gaps, and its cost."""

from __future__ import annotations

import asyncio
import json
from math import isnan
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.observe.history import NAMES, SECONDS, History
from sidecar.partition import metric_sums
from sidecar.runtime import clock
from sidecar.status import sampler
from sidecar.status.sampler import MOST_COVERED_S, MOST_REST_S, SLICE_S, Sampler
from tests.only_in import only_in
from tests.unit.status.fake_reporter import a_reporter, a_worker, gathered, shown


class Clocks:
    def __init__(self) -> None:
        self.wall_s, self.now_s = 5_000.5, 100.0

    def go_on(self, seconds: float) -> None:
        self.wall_s += seconds
        self.now_s += seconds


def a_sampler(reporter: Any) -> tuple[Sampler, History, Clocks]:
    history, clocks = History(), Clocks()
    return Sampler(history, reporter, lambda: clocks.wall_s, lambda: clocks.now_s), history, clocks


def newest(history: History) -> dict[str, float]:
    rows = history.rows(SECONDS, history.newest - 1)
    return {name: rows.columns[number][0] for number, name in enumerate(NAMES)}


def test_metrics_sampler_row_has_increments_of_counters_and_values_of_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ns", lambda: 10**15)  # or lags grow between the two looks that are compared
    short, under = a_worker("t", 1, isr=("n1", "n2")), a_worker("u", 2, isr=("n1",))
    reporter = a_reporter([a_worker(), short, under])
    made, history, clocks = a_sampler(reporter)
    list(made.sample())
    assert history.newest == 0, "one look makes no rate"
    clocks.go_on(1.0)
    short.ingest.counters.records += 500
    short.reads.size_bytes += 40
    it = reporter.instruments
    it.acks[AckPolicy.ALL].observe(0.003, 99)
    it.acks[AckPolicy.LEADER].observe(0.1, 1)
    it.flushes.observe(0.004)
    list(made.sample())
    row, metric = newest(history), shown(gathered(reporter))
    assert history.newest == 5_001
    assert (row["records_in"], row["bytes_in"], row["records_out"], row["bytes_out"]) == (500, 0, 0, 40)
    assert row["isr_full"] + row["isr_below"] + row["isr_under_min"] == metric["partitions", "leader"] == 3
    assert row["isr_below"] + row["isr_under_min"] == metric["partitions_under_replicated",] == 2
    assert row["isr_under_min"] == metric["partitions_under_min_isr",] == 1
    assert row["lag"] == pytest.approx(metric["replica_lag_seconds",], abs=1e-6) == pytest.approx(24, abs=1e-6)
    assert sum(row[f"acks_{number}"] for number in range(12)) == 100
    assert 0.002 < row["ack_p50"] < row["ack_p99"] < 0.00401
    assert 0.002 < row["flush_p99"] < 0.00401
    assert isnan(row["loop_p99"]), "nothing was measured in that second: no nought"


def test_metrics_sampler_sums_include_counts_of_closed_partitions() -> None:
    worker, other = a_worker(), a_worker("t")
    reporter = a_reporter([worker, other])
    made, history, clocks = a_sampler(reporter)
    list(made.sample())
    clocks.go_on(1.0)
    reporter.partitions.remove(worker)
    reporter.partitions.counts.closing(worker)
    worker.ingest.counters.records += 7
    list(made.sample())
    assert newest(history)["records_in"] == 7
    clocks.go_on(1.0)
    reporter.partitions.counts.closed(worker)
    other.ingest.counters.records += 5
    list(made.sample())
    assert newest(history)["records_in"] == 5


def test_metrics_sampler_spreads_a_late_sample_over_its_seconds_and_drops_a_too_late_sample() -> None:
    worker = a_worker()
    made, history, clocks = a_sampler(a_reporter([worker]))
    list(made.sample())
    for wait_s, wanted in ((4.0, [25.0] * 4), (MOST_COVERED_S + 1.0, None), (1.0, [100.0])):
        before = history.newest
        clocks.go_on(wait_s)
        worker.ingest.counters.records += 100
        list(made.sample())
        if wanted is None:
            assert history.newest == before, "it stood still: a gap"
        else:
            rows = history.rows(SECONDS, max(before, 5_000))
            assert [value for value in rows.columns[0] if not isnan(value)] == wanted
    assert isnan(history.rows(SECONDS, 5_004).columns[0][0])


@pytest.mark.parametrize(("look_s", "rests_s"), [(0.0001, None), (0.01, MOST_REST_S)])
async def test_metrics_sampler_yields_between_slices_and_pauses_in_proportion_to_its_cost(
    look_s: float, rests_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``rests_s``: the most, where samples cost so much that none would count any more."""
    monkeypatch.setattr(metric_sums, "ROWS_PER_STEP", 1 << 20)
    reporter = a_reporter([a_worker(partition=number) for number in range(2_000)])
    now_s, waits_s = [0.0], []

    def now() -> float:
        now_s[0] += look_s  # each look at the clock is so much later
        return now_s[0]

    async def sleep(wait_s: float) -> None:
        waits_s.append(wait_s)
        if wait_s and len(waits_s) > 1:
            raise asyncio.CancelledError

    only_in(monkeypatch, sampler, "asyncio", sleep=sleep)
    made = Sampler(History(), reporter, lambda: 5_000.25, now)
    with pytest.raises(asyncio.CancelledError):
        await made.run()
    first_s, *slices, next_s = waits_s
    assert first_s == 0.75, "on the second"
    turns = len(slices)
    assert turns > 10
    assert made.took_s > SLICE_S * turns
    wanted_s = rests_s or made.took_s / sampler.PART_OF_LOOP
    assert next_s == pytest.approx(wanted_s, abs=1.0), "not each second then"
    assert 1.0 < next_s < MOST_COVERED_S, "the next one is that of all the time between"


def test_metrics_sampler_rows_include_worker_processes_of_the_node() -> None:
    """One process reports as JSON. The other process writes rows of both."""
    said: list[Any] = []
    worker = a_worker("u", 2, isr=("n1",))
    other = a_reporter([worker])
    tells = Sampler(
        History(), other, lambda: 1.0, lambda: 1.0, send_sample=lambda what: said.append(json.loads(json.dumps(what)))
    )
    reporter, history, clocks = a_reporter([a_worker()]), History(), Clocks()
    made = Sampler(history, reporter, lambda: clocks.wall_s, lambda: clocks.now_s, worker_samples=lambda: said[-1:])
    list(tells.sample())
    list(made.sample())
    clocks.go_on(1.0)
    worker.ingest.counters.records += 500
    other.instruments.acks[AckPolicy.ALL].observe(0.003, 99)
    reporter.instruments.acks[AckPolicy.ALL].observe(0.003, 1)
    list(tells.sample())
    list(made.sample())
    row = newest(history)
    assert row["records_in"] == 500
    assert sum(row[f"acks_{number}"] for number in range(12)) == 100
    assert row["isr_full"] + row["isr_below"] + row["isr_under_min"] == 2
