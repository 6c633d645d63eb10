"""``liftpy dev`` and ``liftpy sidecar`` as commands: ready, stopped in every way, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.dev.nats_server import NatsServer
from tests.until import block_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PATIENCE_S = 120.0
"""No test waits so long but on a machine with ten other things to do, where a node's start alone takes a quarter of a minute."""

LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, stack = set(), [pid]
    while stack:
        for child in children.get(stack.pop(), []):
            found.add(child)
            stack.append(child)
    return found


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LIFTPY_")}
    return {**clean, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*LIFTPY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), **options
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    said = json.loads(line)
    assert said["event"] == "ready"
    return said


@pytest.mark.parametrize(("end", "nodes"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGKILL, 3)])
def test_dev_command_ended_by_any_signal_leaves_no_process(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path, end: signal.Signals, nodes: int
) -> None:
    dev = started("dev", "--nodes", str(nodes), "--port", "0", "--data", str(tmp_path / "data"), "--json")
    said = ready(dev)
    assert sorted(said["nodes"]) == ["n1", "n2", "n3"][:nodes]
    family = descendants(dev.pid)
    assert {node["pid"] for node in said["nodes"].values()} < family
    assert len(family) == nodes + 1  # nats-server, too
    dev.send_signal(end)
    dev.communicate(timeout=PATIENCE_S)
    assert dev.returncode == (-signal.SIGKILL if end is signal.SIGKILL else 0)
    block_until(lambda: not any(map(is_running, family)), f"still running: {[pid for pid in family if is_running(pid)]}")
    assert all((tmp_path / "data" / node / "node").exists() for node in said["nodes"])


def said_until(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if wanted in line:
            return
    raise AssertionError(f"it ended without {wanted!r}")


def test_dev_command_restarts_a_killed_node(started: Callable[..., subprocess.Popen[str]]) -> None:
    dev = started("dev", "--nodes", "3", "--port", "0", "--json", "--restart-delay", "0.5")
    said = ready(dev)
    os.kill(said["nodes"]["n1"]["pid"], signal.SIGKILL)
    said_until(dev, "node n1 was killed by SIGKILL; restart in 0.5 s")
    said_until(dev, "node started node=n1 incarnation=4")
    family = descendants(dev.pid)
    assert len(family) == 4
    assert said["nodes"]["n1"]["pid"] not in family
    dev.terminate()
    dev.communicate(timeout=PATIENCE_S)
    assert dev.returncode == 0
    block_until(lambda: not any(map(is_running, family)), "something is left")


def test_dev_command_exits_with_code_3_after_repeated_node_failures(started: Callable[..., subprocess.Popen[str]]) -> None:
    dev = started("dev", "--nodes", "1", "--port", "0", "--json", "--restart-delay", "0")
    said = ready(dev)
    folder = Path(said["nodes"]["n1"]["data"])
    os.kill(said["nodes"]["n1"]["pid"], signal.SIGSTOP)
    (folder / "raft" / "journal").unlink()  # a controller without its journal refuses to start
    os.kill(said["nodes"]["n1"]["pid"], signal.SIGKILL)
    family = descendants(dev.pid)
    _, errors = dev.communicate(timeout=PATIENCE_S)
    assert dev.returncode == 3
    assert errors.count("; restart in ") >= 3  # more, where a start takes longer than what counts as again and again
    assert "lost its journal" in errors
    assert "node n1 has ended with exit code" in errors
    block_until(lambda: not any(map(is_running, family)), "nats-server is left")
    assert not folder.exists()


def test_dev_command_with_a_nats_port_in_use_exits_with_code_3(started: Callable[..., subprocess.Popen[str]]) -> None:
    with NatsServer() as server:
        dev = started("dev", "--port", str(server.port))
        _, errors = dev.communicate(timeout=PATIENCE_S)
    assert dev.returncode == 3
    assert "address already in use" in errors


def node_words(server: NatsServer, data: Path, node_id: str = "n1") -> list[str]:
    return ["sidecar", "--node-id", node_id, "--data", str(data), "--nats", server.url, "--controllers", node_id, "--json"]


def test_node_settings_are_merged_from_file_environment_and_flags(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    with NatsServer() as server:
        config = tmp_path / "node.toml"
        config.write_text(
            f'node_id = "x1"\ndata = "{tmp_path}/data"\nnats = ["{server.url}"]\ncontrollers = ["x1"]\nstatus_port = 0\n'
        )
        node = started("sidecar", "--config", str(config), "--json")
        said = ready(node)
        assert (said["node"], said["incarnation"], said["pid"]) == ("x1", 1, node.pid)
        assert said["status"].startswith("http://127.0.0.1:")
        node.terminate()
        _, log = node.communicate(timeout=PATIENCE_S)
        assert node.returncode == 0
        assert "clean=yes" in log


@pytest.mark.long
def test_data_directory_rejects_a_second_process_and_another_node_id(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    with NatsServer() as server:
        first = started(*node_words(server, tmp_path / "data"))
        ready(first)
        second = started(*node_words(server, tmp_path / "data"))
        _, errors = second.communicate(timeout=PATIENCE_S)
        assert second.returncode == 1
        assert "in use by another process" in errors
        first.terminate()
        first.communicate(timeout=PATIENCE_S)
        other = started(*node_words(server, tmp_path / "data", "n9"))
        _, errors = other.communicate(timeout=PATIENCE_S)
        assert other.returncode == 78, "never again without a person"
        assert "belongs to node 'n1'" in errors


def test_node_that_waits_for_nats_stops_on_sigterm(started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    with NatsServer() as server:
        pass
    node = started(*node_words(server, tmp_path / "data"))
    assert node.stderr is not None
    assert "cannot connect to NATS servers=" in node.stderr.readline()
    node.terminate()
    node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 0


def test_node_start_with_an_invalid_setting_fails_with_the_setting_name(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    node = started("sidecar", "--node-id", "a b", "--data", str(tmp_path))
    _, errors = node.communicate(timeout=PATIENCE_S)
    assert node.returncode == 2
    assert "node_id" in errors


def test_node_that_waits_for_the_other_controllers_stops_on_sigterm(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    with NatsServer() as server:
        words = node_words(server, tmp_path / "data")
        words[words.index("--controllers") + 1] = "n1,n2,n3"  # the other two never come
        node = started(*words)
        block_until(lambda: (tmp_path / "data" / "raft" / "journal").exists(), "it has begun to join")
        node.terminate()
        node.communicate(timeout=PATIENCE_S)
        assert node.returncode == 0
