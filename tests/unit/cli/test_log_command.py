"""Test ``liftpy log repair`` of a torn tail, and of a directory in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from liftpy.core.log.log import Log
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.files import DirectoryStorage
from sidecar.metadata.identity import NodeFile, PreviousProcess
from tests.unit.cli.conftest import Run
from tests.unit.log.log_model import SMALL, fill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "streams" / "s-1" / "0"
    log, _ = Log.open(DirectoryStorage(path), SMALL)
    fill(log, 40)
    log.raise_high_watermark(50)
    log.close()
    return path


def test_log_repair_truncates_a_torn_tail(folder: Path, run: Run) -> None:
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-5])
    code, text = run.joined("log", "verify", str(folder))
    assert (code, "torn tail" in text) == (1, True)
    code, text = run.joined("log", "repair", "--json", str(folder))
    assert (code, json.loads(text)["log_end_offset"], json.loads(text)["must_leave_isr"]) == (0, 117, False)
    assert run("log", "verify", str(folder))[0] == 0


def test_log_repair_of_a_running_node_is_rejected(folder: Path, run: Run) -> None:
    held = DataDirectory(folder.parent.parent.parent)
    code, text = run.joined("log", "repair", str(folder))
    assert (code, "Stop it first" in text) == (1, True)
    held.close()
    assert run("log", "repair", str(folder))[0] == 0


def test_log_commands_accept_a_directory_that_a_kill_left_with_only_a_quarantined_segment(folder: Path, run: Run) -> None:
    first, *later = sorted(folder.glob("*.log"))
    for other in later:
        other.unlink()
    first.rename(folder / f"{first.name}.valid")
    code, text = run.joined("log", "verify", str(folder))
    assert (code, f"{first.name}.valid" in text) == (1, True)
    assert run("log", "dump", str(folder))[0] == 0
    assert run("log", "repair", str(folder))[0] == 0
    assert first.exists()


@pytest.mark.parametrize("name", ["12.log", "notes.log.valid"])
def test_log_verify_of_a_directory_without_the_name_of_a_segment_is_rejected(tmp_path: Path, run: Run, name: str) -> None:
    (tmp_path / name).touch()
    code, text = run.joined("log", "verify", str(tmp_path))
    assert (code, "is not a partition directory" in text) == (2, True)


def test_log_repair_as_another_user_changes_nothing(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node could not open the files that the repair creates."""
    DataDirectory(folder.parent.parent.parent).close()
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(torn := last.read_bytes()[:-5])
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    code, text = run.joined("log", "repair", str(folder))
    assert (code, "belongs to user" in text, last.read_bytes() == torn) == (1, True, True)


@pytest.mark.parametrize("clean_stop", [True, False])
def test_log_repair_that_loses_records_makes_the_next_start_register_an_unclean_stop(
    folder: Path, run: Run, clean_stop: bool
) -> None:
    """The next recovery finds a short log without damage [C7]. A torn tail after an unclean stop loses nothing."""
    data = folder.parent.parent.parent

    def stopped() -> PreviousProcess:
        held = DataDirectory(data)
        previous = NodeFile(held, "a").previous
        held.close()
        return previous

    held = DataDirectory(data)
    process = NodeFile(held, "a")
    process.count_start()
    process.begin(1)
    if clean_stop:
        process.end_cleanly()
    held.close()
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-5])
    code, text = run.joined("log", "repair", str(folder))
    assert (code, "all replicas of this node leave their ISRs" in text) == (0, clean_stop)
    assert stopped() == PreviousProcess(1, False, not clean_stop)
    flipped = bytearray(last.read_bytes())
    flipped[70] ^= 1
    last.write_bytes(flipped)
    code, text = run.joined("log", "repair", str(folder))
    assert (code, "all replicas of this node leave their ISRs" in text) == (0, True)
    assert stopped() == PreviousProcess(1, False, False)


def test_log_repair_of_a_log_without_committed_records_makes_all_replicas_leave_their_isrs(folder: Path, run: Run) -> None:
    """After an unclean stop, only the stored high watermark shows that records are missing."""
    held = DataDirectory(folder.parent.parent.parent)
    NodeFile(held, "a").begin(1)
    held.close()
    first, *later = sorted(folder.glob("*.log"))
    for other in later:
        other.unlink()
    first.write_bytes(first.read_bytes()[:-5])
    code, text = run.joined("log", "repair", str(folder))
    assert (code, "all replicas of this node leave their ISRs" in text) == (0, True), text


@pytest.mark.parametrize(("no_color", "is_red"), [("", True), ("1", False)])
def test_log_dump_on_a_terminal_shows_damage_in_color_unless_no_color_is_set(no_color: str, is_red: bool, folder: Path) -> None:
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(b"damaged" * 20)
    read, terminal = os.openpty()
    command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "log", "dump", str(folder)]
    subprocess.run(command, stdout=terminal, env={**os.environ, "NO_COLOR": no_color}, check=True, timeout=60)
    os.close(terminal)
    shown = b""
    with suppress(OSError), os.fdopen(read, "rb", buffering=0) as screen:  # the end of a terminal is an error
        while part := screen.read(4096):
            shown += part
    assert b"Damaged batch" in shown
    assert (b"\x1b[31m" in shown) is is_red
