"""Test the HTTP port ``probe_listen``: health and metrics, and no other page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liftpy.core.observe.node_health import Check
from liftpy.errors import ConfigError
from sidecar.dev.nats_server import free_ports
from sidecar.runtime.settings import NodeSettings
from sidecar.status import http as module
from sidecar.status.status_api import StatusHandler


class Healthy:
    def live(self) -> list[Check]:
        return [Check("tasks", "")]

    def ready(self) -> list[Check]:
        return [Check("nats", "is away")]

    def ready_checks(self) -> list[Check]:
        return [Check("synced", "n2 is not")]


@pytest.fixture
async def handler(tmp_path: Path) -> AsyncIterator[StatusHandler]:
    made = StatusHandler(NodeSettings("n1", tmp_path, probe_listen=f"127.0.0.1:{free_ports(1)[0]}"))
    made.health = Healthy()  # type: ignore[assignment]
    await made.open_page()
    yield made
    await made.close()


def port_of(handler: StatusHandler) -> int:
    return int(handler._settings.probe_listen.rpartition(":")[2])


async def answer(handler: StatusHandler, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(handler))
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:  # it had not read all
        return b""
    finally:
        writer.close()


async def status(handler: StatusHandler, path: str, method: str = "GET") -> int:
    said = await answer(handler, f"{method} {path} HTTP/1.1\r\nHost: 10.0.0.7:8224\r\n\r\n".encode())
    return int(said.split()[1])


async def test_health_port_serves_only_health_and_metrics(handler: StatusHandler) -> None:
    assert not handler.url, "the page has no port"
    assert [await status(handler, path) for path in ("/livez", "/readyz", "/readyz?synced", "/metrics")] == [200, 503, 503, 503]
    for path in ("/", "/status", "/metrics/partitions?stream=s", "/api/cluster.json", "/static/page.js", "/livez/"):
        assert await status(handler, path) == 404, path
    assert await status(handler, "/livez", "POST") == 405
    assert b"n2 is not" in await answer(handler, b"GET /readyz?synced&verbose HTTP/1.1\r\n\r\n")
    assert b"405" in await answer(handler, b"GET\r\n\r\n")


async def test_health_port_closes_silent_connections_and_bounds_their_number(
    handler: StatusHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 0)
    assert await answer(handler, b"GET /livez HTTP/1.1\r\n\r\n") == b""
    monkeypatch.setattr(module, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.05)
    assert await answer(handler, b"GET /livez") == b""
    assert await answer(handler, b"x" * 100_000) == b""
    assert await status(handler, "/livez") == 200, "and goes on"


async def test_health_port_with_40_silent_connections_answers_a_request(handler: StatusHandler) -> None:
    port = port_of(handler)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
    try:
        for _ in range(3):
            assert await status(handler, "/livez") == 200
        assert await asyncio.wait_for(silent[0][0].read(), 10) == b"", "the oldest silent connection has made room"
    finally:
        for _, writer in silent:
            writer.close()


async def test_health_port_answers_500_when_a_request_raises(handler: StatusHandler) -> None:
    handler.health = None
    handler.reporter = object()  # type: ignore[assignment]  # of which no metrics can be made
    assert await status(handler, "/metrics") == 500
    handler.health = Healthy()  # type: ignore[assignment]
    assert await status(handler, "/livez") == 200


async def test_health_port_that_is_in_use_raises_config_error(handler: StatusHandler, tmp_path: Path) -> None:
    second = StatusHandler(NodeSettings("n2", tmp_path, probe_listen=f"127.0.0.1:{port_of(handler)}"))
    with pytest.raises(ConfigError, match=r"Cannot listen on probe_listen 127\.0\.0\.1:\d+: .*in use"):
        await second.open_page()
