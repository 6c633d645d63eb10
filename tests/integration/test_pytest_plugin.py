"""``liftpy.testing.plugin``, as a project of somebody else would use it: a folder of tests, run by a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parent.parent.parent
INI = """
[pytest]
liftpy_settings =
    LIFTPY_REPLICATION_MAX_LAG_TIME_S=2.5
    LIFTPY_REPLICATION_MAX_LEADER_TIMEOUT_S=1.5
"""
TESTS = """
import asyncio
import pytest
from liftpy.errors import ConfigError, NotFoundError, UnavailableError

def values(client, stream):
    return [record.value for record in client.consume(stream, until="end")]

def test_published_record_is_read_back(liftpy_client):
    liftpy_client.create_stream("orders", "shop.orders")
    liftpy_client.publish("orders", b"one")
    assert values(liftpy_client, "orders") == [b"one"]

def test_streams_of_the_previous_test_are_deleted(liftpy_client, liftpy_cluster):
    assert liftpy_client.admin.list_streams() == []
    liftpy_client.create_stream("orders", "shop.orders")
    assert values(liftpy_client, "orders") == []
    liftpy_cluster.kill(liftpy_cluster.nodes[-1])
    assert liftpy_cluster.running == ["n1", "n2"]
    with pytest.raises(ConfigError, match="Node n3 is not running"):
        liftpy_cluster.pause("n3")

def test_node_killed_by_the_previous_test_runs_again(liftpy_cluster, liftpy_connect, liftpy_url):
    assert liftpy_cluster.running == ["n1", "n2", "n3"]

    async def told():
        async with liftpy_connect() as client:
            await client.create_stream("orders", "shop.orders")
            return (await client.publish("orders", b"async")).offset

    assert asyncio.run(told()) == 0
    assert liftpy_url == liftpy_cluster.url

def test_records_survive_a_killed_leader_and_a_nats_restart(liftpy_client, liftpy_cluster):
    liftpy_client.create_stream("orders", "shop.orders", replicas=3)
    liftpy_client.publish("orders", b"before")
    dead = liftpy_cluster.kill_leader("orders")
    assert dead not in liftpy_cluster.running
    assert liftpy_cluster.leader("orders", other_than=dead) != dead
    liftpy_client.publish("orders", b"after", timeout_s=60)
    liftpy_cluster.start(dead)
    liftpy_cluster.restart_nats()
    liftpy_client.publish("orders", b"at last", timeout_s=60)
    assert values(liftpy_client, "orders") == [b"before", b"after", b"at last"]
    liftpy_cluster.pause(dead)
    with pytest.raises(UnavailableError, match="it comes: the condition was not true within 0.2 s"):
        liftpy_cluster.wait_until(lambda: False, 0.2, "it comes")
    with pytest.raises(NotFoundError):
        liftpy_client.stream("payments")

def test_memory_cluster_stores_records_after_its_leader_was_killed(liftpy_memory):
    with liftpy_memory.sync_client() as client:
        client.create_stream("orders", "shop.orders", replicas=3)
        client.publish("orders", b"before")
        liftpy_memory.kill_leader("orders")
        client.publish("orders", b"after")
        assert values(client, "orders") == [b"before", b"after"]

def test_node_paused_by_the_previous_test_runs_again(liftpy_client, liftpy_cluster):
    live = set(liftpy_client.admin.describe_cluster().image.live_nodes())
    assert live == set(liftpy_cluster.nodes) == {"n1", "n2", "n3"}
"""
OUTCOME = "6 passed"


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "liftpy.testing.plugin", "-p", "no:cacheprovider", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=170)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "test_shop.py").write_text(TESTS)
    return tmp_path


@pytest.mark.long
def test_pytest_plugin_passes_the_tests_of_a_project_that_uses_its_fixtures(project: Path) -> None:
    done = run_pytest(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert OUTCOME in done.stdout


def test_pytest_plugin_without_nats_server_fails_with_install_command(project: Path) -> None:
    hidden = "from pathlib import Path\nimport sidecar.dev.nats_server as e\ne.shutil.which = lambda *a, **k: None\n"
    (project / "conftest.py").write_text(hidden)
    done = run_pytest(project, "-k", "test_published_record_is_read_back")
    assert done.returncode == 1
    assert "pip install 'liftpy[dev]'" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--liftpy-set=SIDECAR_X=1", "Unknown setting 'SIDECAR_X=1'. Use LIFTPY_...=VALUE."),
        ("--liftpy-nodes=99", "nodes = 99 (--nodes) is outside 1..16. Choose a value in this range."),
    ],
)
def test_pytest_plugin_rejects_invalid_options_with_the_reason(project: Path, option: str, says: str) -> None:
    done = run_pytest(project, option, "-k", "test_published_record_is_read_back")
    assert done.returncode != 0
    assert says in done.stdout + done.stderr
