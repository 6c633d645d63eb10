"""The short form of ``python -m tests.system.queues``, and its judge, which sees what is wrong [Q1-Q6]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.dev.cluster import DevCluster
from tests.system.queues.__main__ import Plan, run
from tests.system.queues.judge import judged

S = 1_000_000_000


def line(do: str, at_s: float, first: int, last: int, deliveries: int = 1) -> dict[str, Any]:
    return {"do": do, "t": round(at_s * S), "partition": 0, "ranges": [(first, last, deliveries)]}


GOOD = [
    line("given", 1, 0, 3),
    line("acked", 2, 0, 1),
    line("given", 6, 2, 3, 2),
    line("acked", 7, 2, 3),
    line("acked", 7.5, 3, 3),
]


def test_queue_verdict_accepts_a_correct_history_and_counts_its_deliveries() -> None:
    found = judged(GOOD, {0: 4}, 4.0, 2.0)
    assert (found.wrong, found.records, found.given, found.acked) == ([], 4, 6, 4)
    assert found.again_s.tolist() == [5.0, 5.0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([line("given", 8, 1, 2)], "0/1, and 1 more, given after its acknowledgement"),
        ([line("given", 2.5, 1, 1)], "0/1, and 0 more, given after its acknowledgement"),
        ([line("given", 1.5, 2, 2)], ""),
    ],
)
def test_queue_verdict_finds_a_record_delivered_after_its_ack(more: list[dict[str, Any]], said: str) -> None:
    assert judged([*more, *GOOD], {0: 4}, 9.0, 2.0).wrong == ([said] if said else [])


def test_queue_verdict_finds_records_never_delivered_and_records_redelivered_late() -> None:
    assert judged(GOOD, {0: 6}, 4.0, 2.0).wrong == ["0/4, and 1 more, never given"]
    assert judged(GOOD, {0: 4}, 2.0, 2.0).wrong == ["a record came again after 5.0 s, its wait is 2 s"]


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(300)
async def test_queue_loses_no_record_when_workers_and_coordinator_are_killed(tmp_path: Path) -> None:
    plan = Plan(
        records=6000, workers=3, kill_every_s=1.0, node_every_s=2.0, wait_s=2.0, batch=200, size_bytes=20, seed=1, most_kills=2,
        most_nodes=1, slack_s=60.0,
    )  # fmt: skip
    with DevCluster(3) as cluster:
        found = await run(cluster, tmp_path, plan)
    assert not found.wrong
    assert found.given >= found.records == 6000
