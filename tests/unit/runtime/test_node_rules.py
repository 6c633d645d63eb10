"""Test connection counters, defaults of settings, and error handlers of tasks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.instruments import Instruments
from liftpy.core.log.flush import FlushScheduler
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.partition.reads import ReadBudget
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.memory_budget import MemoryBudget
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.inflight_limits import NodeInflight
from liftpy.core.wire.decode_errors import REFUSED
from liftpy.errors import ConfigError
from sidecar.disk.flush_thread import FlushThread, FlushTimes
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import fatal_on, report_failure, spawn_in
from sidecar.status.report import Reporter

TRAFFIC = ("in_msgs", "out_msgs", "in_bytes", "out_bytes", "reconnects")


def a_link(name: str, number: int, *, connected: bool = True) -> Any:
    cuts, overflow = SimpleNamespace(lost_messages=4, unknown=5), SimpleNamespace(backlog_bytes=6)
    return SimpleNamespace(
        name=name,
        is_connected=connected,
        connected_url=None,
        max_payload=1 << 20,
        unsent_bytes=number,
        stats={what: number * 10 + at for at, what in enumerate(TRAFFIC)},
        errors=Counter({"slow": number}),
        waiting_bytes=1,
        most_waiting_bytes=2,
        bursts=3,
        disconnect_loss=cuts,
        overflow=overflow,
        dropped_unread=7,
    )


def node_tools(settings: NodeSettings, links: Any, counters: dict[str, int]) -> Any:
    """Tools of a node, with the parts that a reporter uses."""
    return SimpleNamespace(
        settings=settings,
        incarnation=4,
        links=links,
        counters=counters,
        instruments=Instruments(),
        inflight=NodeInflight(),
        memory_budget=MemoryBudget(),
        reads=SimpleNamespace(budget=ReadBudget()),
        flush_runner=FlushThread(FlushScheduler()),
        flush_times=FlushTimes(),
        copy_limit=CatchupThrottle(),
        state_memory=NodeStateMemory(),
        clocks=SimpleNamespace(check=lambda: SimpleNamespace(skew_ns=0, why="")),
    )


NO_COORDINATORS: Any = SimpleNamespace(running=None)


def a_reporter(tmp_path: Path, links: list[Any], failed: dict[str, str] | None = None) -> Reporter:
    class Partitions(list[Any]):
        failed: dict[str, str]

    partitions = Partitions()
    partitions.failed = failed or {}
    group: Any = SimpleNamespace(
        leader="n1",
        image=SimpleNamespace(index=5, controllers=ControllerList(("n1", "n2"), "n3", "n2", 4)),
        is_controller=True,
        held={"journal_bytes": 9},
        counters={f"{REFUSED}checksum": 2},
        ticks=lambda: {"late": 1},
    )
    all_links: Any = SimpleNamespace(all=lambda: links, replication=links[0], ingest=links[-1])
    counters = {"elections": 1, f"{REFUSED}sender": 3}
    scrub: Any = SimpleNamespace(report=dict)
    tools = node_tools(NodeSettings("n1", tmp_path), all_links, counters)
    return Reporter(tools, group, partitions, scrub, NO_COORDINATORS, ControllerMetrics(), dict)  # type: ignore[arg-type]


def test_status_report_sums_the_counters_of_connections_with_the_same_purpose(tmp_path: Path) -> None:
    links = [a_link("replication", 3), a_link("clients", 5, connected=False), a_link("ingest", 7)]
    report = a_reporter(tmp_path, links, {"s/0": "its disk is gone"}).report()
    assert report["controllers"] == {
        "voters": ["n1", "n2"], "learner": "n3", "leaving": "n2", "index": 4, "differ_from_settings": True,
    }  # fmt: skip
    nats = report["nats"]
    assert {name: nats[name] for name in TRAFFIC} == {name: 150 + 3 * at for at, name in enumerate(TRAFFIC)}
    assert (nats["connected"], nats["send_buffer_bytes"], nats["errors"]) == (False, 15, {"slow": 15})
    assert a_reporter(tmp_path, links[::2]).nats()["connected"]
    each = report["connections"]
    assert {name: row["send_buffer_bytes"] for name, row in each.items()} == {"replication": 3, "clients": 5, "ingest": 7}
    assert {name: row["in_bytes"] for name, row in each.items()} == {"replication": 32, "clients": 52, "ingest": 72}
    assert [name for name, row in each.items() if not row["connected"]] == ["clients"]
    assert each["clients"]["errors"] == {"slow": 5}
    lost = ("waiting_bytes", "most_waiting_bytes", "bursts", "lost_with_connections", "connections_with_unknown_loss")
    assert [each["ingest"][name] for name in (*lost, "server_holds_bytes", "left_out")] == [1, 2, 3, 4, 5, 6, 7]
    assert report["failed_partitions"] == {"s/0": "its disk is gone"}
    assert report["refused"] == {"sender": 3, "metadata: checksum": 2}
    assert report["counters"]["elections"] == 1
    facts = ("node", "incarnation", "metadata_leader", "metadata_index", "metadata_held", "ticks", "controller")
    assert [report[name] for name in facts] == ["n1", 4, "n1", 5, {"journal_bytes": 9}, {"late": 1}, True]


# ---- defaults and checks ------------------------------------------------------------------------------------------------
def test_node_settings_by_default_open_no_http_port_and_disable_a_bootstrap_by_majority(tmp_path: Path) -> None:
    settings = NodeSettings("n1", tmp_path)
    assert not settings.bootstrap_majority, "a group that can't be reached is not taken for a new one"
    assert settings.elections
    assert settings.status_port < 0, "no port is open that nobody asked for"
    assert not settings.is_controller
    assert NodeSettings("n1", tmp_path, controllers=("n1",)).is_controller


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": "a.*"},
        {"namespace": ""},
        {"nats": ("http://here",)},
        {"controllers": ("n1", "n1")},
        {"controllers": ("n 1",)},
        {"rack": "a b"},
        {"weight": -0.1},
        {"weight": 1000.1},
        {"scrub_bytes_per_s": -1},
        {"scrub_bytes_per_s": (1 << 34) + 1},
        {"status_port": -2},
        {"status_port": 65_536},
        {"log_level": "loud"},
    ],
    ids=str,
)
def test_node_settings_with_invalid_values_are_rejected(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        NodeSettings("n1", tmp_path, **wrong)


# ---- tasks --------------------------------------------------------------------------------------------------------------


async def test_fatal_error_handler_reports_a_background_failure_only_to_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    by_default: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "default_exception_handler", by_default.append)
    loop.set_exception_handler(None)
    failures: list[Exception] = []
    take_back = fatal_on(loop, failures.append)
    report_failure("the feed", ValueError("bad"))
    assert ([str(failure) for failure in failures], by_default) == (
        ["The background task the feed ended unexpectedly: ValueError('bad'). The node stops. Please report it with its log."],
        [],
    )
    loop.call_exception_handler({"message": "somebody else's"})
    assert (len(failures), by_default) == (1, [{"message": "somebody else's"}])
    take_back()


async def test_task_spawned_in_another_event_loop_is_cancelled_with_the_awaiting_task() -> None:
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    began, over = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            over.set()

    try:
        end = spawn_in(other, work(), "work")
        assert await asyncio.to_thread(began.wait, 10)
        await end()
        assert over.is_set()
    finally:
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()
