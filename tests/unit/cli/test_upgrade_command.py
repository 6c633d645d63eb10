"""``liftpy upgrade``: requests, printed texts and exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from liftpy.core.metadata.features import FeatureLevels, LevelRange
from liftpy.core.metadata.image import NodeImage
from sidecar.cli import upgrade as commands
from tests.flat_client import FlatClient

BOTH, OLD = LevelRange(5, 6), LevelRange(5, 5)
WELL = {"health": {"live": True, "ready": True, "synced": True}, "checks": {}}


class FakeClient(FlatClient):
    """Of a cluster of two nodes at ``level``; ``reasons``: against any other level."""

    def __init__(self, level: int = 5, b: LevelRange | None = BOTH, reasons: tuple[str, ...] = (), version: str = "1") -> None:
        self.levels = FeatureLevels(level, {"a": BOTH, "b": b}, {"a": "1", "b": version})
        self.reasons = reasons
        self.health: dict[str, Any] = {"a": WELL, "b": WELL}
        self.fenced: set[str] = set()
        self.set: list[int] = []

    async def describe_cluster(self, *, linearizable: bool) -> Any:
        assert linearizable
        nodes = {n: NodeImage(node_id=n, incarnation=1, fenced=n in self.fenced) for n in "ab"}
        return SimpleNamespace(image=SimpleNamespace(nodes=nodes))

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        reasons = self.reasons if level not in (0, self.levels.level) else ()
        return FeatureLevels(self.levels.level, self.levels.spoken, self.levels.versions, reasons)

    async def set_feature_level(self, level: int) -> str:
        self.set.append(level)
        return f"it is {level}"

    async def node_health(self, node_id: str, _timeout_s: float) -> dict[str, Any]:
        return dict(self.health[node_id])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    def run(client: FakeClient, *words: str, as_json: bool = True) -> tuple[int, Any]:
        def with_client(_target: object, work: Callable[[Any], Awaitable[Any]]) -> Any:
            return asyncio.run(work(client))  # type: ignore[arg-type]

        monkeypatch.setattr(commands, "with_client", with_client)
        done = CliRunner().invoke(commands.upgrade, [*words, *(["--json"] if as_json else [])], standalone_mode=False)
        assert done.exception is None, done.exception
        return done.return_value or 0, json.loads(done.output) if as_json else done.output

    return run


def test_upgrade_finalize_of_a_healthy_cluster_sets_the_next_feature_level(run: Any) -> None:
    client = FakeClient()
    assert run(client, "check") == (0, {
        "well": True, "level": 5, "to": 6,
        "checks": ["[+] a: live, ready, synced", "[+] b: live, ready, synced", "[+] versions: 1", "[+] level 6: can be finalized"],
    })  # fmt: skip
    assert run(client, "finalize", "--dry-run") == (0, {"level": 5, "to": 6, "reasons": [], "done": False})
    assert client.set == []
    assert run(client, "finalize", "--yes") == (0, {"level": 6, "to": 6, "reasons": [], "done": True})
    assert client.set == [6]
    assert run(FakeClient(6), "finalize", as_json=False) == (0, "The current level is already 6.\n")
    assert run(FakeClient(6), "check", as_json=False)[1].endswith("[+] level 6 is active, nothing to finalize\n")


def test_upgrade_finalize_with_an_unsupported_node_lists_the_reasons_and_sets_no_level(run: Any) -> None:
    client = FakeClient(b=OLD, reasons=("node b speaks 5, not 6",), version="0")
    client.health["b"] = {"health": {"live": True, "ready": True, "synced": False}, "checks": {"synced": "x/0 lags"}}
    client.fenced = {"a"}
    code, found = run(client, "check", "--level", "6")
    assert (code, found["well"], found["to"]) == (1, False, 6)
    assert found["checks"] == [
        "[-] a: does not answer", "[-] b: synced: x/0 lags", "[-] versions: 0, 1", "[-] level 6: node b speaks 5, not 6",
    ]  # fmt: skip
    assert run(client, "finalize", "--level", "6") == (
        1, {"level": 5, "to": 6, "reasons": ["node b speaks 5, not 6"], "done": False},
    )  # fmt: skip
    assert run(client, "finalize", "--level", "6", as_json=False) == (1, "node b speaks 5, not 6\n")
    assert run(client, "finalize")[1]["to"] == 5, "the highest that all speak"
    assert client.set == []


def test_upgrade_finalize_of_a_lower_level_is_rejected_and_revert_announces_it(run: Any) -> None:
    client = FakeClient(6)
    code, said = run(client, "finalize", "--level", "5", as_json=False)
    assert (code, said) == (1, "Level 5 is below the current level 6. Use `liftpy upgrade revert` to go back.\n")
    assert run(client, "revert", "--dry-run", as_json=False) == (0, "Level 5 can be restored. The current level is 6.\n")
    assert client.set == []


@pytest.mark.parametrize(("answer", "level_set"), [("n\n", []), ("y\n", [6]), ("", [])])
def test_upgrade_finalize_asks_for_a_confirmation_before_it_sets_the_level(
    monkeypatch: pytest.MonkeyPatch, answer: str, level_set: list[int]
) -> None:
    client = FakeClient()
    monkeypatch.setattr(commands, "with_client", lambda _, work: asyncio.run(work(client)))
    done = CliRunner().invoke(commands.upgrade, ["finalize"], input=answer)
    assert client.set == level_set
    assert "Finalize level 6? [y/N]" in done.stderr
    assert (done.exit_code == 0) is bool(level_set)
