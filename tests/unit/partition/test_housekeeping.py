"""Test that partitions that a full disk stopped restart when there is free space."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.partition import housekeeping
from sidecar.partition.housekeeping import SPACE_AGAIN_BYTES, Housekeeping
from tests.only_in import only_in

MIB = 1 << 20
LARGE = 1 << 40


@pytest.mark.parametrize(
    ("no_space", "total", "free", "uptime_s", "comes_back"),
    [
        (True, LARGE, SPACE_AGAIN_BYTES, 61.0, True),
        (True, LARGE, SPACE_AGAIN_BYTES - 1, 61.0, False),
        (True, LARGE, SPACE_AGAIN_BYTES, 59.0, False),
        (False, LARGE, SPACE_AGAIN_BYTES, 61.0, False),
        (True, 64 * MIB, 4 * MIB, 61.0, True),
        (True, 64 * MIB, 3 * MIB, 61.0, False),
        (True, 5 * 1024 * MIB, 255 * MIB, 61.0, False),
    ],
)
def test_housekeeping_restarts_partitions_stopped_by_a_full_disk_when_space_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_space: bool, total: int, free: int, uptime_s: float, comes_back: bool
) -> None:
    now = [1000.0]
    only_in(monkeypatch, housekeeping, "time", monotonic=lambda: now[0])
    monkeypatch.setattr(housekeeping.shutil, "disk_usage", lambda _: SimpleNamespace(total=total, free=free))
    workers: Any = [SimpleNamespace(key="orders/0", executor=SimpleNamespace(no_space=no_space))]
    reasons: list[str] = []
    keeping = Housekeeping(workers, 1.0, tmp_path, reasons.append)
    now[0] += uptime_s
    keeping._check_space()
    assert bool(reasons) is comes_back
    assert all("orders/0" in reason for reason in reasons)
