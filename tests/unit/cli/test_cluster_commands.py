"""Commands with the real state machine behind a scripted client: requests, printed texts and waiting."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from liftpy.client import BatchSlice, ClusterState
from liftpy.client.stream_info import PartitionInfo, StreamInfo
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller_metrics import ControllerMetrics
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.observe.cluster_health import judge
from liftpy.core.observe.node_summary import summary_from_json
from liftpy.core.wire.batch import build_batch, parse_batch
from liftpy.errors import ConfigError, NotFoundError, OutcomeUnknownError, UnavailableError
from sidecar.cli.main import main
from sidecar.status.figures import NodeFigures
from sidecar.status.status_api import summarize_node
from tests.flat_client import FlatClient
from tests.unit.metadata.cluster_driver import Driver
from tests.unit.status.test_metrics import a_reporter

MODULES = {
    name: importlib.import_module(f"sidecar.cli.{name}")
    for name in ("partition", "node", "status", "stream", "permissions", "consume")
}


class Cluster(FlatClient):
    """A client whose cluster is a real ``ClusterFsm``; ``said`` are the nodes' reports, ``asked`` the changes that were asked for."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.leader = "n1"
        self.said: dict[str, Any] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.controllers: tuple[Any, ...] = ()
        self.turns: list[Callable[[], None]] = []
        """What happens before each look at the cluster."""
        self.counters: dict[str, int] = {}

    @property
    def image(self) -> ClusterImage:
        return self.driver.fsm.image

    async def describe_cluster(self, *, linearizable: bool = False) -> ClusterState:
        if self.turns:
            self.turns.pop(0)()
        return ClusterState(self.image, self.leader, self.controllers)

    async def stream(self, name: str) -> StreamInfo:
        return StreamInfo.of((await self.describe_cluster()).stream(name))

    async def default_quota(self) -> Any:
        return self.image.default_quota

    async def list_streams(self, *, internal: bool = False) -> list[StreamInfo]:
        return list(map(StreamInfo.of, (await self.describe_cluster()).streams()))

    async def elect_leader(self, stream: str, number: int, node: str, *, unclean: bool = False) -> PartitionInfo:
        self.asked.append(("elect", stream, number, node, unclean))
        return PartitionInfo.of(self.image.streams[stream].partitions[number])

    async def remove_node(self, node: str) -> None:
        self.asked.append(("remove", node))

    async def delete_stream(self, name: str, uid: str) -> None:
        self.asked.append(("delete", name, uid))

    async def create_stream(self, name: str, subject: str, **how: Any) -> StreamInfo:
        self.asked.append(("create", name, subject, how["partitions"], how["replicas"]))
        return StreamInfo.of(self.image.streams[name])

    async def bounds(self, name: str, number: int, **_: Any) -> Any:
        return SimpleNamespace(uid=self.image.streams[name].uid, log_start_offset=10, end_offset=90 + number, compacted=False)

    async def until_ready(self, stream: StreamInfo) -> StreamInfo:
        return stream

    async def node_health(self, node_id: str, timeout_s: float) -> dict[str, Any]:
        return {}

    async def node_status(self, node_id: str, timeout_s: float) -> dict[str, Any]:
        said = self.said.get(node_id, UnavailableError(f"{node_id} is silent"))
        if isinstance(said, Exception):
            raise said
        return dict(said)

    def set(self, name: str, number: int = 0, **fields: Any) -> None:
        """Put a state of a partition into the image, as no command gives it at once."""
        stream = self.image.streams[name]
        partitions = list(stream.partitions)
        partitions[number] = dataclasses.replace(partitions[number], **fields)
        changed = dataclasses.replace(stream, partitions=tuple(partitions))
        self.driver.fsm.image = dataclasses.replace(self.image, streams=self.image.streams.set(name, changed))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(Driver(("n1", "n2", "n3")))
    for name in ("orders", "prices"):
        made.driver.create(name, partitions=2, replicationFactor=3)
    for module in MODULES.values():
        monkeypatch.setattr(module, "with_client", lambda _, work, **__: asyncio.run(work(made)))
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


# ---- liftpy partition ----------------------------------------------------------------------------------------------------
def test_partition_transfer_waits_until_the_new_leader_is_online(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    before = cluster.driver.partition("orders", 1)
    others = [node for node in before.replicas if node != before.leader]
    decided = before.epoch + 1

    async def elect(stream: str, number: int, node: str, *, unclean: bool = False) -> PartitionInfo:
        cluster.asked.append((stream, number, node, unclean))
        return PartitionInfo.of(dataclasses.replace(before, epoch=decided))

    cluster.elect_leader = elect  # type: ignore[method-assign]
    led = {"status": PartitionStatus.ONLINE, "leader": others[0]}
    cluster.turns = [
        lambda: None,
        lambda: None,  # Online, but as it was before the decision
        lambda: cluster.set("orders", 1, epoch=decided, status=PartitionStatus.CANDIDATE_FOUND, leader=""),
        lambda: cluster.set("orders", 1, epoch=decided + 2, leader_epoch=77, **led),
    ]
    code, out, _ = run(capsys, "partition", "transfer", "orders", "1", "--node", others[0], "--json")
    assert (code, cluster.asked, cluster.turns) == (0, [("orders", 1, others[0], False)], [])
    said = json.loads(out)
    assert said.pop("took_s") < 15
    wanted = {"stream": "orders", "partition": 1, "leader": others[0], "leader_epoch": 77}
    assert said == {**wanted, "isr": list(before.isr), "unclean_elected": False}
    code, out, _ = run(capsys, "partition", "transfer", "orders", "1", "--node", others[0])
    assert f"orders/1 is led by {others[0]} in epoch 77" in out


def test_partition_elect_without_a_leader_before_the_timeout_exits_with_3(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.set("orders", 0, status=PartitionStatus.OFFLINE, leader="")
    code, _, err = run(capsys, "partition", "elect", "orders", "--node", "n2", "--timeout", "0.1")
    assert (code, cluster.asked) == (3, [("elect", "orders", 0, "n2", False)])
    assert "orders/0 is still OFFLINE after" in err
    assert run(capsys, "partition", "transfer", "orders")[0] == 2, "there is no leader to move"
    assert run(capsys, "partition", "elect", "orders", "1")[0] == 2, "it is led"
    assert run(capsys, "partition", "transfer", "orders", "2")[0] == 1, "the first number behind the last"
    assert len(cluster.asked) == 1


@pytest.mark.parametrize(("answer", "asked"), [("y\n", [("elect", "orders", 0, "", True)]), ("n\n", [])])
def test_partition_elect_unclean_requires_a_confirmation(
    answer: str, asked: list[Any], cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.set("orders", 0, status=PartitionStatus.OFFLINE, leader="")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    code, _, err = run(capsys, "partition", "elect", "orders", "--unclean", "--timeout", "0.1")
    assert "may be LOST permanently" in err
    assert (code, cluster.asked) == (3 if asked else 130, asked)


@pytest.mark.parametrize("only", [None, "orders"])
def test_partition_elect_preferred_elects_the_preferred_leader_of_each_partition(
    only: str | None, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    moved: list[tuple[str, int, str]] = []
    for name in ("orders", "prices"):
        preferred, other, _ = cluster.driver.partition(name, 1).replicas
        cluster.set(name, 1, leader=other)
        if only in (None, name):
            moved.append((name, 1, preferred))
    words = ["--stream", only] if only else []
    code, out, _ = run(capsys, "partition", "elect-preferred", *words, "--json")
    assert (code, cluster.asked) == (0, [("elect", *move, False) for move in moved])
    assert [(m["stream"], m["partition"]) for m in json.loads(out)["moved"]] == [move[:2] for move in moved]
    code, out, _ = run(capsys, "partition", "elect-preferred", *words)
    assert f"{len(moved)} leadership" in out
    for name in ("orders", "prices"):
        cluster.set(name, 1, leader=cluster.driver.partition(name, 1).replicas[0])
    cluster.asked.clear()
    assert "preferred leader in the ISR is led by it" in run(capsys, "partition", "elect-preferred")[1]
    assert cluster.asked == []
    assert run(capsys, "partition", "elect-preferred", "--stream", "nosuch")[0] == 1


# ---- liftpy node ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def spare(cluster: Cluster) -> Cluster:
    cluster.driver.register("n4")
    return cluster


def test_node_remove_waits_for_a_running_node_to_stop(spare: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    spare.turns = [lambda: None, lambda: None, lambda: spare.driver.fence("n4") and None]
    code, out, err = run(capsys, "node", "remove", "n4", "--json")
    assert (code, spare.asked, spare.turns) == (0, [("remove", "n4")], [])
    assert json.loads(out) == {"node": "n4", "removed": True, "dry_run": False, "controller": False}
    assert err == ""
    code, out, err = run(capsys, "node", "remove", "n4")
    assert ("n4 is removed" in out, err) == (True, "")


def test_node_remove_of_a_controller_is_rejected(spare: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    spare.controllers = (SimpleNamespace(node_id="n4"),)
    spare.driver.fence("n4")
    code, _, err = run(capsys, "node", "remove", "n4", "--timeout", "3600")  # said at once
    assert (code, "take it out of the controllers first: liftpy controllers remove n4" in err) == (2, True)
    assert spare.asked == []


def test_node_remove_dry_run_removes_nothing(spare: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    spare.driver.fence("n4")
    code, out, _ = run(capsys, "node", "remove", "n4", "--dry-run")
    assert (code, out.strip(), spare.asked) == (0, "n4 would be removed", [])
    assert json.loads(run(capsys, "node", "remove", "n4", "--dry-run", "--json")[1])["removed"] is False


def test_node_remove_that_is_not_possible_prints_the_reason_and_sends_no_request(
    spare: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "node", "remove", "n4", "--timeout", "0")
    assert (code, "n4' is alive: stop it first" in err) == (2, True)
    spare.driver.fence("n2")
    code, _, err = run(capsys, "node", "remove", "n2", "--timeout", "3600")  # no time changes that: said at once
    assert (code, "holds 4 replicas of orders, prices" in err) == (2, True)
    code, _, err = run(capsys, "node", "remove", "n9", "--timeout", "3600")
    assert (code, "no node 'n9'" in err) == (1, True)
    assert spare.asked == []


@pytest.mark.parametrize(("timeout", "tries", "code"), [("3600", 2, 0), ("0", 1, 2)])
def test_node_remove_rejected_because_the_node_is_alive_is_retried_until_its_timeout(
    timeout: str, tries: int, code: int, spare: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    spare.driver.fence("n4")

    async def refused(node: str) -> None:
        spare.asked.append(("remove", node))
        if len(spare.asked) == 1:
            raise ConfigError("n4 is alive: stop it first")

    spare.remove_node = refused  # type: ignore[method-assign]
    assert run(capsys, "node", "remove", "n4", "--timeout", timeout)[0] == code
    assert spare.asked == [("remove", "n4")] * tries


# ---- liftpy status -------------------------------------------------------------------------------------------------------
def replica(cluster: Cluster, stream: str, number: int, newest: int, **more: Any) -> dict[str, Any]:
    return {"uid": cluster.image.streams[stream].uid, "partition": number, "newest_offset": newest, **more}


def test_status_json_contains_the_values_of_nodes_partitions_and_services(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.driver.register("n0", rack="r7", version="1.2", weight=2.0, statusAddress="http://x")
    cluster.driver.fence("n0")
    cluster.leader = "n2"
    cluster.controllers = (SimpleNamespace(node_id="n2"), SimpleNamespace(node_id="n3"))
    state = cluster.driver.partition("orders", 1)
    first, second, third = state.replicas
    service = {"service": "sum", "role": "LEADER", "position": 3, "lag": 4, "emitted_end": 5, "output_count": 6, "problem": ""}
    cluster.said = {
        first: {"partitions": [replica(cluster, "orders", 1, 90, high_watermark=80, log_start_offset=7, services=[service])]},
        second: {"partitions": [replica(cluster, "orders", 1, 95), replica(cluster, "orders", 0, 5)]},
        third: OutcomeUnknownError("too late"),
    }
    code, out, _ = run(capsys, "status", "--stream", "orders", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["metadata_leader"], found["index"]) == ("n2", cluster.image.index)
    facts = ("node_id", "fenced", "answers", "controller", "metadata_leader", "leads")
    leads = {
        node: sum(p.leader == node for s in cluster.image.streams.values() for p in s.partitions)
        for node in cluster.image.nodes
    }
    wanted = [("n0", True, False, False, False), ("n1", False, third != "n1", False, False)]
    wanted += [("n2", False, third != "n2", True, True), ("n3", False, third != "n3", True, False)]
    assert [tuple(n[f] for f in facts) for n in found["nodes"]] == [(*w, leads[w[0]]) for w in wanted]
    assert [found["nodes"][0][f] for f in ("rack", "version", "weight", "status_address")] == ["r7", "1.2", 2.0, "http://x"]
    assert [n["incarnation"] for n in found["nodes"]] == [cluster.image.nodes[n].incarnation for n in ("n0", "n1", "n2", "n3")]
    assert [(p["stream"], p["partition"]) for p in found["partitions"]] == [("orders", 0), ("orders", 1)]
    one = found["partitions"][1]
    assert [one[f] for f in ("high_watermark", "newest_offset", "log_start_offset")] == [80, 90, 7]
    assert one["lag"] == {first: 0, second: 0, third: None}, "ahead of its leader is no lag below 0; the silent one is unknown"
    assert one["services"] == {first: [service], second: []}
    assert (one["leader"], one["leader_epoch"], one["epoch"], one["status"]) == (
        first,
        state.leader_epoch,
        state.epoch,
        "ONLINE",
    )
    assert (one["replicas"], one["isr"], one["uid"]) == (
        list(state.replicas),
        list(state.isr),
        cluster.image.streams["orders"].uid,
    )
    cluster.said[second] = {"partitions": [replica(cluster, "orders", 1, 88)]}
    assert json.loads(run(capsys, "status", "--json")[1])["partitions"][1]["lag"] == {first: 0, second: 2, third: None}
    cluster.said[first] = UnavailableError("nobody there")
    one = json.loads(run(capsys, "status", "--json")[1])["partitions"][1]
    assert [one[f] for f in ("high_watermark", "newest_offset", "log_start_offset")] == [None, None, None]
    assert one["lag"] == dict.fromkeys(state.replicas)
    assert run(capsys, "status", "--stream", "nosuch", "--json")[0] == 1


def test_status_text_shows_nodes_and_partitions_with_their_problems(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cluster.driver.register("n0")
    cluster.driver.fence("n0")
    cluster.leader = "n2"
    cluster.controllers = (SimpleNamespace(node_id="n3"),)
    cluster.set("prices", 0, leader="", status=PartitionStatus.OFFLINE)
    state = cluster.driver.partition("orders", 0)
    first, second, third = state.replicas
    cluster.said = {first: {"partitions": [replica(cluster, "orders", 0, 9, high_watermark=8)]}, second: {"partitions": []}}
    text = run(capsys, "status")[1]
    rows = {row[0]: row for row in (line.split() for line in text.splitlines()) if row}
    states = {"n0": "fenced", first: "live", second: "live", third: "silent"}
    assert {node: rows[node][1] for node in states} == states
    assert [("leader" in rows[n], "member" in rows[n]) for n in ("n1", "n2", "n3")] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    epochs = f"{state.leader_epoch}/{state.epoch}"
    lag = [f"{node}:?" for node in (second, third)]
    assert rows["orders/0"] == ["orders/0", "ONLINE", first, epochs, *state.replicas, *state.isr, "8", "9", *lag]
    assert rows["prices/0"][1:3] == ["OFFLINE", "none"]
    assert rows["prices/0"][-5:-3] == ["?", "?"]
    assert "metadata leader: n2" in text
    assert "services" not in text
    cluster.leader = ""
    assert "metadata leader: none" in run(capsys, "status")[1]


# ---- liftpy stream, liftpy permissions ------------------------------------------------------------------------------------------
def test_stream_delete_request_contains_the_uid_of_the_stream(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    uid = cluster.image.streams["orders"].uid
    code, out, _ = run(capsys, "stream", "delete", "orders", "--yes", "--json")
    said = json.loads(out)
    assert (code, said["deleted"], said["uid"], cluster.asked) == (0, "orders", uid, [("delete", "orders", uid)])


def test_stream_list_and_show_print_the_streams(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cluster.set("orders", 1, leader="", status=PartitionStatus.OFFLINE, isr=("n2",))
    image = cluster.image.streams["orders"]
    assert [s["name"] for s in json.loads(run(capsys, "stream", "list", "--json")[1])] == ["orders", "prices"]
    listed = next(line for line in run(capsys, "stream", "list")[1].splitlines() if "orders" in line)
    assert listed.split() == ["orders", "shop.orders", "2", "3", "all", image.uid]
    shown = json.loads(run(capsys, "stream", "show", "orders", "--json")[1])
    assert [shown[f] for f in ("name", "uid", "subject", "created_time_ns")] == [
        "orders",
        image.uid,
        "shop.orders",
        image.created_time_ns,
    ]
    wanted = [
        {
            "partition": p.partition,
            "subject": subject,
            "status": p.status.name,
            "leader": p.leader,
            "leader_epoch": p.leader_epoch,
        }
        | {"epoch": p.epoch, "replicas": list(p.replicas), "isr": list(p.isr), "purges": [], "paused": ""}
        for p, subject in zip(image.partitions, ("shop.orders", "shop.orders.1"), strict=True)
    ]
    assert shown["partitions"] == wanted
    rows = [
        line.split()
        for line in run(capsys, "stream", "show", "orders")[1].splitlines()
        if line.strip().startswith(("0 ", "1 "))
    ]
    for row, p, subject in zip(rows, image.partitions, ("shop.orders", "shop.orders.1"), strict=True):
        cells = [str(p.partition), subject, p.status.name, p.leader or "none", str(p.leader_epoch), str(p.epoch)]
        assert row == [*cells, *p.replicas, *p.isr]


@pytest.mark.parametrize(("words", "asked", "note"), [([], 0, True), (["--replicas", "2"], 2, False)])
def test_stream_create_with_fewer_replicas_than_the_default_prints_a_note(
    words: list[str], asked: int, note: bool, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.driver.create("few", partitions=1, replicationFactor=2)
    code, out, _ = run(capsys, "stream", "create", "few", "--subject", "shop.few", *words)
    assert (code, cluster.asked) == (0, [("create", "few", "shop.few", 1, asked)])
    assert "stream few on shop.few: 1 partition, 2 replicas each" in out
    assert ("only 2 nodes in the cluster, so 2 replicas instead of 3" in out) is note
    assert "note" not in run(capsys, "stream", "create", "orders", "--subject", "shop.orders", "--partitions", "2")[1]


def test_permissions_command_for_a_publisher_lists_the_subjects_of_its_streams(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "permissions", "--role", "publisher", "--stream", "orders", "--stream", "prices")
    assert code == 0
    for subject in ("shop.orders", "shop.orders.1", "shop.prices", "shop.prices.1"):
        assert f'"{subject}"' in out
    assert run(capsys, "permissions", "--role", "publisher")[0] == 2
    only = run(capsys, "permissions", "--role", "publisher", "--stream", "orders", "--subject", "a.b")[1]
    assert '"a.b"' in only
    assert "shop." not in only, "what was named wins"
    assert '">"' in run(capsys, "permissions", "--role", "node")[1]
    nsc = run(capsys, "permissions", "--role", "node", "--subject", "a.b", "--format", "nsc")[1]
    assert "nsc" in nsc
    assert "node" in nsc


# ---- liftpy consume --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("as_json", [False, True])
def test_consume_command_prints_each_record_and_ends_after_the_last_record(
    as_json: bool, cluster: Cluster, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    class Consumer:
        backwards = False

        async def batches(self) -> Any:
            for base, values in ((3, [b"a", None]), (5, [b"\xff"])):
                yield parse_batch(build_batch(values, base_offset=base, timestamp_ns=9))

    def consume(name: str, partition: int, *, start: object, until: object, **wanted: object) -> Consumer:
        given.append((name, partition, start, until))
        assert wanted == {"subjects": ("a.*",), "keys": (b"k", b"l"), "backwards": False}
        return Consumer()

    cluster.consume = consume  # type: ignore[attr-defined]
    cluster.counters = {"skipped": 2}
    words = ["consume", "orders", "--partition", "1", "--from", "3", "--until", "5"]
    words += ["--subject", "a.*", "--key", "k", "--key", "l"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--json"] if as_json else words)
    assert not left.value.code
    said = capsysbinary.readouterr()
    assert given == [("orders", 1, 3, 5)]
    assert said.err.endswith(b"skipped: 2\n")
    lines = said.out.splitlines()
    if as_json:
        assert [json.loads(line)["offset"] for line in lines] == [3, 4, 5]
        assert json.loads(lines[2])["value_base64"] == "/w=="
    else:
        assert lines == [b"3\ta", b"4\t", b"5\t\xff"]


class Written:
    """Two batches of three records."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.backwards = given["backwards"]

    async def begin(self) -> Any:
        return SimpleNamespace(end_offset=6)

    async def batches(self) -> Any:
        for base in (3, 0) if self.backwards else (0, 3):
            keys = [b"k%d" % offset for offset in range(base, base + 3)]
            yield BatchSlice(parse_batch(build_batch([b"v", None, b"\xff"], keys=keys, base_offset=base, timestamp_ns=9)), 0, 3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("suffix", ["parquet", "arrow", "jsonl"])
def test_consume_output_option_writes_all_records_to_the_file(
    suffix: str, reverse: bool, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []
    cluster.consume = lambda *_, **given: Written(asked.append(given) or given)  # type: ignore[attr-defined, func-returns-value]
    file = tmp_path / f"orders.{suffix}"
    code, out, err = run(capsys, "consume", "orders", "--output", str(file), *(["--reverse"] if reverse else []))
    assert (code, out, err) == (0, "", f"6 records in {file}\n")
    assert (asked[0]["start"], asked[0]["until"]) == (("new", None) if reverse else ("earliest", "end"))
    if suffix == "jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        table = pq.read_table(file) if suffix == "parquet" else pa.ipc.open_file(file).read_all()
        rows = table.to_pylist()
    assert [row["offset"] for row in rows] == (list(range(5, -1, -1)) if reverse else list(range(6)))
    assert [row["key"] for row in rows[:1]] == (
        ["k5" if reverse else "k0"] if suffix == "jsonl" else [b"k5" if reverse else b"k0"]
    )
    assert os.listdir(tmp_path) == [file.name]
    again = run(capsys, "consume", "orders", "--output", str(file))
    assert again[0] == 2
    assert "already exists" in again[2]


def test_consume_output_that_fails_leaves_a_file_with_the_suffix_part(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fails(Written):
        async def batches(self) -> Any:
            async for piece in super().batches():
                yield piece
                raise NotFoundError("made again")

    cluster.consume = lambda *_, **given: Fails(given)  # type: ignore[attr-defined]
    code, _, err = run(capsys, "consume", "orders", "--output", str(tmp_path / "o.jsonl"))
    assert code == 1
    assert "Error: made" in err
    assert os.listdir(tmp_path) == ["o.jsonl.part"]
    for wrong, said in (("o.csv", "The suffix sets the format"), ("no/such/o.arrow", "No such file")):
        code, _, err = run(capsys, "consume", "orders", "--output", str(tmp_path / wrong))
        assert code == 2
        assert said in err


def test_consume_command_with_follow_and_until_or_reverse_is_rejected(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--follow", "--until", "end"], ["--follow", "--reverse"]):
        code, _, err = run(capsys, "consume", "orders", *words)
        assert code == 2
        assert "--follow cannot be combined with" in err


def test_consume_command_for_an_unknown_stream_exits_with_1(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "consume", "nosuch")
    assert (code, out) == (1, "")
    assert "Stream 'nosuch' does not exist" in err


def test_consume_command_prints_received_records_before_it_waits_for_more_records(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    seen: list[bytes] = []

    class Consumer:
        backwards = False

        async def batches(self) -> Any:
            for base in (0, 1):
                yield parse_batch(build_batch([b"v"], base_offset=base, timestamp_ns=9))
                seen.append(os.read(read, 100))

    cluster.consume = lambda *_, **__: Consumer()  # type: ignore[attr-defined]
    with open(write, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        with pytest.raises(SystemExit) as left:
            main(["consume", "orders"])
    os.close(read)
    assert (left.value.code, seen) == (0, [b"0\tv\n", b"1\tv\n"])


def test_status_and_health_print_the_elect_command_for_a_partition_that_needs_an_unclean_election(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``status``, ``health``, and the verdict that ``top`` and the page show."""
    command = "liftpy partition elect orders 1 --node n2 --unclean"

    async def summary(node: str, *_: Any) -> Any:
        watch = ControllerMetrics()
        watch.update(cluster.image, 0)
        nodes = {name: SimpleNamespace(fenced=False, leaving=False) for name in cluster.image.nodes}
        reporter = a_reporter([], cluster_watch=watch, incarnation=6, uptime_s=7.0, node_id=node)
        reporter.group.leader, reporter.group.image.nodes = "n1", nodes
        reporter.nats = lambda: {**a_reporter([]).nats(), "connected": True}
        return summary_from_json(json.loads(summarize_node(await NodeFigures(reporter).gather(), reporter).encode())["glance"])

    monkeypatch.setattr(FlatClient, "node_glance", lambda _, node, *rest: summary(node, *rest))
    cluster.set("orders", 1, status=PartitionStatus.OFFLINE, leader="", isr=("n2",), incomplete=("n2",))
    assert command in run(capsys, "status")[1]

    @contextlib.asynccontextmanager
    async def asking(*_: Any, **__: Any) -> AsyncIterator[Any]:
        async def describe(*, linearizable: bool) -> ClusterState:
            return await cluster.describe_cluster()

        async def healthy(*_: Any) -> dict[str, Any]:
            return {"health": {"ready": True}, "checks": {}}

        yield SimpleNamespace(describe_cluster=describe, node_health=healthy, node_glance=summary)

    monkeypatch.setattr(importlib.import_module("sidecar.cli.health"), "connect_for_requests", asking)
    code, said, _ = run(capsys, "health")
    assert (code, command in said) == (1, True)

    verdict = judge({"n1": asyncio.run(summary("n1"))})
    assert any(one.word == "suspect" and command in one.text for one in verdict.reasons)
    cluster.set("orders", 1, status=PartitionStatus.ONLINE, leader="n2", incomplete=())
    assert command not in run(capsys, "status")[1]
    assert run(capsys, "health")[0] == 0
