"""Commands ``dev``, ``demo``, ``service`` and ``publish`` with scripted clusters: requests, confirmations and printed texts."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from rich.console import Console

from liftpy.core.services.bad_records import Unit
from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2
from liftpy.errors import (
    ConfigError,
    LiftError,
    NotAllowedError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats.credentials import Credentials
from sidecar.cli import service
from sidecar.cli.main import main
from sidecar.cli.output import table
from sidecar.dev.demo_steps import Failover, Positions, Step
from tests.flat_client import FlatClient
from tests.unit.cli.test_cluster_commands import Cluster, cluster, run
from tests.unit.cli.test_tables import printed

__all__ = ["cluster"]
demo, dev, publish_module = (importlib.import_module(f"sidecar.cli.{name}") for name in ("demo", "dev", "publish"))


# ---- streams and rights --------------------------------------------------------------------------------------------------
def test_stream_create_with_json_option_prints_the_stream_in_one_line(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.set("orders", 1, isr=("n2",), leader="n2", leader_epoch=7, epoch=9)
    code, out, _ = run(capsys, "stream", "create", "orders", "--subject", "shop.orders", "--partitions", "2", "--json")
    assert code == 0
    (line,) = out.splitlines()
    said = json.loads(line)
    image = cluster.image.streams["orders"]
    assert (said["name"], said["uid"], said["subject"]) == ("orders", image.uid, "shop.orders")
    assert said["created_time_ns"] == image.created_time_ns
    first, second = said["partitions"]
    assert (first["partition"], first["subject"], first["isr"], first["replicas"]) == (
        0, "shop.orders", list(image.partitions[0].isr), list(image.partitions[0].replicas),
    )  # fmt: skip
    assert second == {
        "partition": 1, "subject": "shop.orders.1", "status": "ONLINE", "leader": "n2", "leader_epoch": 7, "epoch": 9,
        "replicas": list(image.partitions[1].replicas), "isr": ["n2"], "purges": [], "paused": "",
    }  # fmt: skip


def test_stream_show_json_config_does_not_depend_on_the_isr(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(run(capsys, "stream", "show", "orders", "--json")[1])["config"]
    cluster.set("orders", 0, isr=("n1",))
    assert json.loads(run(capsys, "stream", "show", "orders", "--json")[1])["config"] == before


@pytest.mark.parametrize("words", [["--stream", "a.b"], ["--stream", "*"], ["--service", "a b"], ["--service", ">"]])
def test_permissions_command_with_an_invalid_name_is_rejected(
    words: list[str], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "permissions", "--role", "reader", *words)
    assert (code, out) == (2, "")
    assert f"{words[1]!r} is not allowed" in err
    assert "1 to 64 of the characters" in err
    assert run(capsys, "permissions", "--role", "reader", "--stream", "orders", "--service", "*")[0] == 0


@pytest.mark.parametrize(("width", "spaced"), [(26, True), (25, False)])
def test_table_wide_enough_has_additional_space_between_columns(width: int, spaced: bool) -> None:
    """Two columns of ten characters with their spaces take 26."""
    text = printed(table(("a" * 10, "b" * 10), [("1", "2")], width=width), width)
    head = text.splitlines()[1]
    assert "a" * 10 in head
    assert "b" * 10 in head
    assert (head.index("b") - head.rindex("a") > 2) is spaced


# ---- liftpy dev ----------------------------------------------------------------------------------------------------------
class Dev:
    """In the place of DevCluster."""

    made: ClassVar[list[Any]] = []

    def __init__(self, nodes: int, **given: Any) -> None:
        self.count, self.given = nodes, given
        self.calls: list[str] = []
        self.nodes = {"n1": SimpleNamespace(pid=11, status_url="http://s"), "n2": SimpleNamespace(pid=12, status_url="")}
        self.nats_url, self.namespace, self.data = given["nats_url"] or "nats://own:1", given["namespace"], Path("/data")
        Dev.made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def ended_nodes(self) -> list[str]:
        raise UnavailableError("seen")  # the first look ends the test


@pytest.fixture
def a_dev(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    looked: list[str] = []

    class Connection:
        async def close(self) -> None:
            looked.append("closed")

    async def open_connection(nats: str, credentials: Credentials, name: str) -> Connection:
        looked.append(nats)
        return Connection()

    Dev.made = []
    monkeypatch.setattr(dev, "DevCluster", Dev)
    monkeypatch.setattr(dev, "open_connection", open_connection)
    monkeypatch.setattr(dev.signal, "signal", lambda *_: None)
    monkeypatch.setattr(dev, "_WATCH_S", 0.0)
    return looked


def test_dev_command_with_json_option_prints_one_line_when_the_cluster_is_ready(
    a_dev: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "dev", "--json")
    assert code == 3
    (line,) = out.splitlines()
    assert json.loads(line) == {
        "event": "ready", "nats": "nats://own:1", "namespace": Dev.made[0].namespace,
        "nodes": {
            "n1": {"pid": 11, "status": "http://s", "data": "/data/n1"}, "n2": {"pid": 12, "status": "", "data": "/data/n2"}
        },
    }  # fmt: skip
    assert (Dev.made[0].calls, a_dev) == (["start", "stop"], [])
    assert (Dev.made[0].given["nats_url"], Dev.made[0].given["settings"]) == ("", {})


def test_dev_command_with_an_external_nats_server_connects_with_the_given_credentials(
    a_dev: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFTPY_PASSWORD", "secret")
    _, out, err = run(capsys, "dev", "--nats", "nats://there:1", "--user", "me", "--nodes", "2")
    assert a_dev == ["nats://there:1", "closed"]
    assert "ready: 2 nodes on nats://there:1, data in /data" in out
    assert "stopping" in err
    (made,) = Dev.made
    assert (made.count, made.given["nats_url"]) == (2, "nats://there:1")
    assert "me" in made.given["settings"].values()
    assert run(capsys, "dev", "--nats", "not a url")[0] == 2
    assert len(Dev.made) == 1, "nothing was started"


# ---- liftpy demo ---------------------------------------------------------------------------------------------------------
FAILOVER = Failover("n1", "n2", 2, 0.25, 1.5)


def test_demo_json_contains_the_result_of_each_step_and_the_failover() -> None:
    steps = [Step("read", 1000, 2_000_000, 2.0), Step("spark", 10, 10, 1.0, agrees=False, note="offset 3")]
    delays = {"UA": (2, 20), "AA": (4, -20)}
    said = demo._as_json(steps, delays, FAILOVER, "", 12.345, False)
    assert (said["agrees"], said["seconds"]) == (False, 12.35)
    assert [step["name"] for step in said["steps"]] == ["read", "spark"]
    assert said["spark"] == {
        "ran": True, "why_not": "",
        "delays": {"AA": {"flights": 4, "minutes": -20}, "UA": {"flights": 2, "minutes": 20}},
    }  # fmt: skip
    assert said["failover"]["next_ack_s"] == 0.25
    assert demo._as_json(steps, {}, FAILOVER, "no java", 1.0, True)["spark"] == {
        "ran": False, "why_not": "no java", "delays": {},
    }  # fmt: skip
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    screen = demo._Screen(console)
    screen.result(steps, delays, "no java", 12.34, False)
    text = console.export_text()
    assert "500" in text
    assert "1.0" in text
    assert "NO: offset 3" in text
    assert "Spark: not run: no java" in text
    assert "NOT everything agrees; 12.3 s in all" in text
    assert text.index("AA") < text.index("UA"), "the earliest first"
    screen.result(steps[:1], {}, "", 1.0, True)
    assert "everything agrees, record by record" in console.export_text()


def test_demo_progress_bars_show_the_role_of_each_replica() -> None:
    screen = demo._Screen(Console(width=120, file=open("/dev/null", "w")))  # noqa: SIM115
    progress = screen.show_bars(10, ["n1", "n2"])
    screen.positions(Positions(sent=7, committed=5, leader="n2", replicas={"n1": 4, "n2": 6}))
    assert [(task.description, task.completed, task.total) for task in progress.tasks] == [
        ("published", 7, 10), ("committed (HW)", 5, 10), ("n1 (follower)", 4, 10), ("n2 (leader)", 6, 10),
    ]  # fmt: skip


# ---- liftpy service ------------------------------------------------------------------------------------------------------
def test_service_run_command_starts_the_service_with_the_settings_of_its_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []

    class Counter:
        """As a service's class: only its name is asked for."""

    async def run_service(factory: Any, settings: Any, partitions: Any, target: Any) -> None:
        ran.append(
            (
                getattr(factory, "func", factory),
                settings.service,
                partitions,
                settings.output_stream,
                settings.stream,
                settings.node,
                target.namespace,
            )
        )
        ran.append((logging.getLogger().level, logging.getLogger("nats").level))

    root, noisy = logging.getLogger(), logging.getLogger("nats")
    before = root.level, noisy.level, list(root.handlers)
    noisy.setLevel(logging.NOTSET)
    monkeypatch.setattr(service, "_run", run_service)
    monkeypatch.setattr(service, "load_service", lambda name: Counter)
    words = ["service", "m:C", "--stream", "s", "--node", "n1", "--data", "d", "--output-stream", "o", "--log-level", "error"]
    try:
        code, *_ = run(capsys, *words, "--namespace", "ns")
    finally:
        root.setLevel(before[0])
        noisy.setLevel(before[1])
        root.handlers[:] = before[2]
    assert code == 0
    assert ran == [(Counter, "counter", (0,), "o", "s", "n1", "ns"), (logging.ERROR, logging.WARNING)]


class Asked(FlatClient):
    """A client over one stream of one partition whose nodes say how their services are."""

    def __init__(self, **said: Any) -> None:
        self.said: dict[str, Any] = said
        self.published: list[tuple[str, bytes]] = []
        self.transport = self
        self.first, self.end = 2, 10
        self.ranges: list[Any] = []
        self.records: list[str] = ["the record"]
        self.partitions = 1

    async def stream(self, name: str) -> Any:
        return SimpleNamespace(uid="u1", partitions=[SimpleNamespace(replicas=("n1", "n2", "n3"))] * self.partitions)

    async def bounds(self, stream: str, partition: int) -> Any:
        return SimpleNamespace(log_start_offset=self.first, end_offset=self.end)

    async def node_status(self, node: str) -> Any:
        said = self.said.get(node, UnavailableError("silent"))
        if isinstance(said, Exception):
            raise said
        services = [{"service": "other", "position": 99, "snapshot": 99}, {"service": "counter", **said}]
        return {
            "partitions": [
                {"uid": "u2", "partition": 0, "services": services[:1]},
                {"uid": "u1", "partition": 0, "services": services},
            ]
        }

    async def publish(self, subject: str, payload: bytes) -> None:
        self.published.append((subject, payload))
        node = subject.split(".")[2]
        self.said[node] = {**self.said[node], "snapshot": self.said[node]["position"]}

    async def read_range(self, stream: str, partition: int, start: int, end: int, uid: str, exact: bool = False) -> Any:
        self.ranges.append((stream, partition, start, end, uid))
        yield SimpleNamespace(records=lambda: iter(self.records))


async def test_service_snapshot_command_sends_a_request_to_each_node_that_runs_the_service() -> None:
    client: Any = Asked(n1={"position": 7, "snapshot": 3}, n3={"position": 5, "snapshot": 5})
    stored = await service.store_now(client, "counter", "s", 0, (), 30.0, "ns")
    assert stored == {"n1": 7, "n3": 5}
    assert [subject for subject, _ in client.published] == [
        "ns.service.n1.session.s.counter",
        "ns.service.n3.session.s.counter",
    ]
    assert frames.decode(client.published[0][1], service_pb2.SnapshotRequest) == service_pb2.SnapshotRequest(
        service="counter", stream="s", partition=0
    )
    only: Any = Asked(n1={"position": 7, "snapshot": 3}, n3={"position": 5, "snapshot": 5})
    assert await service.store_now(only, "counter", "s", 0, ("n3",), 30.0, "ns") == {"n3": 5}
    for nodes, text in (
        ((), "Service nobody does not run for s/0 on any node. Check the name, --stream and --partition."),
        (("n2",), "Service nobody does not run next to node n2. Check --node."),
    ):
        with pytest.raises(NotFoundError, match=text):
            await service.store_now(only, "nobody", "s", 0, nodes, 30.0, "ns")
    with pytest.raises(NotFoundError, match="has 1 partitions"):
        await service.store_now(only, "counter", "s", 1, (), 30.0, "ns")


async def test_service_command_without_partition_option_on_two_partitions_is_rejected() -> None:
    client: Any = Asked(n1={"position": 7, "snapshot": 3})
    client.partitions = 2
    with pytest.raises(ConfigError, match=r"2 partitions.*--partition"):
        await service.store_now(client, "counter", "s", None, (), 30.0, "ns")
    with pytest.raises(ConfigError, match=r"2 partitions.*--partition"):
        await service.pass_over(client, "counter", "s", None, Unit(5, ""))
    assert client.published == []


async def test_service_snapshot_command_without_a_new_snapshot_raises_unavailable_at_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client: Any = Asked(n1={"position": 7, "snapshot": 3})

    async def publish(subject: str, payload: bytes) -> None:
        """Nobody hears it."""

    client.publish = publish
    with pytest.raises(UnavailableError, match="no snapshot on n1 within"):
        await service.store_now(client, "counter", "s", 0, (), 0.0, "ns")


@pytest.mark.parametrize("error", [UnavailableError("x"), OutcomeUnknownError("x"), ProtocolError("x")])
async def test_service_position_is_none_if_the_node_does_not_answer_or_does_not_run_the_service(error: Exception) -> None:
    client: Any = Asked(n1=error, n2={"position": 0})
    assert await service._position(client, "n1", "u1", 0, "counter") is None
    assert await service._position(client, "n2", "u1", 0, "counter") == 0
    assert await service._position(client, "n2", "u1", 0, "nobody") is None
    assert await service._position(client, "n2", "u1", 1, "counter") is None


async def test_service_skip_command_writes_a_decision_only_if_no_node_has_applied_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[Any] = []

    class Writer:
        def __init__(self, client: Any, dead_letter: str) -> None:
            written.append(dead_letter)

        async def pass_over(self, identity: Any, decision: Any, record: Any, why: str) -> int:
            written.append((identity.service, identity.uid, decision.unit, record, why))
            return 42

    monkeypatch.setattr(service, "DecisionWriter", Writer)
    client: Any = Asked(n1={"position": 5}, n2={"position": 4})

    async def skip(offset: int, **how: Any) -> int:
        return await service.pass_over(client, "counter", "s", 0, Unit(offset, ""), **how)

    assert await skip(5, dead_letter="dead") == 42, "it stands at the record"
    assert client.ranges == [("s", 0, 5, 6, "u1")]
    assert written == ["dead", ("counter", "u1", Unit(5, ""), "the record", "passed over by an operator")]
    with pytest.raises(ConfigError, match="counter on n1 is at"):
        await skip(4)
    assert await skip(4, force=True) == 42
    for offset, inside in ((1, False), (2, True), (9, True), (10, False)):
        if inside:
            assert await skip(offset, force=True) == 42
        else:
            with pytest.raises(ConfigError, match=f"s/0 has the offsets 2 to 9, not {offset}"):
                await skip(offset, force=True)
    client.records = []
    with pytest.raises(LiftError, match="s/0 has no record at offset 9"):
        await skip(9)
    with pytest.raises(NotFoundError, match="Stream s has no partition 1"):
        await service.pass_over(client, "counter", "s", 1, Unit(5, ""))


# ---- publish, node, service query --------------------------------------------------------------------------------------------
class Publishing:
    """A client and its publisher: line ``refused`` is not taken."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.refused, self.sent = refused, list[Any]()
        self.asked: tuple[Any, ...] = ()

    async def publisher(self, name: str, partition: int, *, subject: str, options: Any) -> Publishing:
        self.asked = (name, partition, subject, options.window)
        return self

    async def stream(self, name: str) -> None:
        raise NotAllowedError(f"may not ask about {name}")

    async def __aenter__(self) -> Publishing:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await asyncio.sleep(0)

    async def send(self, line: bytes, **how: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = len(self.sent) + 1
        self.sent.append((line, how["key"], how["headers"], how["ack"].value))
        if number in self.refused:
            answer.set_exception(UnavailableError(f"line {number}"))
        else:
            answer.get_loop().call_soon(answer.set_result, SimpleNamespace(offset=100 + number))
        return answer

    async def post(self, line: bytes, **how: Any) -> None:
        self.sent.append((line, how["key"], how["headers"], "none"))


def published(monkeypatch: pytest.MonkeyPatch, client: Publishing) -> None:
    monkeypatch.setattr(publish_module, "with_client", lambda _, work, **__: asyncio.run(work(client)))


def test_publish_command_sends_each_line_and_prints_count_and_offsets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo\nthree")
    client = Publishing()
    published(monkeypatch, client)
    words = ["publish", "s", str(tmp_path / "lines"), "--partition", "2", "--subject", "a.b", "--window", "7", "--key", "k"]
    code, out, _ = run(capsys, *words, "--header", "a=1=2", "--header", "b=")
    assert (code, client.asked) == (0, ("s", 2, "a.b", 7))
    assert [sent[0] for sent in client.sent] == [b"one", b"two", b"three"]
    assert {(*sent[1:2], sent[2], sent[3]) for sent in client.sent} == {(b"k", (("a", b"1=2"), ("b", b"")), "all")}
    assert out.startswith("3 messages published to s/2 (ack all, offsets 101 to 103) in ")
    client.sent.clear()
    code, out, _ = run(capsys, "publish", "s", str(tmp_path / "lines"), "--ack-policy", "none", "--json")
    said = json.loads(out)
    assert (code, said["published"], said["ack"], said["first_offset"], said["last_offset"]) == (0, 3, "none", -1, -1)
    assert 0 <= said["seconds"] < 60
    assert "error" not in said
    assert "offsets" not in run(capsys, "publish", "s", str(tmp_path / "lines"), "--ack-policy", "none")[1]


@pytest.mark.parametrize("keep_going", [True, False])
def test_publish_command_with_rejected_lines_prints_the_first_line_number(
    keep_going: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"1\n2\n3\n4\n")
    client = Publishing(refused=(2, 4))
    published(monkeypatch, client)
    words = ["publish", "s", str(tmp_path / "lines"), *(["--keep-going"] if keep_going else [])]
    code, out, err = run(capsys, *words, "--json")
    said = json.loads(out)
    assert (code, said["refused"], said["first_refused_line"], said["error"]) == (3, 2 if keep_going else 1, 2, "UNAVAILABLE")
    assert said["detail"] == "line 2"
    assert said["published"] == (2 if keep_going else 1)
    assert len(client.sent) == (4 if keep_going else 2)
    lines = "2 lines are not acknowledged, the first of them line 2" if keep_going else "line 2 is not acknowledged"
    assert f"Error: {lines}: line 2" in err


@pytest.mark.parametrize(("value", "printed_as"), [(b"42", b"42\n"), (b"42\n", b"42\n"), (b"", b"\n")])
def test_service_query_command_prints_the_answer_and_with_show_offset_its_node(
    value: bytes, printed_as: bytes, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Client(FlatClient):
        async def query(self, name: str, body: bytes, **how: Any) -> Any:
            asked.append((name, body, how["partition"], how["at_least"]))
            return SimpleNamespace(value=value, position=9, node="n2")

    monkeypatch.setattr(service, "with_client", lambda _, work, **__: asyncio.run(work(Client())))
    for words in (["--partition", "1", "--at-least", "5"], ["--show-offset"]):
        with pytest.raises(SystemExit) as left:
            main(["service", "query", "counter", "how many", *words])
        assert not left.value.code
        out, err = capfdbinary.readouterr()
        assert out == printed_as
        assert (b"position 9 on n2" in err) is ("--show-offset" in words)
    assert asked == [("counter", b"how many", 1, 5), ("counter", b"how many", None, None)]
