"""``liftpy settings``: what is shown of a node's settings, and what is said of a reload."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sidecar.cli import settings as module
from tests.unit.cli.test_cli_with_a_cluster import run

ROWS = [
    {"name": "rack", "value": "a", "read": "b", "source": "file", "default": "", "applies": "restart"},
    {"name": "log_level", "value": "info", "source": "default", "default": "info", "applies": "live"},
    {"name": "page_hosts", "value": ["[x]", "y"], "source": "env", "default": [], "applies": "live"},
]


class Asked:
    """In the place of a client."""

    said: dict[str, Any]

    async def node_settings(self, node_id: str) -> list[dict[str, Any]]:
        assert node_id == "n1"
        return ROWS

    async def reload_settings(self, node_id: str) -> dict[str, Any]:
        assert node_id == "n1"
        return self.said


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(module, "with_client", lambda _, work: asyncio.run(work(made)))
    monkeypatch.setenv("COLUMNS", "120")
    return made


def test_all_settings_or_what_differs(client: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "settings", "show", "n1")
    assert code == 0
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.split()}
    assert lines["log_level"] == ["log_level", "info", "default", "info", "live"]
    assert "a (from the next start: b)" in out
    assert "[x], y" in out
    _, out, _ = run(capsys, "settings", "show", "n1", "--diff", "--json")
    assert [row["name"] for row in json.loads(out)["settings"]] == ["rack", "page_hosts"]


def test_a_reload_says_what_is_live_what_waits_and_what_is_wrong(client: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    client.said = {"applied": ["log_level"], "wait": ["rack"]}
    assert run(capsys, "settings", "reload", "n1") == (0, "n1: live now: log_level\nn1: wait for a restart: rack\n", "")
    assert json.loads(run(capsys, "settings", "reload", "n1", "--json")[1]) == {"node": "n1", **client.said}
    client.said = {"error": "weight = 2000 is outside 0..1000"}
    code, out, err = run(capsys, "settings", "reload", "n1")
    assert (code, out) == (2, "")
    assert "nothing is changed: weight = 2000 is outside 0..1000" in err
