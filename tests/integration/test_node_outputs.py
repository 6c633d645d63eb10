"""Nodes whose standard output or standard error cannot be written, because its disk is full or its reader has ended."""

from __future__ import annotations

import os
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
