"""Certificates expire: the NATS server's, then the node's own. Nodes wait, say why, lose nothing; what the runbook
``certificate-expired`` says brings them back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from liftpy.client import Client, Credentials, connect
from liftpy.errors import LiftError, UnavailableError
from sidecar.dev.cluster import DevCluster, DevNode
from sidecar.dev.nats_server import NatsServer
from tests.integration.conftest import show

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]
_WAIT_S = 30.0


class Authority:
    """Certificates of one authority, in a folder: ``issue`` puts one in the place of the one before, for the same key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 rejects an authority without it
        self._openssl("req", "-x509", *self._new("ca"), *usage, "-days", "2", "-out", "ca.pem")
        for name in ("server", "node"):
            self._openssl("req", *self._new(name), "-addext", "subjectAltName=IP:127.0.0.1", "-out", f"{name}.csr")
            self.issue(name)

    def path(self, name: str) -> str:
        return str(self._folder / name)

    def issue(self, name: str, *, expired: bool = False) -> None:
        days = "-1" if expired else "2"
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy", "-days", days)
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")

    def credentials(self) -> Credentials:
        return Credentials(
            tls_ca_file=self.path("ca.pem"), tls_cert_file=self.path("node.pem"), tls_key_file=self.path("node.key")
        )

    def _new(self, name: str) -> tuple[str, ...]:
        return (
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}.key",
        )

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._folder, check=True, capture_output=True, timeout=30)


async def says(node: DevNode, *words: str) -> None:
    """Wait until the last lines of the node's log have all of ``words`` in one of them."""
    async with asyncio.timeout(_WAIT_S):
        while not any(all(word in line for word in words) for line in list(node.log)):
            assert node.running, list(node.log)
            await asyncio.sleep(0.05)


async def values(client: Client) -> list[bytes]:
    async with asyncio.timeout(_WAIT_S):
        return [record.value async for record in client.consume("orders", until="end")]


async def test_node_with_an_expired_certificate_reconnects_after_the_renewal(tmp_path: Path) -> None:
    made = await asyncio.to_thread(Authority, tmp_path)
    files = {
        part: made.path(name) for part, name in (("cert_file", "server.pem"), ("key_file", "server.key"), ("ca_file", "ca.pem"))
    }
    tls = ", ".join(f'{name}: "{path}"' for name, path in files.items())
    own = {
        f"LIFTPY_TLS_{part}_FILE": made.path(name)
        for part, name in (("CA", "ca.pem"), ("CERT", "node.pem"), ("KEY", "node.key"))
    }
    with NatsServer(config=f"tls {{ {tls}, verify: true }}\n") as server:
        url = server.url.replace("nats://", "tls://")
        with DevCluster(1, nats_url=url, settings=own, on_line=show) as cluster:
            node = cluster.nodes["n1"]
            async with connect(url, credentials=made.credentials()) as client:
                await client.create_stream("orders", "data.orders")
                await client.publish("orders", b"before")

            made.issue("server", expired=True)
            server.restart()
            await says(node, "reconnecting")
            await says(node, "certificate has expired")
            with pytest.raises(UnavailableError, match="expired"):
                await connect(url, credentials=made.credentials(), timeout_s=1)
            made.issue("server")
            os.kill(server.pid, signal.SIGHUP)  # nats-server --signal reload
            await says(node, "connection restored")
            async with connect(url, credentials=made.credentials()) as client:
                await client.publish("orders", b"renewed")

            assert node.terminate() == 0
            made.issue("node", expired=True)
            node.log.clear()
            node.start()
            await says(node, "cannot connect to NATS servers=", "certificate")
            made.issue("node")
            await asyncio.to_thread(node.wait_ready)
            async with connect(url, credentials=made.credentials()) as client:
                await client.publish("orders", b"after")
                assert await values(client) == [b"before", b"renewed", b"after"]


_PARTS = (("CA", "ca.pem"), ("CERT", "node.pem"), ("KEY", "node.key"))
_FILES = ("ca.pem", "server.pem", "server.key", "node.pem", "node.key")


async def test_nodes_and_clients_reconnect_with_the_files_of_another_authority(tmp_path: Path) -> None:
    """Replace all files of all parties. The server comes back with its old certificate first, then with the new one."""
    old, new, used = tmp_path / "old", tmp_path / "new", tmp_path / "used"
    for folder in (old, new, used):
        folder.mkdir()
    await asyncio.to_thread(Authority, old)
    await asyncio.to_thread(Authority, new)

    def install(folder: Path, target: Path) -> None:
        for name in _FILES:
            shutil.copy(folder / name, target / name)

    server_files = tmp_path / "server"
    server_files.mkdir()
    install(old, used)
    install(old, server_files)
    tls = ", ".join(f'{part}_file: "{server_files / name}"' for part, name in (("cert", "server.pem"), ("key", "server.key")))
    config = f'tls {{ {tls}, ca_file: "{server_files / "ca.pem"}", verify: true }}\n'
    own = {f"LIFTPY_TLS_{part}_FILE": str(used / name) for part, name in _PARTS}
    with NatsServer(config=config) as server:
        url = server.url.replace("nats://", "tls://")
        with DevCluster(1, nats_url=url, settings=own, on_line=show) as cluster:
            node = cluster.nodes["n1"]
            credentials = Credentials(**{f"tls_{part.lower()}_file": str(used / name) for part, name in _PARTS})
            async with connect(url, credentials=credentials) as client:
                await client.create_stream("orders", "data.orders")
                await client.publish("orders", b"before")
                install(new, used)
                server.restart()
                await says(node, "connection restored")
                await published(client, b"old certificates")
                node.log.clear()
                install(new, server_files)
                server.restart()
                await says(node, "connection restored")
                await published(client, b"new certificates")
                assert await values(client) == [b"before", b"old certificates", b"new certificates"]


async def published(client: Client, value: bytes) -> None:
    """Publish a record, as soon as the client and the leader are connected again."""
    async with asyncio.timeout(_WAIT_S):
        while True:
            try:
                await client.publish("orders", value, msg_id=value.decode())
                return
            except LiftError:
                await asyncio.sleep(0.1)
