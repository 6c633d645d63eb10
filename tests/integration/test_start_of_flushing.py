"""A node that starts tries out what a flush takes: nobody waits for that, whatever it says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.dev.nats_server import NatsServer
from sidecar.node import node
from sidecar.node.node import Node
from sidecar.runtime.settings import NodeSettings
from tests.until import until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def settings(server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeSettings:
    monkeypatch.setattr(node, "exit_after", lambda *_: None)
    return NodeSettings("n1", tmp_path / "n1", nats=(server.url,), controllers=("n1",), namespace=f"t{time.monotonic_ns()}")


async def stop(running: Node) -> None:
    running.request_stop(hand_over=False)
    assert await running.stop() == 0


async def test_node_start_does_not_wait_for_a_hanging_flush_probe(
    settings: NodeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def hanging(folder: Path) -> list[float]:
        assert gate.wait(60)
        return [60.0]

    monkeypatch.setattr(node, "probe_flushes", hanging)
    running = Node(settings)
    try:
        await asyncio.wait_for(running.start(), 30)
        assert running._flush_runner.place.probed == 0
    finally:
        gate.set()
    await until(lambda: running._flush_runner.place.probed)
    assert not running._flush_runner.place.on_loop
    await stop(running)


async def test_node_keeps_running_after_a_failed_flush_probe(settings: NodeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "probe_flushes", lambda folder: None)
    running = Node(settings)
    await running.start()
    await until(lambda: running._flush_runner.place.probes_failed)
    assert running._failure is None
    await stop(running)
