"""A supervisor sends SIGTERM to all processes of a node, at several moments of its start. The node ends with exit code 0.

Each moment is a condition on the processes, their log or the data directory.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from os import kill
from pathlib import Path

import pytest

from sidecar.dev.cluster import DevNode, node_command, node_environment
from sidecar.dev.nats_server import NatsServer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def worker_commands(node: DevNode) -> list[str]:
    found = []
    for worker in node.workers:
        with suppress(OSError):
            found.append(Path(f"/proc/{worker}/cmdline").read_text())
    return found


def has_logged(text: str) -> Callable[[DevNode, Path], bool]:
    return lambda node, _: any(text in line for line in list(node.log))


MOMENTS: dict[str, Callable[[DevNode, Path], bool]] = {
    "before the node is built": has_logged("unknown environment variable"),
    "data directory is open": lambda _, data: (data / "lock").exists(),
    "a worker process exists": lambda node, _: bool(node.workers),
    "a worker process loads its program": lambda node, _: any(
        "worker_node" in command and "dies_with_parent" not in command for command in worker_commands(node)
    ),
    "node has registered": has_logged("node started"),
    "node is ready": lambda node, _: node.ready is not None,
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", MOMENTS)
def test_node_with_a_stop_signal_during_its_start_ends_with_exit_code_0(
    moment: str, number: signal.Signals, tmp_path: Path
) -> None:
    with NatsServer() as server:
        data = tmp_path / "data"
        flags = {"data": data, "controllers": "n1", "status-port": -1, "nats": server.url, "workers": 2}
        environment = {**node_environment({}), "LIFTPY_NOT_A_SETTING": "1"}
        node = DevNode("n1", node_command("n1", flags), environment, None)
        before = signal.signal(number, signal.SIG_IGN)  # the node inherits it, as a background job of a shell inherits SIGINT
        node.start()
        signal.signal(number, before)
        try:
            deadline = time.monotonic() + 60
            while not MOMENTS[moment](node, data):
                assert node.running, list(node.log)
                assert time.monotonic() < deadline
            for process in (*node.workers, node.pid):
                with suppress(ProcessLookupError):
                    kill(process, number)
            while node.running:
                assert time.monotonic() < deadline, list(node.log)
                time.sleep(0.01)
            assert node.end_reason == "has ended with exit code 0", "\n".join(node.log)
        finally:
            node.kill()


_SIGNAL_IN_A_CALLBACK = """
import os, signal, sys, weakref
from sidecar.cli.main import main

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "sidecar.node.node":
            held = Finder()
            reference = weakref.ref(held, lambda _: os.kill(os.getpid(), signal.SIGTERM))
            del held  # Python ignores what a handler raises in the callback
        return None

sys.meta_path.insert(0, Finder())
main(sys.argv[1:])
"""


def test_node_with_a_stop_signal_in_a_callback_of_an_import_ends_with_exit_code_0(tmp_path: Path) -> None:
    flags = ["--node-id", "n1", "--data", str(tmp_path / "data"), "--controllers", "n1", "--nats", "nats://127.0.0.1:1"]
    command = [sys.executable, "-c", _SIGNAL_IN_A_CALLBACK, "sidecar", *flags, "--status-port", "-1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "data").exists()
