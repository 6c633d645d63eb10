"""Test placement plans, admin requests for placement and nodes, and the readiness of created streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import admin as admin_module
from liftpy.client.admin import Admin
from liftpy.client.client import Client
from liftpy.client.encode_publish import Address
from liftpy.client.placement_plans import (
    PlacementOptions,
    ReplicaCounts,
    plan_from_pb,
    tally_rows,
)
from liftpy.client.stream_directory import address_of, subject_address
from liftpy.client.stream_info import StreamInfo
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.metadata.codec import CONFIG
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ConfigError, NotFoundError, ProtocolError, UnavailableError
from liftpy.nats.transport import Transport
from tests.each import each
from tests.unit.client.admins import admin_over

PLAN = pb.PlacementPlan(
    nodes=[
        pb.PlannedNode(nodeId="n1", rack="b", weight=1.5, replicas=4, leaders=2, fenced=False),
        pb.PlannedNode(nodeId="n2", rack="a", weight=1.0, replicas=3, leaders=1, fenced=True),
        pb.PlannedNode(nodeId="n3", rack="a", weight=1.0, replicas=7, leaders=5, fenced=False),
    ],
    firstPartition=2,
    replicationFactor=2,
    replicas=[0, 2, 2, 1],
    notes=["one", "two"],
    waits="",
)


# ---- plans ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("places", "factor", "right"),
    [([0, 1], 2, True), ([0, 2], 1, True), ([0, 1], 0, False), ([0, 1, 2], 2, False), ([0, 3], 2, False), ([0], 2, False)],
)
def test_placement_plan_with_inconsistent_counts_is_rejected(places: list[int], factor: int, right: bool) -> None:
    plan = pb.PlacementPlan(nodes=PLAN.nodes, replicationFactor=factor, replicas=places)
    if right:
        assert len(plan_from_pb(plan).replicas) * factor == len(places)
    else:
        with pytest.raises(ValueError, match=f"{len(places)} replicas, replication factor {factor}, 3 nodes$"):
            plan_from_pb(plan)


def test_placement_table_rows_show_total_and_new_replicas_per_node() -> None:
    one, two = (
        ReplicaCounts(leaders=3, new_leaders=1, replicas=5, new_replicas=2),
        ReplicaCounts(leaders=0, new_leaders=0, replicas=0, new_replicas=0),
    )
    assert list(tally_rows({"n1": one, "": two})) == [("n1", "3 (+1)", "5 (+2)"), ("(none)", "0 (+0)", "0 (+0)")]


# ---- what is asked of the metadata group -----------------------------------------------------------------------------------------
class Group:
    """A replacement of Transport. ``script`` has the answers."""

    def __init__(self, *script: pb.ControlResponse) -> None:
        self.script = list(script)
        self.asked: list[pb.ControlRequest] = []
        self.subjects: list[str] = []
        self.times_s: list[float] = []

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        asked = frames.decode(payload, pb.ControlRequest)
        answer = self.script.pop(0)
        answer.operationId, asked.operationId = asked.operationId, b""
        self.asked.append(asked)
        self.subjects.append(subject)
        self.times_s.append(timeout_s)
        return frames.seal(answer)

    @property
    def admin(self) -> Admin:
        return admin_over(self, Subjects("ns", principal="me"), deadline_s=30.0)


WISH = PlacementOptions(policy="rack", assignment=((1, ("n1", "n2")),), allow_offline=True)
PLACED: Any = {"placement": "rack", "manual": [pb.ReplicaList(partition=1, replicas=["n1", "n2"])], "allowOffline": True}
LEADER = StreamConfig(ack_policy=AckPolicy.LEADER)
CREATED = {"partitions": 4, "replicas": 2, "config": LEADER, "placement": WISH}
CREATE: Any = {
    "name": "s",
    "subject": "shop.s",
    "partitions": 4,
    "replicationFactor": 2,
    "config": CONFIG.to_pb(LEADER),
} | PLACED
ADD: Any = {"name": "s", "uid": "u1", "partitions": 6} | PLACED
PARTITION = pb.Partition(partition=0, replicas=["n1"], isr=["n1"], leader="n1", leaderEpoch=1, epoch=1, status=pb.ONLINE)
STREAM = pb.ControlResponse(stream=pb.Stream(name="s", uid="u1", subject="shop.s", partitions=[PARTITION]))
PLANNED, MOVED = pb.ControlResponse(plan=PLAN), pb.ControlResponse(partition=PARTITION)
NODE = pb.ControlResponse(node=pb.Node(nodeId="n1"))


@each(
    ("ask", "answer", "expected"),
    [
        (lambda a: a.create_stream("s", "shop.s", ready_s=0, **CREATED), STREAM, pb.CreateStream(**CREATE)),
        (lambda a: a.plan_stream("s", "shop.s", **CREATED), PLANNED, pb.CreateStream(dryRun=True, **CREATE)),
        (lambda a: a.add_partitions("s", 6, uid="u1", placement=WISH, ready_s=0), STREAM, pb.AddPartitions(**ADD)),
        (lambda a: a.plan_partitions("s", 6, uid="u1", placement=WISH), PLANNED, pb.AddPartitions(dryRun=True, **ADD)),
        (lambda a: a.plan_partitions("s"), PLANNED, pb.AddPartitions(name="s", dryRun=True)),
        (lambda a: a.set_node("n1", weight=0.0, rack=""), NODE, pb.SetNode(nodeId="n1", weight=0.0, rack="")),
        (lambda a: a.set_node("n1", leaving=False), NODE, pb.SetNode(nodeId="n1", leaving=False)),
        (lambda a: a.reset_node("n1", weight=True), NODE, pb.SetNode(nodeId="n1", weightAsItSays=True)),
        (lambda a: a.reset_node("n1", rack=True), NODE, pb.SetNode(nodeId="n1", rackAsItSays=True)),
        (lambda a: a.reassign(image(), 1, ["a"]), MOVED, pb.Reassign(stream="s", uid="u1", partition=1, replicas=["a"])),
        (lambda a: a.reassign(image(), 1), MOVED, pb.Reassign(stream="s", uid="u1", partition=1, cancel=True)),
    ],
)
async def test_admin_request_contains_exactly_the_given_arguments(
    ask: Callable[[Admin], Awaitable[Any]], answer: pb.ControlResponse, expected: Any
) -> None:
    group = Group(answer)
    await ask(group.admin)
    (asked,) = group.asked
    assert getattr(asked, str(asked.WhichOneof("request"))) == expected


async def test_admin_plan_partitions_rejects_an_answer_without_a_consistent_plan() -> None:
    wrong = pb.PlacementPlan(nodes=PLAN.nodes, replicationFactor=2, replicas=[0])
    group = Group(pb.ControlResponse(), pb.ControlResponse(detail="nothing to do"), pb.ControlResponse(plan=wrong))
    with pytest.raises(ConfigError, match="metadata group returned no plan"):
        await group.admin.plan_partitions("s", 2)
    with pytest.raises(ConfigError, match=r"^nothing to do$"):
        await group.admin.plan_partitions("s", 2)
    with pytest.raises(
        ProtocolError,
        match=r"^Cannot decode the plan .*: the plan is inconsistent: 1 replicas, replication factor 2, 3 nodes\.",
    ):
        await group.admin.plan_partitions("s", 2)


# ---- a client and its streams ----------------------------------------------------------------------------------------------------
_REST: dict[str, Any] = {"leader_epoch": 1, "replicas": (), "isr": (), "target": (), "status": 1, "pause": 0}


def image(count: int = 2, *, waiting: int = 0, led: int | None = None, **fields: Any) -> Any:
    partitions = tuple(
        SimpleNamespace(partition=n, leader="n1" if led is None or n < led else "", **_REST)
        for n in range(0 if waiting else count)
    )
    config = StreamConfig(dedup_window_s=7.0)
    known = {"name": "s", "uid": "u1", "subject": "shop.s", "answers": True, "config": config}
    more = {"config_version": 0, "replication_factor": 0, "placement": "", "created_time_ns": 0}
    return SimpleNamespace(**more | known | fields, partitions=partitions, waiting=waiting)


class Told:
    """A replacement of Admin. It records requests. ``script`` has the answers."""

    def __init__(self, **script: list[Any]) -> None:
        self.script = script
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def ask(*given: Any, **named: Any) -> Any:
            self.asked.append((name, given, named))
            return self.script[name].pop(0)

        return ask


def a_client() -> Any:
    connection: Any = SimpleNamespace(max_payload=1 << 20)
    return Client(Transport(connection), Subjects(), owns_connection=False)


def led_client(**script: list[Any]) -> tuple[Any, Told, list[Any]]:
    made, led = a_client(), []

    async def _wait_for_leader(stream: Any, partition: int, ready_s: float) -> None:
        led.append((stream.uid, partition, ready_s))

    told: Any = Told(**script)
    told.transport, told.subjects, told.deadline_s = made.transport, Subjects(), 15.0
    made.admin._wait_for_leader = _wait_for_leader
    made.admin._metadata = made._streams.requests = told
    return made, told, led


async def test_stream_readiness_wait_polls_a_stream_without_replicas_until_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "_PLACED_POLL_S", 0.001)
    placed = image(1)
    made, told, led = led_client(stream=[image(waiting=1), placed])
    assert (await made.admin.until_ready(StreamInfo.of(image(waiting=1)), 60.0)).image is placed
    assert told.asked == [("stream", ("s",), {})] * 2
    assert made._streams.cached == {"s": placed}
    assert led == [("u1", 0, 60.0)]
    made, told, led = led_client(stream=[image(waiting=1)] * 10_000)
    text = r"^Stream s was created, but it has no replicas yet: .*\(insufficient-nodes\)\."
    with pytest.raises(UnavailableError, match=text):
        await made.admin.until_ready(StreamInfo.of(image(waiting=1)), 0.02)
    with pytest.raises(UnavailableError, match=text):
        await made.admin.until_ready(StreamInfo.of(image(waiting=1)), 0.0)
    assert led == []


def test_publish_address_of_a_partition_has_its_subject_and_stream_uid() -> None:
    assert subject_address("shop.s", "u", False) == Address("shop.s", "u", False)
    assert subject_address("shop.s").window_s == 0.0, "the stream is unknown, so nothing promises deduplication"
    for subject in ("*", "a.*", ">", "a.>", "a.*.b"):
        with pytest.raises(ConfigError, match=r"wildcards\. Name one subject \(subject="):
            subject_address(subject)
    assert subject_address("a*.b>").subject == "a*.b>"
    assert address_of(image(2, answers=False), 1, "shop.s.1") == Address("shop.s.1", "u1", False, 7.0)
    with pytest.raises(NotFoundError, match=r"^Stream s has no partition 2\. Its partitions are 0 to 1\.$"):
        address_of(image(2), 2)
    with pytest.raises(UnavailableError, match=r"^Stream s has no replicas yet: .*\(insufficient-nodes\)\."):
        address_of(image(waiting=2), 0)
