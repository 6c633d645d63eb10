"""JSON of ``liftpy status`` for nodes and partitions, field by field, and options of ``dev``, ``service`` and ``controllers``."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import ClusterState
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.image import NodeImage
from liftpy.core.services.bad_records import Unit
from liftpy.errors import NotFoundError
from sidecar.cli import controllers, service, status
from tests.flat_client import FlatClient
from tests.unit.cli.test_command_sessions import run
from tests.unit.cli.test_dev_demo_and_service_commands import Asked
from tests.unit.metadata.small_images import a_partition, a_stream, an_image

SERVICES = [{"service": "bank", "position": 7}]


def test_status_partition_json_has_all_fields() -> None:
    partition = a_partition(
        partition=3, replicas=("b", "a", "c", "d"), isr=("a", "b"), leader="b", leader_epoch=5, epoch=9, status=PartitionStatus.ONLINE
    )  # fmt: skip
    said: Any = {
        "a": {("u1", 3): {"newest_offset": 90, "high_watermark": 80, "log_start_offset": 1}},
        "b": {("u1", 3): {"newest_offset": 100, "high_watermark": 85, "log_start_offset": 2, "services": SERVICES,
                          "gone_services": [{"service": "old"}]}},
        "c": {("u2", 3): {"newest_offset": 999}, ("u1", 2): {"newest_offset": 998}},
    }  # fmt: skip
    assert status._partition(a_stream(), partition, said) == {
        "stream": "s", "uid": "u1", "partition": 3, "status": "ONLINE", "leader": "b", "leader_epoch": 5, "epoch": 9,
        "replicas": ["b", "a", "c", "d"], "isr": ["a", "b"], "high_watermark": 85, "newest_offset": 100, "log_start_offset": 2,
        "services": {"a": [], "b": SERVICES}, "gone_services": {"a": [], "b": [{"service": "old"}]},
        "lag": {"a": 10, "b": 0, "c": None, "d": None}, "incomplete": [],
    }  # fmt: skip
    del said["b"]
    found = status._partition(a_stream(), partition, said)
    assert [found[name] for name in ("high_watermark", "newest_offset", "log_start_offset")] == [None] * 3
    assert found["lag"] == dict.fromkeys("bacd"), "nobody knows how far the leader is"
    ahead: Any = {"a": {("u1", 3): {"newest_offset": 101}}, "b": {("u1", 3): {"newest_offset": 100}}}
    assert status._partition(a_stream(), partition, ahead)["lag"]["a"] == 0, "nobody is less than nothing behind"


def test_status_node_json_has_all_fields() -> None:
    image = an_image(a_stream(a_partition(), a_partition(partition=1, leader="b")), nodes="abc")
    node = NodeImage(
        node_id="a", incarnation=8, rack="r1", weight=2.5, version="1.2", status_address="h:1", fenced=True, leaving=True
    )
    members: Any = (SimpleNamespace(node_id="a"), SimpleNamespace(node_id="b"))
    state = ClusterState(image=replace(image, nodes=image.nodes.set("a", node)), metadata_leader="b", controllers=members)
    assert status._node(state, "a", answers=True) == {
        "node_id": "a", "fenced": True, "leaving": True, "replicas": 2, "answers": True, "incarnation": 8, "rack": "r1", "weight": 2.5,
        "version": "1.2", "status_address": "h:1", "leads": 1, "controller": True, "metadata_leader": False,
    }  # fmt: skip
    other = status._node(state, "b", answers=False)
    assert (other["answers"], other["controller"], other["metadata_leader"], other["leads"]) == (False, True, True, 1)
    assert not status._node(state, "c", answers=True)["controller"]


async def test_status_of_an_unknown_stream_raises_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    image = an_image(a_stream(a_partition(), a_partition(partition=1)), nodes="ab", fenced="")
    state = ClusterState(image=image, metadata_leader="b", controllers=())

    class Client(FlatClient):
        async def describe_cluster(self) -> ClusterState:
            return state

        async def node_health(self, node_id: str, timeout_s: float) -> dict[str, Any]:
            assert node_id == "b", "a node that does not answer is not asked again"
            return {"unknown_streams": ["old-u9"]}

    async def ask_nodes(client: Any, nodes: list[str]) -> Any:
        assert nodes == ["a", "b"]
        return {"b": {}}

    monkeypatch.setattr(status, "ask_nodes", ask_nodes)
    client: Any = Client()
    for only in (None, "s"):
        found = await status.gather(client, only)
        assert (found["metadata_leader"], found["index"], found["moves"], found["waiting"]) == ("b", 3, [], [])
        assert [(node["node_id"], node["answers"]) for node in found["nodes"]] == [("a", False), ("b", True)]
        assert [node["unknown_streams"] for node in found["nodes"]] == [[], ["old-u9"]]
        assert [partition["partition"] for partition in found["partitions"]] == [0, 1]
    with pytest.raises(NotFoundError, match="Stream 'other' does"):
        await status.gather(client, "other")


async def test_service_skip_command_writes_the_decision_to_the_given_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Client(Asked):
        async def bounds(self, stream: str, partition: int) -> Any:
            asked.append((stream, partition))
            return await super().bounds(stream, partition)

    class Writer:
        def __init__(self, client: Any, dead_letter: str) -> None: ...

        async def pass_over(self, identity: Any, *_: Any) -> int:
            asked.append((identity.service, identity.stream, identity.uid, identity.partition))
            return 42

    monkeypatch.setattr(service, "DecisionWriter", Writer)
    client: Any = Client(n1={"position": 5})
    assert await service.pass_over(client, "counter", "s", 0, Unit(5, "")) == 42
    assert asked == [("s", 0), ("counter", "s", "u1", 0)]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("add", "n4"), {"add": "n4", "remove": ""}), (("remove", "n3"), {"add": "", "remove": "n3"}),
        (("replace", "n3", "n4"), {"add": "n4", "remove": "n3"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_json", [True, False])
def test_controllers_change_command_requests_the_change_and_prints_the_controllers(
    words: tuple[str, ...],
    asked: dict[str, str],
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[Any] = []

    class Client(FlatClient):
        async def change_controllers(self, **wanted: str) -> str:
            calls.append(wanted)
            return "as you wish"

        async def describe_cluster(self, *, linearizable: bool = False) -> ClusterState:
            calls.append(linearizable)
            return ClusterState(image=an_image(), metadata_leader="b", controllers=())

    def with_client(target: Any, work: Any, **_: Any) -> Any:
        calls.append(target.namespace)
        return asyncio.run(work(Client()))

    monkeypatch.setattr(controllers, "with_client", with_client)
    code, out, err = run(capsys, "controllers", *words, "--namespace", "mine", *(("--json",) if as_json else ()))
    assert (code, calls) == (0, ["mine", asked, True, False]), "decided, done, and looked at"
    head = {"metadata_leader": "b", "index": 3, "changed_at": 0, "under_way": "", "controllers": []}
    assert not as_json or json.loads(out) == head
    assert err.splitlines() == ([] if as_json else ["as you wish"])
