"""Test how benchmark figures are computed from runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from liftpy.errors import ConfigError
from sidecar.bench import cases, client, running, systems
from sidecar.bench.cases import measure_process
from sidecar.bench.load import AckCounter, StampedAcks
from sidecar.bench.running import bars
from sidecar.bench.running import rows as rows_of
from sidecar.cli.bench import bench

_PRINTS = 'print(\'go\', flush=True); print(\'{"acked": 200, "took_s": 4.0, "cpu_s": 0.5}\')'


def test_bench_process_is_measured_after_its_warm_up() -> None:
    run = measure_process([sys.executable, "-c", _PRINTS], [])
    assert run == {"acked": 200, "took_s": 4.0, "cpu_s": 0.5, "all_cpu_s": 0.5}
    with pytest.raises(SystemExit, match="failed with exit code 3"):
        measure_process([sys.executable, "-c", "raise SystemExit(3)"], [])


def test_bench_ack_counter_counts_each_ack_once_for_any_split_of_the_bytes() -> None:
    stamp = 5_000_000_000
    answer = b'MSG _INBOX.open.%019d 1 26\r\n{"stream":"bench","seq":1}\r\n' % stamp
    other = b'MSG _INBOX.open.x 1 26\r\n{"stream":"bench","seq":2}\r\n'
    whole = answer + other + answer
    for cut in range(len(whole) + 1):
        acks, stamped = AckCounter(), StampedAcks()
        for piece in (whole[:cut], whole[cut:]):
            acks.add(piece)
            stamped.add(piece, stamp + 2_000_000)
        assert (acks.acked, stamped.times_ns) == (3, [2_000_000, 2_000_000]), cut
    with pytest.raises(SystemExit, match="rejected"):
        AckCounter().add(b'MSG _INBOX.open.x 1 12\r\n{"error":{}}\r\n')


def test_bench_of_a_missing_system_is_skipped_by_default_and_fails_when_the_system_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert systems.choose_systems((), systems.ComparisonOptions(), said.append) == systems.DEFAULT_SYSTEMS
    assert [text.partition(",")[0] for text in said] == ["skipped: liftbridge", "skipped: Kafka"]
    for names, given, why in (
        (("liftbridge",), systems.ComparisonOptions(), "`liftbridge` is not on the PATH"),
        (("kafka",), systems.ComparisonOptions(), "--kafka-jars"),
        (("kafka",), systems.ComparisonOptions(kafka_jars=tmp_path), "java"),
    ):
        with pytest.raises(ConfigError, match=why):
            systems.choose_systems(names, given, said.append)
    for name in ("java", "liftbridge"):
        shutil.copy(sys.executable, tmp_path / name)
    with pytest.raises(ConfigError, match="has no kafka_"):
        systems.choose_systems(("kafka",), systems.ComparisonOptions(kafka_jars=tmp_path), said.append)
    for name in ("kafka_2.13-3.jar", "kafka-clients-3.jar"):
        (tmp_path / name).touch()
    everybody = (*systems.DEFAULT_SYSTEMS, "liftbridge", "kafka-flushed", "kafka")
    assert systems.choose_systems((), systems.ComparisonOptions(kafka_jars=tmp_path), said.append) == everybody


def test_bench_report_has_medians_and_ratios_per_case() -> None:
    runs = {
        ("acked", "peer"): [{"per_s": 10.0, "p50_ms": 4.0}, {"per_s": 30.0, "p50_ms": 2.0}, {"per_s": 20.0, "p50_ms": 3.0}],
        ("acked", "liftpy"): [{"per_s": 50.0, "p50_ms": 9.0}, {"per_s": 40.0, "p50_ms": 6.0}, {"per_s": 30.0, "p50_ms": 1.0}],
        ("idle", "peer"): [{"core": 0.02}],
        ("idle", "liftpy"): [{"core": 0.04}],
    }
    found = rows_of(runs)
    assert [(row["case"], row["system"], row["ratios"]) for row in found] == [
        ("acked", "liftpy", {}),
        ("acked", "peer", {"per_s": 2.0, "p50_ms": 2.0}),
        ("idle", "liftpy", {}),
        ("idle", "peer", {"core": 2.0}),
    ]
    assert found[0]["figures"] == {"per_s": 40.0, "p50_ms": 6.0}
    assert bars({"rows": found}) == [("acked (p50_ms)", "peer", 0.5, False), ("idle (core)", "peer", 0.5, False)]


class FakeSystem:
    """A system that starts nothing. ``start_error``: what its start fails with."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, start_error: str = "") -> None:
        self._start_error = start_error

    def __enter__(self) -> FakeSystem:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop nothing."""

    def prepare(self) -> None:
        if self._start_error:
            raise SystemExit(self._start_error)


def _yields_one_row(system: object, asked: cases.BenchOptions) -> Iterator[cases.Row]:
    yield {"case": "acked", "figures": {"per_s": 7.0}}


def _fails_after_one_row(system: object, asked: cases.BenchOptions) -> Iterator[cases.Row]:
    yield {"case": "latency, 10 % of its peak", "figures": {"ack_p50_ms": 2.0}}
    raise SystemExit("the reader of arrivals did not start")


def _is_interrupted(system: object, asked: cases.BenchOptions) -> Iterator[cases.Row]:
    raise KeyboardInterrupt
    yield {}


def _run_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: dict[str, cases.Case]) -> tuple[dict, list[dict], int]:  # type: ignore[type-arg]
    """Run ``liftpy bench --json --output`` over two systems of which the second can't start."""
    fakes = {"liftpy": lambda _: FakeSystem(), "jetstream": lambda _: FakeSystem("no port is free")}
    for module in (running, systems):
        monkeypatch.setattr(module, "SYSTEMS", fakes)
    monkeypatch.setattr(running, "load_alone", lambda _: {})
    monkeypatch.setattr(running, "warm", lambda _: None)
    monkeypatch.setattr("sidecar.cli.bench.CASES", chosen)
    monkeypatch.setattr("sidecar.cli.bench.choose_systems", lambda *_: tuple(fakes))
    out = tmp_path / "results.jsonl"
    done = CliRunner().invoke(bench, ["--json", "--rounds", "1", "--output", str(out)])
    return json.loads(done.stdout), [json.loads(line) for line in out.read_text().splitlines()], done.exit_code


def test_bench_case_that_fails_is_reported_and_the_others_continue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, lines, code = _run_bench(monkeypatch, tmp_path, {"latency": _fails_after_one_row, "acked": _yields_one_row})
    assert [row["case"] for row in found["rows"]] == ["latency, 10 % of its peak", "acked"]
    assert [(one["system"], one["case"], one["error"]) for one in found["failures"]] == [
        ("liftpy", "latency", "the reader of arrivals did not start"),
        ("jetstream", "start", "no port is free"),
    ]
    assert [line["case"] for line in lines] == ["latency, 10 % of its peak", "latency", "acked", "start"]
    assert code == 1


def test_bench_that_is_interrupted_reports_the_results_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, lines, code = _run_bench(monkeypatch, tmp_path, {"acked": _yields_one_row, "idle": _is_interrupted})
    assert [row["figures"] for row in found["rows"]] == [{"per_s": 7.0}]
    assert [line["case"] for line in lines] == ["acked"]
    assert (found["is_complete"], code) == (False, 1)


def test_bench_reader_stopped_during_a_slow_close_returns_its_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reads_and_closes_slowly(port: int, stream: str, found: client.Arrivals) -> None:
        found.count = 3
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):  # turns of the loop in which the input is still readable
                await asyncio.sleep(0)

    monkeypatch.setattr(client, "read_liftpy", reads_and_closes_slowly)
    read_end, write_end = os.pipe()
    errors: list[dict[str, object]] = []

    async def run() -> dict[str, float]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        return await client.measure_arrivals(0, "bench", "liftpy")

    with open(read_end) as given, open(write_end, "w") as asking:
        monkeypatch.setattr(sys, "stdin", given)
        asking.write("end\n")
        asking.flush()
        figures = asyncio.run(run())
    assert figures["acked"] == 3
    assert not errors
