"""``liftpy node remove`` against a cluster of four nodes, of which the last is no controller."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.dev.cluster import DevCluster
from tests import fork_server

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


def liftpy(cluster: DevCluster, *words: str) -> tuple[int, Any]:
    """(exit code, the JSON on standard output or what was said instead)."""
    command = [*LIFTPY, *words, "--json", "--nats", cluster.nats_url]
    done = fork_server.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else json.loads(done.stderr)["error"]


def nodes(cluster: DevCluster) -> set[str]:
    code, found = liftpy(cluster, "status")
    assert code == 0, found
    return {node["node_id"] for node in found["nodes"]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(4) as running:
        yield running


def start(cluster: DevCluster, name: str) -> None:
    cluster.nodes[name].start()
    cluster.nodes[name].wait_ready()


def text(cluster: DevCluster, *words: str) -> str:
    done = fork_server.run(
        [*LIFTPY, *words, "--nats", cluster.nats_url], capture_output=True, text=True, timeout=60, check=False
    )
    return str(done.stdout) + str(done.stderr)


def test_node_that_missed_a_stream_deletion_deletes_the_data_only_on_command(cluster: DevCluster) -> None:
    for name, partitions in (("gone", "4"), ("kept", "4")):
        code, said = liftpy(cluster, "stream", "create", name, "--subject", name, "--partitions", partitions)
        assert code == 0, said
    folders = cluster.data / "n4" / "streams"
    deadline = time.monotonic() + 30
    while set(held := {path.name.split("-")[0]: path.name for path in folders.iterdir()}) != {"gone", "kept"}:
        assert time.monotonic() < deadline, held
        time.sleep(0.02)
    gone, kept = held["gone"], held["kept"]
    cluster.nodes["n4"].kill()
    code, said = liftpy(cluster, "stream", "delete", "gone", "--yes")
    assert code == 0, said
    start(cluster, "n4")
    assert liftpy(cluster, "node", "remove-data", "n4")[1]["unknown"] == [gone]
    found = {node["node_id"]: node["unknown_streams"] for node in liftpy(cluster, "status")[1]["nodes"]}
    assert found == {"n1": [], "n2": [], "n3": [], "n4": [gone]}
    line = f"n4 keeps data of streams that the cluster does not know: {gone}: liftpy node remove-data n4"
    for command in ("status", "health"):
        assert line in text(cluster, command)
    for wrong in ((kept,), (gone, kept), ("../raft",), ("gone",)):
        code, said = liftpy(cluster, "node", "remove-data", "n4", *wrong, "--yes")
        assert (code, said["code"]) == (2, "CONFIG"), said
        assert f"it has {gone}" in said["detail"]
        assert {gone, kept} <= {path.name for path in folders.iterdir()}
    for words in ((), (gone, "--yes")):
        code, said = liftpy(cluster, "node", "remove-data", "n9", *words)
        assert (code, said["detail"]) == (1, "There is no node 'n9'. The nodes are n1, n2, n3, n4.")
    code, said = liftpy(cluster, "node", "remove-data", "n4", "x" * 201, "--yes")
    assert (code, said["code"]) == (2, "CONFIG"), said
    assert "(201 bytes) is no directory of a stream" in said["detail"]
    code, said = liftpy(cluster, "node", "remove-data", "n4", gone, "--yes")
    assert (code, said["removed"]) == (0, [gone]), said
    assert not (folders / gone).exists()
    assert (folders / kept).exists()
    assert not [path for path in (cluster.data / "n4" / "held").iterdir() if path.name.startswith(gone)]
    assert "keeps data" not in text(cluster, "health")
    assert liftpy(cluster, "node", "remove-data", "n4")[1]["unknown"] == []
    code, said = liftpy(cluster, "stream", "delete", "kept", "--yes")
    assert code == 0, said
    while held := sorted(path.name for path in folders.glob("*-*")):
        assert time.monotonic() < deadline + 30, held
        time.sleep(0.02)


def test_node_removed_from_the_cluster_while_paused_stops_with_the_reason(cluster: DevCluster) -> None:
    """Before, it was answered NOT_FOUND for ever, and ran on without a word."""
    removed = cluster.nodes["n4"]
    removed.send(signal.SIGSTOP)
    code, said = liftpy(cluster, "node", "remove", "n4", "--timeout", "30")
    assert (code, said["removed"]) == (0, True)
    removed.send(signal.SIGCONT)
    deadline = time.monotonic() + 30
    while removed.running:
        assert time.monotonic() < deadline, list(removed.log)
        time.sleep(0.05)
    assert "exit code 78" in removed.end_reason, "a supervisor must not start it again"
    critical = [line for line in removed.log if "CRITICAL" in line]
    assert len(critical) == 1, list(removed.log)
    for what in ("Node 'n4' was removed from the cluster", "so it stops", "start it: it joins", "delete the data directory"):
        assert what in critical[0]
    assert nodes(cluster) == {"n1", "n2", "n3"}
    removed.start()
    removed.wait_ready()
    assert nodes(cluster) == {"n1", "n2", "n3", "n4"}
