"""Test the output and exit codes of ``liftpy spark audit`` and ``stats``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from liftpy.spark.pipelines import stats
from sidecar.cli import output
from tests.batches import build_batch
from tests.fake_node import FakeNode, FakePartition

S = 10**9
Run = Callable[..., tuple[int, str, str]]


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


def test_spark_audit_command_with_equal_replicas_exits_with_0(liftpy_spark: Run, orders: FakeNode) -> None:
    code, shown, _ = liftpy_spark("audit")
    assert (code, "replicas agree" in shown, "n1*" in shown, "0..30" in shown) == (0, True, True, True)
    code, shown, _ = liftpy_spark("audit", "orders", "--json")
    assert (code, json.loads(shown)["agrees"]) == (0, True)


def test_spark_audit_command_with_a_difference_prints_its_offset_and_exits_with_1(liftpy_spark: Run, orders: FakeNode) -> None:
    orders.own["orders", 0, "n2"] = log_of([b"x" if n in (7, 9) else b"%d" % n for n in range(30)])
    code, shown, _ = liftpy_spark("audit", "orders")
    assert code == 1
    assert "first difference: orders/0 offset 7: n2 has another record, expected " in shown
    assert "also: orders/0 offset 9: n2" in shown
    code, shown, _ = liftpy_spark("audit", "orders", "--json")
    first = json.loads(shown)["first"]
    assert code == 1
    assert (first["stream"], first["partition"], first["offset"], first["node"], first["majority"]) == (
        "orders",
        0,
        7,
        "n2",
        True,
    )


def test_spark_audit_command_with_too_few_replicas_exits_with_3(liftpy_spark: Run, orders: FakeNode) -> None:
    orders.silent = {"n2", "n3"}
    code, shown, _ = liftpy_spark("audit", "orders", "--timeout", "0.2")
    assert code == 3
    assert "fewer than two replicas of orders/0 could be compared" in " ".join(shown.split())
    assert "n2 is away: " in shown


def test_spark_audit_command_prints_the_number_of_records_compacted_on_some_replicas(
    liftpy_spark: Run, orders: FakeNode
) -> None:
    partition = orders.streams["orders"].partitions[0]
    partition.compacted = True
    orders.own["orders", 0, "n3"] = shorter = log_of([b"%d" % n for n in range(30)])
    shorter.compacted = True
    del shorter.batches[4]
    code, shown, _ = liftpy_spark("audit", "orders")
    assert code == 0
    assert "1 records were dropped on some replicas only: later ones supersede them" in shown


def test_spark_audit_command_with_an_invalid_option_exits_with_2(liftpy_spark: Run, node: FakeNode) -> None:
    code, shown, _ = liftpy_spark("audit")
    assert (code, "There are no streams" in shown) == (0, True)
    assert liftpy_spark("audit", "none")[0] == 1
    assert liftpy_spark("audit", "--conf", "a=b")[0] == 2
    assert liftpy_spark("audit", "--master", "local[1]", "--conf", "a")[0] == 2


def test_spark_stats_command_prints_partitions_and_time_buckets(
    liftpy_spark: Run, orders: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, shown, _ = liftpy_spark("stats", "orders", "--bucket", "30s")
    assert code == 0
    heads = [line.split() for line in shown.splitlines() if line.split()[:1] == ["partition"]]
    assert [(head[1], head[-1]) for head in heads] == [("records", "s"), ("keys", "value")], "no heading is folded"
    assert "orders, every 30 s" in shown
    assert "2 at 1" in shown, "the longest pause, and before which offset"
    rows = [line.split()[2:4] for line in shown.splitlines() if line.strip().startswith("2023-11-14")]
    assert rows == [["5", "0.2"], ["15", "0.5"], ["10", "0.3"]]
    code, shown, _ = liftpy_spark("stats", "orders", "--json", "--from", "-10")
    found = json.loads(shown)
    assert code == 0
    assert (found["streams"][0]["records"], found["partitions"][0]["start_offset"]) == (10, 20)
    code, _, shown = liftpy_spark("stats", "orders", "--bucket", "soon")
    assert (code, "'--bucket': 'soon'" in shown) == (2, True)


@pytest.mark.parametrize("command", ["audit", "stats"])
def test_spark_check_command_without_a_terminal_prints_its_progress_as_percentage(
    command: str, liftpy_spark: Run, orders: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.0)
    lines = liftpy_spark(command, "orders")[2].splitlines()
    assert lines
    assert lines[-1] == f"{command}: 100 %, {len(lines)} ranges"


def test_spark_stats_command_with_plot_option_writes_an_image(
    liftpy_spark: Run, orders: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    assert liftpy_spark("stats", "orders", "--plot", str(tmp_path / "a.png"))[0] == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(stats.importlib.util, "find_spec", lambda name: None)
    code, _, shown = liftpy_spark("stats", "orders", "--plot", str(tmp_path / "b.png"))
    assert (code, "pip install 'liftpy[spark]'" in shown) == (2, True), shown
