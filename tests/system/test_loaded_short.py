"""The short form of ``python -m tests.system.loaded``."""

from __future__ import annotations

import pytest

from sidecar.dev.cluster import DevCluster
from tests.system.loaded.__main__ import Outcome, run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


async def test_leader_of_a_live_node_stays_leader_on_a_busy_machine() -> None:
    with DevCluster(3, on_line=lambda node, line: print(f"{node} | {line}")) as cluster:
        out = await run(cluster, seconds=3.0, loops=2)
    assert out.wrong() == [], out.text()


def test_busy_machine_verdict_finds_each_kind_of_error() -> None:
    calm = Outcome(acked=9, leaderships={(p, "n1", p) for p in range(6)}, isr_sizes={3}, terms={1}, incarnations={1, 2, 3})
    assert calm.wrong() == []
    assert len(Outcome(failed=["x"], longest_ack_gap_s=9.0).wrong()) == 7
