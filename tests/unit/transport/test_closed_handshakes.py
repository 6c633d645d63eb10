"""Test a NATS server that closes a connection during the handshake, as it does with a client certificate that has expired."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path

import pytest

from liftpy.errors import UnavailableError
from liftpy.nats.transport import open_connection
from sidecar.runtime.settings import NodeSettings
from sidecar.transport.connection import BusConnection, open_bus
from tests.integration.test_expired_certificate import Authority


class ClosingServer:
    """A NATS server that closes each connection during the handshake.

    ``certificates`` switches TLS on. ``reads_first``: wait for the CONNECT line. ``resets``: close with a TCP reset.
    """

    def __init__(self, certificates: Authority | None, *, reads_first: bool, resets: bool) -> None:
        self.certificates, self.reads_first, self.resets = certificates, reads_first, resets

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = b',"tls_required":true' if self.certificates else b""
        writer.write(b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576%b}\r\n' % tls)
        with contextlib.suppress(OSError):
            await writer.drain()
            if self.certificates:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(self.certificates.path("server.pem"), self.certificates.path("server.key"))
                await writer.start_tls(context)
            if self.reads_first:
                await reader.readline()
        if self.resets:
            writer.transport.abort()
        else:
            writer.close()

    def close(self) -> None:
        self._server.close()


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize(
    "tls", [False, pytest.param(True, marks=pytest.mark.skipif(not shutil.which("openssl"), reason="openssl"))]
)
async def test_connect_to_a_server_that_closes_during_the_handshake_fails_and_names_the_certificate(
    tmp_path: Path, tls: bool, resets: bool, reads_first: bool
) -> None:
    certificates = await asyncio.to_thread(Authority, tmp_path) if tls else None
    server = ClosingServer(certificates, reads_first=reads_first, resets=resets)
    url = await server.start()
    credentials = certificates.credentials() if certificates else None
    with pytest.raises(UnavailableError, match="closed the connection during the handshake") as raised:
        await open_connection(url, credentials=credentials, timeout_s=2)
    assert ("may reject the client certificate" in str(raised.value)) is tls
    server.close()


async def test_node_logs_each_different_reason_why_it_cannot_connect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = ClosingServer(None, reads_first=True, resets=False)
    url = await server.start()
    opening = asyncio.create_task(open_bus(NodeSettings("n1", Path("unused"), nats=(url,)), lambda: BusConnection("test")))
    for reason in ("during the handshake", "Connect call failed"):
        async with asyncio.timeout(20):
            while not any(reason in line for line in caplog.messages):
                assert not opening.done()
                await asyncio.sleep(0.005)
        server.close()
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await opening
    assert len(caplog.messages) == len(set(caplog.messages))
