"""``liftpy upgrade`` against real nodes: a level is finalized while they run, holds over restarts, and an older version ends with 78."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sidecar.dev.cluster import DevCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


def upgrade(cluster: DevCluster, *words: str) -> tuple[int, Any]:
    command = [*LIFTPY, "upgrade", *words, "--json", "--nats", cluster.nats_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout or done.stderr)


def restart(cluster: DevCluster, node_id: str) -> None:
    cluster.nodes[node_id].start()
    cluster.nodes[node_id].wait_ready()


def test_from_the_first_level_to_the_last_and_over_a_restart() -> None:
    with DevCluster(3) as cluster:
        code, found = upgrade(cluster, "check")
        assert (code, found["well"], found["level"], found["to"]) == (0, True, 1, 2), found
        code, found = upgrade(cluster, "finalize", "--dry-run")
        assert (code, found) == (0, {"level": 1, "to": 2, "reasons": [], "done": False})
        cluster.nodes["n3"].terminate()
        code, found = upgrade(cluster, "finalize", "--level", "2")
        assert code == 1
        assert [reason.partition(":")[0] for reason in found["reasons"]] == [
            "node n3 does not run, or was not heard yet", "controller n3 is not connected",
        ]  # fmt: skip
        restart(cluster, "n3")
        code, found = upgrade(cluster, "finalize")
        assert (code, found["level"], found["done"]) == (0, 2, True), found
        code, found = upgrade(cluster, "finalize")
        assert (code, found["level"], found["done"]) == (0, 2, False)
        cluster.nodes["n1"].terminate()
        restart(cluster, "n1")
        code, found = upgrade(cluster, "report")
        assert (code, found["level"]) == (0, 2)
        assert found["nodes"]["n1"]["speaks"] == [1, 2]
        code, found = upgrade(cluster, "revert")
        assert code == 1
        assert found["reasons"][0].startswith("level 2 has written what versions before it can't read")
