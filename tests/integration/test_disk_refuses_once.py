"""A controller whose disk refuses something for a while: it starts itself again until that is over, and needs nobody [S13, L11]."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from sidecar.dev.cluster import DevCluster, DevNode, node_command, node_environment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def test_node_retries_its_start_in_the_same_process_after_a_temporary_disk_error(tmp_path: Path) -> None:
    with DevCluster(1, data=tmp_path) as cluster:
        node = cluster.nodes["n1"]
        incarnation = (node.ready or {})["incarnation"]
        node.kill()
        blocked = tmp_path / "n1" / "raft" / "journal.tmp"
        blocked.mkdir()  # the journal can't be written anew
        node.start()
        pid = node.pid
        deadline = time.monotonic() + 60
        while not any("starting again in 1 s" in line for line in node.log):
            assert node.running, list(node.log)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        blocked.rmdir()
        node.wait_ready(60)
        assert node.pid == pid
        assert (node.ready or {})["incarnation"] > incarnation


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_the_pause_before_a_restart_ends_the_node(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "streams").write_bytes(b"")  # no directory: the node cannot use it
    flags = {"data": tmp_path, "controllers": "n1", "status-port": -1}
    node = DevNode("n1", node_command("n1", flags), node_environment({}), None)
    node.start()
    try:
        deadline = time.monotonic() + 60
        while not any("starting again in 2 s" in line for line in node.log):
            assert node.running, list(node.log)
            assert time.monotonic() < deadline
            time.sleep(0.02)
        node.send(number)
        deadline = time.monotonic() + 30
        while node.running:
            assert time.monotonic() < deadline, list(node.log)
            time.sleep(0.02)
    finally:
        node.kill()
