"""Test the nats-server of ``liftpy dev`` with a scripted process: start, wait and end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import UnavailableError
from sidecar.dev import nats_server
from sidecar.dev.nats_server import NatsServer


class Process:
    """Stand in for nats-server and write its port to the ports file."""

    def __init__(self, server: Scripted, command: list[str], options: dict[str, Any]) -> None:
        self.command, self.options = command, options
        self.calls: list[str] = []
        folder = Path(command[command.index("--ports_file_dir") + 1])
        self.config = Path(command[command.index("-c") + 1]).read_text(encoding="utf-8")
        self.stale = [path.name for path in folder.glob("*.ports")]
        options["stdout"].write(b"first words\n2\n3\nlast words\n" if server.ends else b"")
        if server.port:
            (folder / "x.ports").write_text(json.dumps({"nats": [f"nats://127.0.0.1:{server.port}"]}), encoding="utf-8")
        self.code: int | None = 1 if server.ends else None
        self.deaf = server.deaf

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.calls.append("terminate")
        if not self.deaf:
            self.code = 0

    def kill(self) -> None:
        self.calls.append("kill")
        self.code = -9

    def wait(self, timeout_s: float) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("x", timeout_s)
        return self.code


class Scripted:
    def __init__(self) -> None:
        self.port, self.ends, self.deaf = 0, False, False
        self.processes: list[Process] = []

    def spawn(self, command: list[str], with_signal: int, **options: Any) -> Process:
        assert with_signal == signal.SIGKILL
        self.processes.append(Process(self, command, options))
        return self.processes[-1]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted()
    monkeypatch.setattr(nats_server, "spawn", made.spawn)
    monkeypatch.setattr(nats_server, "find_nats_server", lambda: Path("/bin/nats-server"))
    monkeypatch.setattr(nats_server, "_POLL_S", 0.001)
    return made


def listener(*words: bytes) -> tuple[socket.socket, int]:
    """Send one word to each connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for word in words:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(word)

    threading.Thread(target=serve, daemon=True).start()
    return listening, listening.getsockname()[1]


def test_nats_server_start_waits_for_a_nats_greeting(scripted: Scripted) -> None:
    listening, scripted.port = listener(b"HTTP/1.1 400", b"INFO {}\r\n", b"INFO {}\r\n")
    server = NatsServer(config="jetstream: true\n")
    server.start()
    (first,) = scripted.processes
    assert (server.port, server.url) == (scripted.port, f"nats://127.0.0.1:{scripted.port}")
    assert first.config == "jetstream: true\n"
    assert first.command[0] == "/bin/nats-server"
    assert first.command[first.command.index("-a") + 1] == "127.0.0.1", "on loopback only"
    assert first.command[first.command.index("-p") + 1] == "-1", "any free port"
    server.restart(max_payload_bytes=4096)
    second = scripted.processes[1]
    assert first.calls == ["kill"]
    assert second.command[second.command.index("-p") + 1] == str(server.port), "the one that it had"
    assert second.config == "max_payload: 4096\njetstream: true\n"
    assert second.stale == [], "what the one before has written says nothing of this one"
    server.stop()
    server.stop()
    assert second.calls == ["terminate"]
    assert not Path(second.command[second.command.index("-c") + 1]).parent.exists()
    listening.close()


def test_nats_server_that_exits_raises_its_last_output(scripted: Scripted) -> None:
    scripted.ends = True
    with pytest.raises(UnavailableError, match=r"nats-server did not start.*: 2 \| 3 \| last words"):
        NatsServer().start()


def test_nats_server_that_never_listens_is_killed(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_server, "_START_TIMEOUT_S", 0.02)
    scripted.deaf = True
    with pytest.raises(UnavailableError, match="none"):
        NatsServer().start()
    assert scripted.processes[0].calls == ["terminate", "kill"]
