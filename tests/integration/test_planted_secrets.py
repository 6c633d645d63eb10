"""Secrets are planted wherever a user may put them; then everything that nodes and commands say is searched for them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from liftpy.client import connect
from sidecar.dev import cluster as cluster_module
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer
from tests.fork_server import spawn_interpreter

pytestmark = pytest.mark.processes

IN_URL, IN_ENVIRONMENT, WRONG = "planted-in-a-url", "planted-in-the-environment", "planted-and-wrong"
RECORD = ("planted-in-a-key", "planted-in-a-value", "planted-in-a-header")
ROOT = str(Path(__file__).resolve().parents[2])
USERS = f"authorization: {{ users: [ {{ user: u1, password: {IN_URL} }}, {{ user: u2, password: {IN_ENVIRONMENT} }} ] }}"


@pytest.mark.long
def test_secrets_in_url_and_environment_appear_in_no_log_page_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "spawn", spawn_interpreter)  # a forked node has no command line of its own
    said: list[str] = []
    with NatsServer(config=USERS) as server:
        own = server.url.replace("nats://", f"nats://u1:{IN_URL}@")
        settings = {"LIFTPY_LOG_LEVEL": "debug", "LIFTPY_LOG_FORMAT": "json"}
        with DevCluster(
            1, nats_url=own, settings=settings, data=tmp_path, on_line=lambda node, line: said.append(line)
        ) as cluster:
            (node,) = cluster.nodes.values()
            said += [Path(f"/proc/{node.pid}/cmdline").read_text(), json.dumps(node.ready)]
            said += commands(own, server.url)
            said += asyncio.run(as_client(own))
            said += pages(node.status_url)
            server.restart()
            deadline = time.monotonic() + 20
            while not any("is back" in line for line in said):
                assert time.monotonic() < deadline, said[-20:]
                time.sleep(0.05)
    text = "\n".join(said)
    events = [json.loads(line)["event"] for line in said if line.startswith('{"ts"')]
    assert {"node.up", "replica.step", "nats.reconnected"} <= set(events), "debug lines were looked at, as JSON"
    for planted in RECORD:
        assert planted not in text, [line for line in said if planted in line][:3]
    assert "retrying" in text or "is back" in text
    for secret in (IN_URL, IN_ENVIRONMENT, WRONG):
        assert secret not in text, [line for line in said if secret in line][:3]
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or not any(s.encode() in file.read_bytes() for s in (IN_URL, IN_ENVIRONMENT, WRONG)), file


def commands(url_with_secret: str, url: str) -> list[str]:
    """What every command prints, right and wrong, with --json and without."""
    environment = {"PYTHONPATH": ROOT, "PATH": "/bin"}
    as_user = {**environment, "LIFTPY_USER": "u2", "LIFTPY_PASSWORD": IN_ENVIRONMENT}
    wrong = {**environment, "LIFTPY_USER": "u2", "LIFTPY_PASSWORD": WRONG}
    bad_port = url.rpartition(":")[0].replace("nats://", f"nats://u1:{WRONG}@") + ":port"
    nobody = f"nats://u1:{WRONG}@127.0.0.1:1"
    runs = [
        (0, ["stream", "create", "s", "--subject", "shop.s", "--nats", url_with_secret], environment),
        (0, ["status", "--nats", url_with_secret, "--json"], environment),
        (0, ["stream", "list", "--nats", url], as_user),
        (1, ["status", "--nats", url], wrong),
        (2, ["status", "--nats", bad_port, "--json"], environment),
        (3, ["status", "--nats", nobody], environment),
        (2, ["sidecar", "--node-id", "n9", "--data", "/nonexistent", "--nats", bad_port], environment),
        (2, ["dev", "--nodes", "1", "--nats", bad_port], environment),
    ]
    said = []
    for code, words, given in runs:
        done = subprocess.run(
            [sys.executable, "-c", "from sidecar.cli.main import main; main()", *words],
            capture_output=True, text=True, timeout=60, check=False, env=given,
        )  # fmt: skip
        assert done.returncode == code, (words[:2], done.stdout, done.stderr)
        said += [done.stdout, done.stderr]
    return said


async def as_client(url: str) -> list[str]:
    """What a client is told of the node."""
    async with await connect(url) as client:
        key, value, header = RECORD
        await client.publish("s", value.encode(), key=key.encode(), headers={"Planted": header.encode()})
        return [json.dumps(await client.admin.node_status("n1")), repr(await client.admin.describe_cluster())]


def pages(url: str) -> list[str]:
    """The status page, under its own names and under a foreign one."""
    said = []
    for path in ("/", "/status", "/metrics"):
        for host in ("127.0.0.1", "localhost:1", "LOCALHOST"):
            with urllib.request.urlopen(urllib.request.Request(url + path, headers={"Host": host}), timeout=10) as answer:
                said.append(answer.read().decode())
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", ""):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url + path, headers={"Host": host}), timeout=10)
            assert refused.value.code == 421
    return said
