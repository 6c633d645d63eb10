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
from sidecar.runtime.restarts import EXIT_NO_RESTART
from sidecar.runtime.settings import NodeSettings


# ---- how it ends ---------------------------------------------------------------------------------------------------------
class Ending:
    """A node that is asked to end. ``left``: seconds until the end by force. ``codes``: exit codes of this end."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.left: list[float] = []
        self.codes: list[int] = []
        patch.setattr(sidecar.node.node, "exit_after", self._exit_after)
        self.node = Node(NodeSettings("n1", folder))
        self._log = caplog

    def _exit_after(self, seconds: float, code: int = 1) -> None:
        self.left.append(seconds)
        self.codes.append(code)

    def stops(self) -> tuple[bool, bool, bool, list[float], list[str]]:
        """(is to stop, hands over, repairs, left, what was said since)."""
        said = [*self._log.messages]
        self._log.clear()
        return self.node._stopping.is_set(), self.node._hand_over, self.node._repairs, self.left, said


@pytest.fixture
async def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Ending:
    return Ending(tmp_path, monkeypatch, caplog)


async def test_node_with_several_failures_stops_with_the_first_failure_as_reason(ending: Ending) -> None:
    assert ending.stops() == (False, False, False, [], [])
    first = LiftError("the disk")
    ending.node.fatal(first)
    assert ending.stops() == (True, False, False, [12.0], ["node failed node=n1 error=the disk: stopping"])
    ending.node.fatal(LiftError("what followed"))
    ending.node.repair("s/0: damage")
    assert ending.stops() == (True, False, False, [12.0], []), "nothing is repaired by a node that failed"
    assert ending.node._failure is first


async def test_node_repair_restart_begins_once_and_an_operator_stop_overrides_the_restart(ending: Ending) -> None:
    for said in (["log damaged node=n1 log=s/0: damage: restarting to repair it"], []):
        ending.node.repair("s/0: damage")
        assert ending.stops() == (True, True, True, [12.0], said)
    async with asyncio.timeout(30):
        await ending.node.wait()
    ending.node.request_stop(hand_over=False)
    assert ending.stops() == (True, False, False, [12.0], [])
    assert await ending.node.stop() == 0


@pytest.mark.parametrize(("failure", "code"), [(CorruptionError("lost its journal"), 78), (LiftError("a bug"), 1)])
async def test_node_with_a_hung_stop_after_a_failure_ends_with_the_exit_code_of_the_failure(
    ending: Ending, failure: Exception, code: int
) -> None:
    ending.node.fatal(failure)
    assert (ending.left, ending.codes) == ([12.0], [code])
    assert await ending.node.stop() == code


@pytest.mark.parametrize(("failure", "code"), [(OSError(5, "I/O"), 75), (LiftError("a bug"), 1)])
async def test_node_exit_code_is_75_after_a_disk_error_and_1_after_a_bug(ending: Ending, failure: Exception, code: int) -> None:
    ending.node.fatal(failure)
    assert await ending.node.stop() == code


# ---- one process ---------------------------------------------------------------------------------------------------------
class Life:
    """A node that starts and stops as a test says, in ``run_node``; the signals' handlers are kept, and not set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.told: list[Any] = []
        self.ready: list[Any] = []
        self.handlers: dict[int, Callable[[], None]] = {}
        self.started: Any = {"node": "n1"}
        self.stopping = asyncio.Event()
        self.stopped: Exception | None = None
        self.disk = asyncio.Event()
        """Set while the disk does not hang."""
        self.disk.set()
        module = sidecar.node.node
        patch.setattr(module, "Node", lambda settings, again: self)
        patch.setattr(module, "retain_freed_memory", lambda: self.told.append("memory is kept"))
        patch.setattr(module, "make_collections_rare", lambda: self.told.append("garbage seldom"))
        patch.setattr(module, "exit_after", lambda seconds, code=1: self.told.append(f"leave in {seconds} with {code}"))
        loop = asyncio.get_running_loop()
        patch.setattr(
            loop, "add_signal_handler", lambda number, call, *given: self.handlers.update({number: lambda: call(*given)})
        )

        self.supervisor: Any = "supervisor"
        self.reloading: Any = SimpleNamespace(reload_after_signal=self.signalled)

    async def signalled(self, supervisor: Any) -> None:
        self.told.append(f"reload, and tell the {supervisor}")

    async def start(self) -> dict[str, Any]:
        self.told.append("start")
        if isinstance(self.started, BaseException):
            raise self.started
        if self.started is None:
            await asyncio.sleep(3600)
        return dict(self.started)

    async def wait(self) -> None:
        await self.stopping.wait()

    async def stop(self) -> int:
        self.told.append("stop")
        await self.disk.wait()
        if self.stopped is not None:
            raise self.stopped
        return 3

    def request_stop(self, *, hand_over: bool) -> None:
        self.told.append(f"stop with{'' if hand_over else 'out'} a hand-over")
        self.stopping.set()

    def fatal(self, failure: Exception) -> None:
        self.told.append(failure)
        self.stopping.set()

    async def run(self, during: Callable[[], None] = lambda: None) -> int:
        settings: Any = SimpleNamespace(node_id="n1")
        running = asyncio.create_task(run_node(settings, self.ready.append))
        async with asyncio.timeout(30):
            while "start" not in self.told:
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            during()
            return await running


@pytest.fixture
async def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    return Life(monkeypatch)


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGTERM, "stop with a hand-over"), (signal.SIGINT, "stop without a hand-over")]
)
async def test_node_process_runs_until_a_stop_signal(life: Life, number: int, said: str) -> None:
    assert await life.run(lambda: life.handlers[number]()) == 3
    assert life.ready == [{"node": "n1"}]
    assert life.told == ["memory is kept", "garbage seldom", "start", "leave in 12.0 with 1", said, "stop"]


async def test_node_process_reloads_settings_on_sighup_and_keeps_running(life: Life) -> None:
    def reload_and_stop() -> None:
        life.handlers[signal.SIGHUP]()
        life.handlers[signal.SIGTERM]()

    assert await life.run(reload_and_stop) == 3
    assert "reload, and tell the supervisor" in life.told


async def test_node_process_stopped_during_start_is_never_ready(life: Life) -> None:
    life.started = None
    assert await life.run(lambda: life.handlers[signal.SIGTERM]()) == 3
    assert (life.ready, life.told[-1]) == ([], "stop")


async def test_node_process_restarts_after_a_temporary_start_failure_and_raises_other_errors(life: Life) -> None:
    life.started = failure = OSError(28, "No space left on device")
    assert await life.run() == 3
    assert life.told[2:] == ["start", failure, "stop"]
    life.told.clear()
    life.started = ConfigError("a folder of another node")
    with pytest.raises(ConfigError, match="another node"):
        await life.run()
    assert (life.told[2:], life.ready) == (["start", "leave in 12.0 with 1", "stop"], [])


@pytest.mark.parametrize(("failure", "code"), [(ConfigError("a folder"), 1), (CorruptionError("a folder"), EXIT_NO_RESTART)])
async def test_node_process_with_a_hung_disk_logs_a_failed_start_and_limits_the_stop(
    life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception, code: int
) -> None:
    monkeypatch.setattr(sidecar.node.node, "SLOW_STOP_S", 0.0)
    life.started = failure
    life.disk.clear()
    running = asyncio.create_task(life.run())
    async with asyncio.timeout(30):
        while "stop" not in life.told or "node failed node=n1 error=a folder: stopping" not in caplog.text:
            await asyncio.sleep(0)
    assert life.told[2:] == ["start", f"leave in 12.0 with {code}", "stop"]
    life.disk.set()
    with pytest.raises(type(failure), match="a folder"):
        await running


async def test_node_process_with_a_failed_start_and_a_failed_stop_raises_the_error_of_the_start(life: Life) -> None:
    life.started, life.stopped = CorruptionError("damaged metadata"), OSError("a close failed")
    with pytest.raises(CorruptionError, match="damaged metadata"):
        await life.run()
    life.started = {"node": "n1"}
    with pytest.raises(OSError, match="a close failed"):
        await life.run(lambda: life.handlers[signal.SIGTERM]())
