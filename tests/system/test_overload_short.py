"""The short form of ``python -m tests.system.overload``, and its verdict."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.dev.cluster import DevCluster
from tests.system.overload import flood

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.mark.long
async def test_publishes_in_a_flood_are_all_answered_with_an_ack_or_a_rejection() -> None:
    with DevCluster(3, settings=flood.SETTINGS, on_line=lambda node, line: print(f"{node} | {line}")) as cluster:
        out = await flood.run(cluster, 2.0, shortest_s=1.0)
    assert (out.unanswered(), out.ended) == (0, []), out.text()
    assert out.answers().keys() <= {"ok", "429"}, out.text()
    assert out.most_mib < 1.2 * flood.LIMIT_BYTES / flood.MIB, out.text()
    assert out.calm_after_s >= 0


def report(answers: dict[str, int], *, per_s: float = 1000.0, ms: float = 5.0, unanswered: int = 0) -> dict[str, Any]:
    return {"answers": answers, "unanswered": unanswered, "accepted_per_s": per_s, "ok_ms": {"p50": ms, "p99": ms}}


def test_overload_verdict_finds_each_kind_of_error() -> None:
    good = flood.Outcome(
        60.0, 9000, report({"ok": 9}), [report({"ok": 9, "429": 9}, per_s=2300.0, ms=19.0)], 80, 300, {3}, {("n1", 1)}, {1},
        calm_after_s=2.0,
    )  # fmt: skip
    assert good.wrong() + good.slow() == []
    bad = flood.Outcome(
        60.0, 9000, report({"ok": 9}), [report({"503": 9}, ms=21.0, unanswered=1)], 80, 308, {2, 3}, set(), {1, 2}, ended=["n1"]
    )
    assert len(bad.wrong() + bad.slow()) == 10
