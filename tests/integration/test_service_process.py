"""``liftpy service`` as a process: it may be started before there is a NATS server, and stopped while it waits for one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import nats
import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2
from sidecar.dev.nats_server import NatsServer
from tests.examples.processes import start_service

pytestmark = pytest.mark.processes

TIMEOUT_S = 30.0


def begin(data: Path, url: str) -> subprocess.Popen[Any]:
    """A service over a stream that is nowhere."""
    return start_service(
        "tests.examples.chain:Chain",
        stream="s",
        node="n1",
        data=data,
        output="out",
        snapshot_interval_records=100,
        nats_url=url,
    )


async def test_service_process_that_waits_for_nats_connects_when_the_server_starts(tmp_path: Path) -> None:
    server = NatsServer()
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.kill)  # its port is known, and nobody listens there
    process = begin(tmp_path, server.url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while "retrying" not in (tmp_path / "n1.log").read_text():
                assert process.poll() is None, (tmp_path / "n1.log").read_text()
                await asyncio.sleep(0.05)
        await asyncio.to_thread(server.resume)
        connection = await nats.connect(server.url)
        hellos = await connection.subscribe("liftpy.service.n1.>")
        hello = frames.decode((await hellos.next_msg(TIMEOUT_S)).data, service_pb2.ServiceHello)
        assert (hello.service, hello.stream) == ("chain", "s")
        await connection.close()
    finally:
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, TIMEOUT_S)
        await asyncio.to_thread(server.stop)
    assert code == 0


async def test_service_process_that_waits_for_nats_stops_on_sigterm(tmp_path: Path) -> None:
    process = begin(tmp_path, "nats://127.0.0.1:1")
    async with asyncio.timeout(TIMEOUT_S):
        while "retrying" not in (tmp_path / "n1.log").read_text():
            await asyncio.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0
