"""Credentials that change while a node runs: it connects anew with what the server takes, and keeps what works otherwise."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from liftpy.client import Client, connect
from liftpy.nats.credentials import Credentials
from sidecar.dev.cluster import DevNode
from sidecar.dev.nats_server import NatsServer
from sidecar.runtime.settings import child_environment
from tests.integration.conftest import show
from tests.nats_config import change_config
from tests.until import until

pytestmark = pytest.mark.processes

CHECKOUT = str(Path(__file__).resolve().parents[2])
APP = Credentials(user="app", password="app-secret")


def users(**passwords: str) -> str:
    said = ", ".join(f"{{ user: {name}, password: {password} }}" for name, password in passwords.items())
    return f"authorization: {{ users: [ {said} ] }}\n"


async def acked(nc: nats.NATS, text: bytes) -> None:
    """Publish until it is."""
    end = time.monotonic() + 20
    while True:
        try:
            answer = await nc.request("data.kept", text, timeout=1)
        except nats.errors.Error:
            assert time.monotonic() < end, text
            await asyncio.sleep(0.05)
        else:
            assert b'"seq"' in answer.data, answer.data
            return


def lines(node: DevNode, what: str) -> int:
    return sum(what in line for line in node.log)


@pytest.mark.parametrize("workers", [2])
async def test_node_reconnects_with_changed_credentials_without_a_restart(workers: int, tmp_path: Path) -> None:
    """And with those that it has, where the server takes no others."""
    settings = tmp_path / "liftpy.toml"

    def write(user: str, password: str) -> None:
        settings.write_text(f'[credentials]\nuser = "{user}"\npassword = "{password}"\n')

    write("old", "first")
    app = {"app": "app-secret"}
    with NatsServer(config=users(old="first", **app)) as server:
        flags = ["--node-id", "n1", "--controllers", "n1", "--data", str(tmp_path / "n1"), "--config", str(settings)]
        environment = {**child_environment(), "PYTHONPATH": CHECKOUT, "LIFTPY_NATS": server.url, "LIFTPY_WORKERS": str(workers)}
        node = DevNode("n1", [sys.executable, "-m", "sidecar", "--json", *flags], environment, show)
        node.start()
        await asyncio.to_thread(node.wait_ready)
        nc = await nats.connect(server.url, user="app", password="app-secret")
        try:
            async with await connect(server.url, credentials=APP) as client:
                await client.create_stream("kept", "data.kept")
                await acked(nc, b"before")
                await _refuses(client, write)
                change_config(server, users(old="first", new="second", **app))
                write("new", "second")
                said = await client.admin.reload_settings("n1")
                assert said == {"applied": ["credentials.user", "credentials.password"], "wait": []}
                await until(
                    lambda: lines(node, "NATS connection restored") >= 3 * workers,
                    "connections for data are back, of each process three",
                )
                await acked(nc, b"with the new ones")
                assert lines(node, "The NATS credentials were reloaded") == 3 * workers
                lost = lines(node, "NATS connection lost")
                change_config(server, users(new="second", **app))
                await acked(nc, b"nobody uses the old ones any more")
                await client.admin.describe_cluster(linearizable=True)
                assert lines(node, "NATS connection lost") == lost

                change_config(server, users(new="third", **app))
                await until(lambda: lines(node, "NATS connection lost") >= lost + 3 * workers, "the node is cut off")
                write("new", "third")
                os.kill(node.pid, signal.SIGHUP)
                await acked(nc, b"after it was cut off")
                await client.admin.describe_cluster(linearizable=True)
                assert node.running
                assert (await client.bounds("kept")).high_watermark >= 3
        finally:
            await nc.close()
            await asyncio.to_thread(node.terminate)


async def _refuses(client: Client, write: Callable[[str, str], None]) -> None:
    write("old", "wrong")
    said = await client.admin.reload_settings("n1")
    assert "rejected the credentials" in said["error"]
    write("old", "first")
    assert await client.admin.reload_settings("n1") == {"applied": [], "wait": []}
