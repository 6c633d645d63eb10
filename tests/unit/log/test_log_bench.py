"""Test that the benchmarks of the log run and report every figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.log.__main__ import rows


@pytest.mark.long
def test_log_benchmark_reports_a_ratio_for_each_operation(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    found = rows(tmp_path, 1 << 20, short=True)
    kinds = {row["what"].split(" ")[0] for row in found}
    assert kinds == {"build+append", "follower", "sequential", "to_arrow", "open"}
    assert all(row["ratio"] > 0 for row in found)
