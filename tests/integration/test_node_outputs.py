"""Nodes whose standard output or standard error cannot be written, because its disk is full, or its reader has ended or pauses."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.dev.cluster import node_environment
from sidecar.dev.nats_server import NatsServer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def starts(folder: Path, stdout: int, stderr: int, nats: str) -> subprocess.Popen[bytes]:
    flags = ["--node-id", "n1", "--data", str(folder / "data"), "--controllers", "n1", "--nats", nats, "--json"]
    command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "sidecar", *flags]
    return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=node_environment({}))


@pytest.mark.parametrize("stdout", ["closed pipe", "full disk"])
def test_node_that_cannot_write_its_ready_line_runs_and_stops_with_exit_code_0(stdout: str, tmp_path: Path) -> None:
    read, out = os.pipe()
    os.close(read)
    if stdout == "full disk":
        os.close(out)
        out = os.open("/dev/full", os.O_WRONLY)
    log = tmp_path / "log"
    with NatsServer() as server, log.open("wb") as stderr:
        node = starts(tmp_path, out, stderr.fileno(), server.url)
        os.close(out)
        try:
            deadline = time.monotonic() + 60
            while "ready line not written" not in log.read_text():
                assert node.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            node.send_signal(signal.SIGTERM)
            assert node.wait(30) == 0, log.read_text()
        finally:
            node.kill()
            node.wait()
    assert "node stopped node=n1 clean=yes" in log.read_text()


def fill(pipe: int) -> None:
    """Fill a pipe, so that it has no room."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"\n" * select.PIPE_BUF)
    os.set_blocking(pipe, True)


def test_node_with_a_paused_reader_of_its_log_runs_and_stops_with_exit_code_0(tmp_path: Path) -> None:
    read, log = os.pipe()
    fill(log)
    with NatsServer() as server, os.fdopen(read, "rb") as reader:
        node = starts(tmp_path, subprocess.PIPE, log, server.url)
        try:
            assert node.stdout is not None
            assert select.select([node.stdout], [], [], 60)[0], "the node waits for the reader"
            assert b'"ready"' in node.stdout.readline()
            os.set_blocking(read, False)
            while select.select([read], [], [], 0)[0]:
                os.read(read, 1 << 20)
            os.set_blocking(read, True)
            node.send_signal(signal.SIGHUP)
            lines = [reader.readline(), reader.readline()]
            assert b"log lines dropped count=" in lines[0]
            assert b"settings reloaded" in lines[1]
            fill(log)
            node.send_signal(signal.SIGTERM)
            assert node.wait(30) == 0
        finally:
            os.close(log)
            node.kill()
            node.wait()
