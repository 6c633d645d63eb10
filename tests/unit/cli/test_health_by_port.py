"""``liftpy health``: the probe of the node on this machine imports few modules, and the probe of the cluster names its problem."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import nats
import nats.errors
import pytest
from click.testing import CliRunner

from liftpy.errors import NotAllowedError, UnavailableError
from sidecar.cli.health import health
from sidecar.cli.node_reports import publish_probe
from sidecar.runtime.settings import Target


@contextmanager
def answering(*pieces: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A port on which one question is answered with these pieces; and what was asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(4096))
                with suppress(OSError):  # nobody reads on
                    for piece in pieces:
                        connection.sendall(piece)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1], asked
        thread.join(5)


@pytest.mark.parametrize(
    ("flags", "path"),
    [([], "/readyz?verbose"), (["--live"], "/livez?verbose"), (["--synced"], "/readyz?synced&verbose")],
)
def test_health_command_requests_the_check_of_its_flag_and_prints_the_answer(flags: list[str], path: str) -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n", b"\r\n[+] a\n", b"[+] b\n") as (port, asked):
        done = CliRunner().invoke(health, ["--status-port", str(port), *flags], standalone_mode=False)
    assert (done.return_value, done.output) == (0, "[+] a\n[+] b\n")
    assert asked[0].splitlines()[:2] == [f"GET {path} HTTP/1.1".encode(), b"Host: 127.0.0.1"]


def test_health_command_exits_with_1_for_an_unhealthy_and_3_for_an_unreachable_node() -> None:
    with answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\n[-] nats: not connected\n") as (port, _):
        done = CliRunner().invoke(health, ["--status-port", str(port), "--json"], standalone_mode=False)
    assert (done.return_value, json.loads(done.output)["healthy"]) == (1, False)
    for said in (b"", b"SSH-2.0 hello\r\n", b"HTTP/1.1", b"HTTP/1.1\r\n\r\n200 OK"):
        with answering(said) as (port, _):
            done = CliRunner().invoke(health, ["--status-port", str(port)], standalone_mode=False)
        assert (done.return_value, "no node answers" in done.output) == (3, True), said


def test_health_command_prints_at_most_128_kibibytes_of_an_endless_answer() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"[+] a\n" * 60_000) as (port, _):
        done = CliRunner().invoke(health, ["--status-port", str(port)], standalone_mode=False)
    assert 65_536 - 100 < len(done.output) <= 2 * 65_536


def test_health_command_with_status_port_imports_no_slow_modules() -> None:
    words = "import sys; from sidecar.cli.main import liftpy; liftpy(['health', '--status-port', '1', '--live'], standalone_mode=False)"
    heavy = (
        "print([m for m in ('asyncio', 'http.client', 'ssl', 'email', 'nats', 'google.protobuf', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", f"{words}; {heavy}"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_health_command_over_nats_imports_no_slow_modules() -> None:
    """What reads and writes records, and what decides in a controller, takes longer to load than a node takes to answer."""
    words = (
        "import sys; from sidecar.cli.main import liftpy\n"
        "try: liftpy(['health', '--nats', 'nats://127.0.0.1:1'], standalone_mode=False)\n"
        "except BaseException as error: print(repr(error))"
    )
    heavy = (
        "numpy", "uvloop", "liftpy.client.client", "liftpy.client.producer", "liftpy.client.admin", "liftpy.client.metadata_requests",
        "liftpy.core.metadata.image",
        "liftpy.core.replication", "liftpy.core.wire.batch", "rich",
    )  # fmt: skip
    seen = f"print([m for m in {heavy!r} if m in sys.modules], 'nats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{words}\n{seen}"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[] True", done.stdout


@pytest.mark.parametrize(
    ("server_error", "wanted"), [("permissions violation for publish to x", NotAllowedError), ("", UnavailableError)]
)
async def test_health_probe_without_ack_names_a_missing_permission(
    server_error: str, wanted: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Connection:
        def __init__(self, options: dict[str, Any]) -> None:
            self.options = options

        async def request(self, *_: object, **__: object) -> None:
            if server_error:
                await self.options["error_cb"](nats.errors.Error(server_error))
            raise TimeoutError

        async def close(self) -> None:
            pass

    async def connect(*_: object, **options: Any) -> Connection:
        return Connection(options)

    monkeypatch.setattr(nats, "connect", connect)
    with pytest.raises(wanted):
        await publish_probe(Target(), b"x")
