"""Test the reload of settings: completely or not at all, and only settings that a running node can apply."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import nkeys
import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from sidecar.node import reload as module
from sidecar.node.node import Node
from sidecar.node.reload import LIVE, ReloadableParts, ReloadResult, SettingsReloader
from sidecar.partition.metric_sums import StreamLabels
from sidecar.runtime.settings import NodeSettings, SettingsLoader, flat, rows, with_values
from sidecar.workers.workers import divided_settings

SETTINGS = NodeSettings("n1", Path("/x"))
COPIES = ("copy_bytes_per_s", "copy_min_bytes_per_s", "copy_duty_cycle", "copy_fetch_bytes")


class Held(SimpleNamespace):
    """The partitions of a node: two."""

    def __iter__(self) -> Iterator[Any]:
        self.asked = getattr(self, "asked", 0)
        for _ in range(2):
            yield SimpleNamespace(trace=self._trace)

    def _trace(self) -> None:
        self.asked += 1


class Told:
    """What a node would do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: Any = SETTINGS
        self.rates: list[int] = []
        self.logs: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.labels = StreamLabels(())
        self.throttle = CatchupThrottle.from_config(SETTINGS.replication)
        self.partitions: Any = Held(counts=SimpleNamespace(labels=self.labels), copy_limit=self.throttle)
        self.traced: list[str] = []
        self.missing: ConfigError | None = None
        self.tracing: Any = SimpleNamespace(check=self.check, apply_settings=self.trace)
        self.hosts: list[tuple[str, ...]] = []
        self.preferred: list[float] = []
        self.others: list[NodeSettings] = []
        self.keys: list[Credentials] = []
        self.proved: list[Credentials] = []
        self.refusal: ConfigError | None = None
        self.scrub: Any = SimpleNamespace(change_rate=self.rates.append)
        self.supervisor: Any = SimpleNamespace(
            reloading=lambda: self.said.append("reloading"), reloaded=lambda: self.said.append("reloaded")
        )
        monkeypatch.setattr(module, "LOGS", SimpleNamespace(reconfigure=lambda level, form: self.logs.append((level, form))))
        self.reloading = SettingsReloader(SETTINGS, self, self.parts, self.prove)

    def parts(self) -> ReloadableParts:
        return ReloadableParts(
            self.partitions,
            self.scrub,
            lambda hosts: self.hosts.append(tuple(hosts)),
            self.preferred.append,
            self.others.append,
            self.keys.append,
            self.tracing,
        )

    async def prove(self, credentials: Credentials) -> None:
        self.proved.append(credentials)
        if self.refusal is not None:
            raise self.refusal

    def check(self, settings: NodeSettings) -> None:
        if settings.trace != "off" and self.missing is not None:
            raise self.missing

    def trace(self, settings: NodeSettings, partitions: Callable[[], None]) -> None:
        self.traced.append(settings.trace)
        partitions()

    sources: ClassVar[dict[str, str]] = {"rack": "file"}

    def load(self) -> NodeSettings:
        if isinstance(self.found, Exception):
            raise self.found
        assert isinstance(self.found, NodeSettings)
        return self.found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


async def test_settings_reload_waits_for_a_running_reload_that_tests_credentials(told: Told) -> None:
    tried, may_go_on = asyncio.Event(), asyncio.Event()

    async def prove(credentials: Credentials) -> None:
        told.proved.append(credentials)
        tried.set()
        await may_go_on.wait()

    reloading = SettingsReloader(SETTINGS, told, told.parts, prove)
    told.found = replace(SETTINGS, credentials=Credentials(token="one"), scrub_bytes_per_s=7)
    first = asyncio.ensure_future(reloading.reload())
    await asyncio.wait_for(tried.wait(), 10)
    told.found = replace(SETTINGS, credentials=Credentials(token="two"), scrub_bytes_per_s=9)
    second = asyncio.ensure_future(reloading.reload())
    for _ in range(3):
        await asyncio.sleep(0)
    assert (len(told.proved), told.rates) == (1, [])
    may_go_on.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    assert [one.token for one in told.keys] == ["one", "two"], "what was read last holds"
    assert reloading.running.scrub_bytes_per_s == told.rates[-1] == 9


async def test_settings_reload_applies_live_settings_and_lists_settings_that_need_a_restart(told: Told) -> None:
    told.found = replace(
        SETTINGS,
        log_level="debug",
        log_format="json",
        metrics_streams=("shop-*",),
        scrub_bytes_per_s=0,
        rack="b",
        data=Path("/y"),
    )
    assert await told.reloading.reload() == ReloadResult(
        ("log_level", "log_format", "metrics_streams", "scrub_bytes_per_s"), ("data", "rack")
    )
    assert told.logs == [("debug", "json")]
    assert told.rates == [0]
    assert told.labels.label_of("shop-1") == "shop-1"
    running = told.reloading.running
    assert (running.log_level, running.rack, running.data) == ("debug", "", Path("/x"))
    rows = {row["name"]: row for row in told.reloading.setting_rows()}
    assert rows["rack"] == {"name": "rack", "value": "", "read": "b", "source": "file", "default": "", "applies": "restart"}
    assert rows["metrics_streams"] == {
        "name": "metrics_streams", "value": ["shop-*"], "source": "default", "default": [], "applies": "live"
    }  # fmt: skip
    assert await told.reloading.reload() == ReloadResult((), ("data", "rack")), "once more: only what waits"


async def test_settings_reload_logs_each_list_of_names_as_one_value(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    told.found = replace(SETTINGS, log_level="debug", scrub_bytes_per_s=0, rack="b")
    with caplog.at_level(logging.INFO):
        await told.reloading.reload()
        await told.reloading.reload()
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("settings reloaded ")]
    values = [dict(pair.split("=") for pair in line.removeprefix("settings reloaded ").split(" ")) for line in lines]
    assert values == [
        {"applied": "log_level,scrub_bytes_per_s", "waiting_for_restart": "rack"},
        {"applied": "none", "waiting_for_restart": "rack"},
    ]


async def test_settings_reload_divides_limits_between_worker_processes(told: Told) -> None:
    several = replace(SETTINGS, workers=2)
    told.found = replace(several, log_level="debug", scrub_bytes_per_s=1000, rack="b")
    reloading = SettingsReloader(several, told, told.parts, told.prove)
    assert await reloading.reload() == ReloadResult(("log_level", "scrub_bytes_per_s"), ("rack",))
    assert told.rates == [500]
    (each,) = told.others
    assert (each.log_level, each.scrub_bytes_per_s, each.rack) == ("debug", 500, "")
    rows = {row["name"]: row["value"] for row in reloading.setting_rows()}
    assert rows["scrub_bytes_per_s"] == 1000, "what is shown is the node's"
    worker = SettingsReloader(divided_settings(several), None, told.parts, told.prove)
    worker.apply_settings(each)
    assert told.rates == [500, 500]


async def test_settings_reload_of_the_original_file_lists_no_pending_settings(told: Told) -> None:
    told.found = replace(SETTINGS, rack="b")
    assert await told.reloading.reload_after_signal(told.supervisor) == {"applied": [], "wait": ["rack"]}
    assert told.said == ["reloading", "reloaded"]
    told.found = SETTINGS
    assert await told.reloading.reload() == ReloadResult((), ())
    assert told.reloading.read == SETTINGS


@pytest.mark.parametrize(
    "wrong",
    [
        ConfigError("weight = 2000 is outside 0..1000. Choose a value in this range."),
        replace(SETTINGS, node_id="n2", log_level="debug"),
    ],
)
async def test_settings_reload_of_an_invalid_file_changes_no_setting(
    told: Told, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told.found = wrong
    with pytest.raises(ConfigError):
        await told.reloading.reload()
    with caplog.at_level(logging.ERROR):
        await told.reloading.reload_after_signal(told.supervisor)
    assert caplog.text.lower().count("settings not reloaded error=") == 1
    assert ("weight = 2000" if isinstance(wrong, ConfigError) else "node_id = 'n2'") in caplog.text
    assert (told.said, told.logs, told.rates) == (["reloading", "reloaded"], [], [])
    assert told.reloading.running == told.reloading.read == SETTINGS


async def test_settings_reload_reads_flags_environment_and_file_like_the_start(tmp_path: Path, told: Told) -> None:
    file = tmp_path / "n1.toml"
    file.write_text('node_id = "n1"\ndata = "/x"\nlog_level = "info"\n')
    flags = {"rack": "flag"}
    given = SettingsLoader(file, flags, {"LIFTPY_WEIGHT": "2", "LIFTPY_REPLICATION_SESSION_S": "3"})
    reloading = SettingsReloader(given.load(), given, told.parts, told.prove)
    file.write_text('node_id = "n1"\ndata = "/x"\nlog_level = "debug"\nrack = "c"\nnonsense = 1\n')
    with pytest.raises(ConfigError, match="nonsense"):
        await reloading.reload()
    file.write_text('node_id = "n1"\ndata = "/x"\nlog_level = "debug"\nrack = "c"\n')
    assert await reloading.reload() == ReloadResult(("log_level",), ()), "a flag wins over the file"
    sources = {row["name"]: row["source"] for row in reloading.setting_rows()}
    assert {name: sources[name] for name in ("rack", "weight", "data", "namespace", "replication.session_s")} == {
        "rack": "flag", "weight": "env", "data": "file", "namespace": "default", "replication.session_s": "env"
    }  # fmt: skip


def test_settings_rows_show_all_settings_without_secrets() -> None:
    secret = Credentials(user="u", password="hush")
    found = rows(replace(SETTINGS, nats=("nats://u:hush@h:4222",), credentials=secret), SETTINGS, {}, LIVE)
    by_name = {row["name"]: row for row in found}
    assert "hush" not in json.dumps(found)
    assert by_name["credentials.password"] == {
        "name": "credentials.password", "value": "***", "read": "", "source": "default", "default": "", "applies": "live"
    }  # fmt: skip
    assert (by_name["credentials.user"]["value"], by_name["credentials.token"]["value"]) == ("u", "")
    assert by_name["nats"]["value"][0].endswith("h:4222")
    assert set(LIVE) <= by_name.keys()
    lengths = len(fields(NodeSettings)) - 2 + len(fields(Credentials)) + len(fields(ReplicationConfig))
    assert len(by_name) == len(found) == lengths
    assert flat(with_values(SETTINGS, {"rack": "c", "replication.session_s": 3.0}))["replication.session_s"] == 3.0


async def test_settings_reload_with_credentials_that_nats_rejects_changes_no_setting(told: Told, tmp_path: Path) -> None:
    found = Credentials(user="u", password="hush", principal="u")
    told.found = replace(SETTINGS, credentials=found, log_level="debug")
    told.refusal = ConfigError("the NATS server does not accept these credentials")
    assert await told.reloading.reload_after_signal(told.supervisor) == {
        "error": "the NATS server does not accept these credentials"
    }
    assert (told.proved, told.keys, told.logs, told.reloading.running) == ([found], [], [], SETTINGS)
    told.refusal = None
    names = ("log_level", "credentials.user", "credentials.password")
    assert await told.reloading.reload() == ReloadResult(names, ("credentials.principal",))
    held = Credentials(user="u", password="hush")
    assert told.keys == [held], "who it asks as stays as it is"
    assert await told.reloading.reload() == ReloadResult((), ("credentials.principal",))
    assert (told.keys, len(told.proved)) == ([held], 2), "nothing new: nobody connects anew"


async def test_settings_reload_detects_changed_content_of_a_credentials_file(told: Told, tmp_path: Path) -> None:
    file = tmp_path / "n1.seed"
    file.write_bytes(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER))
    settings = replace(SETTINGS, workers=2, credentials=Credentials(nkey_seed_file=str(file)))
    told.found = settings
    reloading = SettingsReloader(settings, told, told.parts, told.prove)
    worker = SettingsReloader(divided_settings(settings), None, told.parts, told.prove)
    assert await reloading.reload() == ReloadResult((), ())
    file.write_bytes(nkeys.encode_seed(bytes([1]) * 32, nkeys.PREFIX_BYTE_USER))
    assert await reloading.reload() == ReloadResult(("credentials.nkey_seed_file",), ())
    assert told.keys == [settings.credentials]
    worker.apply_settings(told.others[-1])
    assert told.keys == [settings.credentials] * 2, "its other processes too"
    file.write_bytes(b"no seed")
    with pytest.raises(ConfigError, match="nkey_seed_file"):
        await reloading.reload()
    assert len(told.keys) == 2


async def test_settings_reload_applies_dashboard_hostnames_copy_rate_and_preferred_leaders(told: Told) -> None:
    config = replace(
        SETTINGS.replication,
        copy_bytes_per_s=5_000_000,
        copy_min_bytes_per_s=1_000_000,
        copy_duty_cycle=0.5,
        copy_fetch_bytes=65_536,
        preferred_leader_interval_s=30.0,
        session_s=3.0,
    )
    told.throttle.copied_bytes = 7
    told.found = replace(SETTINGS, dashboard_hostnames=("liftpy.example",), replication=config)
    found = await told.reloading.reload()
    assert set(found.applied) == {
        "dashboard_hostnames",
        *(f"replication.{name}" for name in COPIES),
        "replication.preferred_leader_interval_s",
    }
    assert found.wait == ("replication.session_s",)
    assert told.hosts[-1] == ("liftpy.example",)
    assert told.preferred == [30.0]
    assert told.throttle == replace(CatchupThrottle.from_config(config), copied_bytes=7), "what was copied stays counted"
    await told.reloading.reload()
    assert told.preferred == [30.0], "only when it changes: a look begins anew"


async def test_settings_reload_enables_and_disables_tracing_in_all_partitions(told: Told) -> None:
    told.found = replace(SETTINGS, trace="otlp", trace_endpoint="http://there:1")
    assert await told.reloading.reload() == ReloadResult(("trace", "trace_endpoint"), ())
    assert (told.traced, told.partitions.asked) == (["otlp"], 2)
    told.partitions = told.scrub = None  # a reload during the start
    told.found = replace(SETTINGS, log_level="warning")
    await told.reloading.reload()
    assert (told.traced, told.logs[-1]) == (["otlp", "off"], ("warning", "text"))


async def test_settings_reload_that_needs_a_missing_tracing_package_changes_no_setting(told: Told) -> None:
    told.missing = ConfigError("trace = 'otlp' needs `pip install liftpy[otlp]`")
    told.found = replace(SETTINGS, trace="otlp", log_level="debug")
    assert "liftpy[otlp]" in (await told.reloading.reload_after_signal(told.supervisor))["error"]
    assert (told.logs, told.traced, told.reloading.running, told.reloading.read) == ([], [], SETTINGS, SETTINGS)


# ---- SIGHUP --------------------------------------------------------------------------------------------------------------
async def test_node_with_an_unexpected_error_in_a_reload_runs_on_and_tells_its_supervisor_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    node = Node(NodeSettings("n1", tmp_path), again=SimpleNamespace(load=lambda: 1 / 0))  # type: ignore[arg-type]
    node.supervisor = SimpleNamespace(  # type: ignore[assignment]
        reloading=lambda: told.append("reloading"), reloaded=lambda: told.append("reloaded")
    )
    await node.reload()
    assert told == ["reloading", "reloaded"]
    assert node.counters == {"refused: failed request, settings reload": 1}
    assert "request failed kind=settings reload error=ZeroDivisionError" in caplog.text
