"""The short form of ``python -m tests.system.alerts``: alerts of a group and of services on real processes with a real Prometheus."""

from __future__ import annotations

import shutil

import pytest

from tests.system.alerts.__main__ import run


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus on the PATH")
def test_fault_fires_only_its_own_alerts_in_prometheus() -> None:
    assert run(20.0, ["too few nodes", "service blocked", "service differs"]) == []
