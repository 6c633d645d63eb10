"""Test alerts and runbooks: existing pages and metrics, and each alert fires only for its fault.

``promtool`` evaluates the rules as Prometheus does; where it is missing that part is skipped (Debian's package ``prometheus`` has it).
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field, fields
from math import isnan, nan
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.nats.credentials import Credentials
from sidecar.cli.backup import TABLE as BACKUP_TABLE
from sidecar.runtime.logs import EVENTS
from sidecar.runtime.settings import NodeSettings
from sidecar.status.metric_names import HISTOGRAM, TABLE
from tests.docs.commands_said import understood
from tests.each import each

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks"
DISASTERS = (
    "all-nodes-lost", "certificate-expired", "controller-lost", "controllers-lost", "isr-stuck", "network-split", "node-lost",
    "stream-deleted",
)  # fmt: skip
"""Runbooks of what no alert says alone."""
CARRIED_OUT = {
    "all-nodes-lost": ("tests/integration/test_backup.py", "tests/system/backup/__main__.py"),
    "backup-old": ("tests/unit/backup/test_backup_metrics.py", "tests/integration/test_backup_commands.py"),
    "certificate-expired": ("tests/integration/test_expired_certificate.py",),
    "clocks-jumped": ("tests/scripts/test_retention_with_a_wrong_clock.py", "tests/scripts/test_wall_clock_an_hour_off.py"),
    "controller-lost": ("tests/integration/test_controllers_cli.py",),
    "controllers-lost": ("tests/system/backup/__main__.py", "tests/unit/quorum/test_metadata_rescue.py"),
    "group-stuck": ("tests/integration/test_stuck_group.py",),
    "isr-stuck": (
        "tests/scripts/test_network_split.py", "tests/scripts/test_failed_storage_of_a_replica.py", "tests/scripts/test_slow_disk.py",
    ),
    "nats-lost": ("tests/integration/test_broken_nodes.py",),
    "network-split": (
        "tests/scripts/test_network_split.py", "tests/scripts/test_one_connection_lost.py", "tests/scripts/test_one_broken_link.py",
    ),
    "node-lost": ("tests/integration/test_node_cli.py", "tests/scripts/test_emptied_replica_and_an_expand.py"),
    "stream-deleted": ("tests/system/backup/__main__.py",),
}  # fmt: skip
"""Runbook -> the tests that carry it out."""
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: Debian's package prometheus has it")


def rules_of(name: str) -> list[dict[str, Any]]:
    """All rules of a file, in order."""
    loaded = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules_of("alerts.yml")}
RECORDED = {rule["record"]: rule for rule in rules_of("rules.yml")}


# ---- what is written ----------------------------------------------------------------------------------------------------------
@each("name", ALERTS)
def test_alert_has_severity_summary_and_runbook(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("page", "warn")
    assert set(rule["annotations"]) == {"summary", "runbook_url"}
    assert rule["annotations"]["summary"].count(".") >= 1, "what is wrong, and what to do"
    assert (ROOT / rule["annotations"]["runbook_url"]).is_file()


def test_runbook_page_exists_for_each_alert_and_disaster_and_for_nothing_else() -> None:
    wanted = {rule["annotations"]["runbook_url"] for rule in ALERTS.values()} | {
        f"docs/runbooks/{name}.md" for name in DISASTERS
    }
    assert {str(page.relative_to(ROOT)) for page in RUNBOOKS.iterdir()} == wanted


def test_runbook_page_of_each_disaster_refers_to_existing_tests() -> None:
    assert set(DISASTERS) <= set(CARRIED_OUT)
    assert all((RUNBOOKS / f"{name}.md").is_file() for name in CARRIED_OUT)
    missing = [path for paths in CARRIED_OUT.values() for path in paths if not (ROOT / path).is_file()]
    assert not missing


def test_runbook_page_contains_no_test_name() -> None:
    assert not [page.name for page in RUNBOOKS.iterdir() if "tests/" in page.read_text(encoding="utf-8")]


def metrics_of(expression: str) -> set[str]:
    return set(re.findall(r"\bliftpy_\w+", expression))


@each("name", [*ALERTS, *RECORDED])
def test_alert_rule_uses_existing_metrics_and_rules(name: str) -> None:
    expression = (ALERTS.get(name) or RECORDED[name])["expr"]
    assert set(re.findall(r"\bliftpy:[\w:]+", expression)) <= set(RECORDED)
    for metric in metrics_of(expression):
        plain = metric.removeprefix("liftpy_")
        short = re.sub(r"_(bucket|count|sum)$", "", plain)
        assert plain in (*TABLE, *BACKUP_TABLE) or (short in TABLE and TABLE[short].kind == HISTOGRAM), (
            f"{name}: no metric {metric}"
        )


@each("page", sorted(RUNBOOKS.iterdir()))
def test_runbook_page_uses_existing_commands_metrics_and_events(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Look", "Do", "Resolved when"]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for line in "".join(blocks).splitlines():
        words = shlex.split(line.replace("/var/lib/liftpy/streams/orders-UID/0", str(tmp_path)))
        assert words[0] == "liftpy", line
        understood(words[1:])
    known = (
        {one.name for of in (NodeSettings, Credentials, ReplicationConfig, StreamConfig) for one in fields(of)}
        | set(TABLE)
        | set(BACKUP_TABLE)
    )
    assert not set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text)) - known
    assert not set(re.findall(r"`([a-z]+\.[a-z_]+)`", text)) - set(EVENTS.values())


def test_runbook_check_of_an_invalid_command_line_fails() -> None:
    for words in (["stream", "alter", "orders", "--min-isrs", "1"], ["controllers", "swap"], ["node", "drain"]):
        with pytest.raises(click.UsageError):
            understood(words)


# ---- what they do -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """Series -> (value, for so many minutes), ...; when it must not fire yet, when it must, and when not any more, in minutes.

    ``where``: its labels when it fires. ``also``: other alerts that fire for it, because it is their fault too."""

    series: dict[str, tuple[tuple[float, int], ...]]
    early: float
    firing: float
    healed: float
    where: dict[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    every_min: int = 1
    """Between two samples: more for what takes a day."""


N1 = 'job="liftpy",instance="n1"'
JOB, NODE = {"job": "liftpy"}, {"job": "liftpy", "instance": "n1"}
BUCKETS = ("0.064", "0.128", "0.256", "0.512", "1.024", "2.048", "+Inf")


def gauge(name: str, *parts: tuple[float, int], labels: str = "") -> dict[str, tuple[tuple[float, int], ...]]:
    return {f"liftpy_{name}{{{N1}{labels}}}": parts}


def growing(per_minute: float, minutes: int, start: float = 0) -> tuple[tuple[float, int], ...]:
    return tuple((start + per_minute * minute, 1) for minute in range(minutes))


def slow(name: str, above: str, upto: str = "+Inf", labels: str = "") -> dict[str, tuple[tuple[float, int], ...]]:
    """A histogram that is quick (64 ms at most) for 20 minutes, then between ``above`` and ``upto`` s for 30, then quick again."""
    bound = BUCKETS.index(upto)
    slow_ones, quick = growing(60, 30, 1200), growing(60, 40, 3000)
    found = {}
    for number, le in enumerate(BUCKETS):
        counts = slow_ones if number >= bound else ((1140.0, 30),)
        lag = 0 if number >= bound else 1800
        ends = tuple((value - lag, minutes) for value, minutes in quick)
        found[f'liftpy_{name}_bucket{{{N1},le="{le}"{labels}}}'] = (*growing(60, 20), *counts, *ends)
    assert bound > BUCKETS.index(above)
    return found


DISK = {f"liftpy_disk_size_bytes{{{N1}}}": ((100.0, 800),)}
CASES: dict[str, Case] = {
    "PartitionsOffline": Case(gauge("cluster_partitions_offline", (0, 5), (2, 5), (0, 5)), 5.5, 7, 11, JOB),
    "PartitionFailed": Case(gauge("partitions_failed", (0, 5), (1, 5), (0, 5)), 5.5, 7, 11, NODE),
    "UnderMinIsr": Case(gauge("partitions_under_min_isr", (0, 5), (3, 5), (0, 5)), 5.5, 7, 11, JOB),
    "NoMetadataLeader": Case(gauge("metadata_is_leader", (1, 5), (0, 5), (1, 5)), 5, 6, 11, JOB),
    "MetadataDivergence": Case(gauge("metadata_divergence_total", (0, 5), (1, 40)), 4, 6, 20, NODE),
    "UncleanElection": Case(
        gauge("cluster_elections_total", (0, 5), (1, 40), labels=',kind="unclean"')
        | gauge("cluster_elections_total", *growing(1, 45), labels=',kind="clean"'),
        4, 6, 20, JOB,
    ),
    "DamagedSegments": Case(gauge("damaged_segments_total", (3, 5), (4, 40)), 4, 6, 20, NODE),
    "NodeDown": Case({f"up{{{N1}}}": ((1, 5), (0, 5), (1, 5)), 'up{job="other",instance="x"}': ((0, 15),)}, 5.5, 7, 11, NODE),
    "NodeFenced": Case(
        gauge("cluster_nodes", (0, 5), (1, 10), (0, 5), labels=',state="fenced"')
        | gauge("cluster_nodes", (3, 20), labels=',state="live"'),
        9, 11, 16, JOB,
    ),
    "UnderReplicated": Case(gauge("partitions_under_replicated", (0, 5), (1, 10), (0, 5)), 9, 11, 16, JOB),
    "IsrFlapping": Case(gauge("isr_shrinks_total", (0, 5), (3, 5), (6, 40)), 7, 11, 30, NODE),
    "AckSlow": Case(slow("ack_duration_seconds", "0.256", "0.512", ',policy="all"'), 22, 35, 70, NODE),
    "AckVerySlow": Case(slow("ack_duration_seconds", "1.024", labels=',policy="all"'), 22, 35, 70, NODE, also=("AckSlow",)),
    "FlushSlow": Case(slow("log_flush_duration_seconds", "0.128"), 27, 40, 70, NODE),
    "FailoverSlow": Case(
        gauge("failover_duration_seconds_count", (4, 5), (5, 40))
        | gauge("failover_duration_seconds_bucket", (4, 45), labels=',le="10.24"'),
        4, 6, 20, JOB,
    ),
    "DiskFilling": Case(
        DISK | gauge("disk_free_bytes", (90, 400), *tuple((38 - minute / 30, 1) for minute in range(300)), (60, 100)),
        402, 500, 720, NODE, every_min=4,
    ),
    "DiskFull": Case(DISK | gauge("disk_free_bytes", (50, 5), (4, 5), (50, 5)), 5.5, 7, 11, NODE),
    "Overloaded": Case(
        gauge("publish_rejected_total", (0, 5), *growing(100, 15), (1400, 20), labels=',reason="overloaded"')
        | gauge("publish_rejected_total", *growing(5, 40), labels=',reason="duplicate"'),
        9, 13, 30, NODE,
    ),
    "StandbyOverflow": Case(gauge("standby_overflow_total", (0, 5), (7, 40)), 4, 6, 20, NODE),
    "LoopLag": Case(slow("event_loop_lag_seconds", "0.256"), 22, 35, 70, NODE),
    "BusFlapping": Case(
        gauge("nats_reconnects_total", (0, 5), (2, 3), (5, 40), labels=',connection="reads"')
        | gauge("nats_reconnects_total", (0, 5), (2, 3), (3, 40), labels=',connection="ingest"'),
        7, 9, 30, NODE,
    ),
    "NatsLost": Case(gauge("nats_connected", (1, 5), (0, 5), (1, 5)), 5.2, 6, 11, NODE),
    "StreamWaits": Case(gauge("cluster_streams_waiting", (0, 5), (2, 5), (0, 5)), 5.5, 7, 11, JOB),
    "ServiceFailing": Case(gauge("services_blocked", (0, 5), (1, 10), (0, 5)), 9, 11, 16, NODE),
    "ServiceEnded": Case(gauge("services_ended", (0, 5), (1, 10), (0, 5)), 4, 7, 16, NODE),
    "ServiceDiverged": Case(
        gauge("services_diverged", (0, 5), (1, 5), (0, 10)) | gauge("services_differing", (0, 10), (1, 5), (0, 5)), 4, 7, 16, NODE
    ),
    "GroupStuck": Case(
        gauge("group_lag_records", (0, 5), *growing(9, 20), (0, 20), labels=',group="g"')
        | gauge("group_lag_seconds", (0, 5), *growing(60, 20), (0, 20), labels=',group="g"')
        | gauge("group_lag_records", *growing(9, 45), labels=',group="slow"')
        | gauge("group_lag_seconds", *growing(30, 45), labels=',group="slow"')
        | gauge("group_lag_records", (9, 45), labels=',group="idle"')
        | gauge("group_lag_seconds", *growing(60, 45), labels=',group="idle"'),
        12, 18, 30, JOB | {"group": "g"},
    ),
    "DataDirectoryLost": Case(gauge("cluster_data_directories_lost_total", (0, 5), (1, 40)), 4, 6, 20, JOB),
    "AuditDropped": Case(gauge("audit_dropped_total", (0, 5), (7, 40)), 4, 6, 20, NODE),
    "BackupOld": Case(
        {'liftpy_backup_newest_timestamp_seconds{job="node",instance="b",store="/b"}': ((0, 1600), (90000, 100))}
        | {'liftpy_backup_newest_timestamp_seconds{job="node",instance="b",store="/c"}': ((80000, 1700),)},
        1550, 1570, 1620, {"store": "/b"}, every_min=4,
    ),
    "VersionsMixed": Case(
        {f'liftpy_build_info{{{N1},version="1"}}': ((1, 1600),)}
        | {'liftpy_build_info{job="liftpy",instance="n2",version="2"}': ((1, 1500),)},
        1430, 1460, 1520, JOB, every_min=4,
    ),
    "ClockSkew": Case(gauge("clock_untrusted", (0, 5), (1, 10), (0, 5)), 9, 11, 16, NODE),
    "LevelWaits": Case(
        gauge("feature_level_supported", (2, 1600), labels=',bound="max"') | gauge("feature_level", (1, 1500), (2, 100)),
        1430, 1460, 1520, JOB, every_min=4,
    ),
}  # fmt: skip
OTHER_HALVES = {
    "BackupOld": Case(
        {'liftpy_backup_newest_timestamp_seconds{job="node",instance="b",store="/b"}': ((200, 5), (3600, 5), (400, 5))},
        4, 7, 11, {"store": "/b"},
    ),
    "DamagedSegments": Case(gauge("scrub_damage_total", (3, 5), (4, 40)), 4, 6, 20, NODE),
    "DiskFilling": Case(DISK | gauge("disk_free_bytes", (50, 5), (14, 30), (50, 5)), 19, 21, 36, NODE),
}  # fmt: skip
"""Of alerts that have two."""
DOWN_AND_FENCED = Case(
    {f"up{{{N1}}}": ((1, 5), (0, 10), (1, 5))} | gauge("cluster_nodes", (0, 5), (1, 10), (0, 5), labels=',state="fenced"'),
    5.5, 12, 16, NODE,
)  # fmt: skip
"""Prometheus sees that the fenced node is down: one page is enough."""
AT_A_START = Case(
    gauge("damaged_segments_total", (nan, 6), (1, 40)) | gauge("uptime_seconds", (nan, 6), *growing(60, 40, 30)), 5, 7, 25, NODE
)
"""A node was away for long, and finds damage when it starts: there is no sample before the damage."""


def a_test(name: str, case: Case) -> dict[str, Any]:
    """Return a promtool test: the firing alerts at three moments."""
    severity = {alert: rule["labels"]["severity"] for alert, rule in ALERTS.items()}
    firing = [
        {"labels": _labels({"alertname": one, "alertstate": "firing", "severity": severity[one], **case.where}), "value": 1}
        for one in sorted((name, *case.also))
    ]

    def at(minute: float, wanted: list[dict[str, Any]]) -> dict[str, Any]:
        return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{round(minute * 60)}s", "exp_samples": wanted}

    return {
        "name": name,
        "interval": f"{case.every_min}m",
        "input_series": [
            {"series": series, "values": " ".join(samples(parts, case.every_min))} for series, parts in case.series.items()
        ],
        "promql_expr_test": [at(case.early, []), at(case.firing, firing), at(case.healed, [])],
    }


def samples(parts: tuple[tuple[float, int], ...], every_min: int) -> list[str]:
    return ["_" if isnan(value) else f"{value:g}" for value, minutes in parts for _ in range(minutes)][::every_min]


def _labels(labels: dict[str, str]) -> str:
    return "ALERTS{" + ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"


def promtool(*words: str | Path) -> str:
    """Return the output of promtool and fail with it after an error."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alert_with_an_instance_label_in_its_summary_has_a_test_case_with_an_instance() -> None:
    assert list(CASES) == list(ALERTS)
    for name, case in CASES.items():
        assert ("$labels.instance" in ALERTS[name]["annotations"]["summary"]) == ("instance" in case.where), name


@needs_promtool
def test_alert_rules_are_accepted_by_promtool() -> None:
    said = promtool("check", "rules", *sorted(FOLDER.glob("*.yml")))
    assert said.count("SUCCESS") == 2


@needs_promtool
def test_alert_fires_only_for_its_fault_after_its_delay_and_resolves(tmp_path: Path) -> None:
    paths, all_of_them = (
        [],
        [*CASES.items(), *OTHER_HALVES.items(), ("DamagedSegments", AT_A_START), ("NodeDown", DOWN_AND_FENCED)],
    )
    for every_min, evaluated in ((1, "30s"), (4, "4m")):
        asked = {
            "rule_files": [str(path) for path in sorted(FOLDER.glob("*.yml"))],
            "evaluation_interval": evaluated,
            "tests": [a_test(name, case) for name, case in all_of_them if case.every_min == every_min],
        }
        paths.append(tmp_path / f"{evaluated}.yml")
        paths[-1].write_text(json.dumps(asked), encoding="utf-8")
    promtool("test", "rules", *paths)
