"""``liftpy upgrade`` while nodes have two versions. ``golden/upgrade.txt`` has a cluster with one version."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.metadata.features import FeatureLevels, LevelRange
from liftpy.core.metadata.image import NodeImage
from sidecar.cli import upgrade as commands
from tests.flat_client import FlatClient
from tests.unit.cli.conftest import Run


class TwoVersions(FlatClient):
    """Client of a cluster at level 5. Node a is fenced, and node b has an older version."""

    async def describe_cluster(self, *, linearizable: bool) -> Any:
        assert linearizable
        nodes = {name: NodeImage(node_id=name, incarnation=1, fenced=name == "a") for name in "ab"}
        return SimpleNamespace(image=SimpleNamespace(nodes=nodes))

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        levels = FeatureLevels(5, {"a": LevelRange(5, 6), "b": LevelRange(5, 5)}, {"a": "1", "b": "0"})
        return replace(levels, reasons=("node b speaks 5, not 6",)) if level > 5 else levels

    async def node_health(self, node_id: str, _timeout_s: float) -> dict[str, Any]:
        return {"health": {"live": True, "ready": True, "synced": False}, "checks": {"synced": "x/0 lags"}}


def test_upgrade_command_with_nodes_of_two_versions_lists_the_obstacles_to_the_next_level(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "with_client", lambda _, work: asyncio.run(work(TwoVersions())))

    def ended(*words: str) -> tuple[int, Any]:
        code, text, _ = run("upgrade", *words, "--json")
        return code, json.loads(text)

    assert ended("check", "--level", "6") == (1, {"well": False, "level": 5, "to": 6, "checks": [
        "[-] a: does not answer", "[-] b: synced: x/0 lags", "[-] versions: 0, 1", "[-] level 6: node b speaks 5, not 6",
    ]})  # fmt: skip
    reasons = ["node b speaks 5, not 6"]
    assert ended("finalize", "--level", "6", "--yes") == (1, {"level": 5, "to": 6, "reasons": reasons, "done": False})
    assert ended("finalize", "--yes") == (0, {"level": 5, "to": 5, "reasons": [], "done": False}), "all nodes support it"
