"""Test that every benchmark runs on little data and reports its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.bench.cases import CASES
from tests.bench.settings.__main__ import CASES as SETTINGS
from tests.bench.settings.__main__ import measure as measure_settings

ROOT = Path(__file__).parents[2]


def printed(*words: str) -> str:
    """What a benchmark prints on its standard output."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("slow", [(), ("--flush-ms", "2", "--delay-ms", "1", "--think-ms", "2")], ids=["as-it-is", "slow"])
def test_versions_bench_with_the_same_interpreter_twice_prints_a_ratio_for_each_figure(slow: tuple[str, ...]) -> None:
    said = printed("-m", "tests.bench.versions", sys.executable, "--windows", "64", "--rounds", "2", "--seconds", "0.3", *slow)
    ratios = {line.split()[0]: float(line.split("ratio ")[1].split()[0]) for line in said.splitlines() if "ratio" in line}
    latencies = {"p50_ms", "p99_ms"} if slow else set()
    assert set(ratios) == {"records_per_s", "nodes_cpu_us", "leader_cpu_us", "nats_server_cpu_us"} | latencies
    assert all(ratio > 0 for ratio in ratios.values())
    if slow:
        p50_ms = float(next(line for line in said.splitlines() if "p50_ms" in line).split("this")[1].split()[0])
        assert p50_ms >= 2 + 4 * 1, "a flush, and the way of the message and of its ack over the NATS server"


@pytest.mark.long
@pytest.mark.processes
def test_bench_command_reports_rates_and_latencies_of_liftpy_and_jetstream(tmp_path: Path) -> None:
    """All cases of ``liftpy bench`` but the fail-over and the reading, which others here have; the peer is one server."""
    picture = tmp_path / "ratios.png"
    options = ["--system", "liftpy", "--system", "jetstream-r1", "--sizes", "100", "--windows", "500", "--loads", "50"]
    options += [word for case in CASES if case not in ("failover", "consume") for word in ("--case", case)]
    options += ["--duration", "0.2", "--rounds", "1", "--plot", str(picture), "--json"]
    found = json.loads(printed("-c", "from sidecar.cli.main import main; main()", "bench", *options))
    rows = {(row["case"], row["system"]): row for row in found["rows"]}
    expected = ("acked, 100 B, 500 in flight", "plain, 100 B", "producer, 100 B", "latency, 100 B, 50% of its peak", "idle")
    assert set(rows) == {(case, system) for case in expected for system in ("liftpy", "jetstream-r1")}
    for (case, system), row in rows.items():
        if case == "idle":
            continue  # a fifth of a second may cost nothing that can be measured
        assert all(value > 0 for value in row["figures"].values()), (case, system)
        assert bool(row["ratios"]) == (system != "liftpy")
        if case.startswith("latency"):
            assert row["figures"]["ack_p50_ms"] <= row["figures"]["ack_p99_ms"], row
            assert row["figures"]["end_p50_ms"] > 0, "a reader saw the stamped ones"
    assert found["load_alone"]["100"]["per_s"] > rows["acked, 100 B, 500 in flight", "liftpy"]["figures"]["per_s"]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.processes
@pytest.mark.long
def test_node_bench_short_form_prints_a_line_per_record_size_and_ack_policy() -> None:
    lines = printed("-m", "tests.bench.node", "--short").splitlines()
    assert [line.split()[0] for line in lines] == ["100", "1000", "10000", "ack"]


def test_client_import_does_not_load_cryptography_modules() -> None:
    """It took a sixth of the start of every process that imports the client."""
    loaded = printed("-c", "import sys, liftpy.client, sidecar.dev.cluster; print(sorted(sys.modules))")
    assert "'nkeys'" not in loaded
    assert "'nacl'" not in loaded


@pytest.mark.processes
def test_memory_bench_short_form_shows_that_an_idle_replica_needs_less_than_35_kb_of_objects() -> None:
    total = printed("-m", "tests.bench.memory", "--short").splitlines()[-1]
    size_bytes, of_what = total.split(" B in ")
    assert of_what.endswith(" blocks per replica, 20 partitions")
    assert int(size_bytes.replace(",", "")) < 35_000, "25,000 in November 2026, 28,000 on a busy machine"


@pytest.mark.long
@pytest.mark.processes
def test_settings_bench_reports_all_figures_of_a_changed_setting() -> None:
    case = next(case for case in SETTINGS if case.name == "workers = 2")
    found = measure_settings(case, 0.1, idle_s=0.3)
    assert min(found[name] for name in ("p50_ms", "per_s_64", "per_s_4000", "cpu_us", "memory_mib")) > 0
