"""Test how a node ends, and how a process runs one node."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sidecar.node.node
from liftpy.errors import ConfigError, CorruptionError, LiftError
from sidecar.node.node import Node, run_node
from sidecar.runtime.restarts import EXIT_NO_RESTART, EXIT_TO_REPAIR
from sidecar.runtime.settings import NodeSettings


@pytest.fixture(autouse=True)
def forced_ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Return the requested ends by force: (time until then, exit code)."""
    found: list[tuple[float, int]] = []
    monkeypatch.setattr(sidecar.node.node, "exit_after", lambda seconds, code=1: found.append((seconds, code)))
    return found


# ---- how it ends ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("failure", "forced", "code"),
    [
        (CorruptionError("lost its journal"), EXIT_NO_RESTART, EXIT_NO_RESTART),
        (OSError(5, "I/O"), 1, EXIT_TO_REPAIR),
        (LiftError("a bug"), 1, 1),
    ],
)
async def test_node_with_several_failures_stops_with_the_exit_code_of_the_first_failure(
    failure: Exception, forced: int, code: int, forced_ends: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(NodeSettings("n1", tmp_path))
    node.fatal(failure)
    node.fatal(LiftError("what followed"))
    node.repair("s/0: damage")
    async with asyncio.timeout(30):
        await node.wait()
    assert forced_ends == [(12.0, forced)]
    assert caplog.messages == [f"node failed node=n1 error={failure}: stopping"]
    assert await node.stop() == code


@pytest.mark.parametrize(("is_requested", "code"), [(False, EXIT_TO_REPAIR), (True, 0)])
async def test_node_repair_restart_begins_once_and_an_operator_stop_overrides_the_restart(
    is_requested: bool, code: int, forced_ends: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(NodeSettings("n1", tmp_path))
    for _ in range(2):
        node.repair("s/0: damage")
    async with asyncio.timeout(30):
        await node.wait()
    if is_requested:
        node.request_stop(transfer_leaderships=False)
    assert forced_ends == [(12.0, 1)]
    assert caplog.messages == ["log damaged node=n1 log=s/0: damage: restarting to repair it"]
    assert await node.stop() == code


# ---- one process ---------------------------------------------------------------------------------------------------------
class Life:
    """A node in ``run_node``. ``started``: result or error of its start, None if it does not end. ``stopped``: error of its stop."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ready: list[Any] = []
        self.requests: list[Any] = []
        """Whether to transfer leaderships, for each stop signal, or the failure that ends the node."""
        self.handlers: dict[int, Callable[[], None]] = {}
        self.started: Any = {"node": "n1"}
        self.stopped: Exception | None = None
        self.is_starting, self.is_stopping = asyncio.Event(), False
        self.stopping = asyncio.Event()
        self.disk = asyncio.Event()
        """Set while the disk does not hang."""
        self.disk.set()
        module = sidecar.node.node
        patch.setattr(module, "Node", lambda settings, again: self)
        patch.setattr(module, "retain_freed_memory", lambda: None)
        patch.setattr(module, "make_collections_rare", lambda: None)
        patch.setattr(
            asyncio.get_running_loop(),
            "add_signal_handler",
            lambda number, call, *given: self.handlers.update({number: lambda: call(*given)}),
        )

    async def start(self) -> dict[str, Any]:
        self.is_starting.set()
        if isinstance(self.started, BaseException):
            raise self.started
        if self.started is None:
            await asyncio.sleep(3600)
        return dict(self.started)

    async def wait(self) -> None:
        await self.stopping.wait()

    async def stop(self) -> int:
        self.is_stopping = True
        await self.disk.wait()
        if self.stopped is not None:
            raise self.stopped
        return 3

    def request_stop(self, *, transfer_leaderships: bool) -> None:
        self.requests.append(transfer_leaderships)
        self.stopping.set()

    def fatal(self, failure: Exception) -> None:
        self.requests.append(failure)
        self.stopping.set()

    async def run(self, number: int | None = None) -> int:
        """Run the process. Send the signal ``number`` when the node starts."""
        settings: Any = SimpleNamespace(node_id="n1")
        running = asyncio.create_task(run_node(settings, self.ready.append))
        async with asyncio.timeout(30):
            await self.is_starting.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            if number is not None:
                self.handlers[number]()
            return await running


@pytest.fixture
async def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    return Life(monkeypatch)


@pytest.mark.parametrize(("number", "hands_over"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
@pytest.mark.parametrize("started", [{"node": "n1"}, None], ids=["started", "during the start"])
async def test_node_process_runs_until_a_stop_signal(
    life: Life, started: Any, number: int, hands_over: bool, forced_ends: list[Any]
) -> None:
    life.started = started
    assert await life.run(number) == 3
    assert life.ready == [started] * (started is not None)
    assert (life.requests, forced_ends) == ([hands_over], [(12.0, 1)])


async def test_node_process_restarts_after_a_temporary_start_failure(life: Life) -> None:
    life.started = failure = OSError(28, "No space left on device")
    assert await life.run() == 3
    assert (life.requests, life.ready) == ([failure], [])


@pytest.mark.parametrize("failure", [ConfigError("a folder"), CorruptionError("a folder")])
async def test_node_process_with_a_hung_disk_logs_a_failed_start_and_limits_the_stop(
    life: Life,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
    forced_ends: list[Any],
) -> None:
    monkeypatch.setattr(sidecar.node.node, "SLOW_STOP_S", 0.0)
    life.started = failure
    life.disk.clear()
    running = asyncio.create_task(life.run())
    async with asyncio.timeout(30):
        while not life.is_stopping or "node failed node=n1 error=a folder: stopping" not in caplog.text:
            await asyncio.sleep(0)
    assert forced_ends == [(12.0, EXIT_NO_RESTART if isinstance(failure, CorruptionError) else 1)]
    life.disk.set()
    with pytest.raises(type(failure), match="a folder"):
        await running
    assert life.ready == []


async def test_node_process_with_a_failed_start_and_a_failed_stop_raises_the_error_of_the_start(life: Life) -> None:
    life.started, life.stopped = CorruptionError("damaged metadata"), OSError("a close failed")
    with pytest.raises(CorruptionError, match="damaged metadata"):
        await life.run()
    life.started = {"node": "n1"}
    with pytest.raises(OSError, match="a close failed"):
        await life.run(signal.SIGTERM)
