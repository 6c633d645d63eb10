"""``liftpy stream pause`` and ``resume``: requests to the cluster, and printed states."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftpy.client.stream_info import StreamInfo
from liftpy.core.base.partition import Pause
from tests.flat_client import FlatClient
from tests.unit.cli.test_cluster_commands import Cluster, cluster, run

__all__ = ["cluster"]


class Paused(FlatClient):
    """What the cluster is asked for, done to its image."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def pause(self, name: str, partitions: tuple[int, ...] | None, **how: bool) -> StreamInfo:
        return self._all(
            name, partitions, Pause.UNTIL_PUBLISH if how["resume_on_publish"] else Pause.UNTIL_RESUMED, "pause", how
        )

    async def resume(self, name: str, partitions: tuple[int, ...] | None) -> StreamInfo:
        return self._all(name, partitions, Pause.ENDING, "resume", {})

    def _all(self, name: str, partitions: tuple[int, ...] | None, pause: Pause, what: str, how: dict[str, Any]) -> StreamInfo:
        self.cluster.asked.append((what, name, partitions, *how.values()))
        for number in partitions or (0, 1):
            self.cluster.set(name, number, pause=pause)
        return StreamInfo.of(self.cluster.image.streams[name])


def test_stream_show_after_stream_pause_lists_the_paused_partitions(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("pause", "resume"):
        setattr(cluster, word, getattr(Paused(cluster), word))
    uid = cluster.image.streams["orders"].uid
    assert "paused" not in run(capsys, "stream", "show", "orders")[1]
    code, out, _ = run(capsys, "stream", "pause", "orders", "--partition", "1")
    assert (code, out) == (0, "orders/1 is paused until resumed\n")
    shown = run(capsys, "stream", "show", "orders")[1]
    assert shown.endswith("\npaused, until resumed: 1\n")
    listed = json.loads(run(capsys, "stream", "show", "orders", "--json")[1])["partitions"]
    assert [p["paused"] for p in listed] == ["", "until resumed"]
    code, out, _ = run(capsys, "stream", "pause", "orders", "--resume-on-publish", "--json")
    about = [{"partition": n, "paused": "until publish"} for n in (0, 1)]
    assert (code, json.loads(out)) == (0, {"stream": "orders", "uid": uid, "partitions": about})
    run(capsys, "stream", "pause", "orders", "--resume-all", "--partition", "0", "--partition", "1")
    code, out, _ = run(capsys, "stream", "resume", "orders", "--partition", "0")
    assert (code, out) == (0, "orders/0 accepts publishes\n")
    assert run(capsys, "stream", "resume", "orders", "--json")[1].count("ending") == 2
    assert cluster.asked == [
        ("pause", "orders", (1,), False, False), ("pause", "orders", None, True, False), ("pause", "orders", (0, 1), True, True),
        ("resume", "orders", (0,)), ("resume", "orders", None),
    ]  # fmt: skip


def test_stream_pause_with_an_invalid_partition_exits_with_2(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["pause", "orders", "--partition", "-1"], ["resume", "orders", "--partition", "x"], ["pause"]):
        assert run(capsys, "stream", *words)[0] == 2
    assert cluster.asked == []
