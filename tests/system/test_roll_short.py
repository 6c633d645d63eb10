"""The short form of ``python -m tests.system.roll``: the manifests' pods rolled once, under acknowledged load."""

from __future__ import annotations

import shutil

import pytest

from tests.system.roll import roll


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl to build the manifests with")
@pytest.mark.long
def test_rolling_restart_of_pods_loses_no_record_and_pauses_acks_for_less_than_1_5_s() -> None:
    """Beside other tests on two cores a gap says more of them: a pod that is killed instead of asked makes one of 2.5 s."""
    outcome = roll("dev", 1, settled_s=0, max_gap_s=1.5)
    assert outcome.wrong == []
    assert outcome.acknowledged > 150
    assert len(outcome.gaps_s) == 1
