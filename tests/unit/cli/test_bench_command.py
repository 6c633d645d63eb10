"""Test what ``liftpy bench`` measures with its options. The measurements themselves are replaced."""

from __future__ import annotations

import errno
import importlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from sidecar.bench import running
from sidecar.cli.main import main

bench = importlib.import_module("sidecar.cli.bench")


@pytest.mark.parametrize(
    ("given", "sizes"),
    [([], (100, 1000)), (["--sizes", "100B,64KiB, 2000"], (100, 65_536, 2000)), (["--sizes", "1MB"], (10**6,))],
)
def test_bench_command_measures_the_message_sizes_of_its_option_in_bytes(
    given: list[str], sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def report(systems: Any, cases: Any, asked: Any, *_: Any) -> dict[str, Any]:
        return {"rows": [], "failures": [], "is_complete": True, "sizes": asked.sizes, "cases": list(cases)}

    with patch("sidecar.cli.bench.report", report), pytest.raises(SystemExit) as ended:
        main(["bench", "--system", "liftpy", "--case", "acked", "--json", *given])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (tuple(found["sizes"]), found["cases"]) == (sizes, ["acked"])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the systems and cases: each case gives one figure. Return the cases, for a test to change."""

    @contextmanager
    def system(_: Any) -> Iterator[Any]:
        yield SimpleNamespace(prepare=lambda: None, lacks=())

    cases: dict[str, Any] = {name: lambda *_, n=name: [{"case": n, "figures": {"per_s": 2.0}}] for name in ("acked", "latency")}
    for module in (running, bench):
        monkeypatch.setattr(module, "SYSTEMS", {"liftpy": system}, raising=False)
        monkeypatch.setattr(module, "CASES", cases, raising=False)
    monkeypatch.setattr(running, "load_alone", lambda _: {})
    monkeypatch.setattr(running, "warm", lambda _: None)
    return cases


def test_bench_command_prints_all_results_although_the_output_file_cannot_be_written(
    measured: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk of the file became full after an hour. The report was lost with it."""
    (tmp_path / "out").mkdir()
    acked = measured["acked"]
    rounds: list[int] = []

    def measure(*arguments: Any) -> Any:
        rounds.append(1)
        if len(rounds) == 2:
            shutil.rmtree(tmp_path / "out")
        return acked(*arguments)

    measured["acked"] = measure
    file = tmp_path / "out" / "results.jsonl"
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--system", "liftpy", "--rounds", "3", "--output", str(file), "--json"])
    assert ended.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert [(row["case"], row["rounds"]) for row in found["rows"]] == [("acked", 3), ("latency", 3)]
    (failure,) = found["failures"]
    assert (failure["round"], failure["case"]) == (2, "acked")
    assert failure["error"].startswith(f"Cannot write --output {file}: No such file or directory.")


def test_bench_command_prints_the_report_before_a_plot_that_fails(
    measured: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: Any, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(bench, "require_plots", lambda: None)
    monkeypatch.setattr(bench, "draw", fails)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--plot", str(tmp_path / "plot.png"), "--json"])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert len(json.loads(said.out)["rows"]) == 2
    assert "No space left" in said.err
