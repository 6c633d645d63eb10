"""Test that every benchmark runs on little data and reports its figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.bench.cases import CASES, BenchOptions
from sidecar.bench.systems import Liftpy
from tests.bench.peer import __main__ as peer
from tests.bench.peer import consume
from tests.bench.placement.__main__ import plans as placement_plans
from tests.bench.placement.__main__ import rows as placement_rows
from tests.bench.raft.__main__ import rows as raft_rows
from tests.bench.settings.__main__ import CASES as SETTINGS
from tests.bench.settings.__main__ import measure as measure_settings
from tests.bench.spark import __main__ as spark_bench

ROOT = Path(__file__).parents[2]


def printed(*words: str) -> str:
    """What a benchmark prints on its standard output."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
@pytest.mark.long
def test_raft_bench_reports_rates_of_liftpy_and_a_raft_library_for_each_window_size() -> None:
    found = raft_rows((3,), 0.05)
    assert {(row["kind"], row["window"]) for row in found} == {(k, w) for k in ("ours", "library") for w in (1, 64, 1000)}
    assert all(row["operations_per_s"] > 0 and row["p50_ms"] <= row["p99_ms"] for row in found)


def test_placement_bench_reports_an_even_distribution_for_each_policy() -> None:
    found = placement_rows(40, 400)
    assert len(found) == 5
    assert all(row["on fewer racks"] == 0 for row in found if row["policy"] != "round-robin")
    assert all(low <= 30 <= high for row in found for low, high in (row["replicas of a node"],))


def test_placement_plans_bench_moves_few_replicas_to_an_even_distribution() -> None:
    replicas, sizes, leaders = placement_plans(40, 400)
    assert (replicas["moved"], replicas["after"]) == (replicas["fewest"], [30, 30])
    assert sizes["moved"] <= 1.3 * sizes["fewest"]
    assert sizes["after"][1] <= 1.1 * sizes["after"][0]
    assert leaders["fewest"] <= leaders["moved"] <= 1.5 * leaders["fewest"]
    assert leaders["after"][1] - leaders["after"][0] <= 1 < leaders["before"][1] - leaders["before"][0]


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
def test_peer_bench_reports_the_cpu_time_of_a_client_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "CLIENTS", ("publisher",))
    with Liftpy() as system:
        system.prepare()
        (row,) = peer.clients(system, BenchOptions(seconds=0.2))
    figures = row["figures"]
    assert 0 < figures["client_cpu_us"] <= figures["cpu_us"]


@pytest.mark.processes
@pytest.mark.long
def test_consume_bench_reports_rates_and_cpu_times_of_liftpy_and_jetstream_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nats.go, whose build takes longer than this."""
    monkeypatch.setattr(consume, "GO", replace(consume.GO, tools=("a-tool-that-nobody-has",)))
    monkeypatch.setattr(consume, "OURS", {how: consume.OURS[how] for how in ("liftpy-values", "liftpy-record")})
    monkeypatch.setattr(consume, "PY", {"py-pull": consume.PY["py-pull"]})
    said: list[str] = []
    found = consume.rows(0.2, 1, {100: 3000}, said.append)
    assert {row["system"] for row in found} == {*consume.OURS.values(), *consume.PY.values()}
    assert all(0 < row["client_cpu_us"] <= row["all_cpu_us"] for row in found)
    assert all(row["records_per_s"] > 0 for row in found)
    assert said == ["left out: no a-tool-that-nobody-has here"]


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
@pytest.mark.long
def test_reads_bench_reports_reader_gaps_for_paused_and_killed_nodes() -> None:
    lines = printed("-m", "tests.bench.reads", "--short", "--gate", "2.5").splitlines()
    assert [line.rpartition(":")[0] for line in lines] == [
        "fresh reads, one follower paused",
        "a reader's gap after its follower was killed",
        "a reader's gap after the nats-server came back",
    ]


@pytest.mark.processes
def test_memory_bench_short_form_shows_that_an_idle_replica_needs_less_than_35_kb_of_objects() -> None:
    total = printed("-m", "tests.bench.memory", "--short").splitlines()[-1]
    size_bytes, of_what = total.split(" B in ")
    assert of_what.endswith(" blocks per replica, 20 partitions")
    assert int(size_bytes.replace(",", "")) < 35_000, "25,000 in November 2026, 28,000 on a busy machine"


@pytest.mark.processes
@pytest.mark.long
def test_churn_bench_short_form_reports_its_rounds_of_opened_and_closed_clients() -> None:
    assert "rounds of 12" in printed("-m", "tests.bench.churn", "--short")


def test_image_bench_reports_times_and_sizes_of_the_cluster_image() -> None:
    figures: dict[str, Any] = json.loads(
        printed("tests/bench/cluster/bench_image.py", "--nodes", "20", "--partitions", "400", "--streams", "4", "--json")
    )
    assert figures
    assert all(value >= 0 for value in figures.values() if isinstance(value, int | float))


@pytest.mark.spark
@pytest.mark.long
def test_spark_bench_reports_rates_and_cpu_times_of_the_liftpy_source_and_two_other_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From memory, without micro-batches and without Kafka: they take longer than this."""
    monkeypatch.setattr(spark_bench, "CONNECTOR", replace(spark_bench.CONNECTOR, tools=("a-tool-that-nobody-has",)))
    said: list[str] = []
    words = ["--nodes", "0", "--records", "8000", "--sizes", "100", "--cases", "sum"]
    words += ["--rounds", "1", "--warm", "0", "--quick"]
    found = spark_bench.rows(spark_bench.parsed(words), said.append)
    assert said[0] == "Spark's Kafka source is left out: no a-tool-that-nobody-has here"
    by_case = {(row["case"].split(",")[0], row["system"]) for row in found}
    peers = {"liftpy", "Parquet", "a prepared Arrow batch"}
    assert by_case == {("sum", peer) for peer in peers}
    assert all(row["records_per_s"] > 0 and row["cpu_us"] > 0 for row in found)
    assert all(("ours_to_theirs" in row) == (row["system"] != "liftpy") for row in found)


@pytest.mark.processes
@pytest.mark.long
def test_service_bench_reports_record_rates_of_catch_up_outputs_and_publisher() -> None:
    found = {
        row["what"]: row
        for row in map(json.loads, printed("-m", "tests.bench.service", "--short", "--nodes", "1").splitlines())
    }
    assert set(found) == {"catch-up", "outputs", "publisher"}
    assert all(row["records_per_s"] > 0 for row in found.values())


@pytest.mark.processes
@pytest.mark.long
def test_trace_bench_reports_ratios_with_tracing_on_and_off() -> None:
    lines = printed("-m", "tests.bench.trace", "--short").splitlines()
    told = [line.partition(":")[0] for line in lines]
    assert told[:-1] == ["off / bare"] * 8 + ["on / off"] * 8 + ["off"]
    assert 0.0 <= float(re.findall(r"([0-9.]+)% of what", lines[-2])[0]) < 0.5, "where nothing is traced"
    assert told[-1].startswith("the client made ")


@pytest.mark.processes
def test_settings_bench_reports_all_figures_of_a_changed_setting() -> None:
    case = next(case for case in SETTINGS if case.name == "workers = 2")
    found = measure_settings(case, 0.1, idle_s=0.3)
    assert min(found[name] for name in ("p50_ms", "per_s_64", "per_s_4000", "cpu_us", "memory_mib")) > 0
