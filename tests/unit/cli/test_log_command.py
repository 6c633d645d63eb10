"""``liftpy log`` with a valid, a torn and a damaged directory. Only ``repair`` changes a byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from liftpy.core.log.log import Log
from sidecar.cli.main import main
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.files import DirectoryStorage
from tests.unit.log.log_model import SMALL, fill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "streams" / "s-1" / "0"
    log, _ = Log.open(DirectoryStorage(path), SMALL)
    fill(log, 40)
    log.raise_high_watermark(50)
    log.close()
    return path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    return int(left.value.code or 0), printed.out + printed.err


def test_log_verify_and_dump_of_an_intact_directory_exit_with_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = _run(capsys, "log", "verify", str(folder))
    assert (code, "120 records, log end offset 120" in text) == (0, True)
    code, text = _run(capsys, "log", "dump", "--json", "--batches", str(folder))
    shown = json.loads(text)
    assert (code, shown["log_end_offset"], shown["faults"], shown["epochs"]) == (0, 120, [], [[1, 0]])
    assert [b["base_offset"] for b in shown["batches"]] == list(range(0, 120, 3))
    assert shown["checkpoint"]["high_watermark"] == 50
    assert {s["index"] for s in shown["segments"][:-1]} == {"right"}
    code, text = _run(capsys, "log", "dump", str(folder))
    assert (code, "high watermark 50" in text) == (0, True)


def test_log_verify_prints_the_first_damaged_file_and_changes_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = sorted(folder.glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[70] ^= 1
    second.write_bytes(data)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    code, text = _run(capsys, "log", "verify", str(folder))
    assert code == 1
    assert f"first damage: {second.name}: damage at position 0:" in text
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_log_repair_truncates_a_torn_tail(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-5])
    code, text = _run(capsys, "log", "verify", str(folder))
    assert (code, "torn tail" in text) == (1, True)
    code, text = _run(capsys, "log", "repair", "--json", str(folder))
    assert (code, json.loads(text)["log_end_offset"], json.loads(text)["must_leave_isr"]) == (0, 117, False)
    assert _run(capsys, "log", "verify", str(folder))[0] == 0


def test_log_repair_of_a_running_node_is_rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = DataDirectory(folder.parent.parent.parent)
    code, text = _run(capsys, "log", "repair", str(folder))
    assert (code, "Stop it first" in text) == (1, True)
    held.close()
    assert _run(capsys, "log", "repair", str(folder))[0] == 0


def test_log_dump_of_a_directory_without_a_log_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        code, text = _run(capsys, "log", "dump", str(path))
        assert (code, "a partition directory (no segment" in text) == (2, True)
    assert not (tmp_path / "missing").exists()
