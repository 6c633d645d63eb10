"""Test defaults of settings, and error handlers of tasks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import ConfigError
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import fatal_on, report_failure, spawn_in


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
