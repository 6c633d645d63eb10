"""Test the NATS servers of the development tools: start, settings and clusters."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from liftpy.errors import ConfigError, UnavailableError
from sidecar.bench import systems
from sidecar.dev import nats_server
from sidecar.dev.demo_steps import LineProcess
from sidecar.dev.nats_server import NatsServer, dies_with_parent, find_nats_server, spawn

PARENT = """
import sys, time
from sidecar.dev.nats_server import NatsServer
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


def test_nats_server_listens_on_loopback_only_and_stops_its_process() -> None:
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
def test_nats_server_ends_with_its_parent_process(end: signal.Signals) -> None:
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


def test_find_nats_server_without_a_binary_raises_with_install_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_server.shutil, "which", lambda *args, **kwargs: None)
    with pytest.raises(ConfigError, match=r"pip install 'liftpy\[dev\]'"):
        find_nats_server()


def test_nats_server_on_a_taken_port_raises_the_error_of_the_server() -> None:
    with NatsServer() as first, pytest.raises(UnavailableError, match="address already in use"):
        NatsServer(first.port).start()


def test_find_nats_server_prefers_a_binary_on_path_to_python_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_nats_server()
    own = tmp_path / "nats-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find_nats_server() == own
    assert before != own


def test_child_process_spawn_runs_no_python_fork_hooks(tmp_path: Path) -> None:
    """``logging`` holds its lock from the first to the last: the demo hung when Ctrl-C came between."""
    forks: list[str] = []
    os.register_at_fork(before=lambda: forks.append("here"))
    subprocess.run(["/bin/true"], preexec_fn=int, check=True)
    assert forks == ["here"], "they are run, and heard, where there is a preexec_fn"
    assert spawn(["/bin/true"], signal.SIGKILL).wait(30) == 0

    async def poem() -> list[str]:
        async with await LineProcess.start("this", [], tmp_path) as process:
            return [line async for line in process.lines()]

    assert "The Zen of Python, by Tim Peters" in asyncio.run(poem())
    assert forks == ["here"]


async def test_demo_helper_process_that_has_ended_ignores_further_lines_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await LineProcess.start("this", [], tmp_path) as process:
        assert [line async for line in process.lines()]
        for number in range(20):
            process.write_line(str(number))
    assert not caplog.records


def test_child_process_spawn_runs_the_program_with_default_signal_handlers() -> None:
    asks = ["/bin/sh", "-c", 'echo $$ "$@"; grep SigIgn /proc/self/status', "sh", "a b", "*"]
    child = spawn(asks, signal.SIGTERM, stdout=subprocess.PIPE, text=True)
    said = child.communicate(timeout=30)[0].splitlines()
    assert said[0] == f"{child.pid} a b *"
    ignored = int(said[1].split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_child_process_whose_parent_has_ended_does_not_start() -> None:
    command = dies_with_parent(["/bin/echo", "begun"], signal.SIGKILL)
    command[5] = "0"
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")


class DeafProcess:
    """Stand in for a nats-server that never listens and ignores SIGTERM."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")
        self.code = -9

    def wait(self, timeout_s: float) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("x", timeout_s)
        return self.code


def test_nats_server_that_never_listens_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = DeafProcess()

    def spawn(*_: Any, **__: Any) -> DeafProcess:
        return process

    monkeypatch.setattr(nats_server, "spawn", spawn)
    monkeypatch.setattr(nats_server, "find_nats_server", lambda: Path("/bin/nats-server"))
    monkeypatch.setattr(nats_server, "_START_TIMEOUT_S", 0.02)
    with pytest.raises(UnavailableError, match="none"):
        NatsServer().start()
    assert process.calls == ["terminate", "kill"]


class _Server:
    """Raise the remaining errors at each start."""

    fail: ClassVar[list[str]] = []
    stopped: ClassVar[list[str]] = []

    def __init__(self, config: str) -> None:
        self._config = config

    def start(self) -> None:
        if self.fail:
            raise UnavailableError(self.fail.pop())

    def stop(self) -> None:
        self.stopped.append(self._config)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "NatsServer", _Server)
    _Server.fail.clear()
    _Server.stopped.clear()


def test_nats_cluster_chooses_new_ports_when_a_port_is_taken() -> None:
    _Server.fail.extend(["listen tcp 127.0.0.1:4: bind: address already in use"] * 3)
    with systems.NatsCluster(3) as cluster:
        assert len(cluster.servers) == 3
    assert len(_Server.stopped) == 3


@pytest.mark.parametrize(("said", "times"), [("none", 1), ("address already in use", 4)])
def test_nats_cluster_start_raises_after_repeated_port_errors_or_another_error(said: str, times: int) -> None:
    _Server.fail.extend([said] * times)
    with pytest.raises(UnavailableError, match=said), systems.NatsCluster(3):
        pass
    assert _Server.fail == []
