"""The short forms of ``python -m tests.system.overload``, and what they judge by."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sidecar.dev.cluster import DevCluster
from tests.system.overload import flood, quota

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.mark.long
async def test_quota_limits_its_stream_without_slowing_another_stream() -> None:
    """On a busy machine a publisher that stands still loses what it did not offer: so far less is not wrong here."""
    with DevCluster(3, on_line=lambda node, line: print(f"{node} | {line}")) as cluster:
        out = await quota.run(cluster, seconds=3.0, tolerance=0.25)
    assert out.wrong() == [], out.text()
    assert out.by_client > 0


@pytest.mark.long
async def test_publishes_in_a_flood_are_all_answered_with_an_ack_or_a_rejection() -> None:
    with DevCluster(3, settings=flood.SETTINGS, on_line=lambda node, line: print(f"{node} | {line}")) as cluster:
        out = await flood.run(cluster, 2.0, shortest_s=1.0)
    assert (out.unanswered(), out.ended) == (0, []), out.text()
    assert out.answers().keys() <= {"ok", "429"}, out.text()
    assert out.most_mib < 1.2 * flood.LIMIT_BYTES / flood.MIB, out.text()
    assert out.calm_after_s >= 0


async def test_quota_measurement_starts_after_all_nodes_have_the_altered_quota() -> None:
    asked: list[str] = []
    indexes = {"n1": iter([4, 7, 7]), "n2": iter([7, 7]), "n3": iter([3, 5, 6, 9])}

    async def index_of(node: str) -> int:
        asked.append(node)
        return next(indexes[node])

    await quota.until_all_have(["n1", "n2", "n3"], index_of)
    assert asked == ["n1", "n2", "n3", "n1", "n2", "n3", "n3", "n3"]

    async def one_stays(node: str) -> int:
        return 7 if node == "n1" else 6

    with pytest.raises(TimeoutError):
        await quota.until_all_have(["n1", "n2"], one_stays, ready_s=0.05)


def said(
    answers: dict[str, int], per_s: float = 1000.0, ms: float = 5.0, unanswered: int = 0, seconds: float = 30.0
) -> dict[str, Any]:
    times = {"p50": ms, "p99": ms, "max": ms}
    return {
        "seconds": seconds, "answers": answers, "unanswered": unanswered, "accepted_per_s": per_s, "ok_ms": times, "refused_ms": times,
    }  # fmt: skip


def test_quota_and_flood_verdicts_find_each_kind_of_error() -> None:
    calm = quota.Outcome(
        30.0, alone=said({"ok": 15_000}), held=said({"ok": 30_200, "quota": 60_000}), beside=said({"ok": 30_000}),
        altered=said({"ok": 30_400, "quota": 60_000}, seconds=15.0), by_client=30_000, client_s=15.0,
        default=said({"ok": 15_200, "quota": 30_000}, seconds=15.0), after_kill=said({"ok": 15_100, "quota": 30_000}, seconds=15.0),
    )  # fmt: skip
    assert calm.wrong() + calm.slow() == []
    for part, key, value in (
        ("held", "answers", {"ok": 31_000, "quota": 9}), ("held", "answers", {"ok": 29_000, "quota": 9}), ("held", "unanswered", 1),
        ("altered", "answers", {"ok": 30_400}), ("beside", "answers", {"ok": 9, "quota": 1}), ("beside", "accepted_per_s", 900.0),
        ("held", "refused_ms", {"p99": 51.0}), ("default", "answers", {"ok": 45_000, "quota": 9}),
        ("after_kill", "answers", {"ok": 45_000, "quota": 9}),
    ):  # fmt: skip
        worse = copy.deepcopy(calm)
        getattr(worse, part)[key] = value
        assert len(worse.wrong() + worse.slow()) == 1, (part, key)
    good = flood.Outcome(
        60.0, 9000, said({"ok": 9}), [said({"ok": 9, "429": 9}, per_s=2300.0, ms=19.0)], 80, 300, {3}, {("n1", 1)}, {1},
        calm_after_s=2.0,
    )  # fmt: skip
    assert good.wrong() + good.slow() == []
    bad = flood.Outcome(
        60.0, 9000, said({"ok": 9}), [said({"503": 9}, ms=21.0, unanswered=1)], 80, 308, {2, 3}, set(), {1, 2}, ended=["n1"]
    )
    assert len(bad.wrong() + bad.slow()) == 10
