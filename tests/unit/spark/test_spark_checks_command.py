"""Test the output and exit codes of ``liftpy spark audit`` and ``stats``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from liftpy.core.wire.batch import build_batch
from liftpy.spark.options import Access
from liftpy.spark.pipelines import stats
from sidecar.cli import output
from sidecar.cli.main import main
from tests.fake_node import FakeNode, FakePartition

S = 10**9


def log_of(values: list[bytes], *, step_s: int = 2) -> FakePartition:
    log = FakePartition()
    for offset, value in enumerate(values):
        log.append(
            build_batch(
                [value], keys=[b"k"], base_offset=offset, leader_epoch=1, timestamp_ns=1_700_000_000 * S + offset * step_s * S
            )
        )
    return log


@pytest.fixture
def orders(node: FakeNode) -> FakeNode:
    node.add_stream("orders").partitions = [log_of([b"%d" % n for n in range(30)])]
    return node


def run(access: Access, *words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["spark", *words, "--nats", access.servers, "--namespace", access.namespace])
    return int(ended.value.code or 0)


def test_spark_audit_command_with_equal_replicas_exits_with_0(
    access: Access, orders: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(access, "audit") == 0
    shown = capsys.readouterr().out
    assert "replicas agree" in shown
    assert "n1*" in shown
    assert "0..30" in shown
    assert run(access, "audit", "orders", "--json") == 0
    assert json.loads(capsys.readouterr().out)["agrees"] is True


def test_spark_audit_command_with_a_difference_prints_its_offset_and_exits_with_1(
    access: Access, orders: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.own["orders", 0, "n2"] = log_of([b"x" if n in (7, 9) else b"%d" % n for n in range(30)])
    assert run(access, "audit", "orders") == 1
    shown = capsys.readouterr().out
    assert "first difference: orders/0 offset 7: n2 has another record, expected " in shown
    assert "also: orders/0 offset 9: n2" in shown
    assert run(access, "audit", "orders", "--json") == 1
    first = json.loads(capsys.readouterr().out)["first"]
    assert (first["stream"], first["partition"], first["offset"], first["node"], first["majority"]) == (
        "orders",
        0,
        7,
        "n2",
        True,
    )


def test_spark_audit_command_with_too_few_replicas_exits_with_3(
    access: Access, orders: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.silent = {"n2", "n3"}
    assert run(access, "audit", "orders", "--timeout", "0.2") == 3
    shown = capsys.readouterr().out
    assert "fewer than two replicas of orders/0 could be compared" in " ".join(shown.split())
    assert "n2 is away: " in shown


def test_spark_audit_command_prints_the_number_of_records_compacted_on_some_replicas(
    access: Access, orders: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = orders.streams["orders"].partitions[0]
    partition.compacted = True
    orders.own["orders", 0, "n3"] = shorter = log_of([b"%d" % n for n in range(30)])
    shorter.compacted = True
    del shorter.batches[4]
    assert run(access, "audit", "orders") == 0
    assert "1 records were dropped on some replicas only: later ones supersede them" in capsys.readouterr().out


def test_spark_audit_command_with_an_invalid_option_exits_with_2(
    access: Access, node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(access, "audit") == 0
    assert "There are no streams" in capsys.readouterr().out
    assert run(access, "audit", "none") == 1
    assert run(access, "audit", "--conf", "a=b") == 2
    assert run(access, "audit", "--master", "local[1]", "--conf", "a") == 2


def test_spark_stats_command_prints_partitions_and_time_buckets(
    access: Access, orders: FakeNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(access, "stats", "orders", "--bucket", "30s") == 0
    shown = capsys.readouterr().out
    assert "orders, every 30 s" in shown
    assert "2 at 1" in shown, "the longest pause, and before which offset"
    rows = [line.split()[2:4] for line in shown.splitlines() if line.strip().startswith("2023-11-14")]
    assert rows == [["5", "0.2"], ["15", "0.5"], ["10", "0.3"]]
    assert run(access, "stats", "orders", "--json", "--from", "-10") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["streams"][0]["records"], found["partitions"][0]["start_offset"]) == (10, 20)
    assert run(access, "stats", "orders", "--bucket", "soon") == 2
    assert "'--bucket': 'soon'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["audit", "stats"])
def test_spark_check_command_without_a_terminal_prints_its_progress_as_percentage(
    command: str, access: Access, orders: FakeNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    run(access, command, "orders")
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert lines[-1] == f"{command}: 100 %, {len(lines)} ranges"


def test_spark_stats_command_with_plot_option_writes_an_image(
    access: Access, orders: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    assert run(access, "stats", "orders", "--plot", str(tmp_path / "a.png")) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(stats.importlib.util, "find_spec", lambda name: None)
    assert run(access, "stats", "orders", "--plot", str(tmp_path / "b.png")) == 2
