"""``liftpy settings``: printed settings of a node, and the result of a reload."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from liftpy.config import DefaultQuota, SessionTimes, StreamConfig
from sidecar.cli import settings as module
from tests.flat_client import FlatClient
from tests.unit.cli.test_cluster_commands import Cluster, cluster, run

__all__ = ["cluster"]

ROWS = [
    {"name": "rack", "value": "a", "read": "b", "source": "file", "default": "", "applies": "restart"},
    {"name": "log_level", "value": "info", "source": "default", "default": "info", "applies": "live"},
    {"name": "dashboard_hostnames", "value": ["[x]", "y"], "source": "env", "default": [], "applies": "live"},
]


class Asked(FlatClient):
    """In the place of a client."""

    said: dict[str, Any]
    quota = DefaultQuota(records_per_s=5, by_token=2)
    set_to: dict[str, int] | None = None

    async def default_quota(self) -> DefaultQuota:
        return self.quota

    async def set_default_quota(self, **given: int) -> DefaultQuota:
        self.set_to = given
        return replace(self.quota, **given)

    times: SessionTimes | None = SessionTimes(2000, 900)
    asked_times = 0

    async def session_times(self) -> SessionTimes | None:
        self.asked_times += 1
        assert self.times is not None or not self.set_to
        return self.times if self.times is None or self.asked_times < 3 else self.times.settled()

    async def set_session_times(self, **given: Any) -> SessionTimes:
        self.set_to = given
        self.times = SessionTimes(5000, 900, 2000, 900, 1)
        return self.times

    async def node_settings(self, node_id: str) -> list[dict[str, Any]]:
        assert node_id == "n1"
        return ROWS

    async def reload_settings(self, node_id: str) -> dict[str, Any]:
        assert node_id == "n1"
        return self.said


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    monkeypatch.setattr(module, "with_client", lambda _, work, **__: asyncio.run(work(made)))
    monkeypatch.setenv("COLUMNS", "120")
    return made


def test_settings_show_with_diff_option_prints_only_changed_settings(client: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "settings", "show", "n1")
    assert code == 0
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.split()}
    assert lines["log_level"] == ["log_level", "info", "default", "info", "live"]
    assert "a (from the next start: b)" in out
    assert "[x], y" in out
    _, out, _ = run(capsys, "settings", "show", "n1", "--diff", "--json")
    assert [row["name"] for row in json.loads(out)["settings"]] == ["rack", "dashboard_hostnames"]


def test_settings_reload_prints_which_settings_were_applied_or_need_a_restart(
    client: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    client.said = {"applied": ["log_level"], "wait": ["rack"]}
    assert run(capsys, "settings", "reload", "n1") == (
        0,
        "n1: applied now: log_level\nn1: applied at the next restart: rack\n",
        "",
    )
    assert json.loads(run(capsys, "settings", "reload", "n1", "--json")[1]) == {"node": "n1", **client.said}
    client.said = {"error": "weight = 2000 is outside 0..1000. Choose a value in this range."}
    code, out, err = run(capsys, "settings", "reload", "n1")
    assert (code, out) == (2, "")
    assert "2000 is outside 0..1000. Choose" in err


def test_settings_default_quota_command_prints_changes_and_removes_the_default_quota(
    client: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("settings", "default-quota")
    shown = "default quota: 5 records/s, for each value of token 2 of the subject\n"
    assert (run(capsys, *words), client.set_to) == ((0, shown, ""), None)
    assert json.loads(run(capsys, *words, "--json")[1]) == {"records_per_s": 5, "bytes_per_s": 0, "by_token": 2}
    code, out, _ = run(capsys, *words, "--quota-bytes", "9", "--quota-by-token", "0")
    assert (code, out, client.set_to) == (
        0,
        "default quota: 5 records/s, 9 bytes/s\n",
        {"bytes_per_s": 9, "by_token": 0},
    )
    assert run(capsys, *words, "--none") == (0, "default quota: none\n", "")
    assert client.set_to == {"records_per_s": 0, "bytes_per_s": 0, "by_token": 0}
    client.set_to = None
    code, _, err = run(capsys, *words, "--none", "--quota-records", "1")
    assert (code, client.set_to) == (2, None)
    assert "--none cannot be combined with other options" in err


def test_settings_node_session_command_waits_until_the_new_session_time_is_settled(
    client: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHECK_INTERVAL_S", 0)
    words = ("settings", "node-session")
    assert run(capsys, *words) == (0, "session 2 s, lease 0.9 s\n", "")
    said = json.loads(run(capsys, *words, "--session", "5", "--no-wait", "--json")[1])
    assert (said["session_ms"], said["session_before_ms"], said["settled"]) == (5000, 2000, False)
    assert (client.set_to, client.asked_times) == ({"session_s": 5.0, "lease_s": None}, 1)
    assert run(capsys, *words, "--session", "5") == (0, "session 5 s, lease 0.9 s\n", "")
    assert client.asked_times == 3, "until it is settled"
    client.asked_times = -(1 << 40)
    monkeypatch.setattr(module, "_SETTLES_WITHIN_S", -1000.0)
    code, _, err = run(capsys, *words, "--session", "5")
    assert code != 0
    assert "The change continues. Do not repeat the command." in err
    client.times, client.set_to = None, None
    assert run(capsys, *words) == (0, "each node uses its own settings, because the cluster is new\n", "")
    assert run(capsys, *words, "--json") == (0, "null\n", "")


def test_stream_show_prints_the_default_quota_for_a_stream_without_a_quota(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> tuple[bool, dict[str, int]]:
        said = json.loads(run(capsys, "stream", "show", "orders", "--json")[1])
        return "by the cluster's default quota: 5 records/s" in run(capsys, "stream", "show", "orders")[1], said[
            "default_quota"
        ]

    none = {"records_per_s": 0, "bytes_per_s": 0, "by_token": 0}
    assert shown() == (False, none)
    cluster.driver.fsm.image = replace(cluster.image, default_quota=DefaultQuota(records_per_s=5))
    assert shown() == (True, {**none, "records_per_s": 5})
    stream = cluster.image.streams["orders"]
    for config in (StreamConfig(quota_exempt=True), StreamConfig(quota_bytes_per_s=9)):
        cluster.driver.fsm.image = cluster.image.with_altered(replace(stream, config=config))
        assert shown() == (False, none)
