"""Test the cluster of ``liftpy dev`` with scripted processes: commands, environment, signals and restarts."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError, UnavailableError
from sidecar.cli.main import main
from sidecar.dev import cluster as dev_cluster
from sidecar.dev.cluster import DevCluster, DevNode
from sidecar.dev.nats_server import NatsServer, _port_in
from sidecar.runtime.settings import dev_environment

dev = importlib.import_module("sidecar.cli.dev")
Supervisor = dev._Supervisor


class Process:
    """End with ``code`` after a signal in ``heeds``."""

    def __init__(
        self,
        command: list[str],
        said: str = "",
        heeds: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM),
        code: int | None = None,
    ) -> None:
        self.command, self.heeds = command, heeds
        self.pid, self.code = 77, code
        self.sent: list[int] = []
        self.stdout, self.stderr = io.StringIO(said), io.StringIO("")

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.sent.append(number)
        if number in self.heeds:
            self.code = 0
        elif number == signal.SIGKILL:
            self.code = -9

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired("x", timeout_s)
        return self.code


READY = '{"event": "ready", "status": "http://127.0.0.1:1"}\n'


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    scripts: list[dict[str, Any]] = []

    def spawn(command: list[str], with_signal: int, **options: Any) -> Process:
        process = Process(command, **(scripts.pop(0) if scripts else {"said": READY}))
        made.append(SimpleNamespace(process=process, dies_with=with_signal, environment=options["env"], options=options))
        return process

    monkeypatch.setattr(dev_cluster, "spawn", spawn)
    made_scripts: Any = SimpleNamespace(made=made, scripts=scripts)
    return made_scripts  # type: ignore[no-any-return]


def flags(command: list[str]) -> dict[str, str]:
    assert command[:4] == [sys.executable, "-m", "sidecar", "--json"]
    return dict(zip(command[4::2], command[5::2], strict=True))


@pytest.mark.parametrize(("count", "controllers"), [(1, "n1"), (2, "n1"), (3, "n1,n2,n3"), (4, "n1,n2,n3")])
def test_dev_cluster_node_gets_its_own_command_and_environment(
    count: int, controllers: str, started: Any, tmp_path: Path
) -> None:
    urls = {"n2": "nats://relay:1"}
    with DevCluster(
        count, data=tmp_path, nats_url="nats://far:4", namespace="ns", settings={"LIFTPY_RACK": "r"}, node_nats_urls=urls
    ) as cluster:
        assert list(cluster.nodes) == [f"n{number + 1}" for number in range(count)]
        assert (cluster.nats, cluster.nats_url, cluster.ended_nodes()) == (None, "nats://far:4", [])
        for at, (name, made) in enumerate(zip(cluster.nodes, started.made, strict=True)):
            assert flags(made.process.command) == {
                "--node-id": name,
                "--data": str(tmp_path / name),
                "--namespace": "ns",
                "--controllers": controllers,
                "--status-port": "0",
            }
            environment = made.environment
            assert environment["LIFTPY_NATS"] == urls.get(name, "nats://far:4")
            assert environment["LIFTPY_RACK"] == "r"
            assert environment["PYTHONUNBUFFERED"] == "1"
            assert str(Path(dev_cluster.__file__).resolve().parents[2]) in environment["PYTHONPATH"]
            assert made.dies_with == signal.SIGTERM
            assert made.options["start_new_session"], "Ctrl-C is for the parent"
            assert made.options["text"]
            assert made.options["stdin"] == subprocess.DEVNULL
            quiet = {key for key in environment if key not in started.made[0].environment}
            assert bool(quiet) is (at > 0), "one of the nodes says that the NATS server lets everybody in"
    for made in started.made:
        assert made.process.sent[:2] == [signal.SIGCONT, signal.SIGINT], "also one that stands still"
        assert signal.SIGTERM not in made.process.sent, "there is nobody to hand anything over to"
    assert tmp_path.exists(), "a folder that was given is kept"


@pytest.mark.parametrize("count", [0, -1, dev_cluster.MAX_NODES + 1])
def test_dev_cluster_with_invalid_node_count_is_rejected(count: int) -> None:
    with pytest.raises(ConfigError, match=r"outside 1\.\.16"):
        DevCluster(count)
    assert DevCluster(dev_cluster.MAX_NODES).nats is not None


def test_dev_cluster_temporary_directory_is_deleted_at_stop(started: Any) -> None:
    cluster = DevCluster(1, nats_url="nats://far:4")
    with pytest.raises(UnavailableError, match="The cluster is not running"):
        _ = cluster.data
    cluster.start()
    folder = cluster.data
    assert folder.is_dir()
    cluster.stop()
    assert not folder.exists()
    cluster.stop()
    with pytest.raises(UnavailableError):
        _ = cluster.data


def test_dev_cluster_start_failure_of_a_node_stops_all_nodes(started: Any) -> None:
    started.scripts += [{"said": READY}, {"code": 1}]
    cluster = DevCluster(2, nats_url="nats://far:4")
    with pytest.raises(UnavailableError, match="Node n2 has ended"):
        cluster.start()
    assert [made.process.code for made in started.made] == [0, 0]
    assert cluster.nodes == {}


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_dev_node_ready_line_is_read_once_and_other_lines_are_logged(started: Any) -> None:
    lines: list[tuple[str, str]] = []
    other = '{"event": "other"}\n[1]\nplain\n'
    started.scripts += [{"said": other + READY}, {"said": "again\n"}]
    node = DevNode("n7", ["x"], {"A": "1"}, lambda name, line: lines.append((name, line)))
    assert (node.running, node.pid, node.end_reason, node.status_url) == (False, 0, "", "")
    node.start()
    assert node.wait_ready()["status"] == node.status_url == "http://127.0.0.1:1"
    assert (node.running, node.pid, node.end_reason) == (True, 77, "")
    assert lines == [("n7", '{"event": "other"}'), ("n7", "[1]"), ("n7", "plain")]
    assert list(node.log) == [line for _, line in lines]
    with pytest.raises(ConfigError, match="already running"):
        node.start()
    assert node.terminate() == 0
    assert (node.running, node.ready, node.end_reason) == (False, None, "has ended with exit code 0")
    node.start()
    assert node.ready is None, "what the process before has said says nothing of this one"
    wait_until(lambda: lines[-1] == ("n7", "again"))
    with pytest.raises(UnavailableError, match="does not get ready"):
        node.wait_ready(0.05)
    started.made[-1].process.code = 3
    with pytest.raises(UnavailableError, match="n7 has ended"):
        node.wait_ready()
    assert node.end_reason == "has ended with exit code 3"


@pytest.mark.parametrize(
    ("way", "number"), [("terminate", signal.SIGTERM), ("interrupt", signal.SIGINT), ("kill", signal.SIGKILL)]
)
@pytest.mark.parametrize("heeds", [True, False])
def test_dev_node_stop_sends_the_signal_and_kills_a_hanging_process(
    way: str, number: signal.Signals, heeds: bool, started: Any
) -> None:
    started.scripts.append({"heeds": (number,) if heeds else ()})
    node = DevNode("n1", ["x"], {}, None)
    assert getattr(node, way)() == 0, "there is nothing to end"
    node.start()
    code = getattr(node, way)()
    sent = started.made[0].process.sent
    assert sent[0] == number
    if heeds:
        assert (code, sent) == (0, [number])
    else:
        assert (code, sent[-1], node.end_reason) == (-9, signal.SIGKILL, "was killed by SIGKILL")


# ---- liftpy dev: the supervisor ---------------------------------------------------------------------------------------------
class Nodes:
    """Provide a cluster whose nodes the test ends."""

    def __init__(self) -> None:
        self.down: list[str] = []
        self.starts: list[str] = []
        self.nats: Any = None
        self.nodes = {
            name: SimpleNamespace(end_reason="has ended", log=["a", "b", "c", name], start=lambda n=name: self.start(n))
            for name in ("n1", "n2")
        }

    def ended_nodes(self) -> list[str]:
        return list(self.down)

    def start(self, name: str) -> None:
        self.starts.append(name)
        self.down.remove(name)


def test_dev_supervisor_restarts_an_ended_node_after_the_delay(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = Nodes()
    supervisor = Supervisor(nodes, 2.0)
    now_s = time.monotonic() + 100
    supervisor.restart_ended(now_s)
    nodes.down = ["n2"]
    for at_s, starts in ((0.0, []), (1.9, []), (2.0, ["n2"]), (2.1, ["n2"])):
        supervisor.restart_ended(now_s + at_s)
        assert nodes.starts == starts
    said = capsys.readouterr().err
    assert said.count("node n2 has ended; restart in 2 s") == 1
    nodes.down = ["n2"]
    supervisor.restart_ended(now_s + 50)
    supervisor.restart_ended(now_s + 51.9)
    assert nodes.starts == ["n2"], "the time counts from this end"
    supervisor.restart_ended(now_s + 52)
    assert nodes.starts == ["n2", "n2"]


def test_dev_supervisor_restarts_an_ended_nats_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The nodes tried to connect forever."""
    nodes = Nodes()
    nodes.nats = SimpleNamespace(end_reason="", resume=lambda: nodes.starts.append("nats-server"))
    supervisor = Supervisor(nodes, 2.0)
    supervisor.restart_ended(time.monotonic())
    assert nodes.starts == []
    nodes.nats.end_reason = "was killed by SIGKILL"
    supervisor.restart_ended(time.monotonic())
    assert nodes.starts == ["nats-server"]
    assert "nats-server was killed by SIGKILL; restart now" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_dev_command_that_is_stopped_before_its_nodes_are_ready_ends_at_once(
    number: signal.Signals, started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def connects(*_: Any) -> None:
        pass

    monkeypatch.setattr(dev, "_check_connection", connects)
    started.scripts += [{"said": ""}] * 3
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def stop() -> None:
        wait_until(lambda: len(started.made) == 3)
        os.kill(os.getpid(), number)

    stopper = threading.Thread(target=stop)
    began_s = time.monotonic()
    try:
        stopper.start()
        with pytest.raises(SystemExit) as left:
            main(["dev", "--nats", "nats://far:4", "--data", str(tmp_path), "--json"])
    finally:
        stopper.join()
        for each, handler in before.items():
            signal.signal(each, handler)
    assert (left.value.code, time.monotonic() - began_s < 30) == (0, True)
    assert [made.process.code for made in started.made] == [0, 0, 0]


@pytest.mark.parametrize(("lives_s", "given_up"), [(9.9, True), (10.1, False)])
def test_dev_supervisor_stops_restarting_a_node_that_ends_early_repeatedly(lives_s: float, given_up: bool) -> None:
    nodes = Nodes()
    supervisor = Supervisor(nodes, 0.0)
    now_s = time.monotonic() + 100
    for _ in range(3):
        nodes.down = ["n1"]
        supervisor.restart_ended(now_s)
        supervisor.restart_ended(now_s)
        now_s += lives_s
    assert nodes.starts == ["n1"] * 3
    nodes.down = ["n2"]
    supervisor.restart_ended(now_s)  # another one's ends are not counted with it
    supervisor.restart_ended(now_s)
    nodes.down = ["n1"]
    if given_up:
        with pytest.raises(UnavailableError, match=r"Node n1 ends repeatedly \(has ended\)"):
            supervisor.restart_ended(now_s)
        return
    supervisor.restart_ended(now_s)
    supervisor.restart_ended(now_s)
    assert nodes.starts.count("n1") == 4


# ---- the embedded nats-server -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "port"),
    [('{"nats": ["nats://127.0.0.1:4333"]}', 4333), ("", 0), ('{"nats": []}', 0), ("{}", 0), ('{"nats": ["nats://x:y"]}', 0)],
)
def test_nats_server_port_is_read_from_its_ports_file(text: str, port: int, tmp_path: Path) -> None:
    assert _port_in(tmp_path) == 0
    (tmp_path / "nats_1.ports").write_text(text)
    assert _port_in(tmp_path) == port


def test_nats_server_never_started_has_no_process_and_no_log() -> None:
    server = NatsServer(4999)
    assert (server.url, server.log) == ("nats://127.0.0.1:4999", "")
    with pytest.raises(UnavailableError):
        _ = server.pid
    with pytest.raises(UnavailableError):
        server.resume()
    server.stop()


@pytest.mark.parametrize("as_json", [True, False])
def test_dev_command_prints_nodes_data_directory_and_nats_url_once_without_secrets(
    as_json: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nodes = {"n1": SimpleNamespace(pid=7, status_url="http://127.0.0.1:1")}
    cluster: Any = SimpleNamespace(nodes=nodes, data=tmp_path, nats_url="nats://me:secret@far:4", namespace="ns")
    dev._announce(cluster, as_json)
    said = capsys.readouterr().out
    assert "secret" not in said
    if as_json:
        (line,) = said.splitlines()
        found = json.loads(line)
        assert (found["event"], found["namespace"]) == ("ready", "ns")
        assert found["nodes"] == {"n1": {"pid": 7, "status": "http://127.0.0.1:1", "data": str(tmp_path / "n1")}}
    else:
        assert "ready: 1 nodes on nats://" in said
        assert "{" not in said


def test_dev_environment_passes_cluster_settings_and_lists_unused_settings_of_single_nodes() -> None:
    given = {
        "LIFTPY_REPLICATION_LEASE_S": "2", "LIFTPY_LOG_LEVEL": "debug", "LIFTPY_NODE_ID": "n9", "LIFTPY_RACK": "r", "OTHER": "x",
        "LIFTPY_NATS": "nats://elsewhere:1", "LIFTPY_TRACE": "",
    }  # fmt: skip
    kept, unused = dev_environment(given)
    assert kept == {"LIFTPY_REPLICATION_LEASE_S": "2", "LIFTPY_LOG_LEVEL": "debug"}
    assert unused == ["LIFTPY_NATS", "LIFTPY_NODE_ID", "LIFTPY_RACK"]
