"""Test the flush probe at a start: it is bounded, leaves no file, and returns None when the disk fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from liftpy.core.log.flush import PROBES
from sidecar.disk.flush_thread import PROBE_NAME, probe_flushes


class FakeDisk:
    """Its flushes take ``took_s`` of a clock that nothing else moves; the ``fails_at``-th (from 0) fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: float, fails_at: int = -1) -> None:
        self.now_s, self.flushes = 0.0, 0
        self.took_s, self.fails_at = took_s, fails_at
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(os, "fdatasync", self.flush)

    def flush(self, descriptor: int) -> None:
        self.flushes += 1
        self.now_s += self.took_s
        if self.flushes - 1 == self.fails_at:
            raise OSError(errno.EIO, "Input/output error")


def test_flush_probe_returns_one_duration_per_flush_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk(monkeypatch, 0.0002)
    assert probe_flushes(tmp_path) == pytest.approx([0.0002] * PROBES)
    assert disk.flushes == PROBES + 1, "the first one of a new file does not count"
    assert list(tmp_path.iterdir()) == []


def test_flush_probe_on_a_slow_disk_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk(monkeypatch, 0.008)
    assert probe_flushes(tmp_path) == pytest.approx([0.008] * 3)
    assert disk.now_s == pytest.approx(0.032)
    hanging = FakeDisk(monkeypatch, 5.0)
    assert probe_flushes(tmp_path) == [5.0]
    assert hanging.flushes == 2


@pytest.mark.parametrize("fails_at", [0, 1, PROBES])
def test_flush_probe_with_a_flush_error_returns_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    FakeDisk(monkeypatch, 0.0002, fails_at)
    assert probe_flushes(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_flush_probe_on_a_full_disk_returns_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert probe_flushes(tmp_path) is None
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) // 2)
    assert probe_flushes(tmp_path) is None, "a short write"
    assert list(tmp_path.iterdir()) == []


def test_flush_probe_in_a_missing_directory_or_with_a_used_file_name_returns_none(tmp_path: Path) -> None:
    assert probe_flushes(tmp_path / "gone") is None
    (tmp_path / PROBE_NAME).mkdir()
    assert probe_flushes(tmp_path) is None


def test_flush_probe_on_a_symbolic_link_returns_none_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"data")
    (tmp_path / PROBE_NAME).symlink_to(tmp_path / "precious")
    assert probe_flushes(tmp_path) is None
    assert (tmp_path / "precious").read_bytes() == b"data"


def test_flush_probe_removes_the_file_of_a_killed_process(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from sidecar.disk.flush_thread import probe_flushes
os.fdatasync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
probe_flushes(Path({str(tmp_path)!r}))
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [PROBE_NAME]
    assert probe_flushes(tmp_path)
    assert list(tmp_path.iterdir()) == []
