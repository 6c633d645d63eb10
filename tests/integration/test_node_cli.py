"""``liftpy node remove`` against a cluster of four nodes, of which the last is no controller."""

from __future__ import annotations

import json
import signal
import sys
import time
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


def test_a_node_that_is_gone_for_good_is_forgotten_and_no_other() -> None:
    with DevCluster(4) as cluster:
        code, said = liftpy(cluster, "node", "remove", "n4", "--timeout", "0.5")
        assert (code, said["code"]) == (2, "CONFIG")
        assert said["detail"] == "node 'n4' is alive: stop it first"
        code, said = liftpy(cluster, "node", "remove", "n5")
        assert (code, said["code"]) == (1, "NOT_FOUND")
        assert "there are: n1, n2, n3, n4" in said["detail"]
        assert cluster.nodes["n4"].terminate() == 0
        assert liftpy(cluster, "node", "remove", "n4", "--dry-run")[1]["removed"] is False
        assert nodes(cluster) == {"n1", "n2", "n3", "n4"}
        code, said = liftpy(cluster, "node", "remove", "n4")
        assert (code, said) == (0, {"node": "n4", "removed": True, "dry_run": False, "controller": False})
        assert nodes(cluster) == {"n1", "n2", "n3"}
        cluster.nodes["n4"].start()
        cluster.nodes["n4"].wait_ready()
        assert nodes(cluster) == {"n1", "n2", "n3", "n4"}
        code, said = liftpy(cluster, "stream", "create", "held", "--subject", "held", "--partitions", "4")
        assert code == 0, said
        cluster.nodes["n4"].kill()
        for more in ((), ("--dry-run",)):
            code, said = liftpy(cluster, "node", "remove", "n4", *more)
            assert (code, said["code"]) == (2, "CONFIG")
            assert said["detail"].startswith("node 'n4' holds 3 replicas of held: 0 are on their way to others, 3 wait")
            assert "liftpy node drain n4" in said["detail"]
        assert nodes(cluster) == {"n1", "n2", "n3", "n4"}


def test_a_node_that_was_removed_while_it_stood_still_is_told_and_stops() -> None:
    """Before, it was answered NOT_FOUND for ever, and ran on without a word."""
    with DevCluster(4) as cluster:
        removed = cluster.nodes["n4"]
        removed.send(signal.SIGSTOP)
        code, said = liftpy(cluster, "node", "remove", "n4", "--timeout", "30")
        assert (code, said["removed"]) == (0, True)
        removed.send(signal.SIGCONT)
        deadline = time.monotonic() + 30
        while removed.running:
            assert time.monotonic() < deadline, list(removed.log)
            time.sleep(0.05)
        assert "exit code 1" in removed.how_it_ended
        critical = [line for line in removed.log if "CRITICAL" in line]
        assert len(critical) == 1, list(removed.log)
        for what in (
            "node 'n4' was removed from the cluster",
            "so it stops",
            "start it: it joins",
            "delete the data directory",
        ):
            assert what in critical[0]
        assert nodes(cluster) == {"n1", "n2", "n3"}
        removed.start()
        removed.wait_ready()
        assert nodes(cluster) == {"n1", "n2", "n3", "n4"}
