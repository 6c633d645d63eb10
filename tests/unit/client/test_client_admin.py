from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

from liftpy.client import Client
from liftpy.client import metadata_requests as requests_module
from liftpy.client.admin import Admin
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.config import StreamConfig
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    LiftError,
    NoClusterError,
    NoMajorityError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    StaleRequestError,
    UnavailableError,
)
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import Transport, open_connection
from sidecar.cli import session
from sidecar.cli.main import liftpy
from sidecar.runtime.settings import Target
from tests.unit.backup.stored import two_backups
from tests.unit.client.admins import admin_over

_Error = pb.ControlResponse.Error
Answer = Callable[[pb.ControlRequest], "pb.ControlResponse | None"]


class Controller:
    """A scripted metadata leader that records all requests."""

    def __init__(self, transport: Transport, subjects: Subjects) -> None:
        self.transport, self.subjects = transport, subjects
        self.asked: list[pb.ControlRequest] = []
        self.script: list[Answer] = []
        self.knows: pb.ClusterDescription | None = None
        """What it says while it knows no metadata leader; None: nothing."""

    async def start(self) -> Controller:
        for subject in (self.subjects.info(), self.subjects.control_admin()):
            await self.transport.connection.subscribe(subject, cb=self.on_request)
        await self.transport.settle()
        return self

    async def on_request(self, message: Any) -> None:
        request = frames.decode(message.data, pb.ControlRequest)
        if request.describeCluster.maxBytes == 1:
            if self.knows is not None:
                await message.respond(frames.seal(pb.ControlResponse(operationId=request.operationId, cluster=self.knows)))
            return
        self.asked.append(request)
        answer = self.script.pop(0)(request)
        if answer is not None:
            answer.operationId = answer.operationId or request.operationId
            frame = frames.seal(answer)
            await message.respond(frame[:-1] if answer.detail == "damage it" else frame)


def fails(error: int, detail: str = "") -> Answer:
    return lambda _: pb.ControlResponse(error=error, detail=detail)  # type: ignore[arg-type]


def made(request: pb.ControlRequest) -> pb.ControlResponse:
    wanted = request.createStream
    partition = pb.Partition(partition=0, replicas=["n1"], isr=["n1"], leader="n1", leaderEpoch=1, epoch=1, status=pb.ONLINE)
    stream = pb.Stream(name=wanted.name, uid="u1", subject=wanted.subject, config=wanted.config, partitions=[partition])
    return pb.ControlResponse(stream=stream)


@pytest.fixture
def subjects(request: pytest.FixtureRequest) -> Subjects:
    return Subjects(f"ns{abs(hash(request.node.name)) % 10**9}")


@pytest.fixture
async def controller(server_side: Transport, subjects: Subjects) -> Controller:
    return await Controller(server_side, subjects).start()


@pytest.fixture
def admin(transport: Transport, subjects: Subjects) -> Admin:
    return admin_over(transport, subjects, deadline_s=5.0)


async def test_admin_after_a_change_ignores_answers_with_a_lower_metadata_index(
    admin: Admin, controller: Controller, transport: Transport
) -> None:
    def at(index: int, uid: str) -> Answer:
        return lambda _: pb.ControlResponse(index=index, stream=pb.Stream(name="orders", uid=uid, subject="shop.orders"))

    gone: Answer = lambda _: pb.ControlResponse(index=6, error=_Error.NOT_FOUND)  # type: ignore[arg-type]  # noqa: E731
    controller.script = [at(7, "new"), at(5, "old"), at(7, "new"), gone, at(8, "new"), at(8, "new")]
    assert (await admin.create_stream("orders", "shop.orders", ready_s=0)).uid == "new"
    for _ in range(3):
        assert (await admin.stream("orders")).uid == "new"
    assert [asked.linearizable for asked in controller.asked] == [False, False, True, False, True, False]
    assert transport.counters == {"answers of nodes that are behind": 2}


async def test_admin_after_a_metadata_recovery_accepts_a_linearizable_answer_with_a_lower_index(
    admin: Admin, controller: Controller
) -> None:
    def at(index: int) -> Answer:
        return lambda _: pb.ControlResponse(index=index, stream=pb.Stream(name="orders", uid="u", subject="shop.orders"))

    controller.script = [at(700), at(5), at(6), at(6)]
    await admin.create_stream("orders", "shop.orders", ready_s=0)
    await admin.stream("orders")
    await admin.stream("orders")
    assert not controller.script


async def test_admin_request_with_an_unknown_outcome_is_retried_with_the_same_operation_id(
    admin: Admin, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "ATTEMPT_S", 0.1)
    silent: Answer = lambda _: None  # noqa: E731
    unwilling = [fails(e) for e in (_Error.OUTCOME_UNKNOWN, _Error.UNAVAILABLE, _Error.NOT_METADATA_LEADER)]
    controller.script = [silent, *unwilling, made]
    assert (await admin.create_stream("orders", "shop.orders", ready_s=0)).uid == "u1"
    assert len(controller.asked) == 5
    assert len({asked.operationId for asked in controller.asked}) == 1
    controller.script = [made]
    await admin.create_stream("orders2", "shop.orders2", ready_s=0)
    assert len({asked.operationId for asked in controller.asked}) == 2  # another call, another id


async def test_admin_request_with_an_undecodable_answer_is_retried_with_the_same_operation_id(
    admin: Admin, controller: Controller, transport: Transport
) -> None:
    """The change may be applied already. The metadata group applies an operation id once."""
    another: Answer = lambda _: pb.ControlResponse(operationId=b"another request!")  # noqa: E731
    controller.script = [another, another, made]
    assert (await admin.create_stream("orders", "shop.orders", ready_s=0)).uid == "u1"
    assert len({asked.operationId for asked in controller.asked}) == 1
    assert transport.counters["answers to something else"] == 2
    damaged: Answer = lambda _: pb.ControlResponse(detail="damage it")  # noqa: E731
    controller.script = [damaged, made]
    assert (await admin.create_stream("more", "shop.more", ready_s=0)).uid == "u1"
    assert transport.counters["damaged answers"] == 1


@pytest.mark.parametrize(("fenced", "refusals"), [([True, True], 2), ([True, False], 2), ([False], 1), ([False], 2)])
@pytest.mark.parametrize("change", ["alter_stream", "add_partitions"])
async def test_admin_stream_change_is_retried_while_nodes_are_fenced(
    admin: Admin, controller: Controller, change: str, fenced: list[bool], refusals: int
) -> None:
    """After a restart of NATS, all nodes are fenced for a moment."""

    def described(is_fenced: bool) -> Answer:
        image = pb.Image(nodes=[pb.Node(nodeId="n1", fenced=is_fenced)], streams=[pb.Stream(name="orders")])
        return lambda _: pb.ControlResponse(cluster=pb.ClusterDescription(image=image))

    too_few = fails(_Error.NOT_ENOUGH_NODES, "there are 0 live")
    for number in range(refusals):
        controller.script += [too_few, *map(described, fenced[number : number + 1])]
    controller.script.append(made)
    changed = admin.alter_stream("orders", 2) if change == "alter_stream" else admin.add_partitions("orders", 2, ready_s=0)
    if len(fenced) == refusals:
        assert (await changed).uid == "u1"
    else:
        with pytest.raises(ConfigError, match="there are 0 live"):
            await changed


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_Error.EXISTS, AlreadyExistsError),
        (_Error.NOT_FOUND, NotFoundError),
        (_Error.INVALID, ConfigError),
        (_Error.NOT_ENOUGH_NODES, ConfigError),
        (_Error.STALE, StaleRequestError),
    ],
)
async def test_admin_raises_an_error_of_the_metadata_group_without_a_retry(
    admin: Admin, controller: Controller, error: int, kind: type[Exception]
) -> None:
    controller.script = [fails(error, "because of this")]
    with pytest.raises(kind, match="because of this"):
        await admin.delete_stream("orders", "u1")
    assert len(controller.asked) == 1


async def test_admin_deadline_raises_outcome_unknown_only_after_a_change_was_sent(
    transport: Transport, server_side: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoClusterError, match="node of namespace 'empty' answers"):
        await MetadataRequests(transport, Subjects("empty"), deadline_s=0.5).describe()
    monkeypatch.setattr(requests_module, "ATTEMPT_S", 0.05)
    mute = await Controller(server_side, Subjects("mute")).start()
    mute.script = [lambda _: None] * 100
    with pytest.raises(OutcomeUnknownError):
        await admin_over(transport, Subjects("mute"), deadline_s=0.3).create_stream("a", "b")
    assert len({asked.operationId for asked in mute.asked}) == 1 < len(mute.asked)
    with pytest.raises(UnavailableError, match="did not answer"):
        await MetadataRequests(transport, Subjects("mute"), deadline_s=0.3).describe(linearizable=True)


@pytest.mark.parametrize(("up", "raised"), [(("n1",), NoMajorityError), (("n1", "n3"), OutcomeUnknownError)])
async def test_admin_without_metadata_leader_raises_with_the_number_of_missing_controllers(
    transport: Transport,
    subjects: Subjects,
    controller: Controller,
    monkeypatch: pytest.MonkeyPatch,
    up: tuple[str, ...],
    raised: type[LiftError],
) -> None:
    monkeypatch.setattr(requests_module, "ATTEMPT_S", 0.05)
    monkeypatch.setattr(requests_module, "MAJORITY_S", 0.15)
    members = [pb.ControllerStatus(nodeId=name, connected=name in up) for name in ("n1", "n2", "n3")]
    controller.knows = pb.ClusterDescription(controllers=members)
    controller.script = [lambda _: None] * 1000
    with pytest.raises(raised) as said:
        await admin_over(transport, subjects, deadline_s=1.0).delete_stream("orders")
    assert ("2 of 3 controllers do not answer (n2, n3)" in str(said.value)) == (raised is NoMajorityError)


async def test_admin_request_is_retried_after_the_delay_in_the_answer(admin: Admin, controller: Controller) -> None:
    controller.script = [lambda _: pb.ControlResponse(error=_Error.UNAVAILABLE, retryAfterMs=600), made]
    began = asyncio.get_running_loop().time()
    assert (await admin.create_stream("orders", "x", ready_s=0)).uid == "u1"
    assert asyncio.get_running_loop().time() - began >= 0.6
    first, second = controller.asked
    assert first.operationId == second.operationId


@pytest.mark.parametrize(
    ("replicas", "factor"),
    [([0, 1], 0), ([0, 1, 2], 2), ([0, 3], 2), ([0], 2)],
    ids=["no factor", "uneven", "no node", "too few"],
)
async def test_admin_plan_that_is_inconsistent_raises_protocol_error(
    admin: Admin, controller: Controller, replicas: list[int], factor: int
) -> None:
    nodes = [pb.PlannedNode(nodeId=name) for name in ("n1", "n2", "n3")]
    plan = pb.PlacementPlan(nodes=nodes, replicationFactor=factor, replicas=replicas)
    controller.script = [lambda _: pb.ControlResponse(plan=plan)]
    with pytest.raises(ProtocolError, match="the plan is inconsistent"):
        await admin.plan_partitions("orders", 2)


async def test_admin_plan_that_is_missing_raises_with_the_answer(admin: Admin, controller: Controller) -> None:
    controller.script = [lambda _: pb.ControlResponse(), lambda _: pb.ControlResponse(detail="nothing to do")]
    for text in ("returned no plan", "nothing to do"):
        with pytest.raises(ConfigError, match=text):
            await admin.plan_partitions("orders", 2)


@pytest.mark.parametrize(
    "asked",
    [
        lambda admin: admin.delete_stream("s", "\ud800"),
        lambda admin: admin.pause("s", uid="\ud800"),
        lambda admin: admin.alter_stream("s", 2, uid="\ud800"),
        lambda admin: admin.add_partitions("s", 2, uid="\ud800"),
        lambda admin: admin.create_stream("s", "x.s", config=StreamConfig(min_isr=4)),
        lambda admin: admin.create_stream("s", "x.s", replicas=2, config=StreamConfig(min_isr=3)),
    ],
)
async def test_admin_method_with_invalid_arguments_raises_before_a_request(
    admin: Admin, controller: Controller, asked: Callable[[Admin], Awaitable[object]]
) -> None:
    with pytest.raises(ConfigError):
        await asked(admin)
    assert controller.asked == []


async def test_connect_without_a_nats_server_raises_with_the_server_url() -> None:
    with pytest.raises(UnavailableError, match=r"to NATS at nats://127\.0\.0\.1:1"):
        await open_connection("nats://127.0.0.1:1", timeout_s=1.0)


def test_credentials_repr_contains_no_password() -> None:
    assert Credentials(user="u", password="secret").nats_options() == {"user": "u", "password": "secret"}
    assert "secret" not in repr(Credentials(user="u", password="secret"))
    with pytest.raises(ConfigError, match="use tls_ca_file"):
        Credentials(tls_ca_file="/nonexistent").nats_options()


WITHOUT_MAJORITY = (
    "events", "backup create STORE", "backup drill STORE", "backup restore STORE --all", "backup cursors STORE",
    "stream create more --subject shop.more", "stream delete orders --yes", "stream alter orders --replicas 2",
    "stream purge orders --key k --yes", "stream delete-records orders --before 1 --yes", "stream add-partitions orders --partitions 2",
    "stream pause orders", "stream resume orders", "stream show orders", "stream list", "partition elect orders 0",
    "partition move orders 0 --node n1,n2,n3", "partition transfer orders 0 --node n1", "partition elect-preferred", "rebalance",
    "group list", "group show g", "group reset g --stream orders --to earliest --yes", "group delete g --yes",
    "cursor list", "cursor show c", "cursor set c --stream orders --to earliest --yes", "cursor delete c --yes",
    "settings default-quota --quota-records 5", "settings node-session --session 20 --lease 10", "node drain n1", "node can-stop n1",
    "node remove n2", "node set-rack n1 r", "node set-weight n1 2", "controllers", "controllers add n9", "controllers remove n2",
    "controllers replace n2 n9", "upgrade check", "upgrade finalize", "upgrade report", "upgrade revert",
    "service snapshot s --stream orders", "service skip s --stream orders --offset 1",
)  # fmt: skip
"""Commands that need the metadata group, or that would wait for it before they say what is wrong."""


async def test_cli_command_without_a_controller_majority_raises_no_majority(
    controller: Controller, subjects: Subjects, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller answers only requests for the cluster description."""
    monkeypatch.setattr(session, "MAJORITY_CHECK_DELAY_S", 0.05)
    monkeypatch.setattr(requests_module, "MAJORITY_S", 0.3)
    members = [pb.ControllerStatus(nodeId=name, connected=name == "n1") for name in ("n1", "n2", "n3")]
    controller.knows = pb.ClusterDescription(controllers=members)
    controller.script = [lambda _: None] * 10_000
    two_backups(tmp_path)

    def run(command: str) -> str:
        words = command.replace("STORE", str(tmp_path)).split()
        try:
            liftpy([*words, "--nats", nats_url, "--namespace", subjects.namespace], standalone_mode=False)
        except (LiftError, ClickException) as error:
            return "" if isinstance(error, NoMajorityError) else repr(error)
        return "it has ended well"

    with ThreadPoolExecutor(16) as pool:
        running = {command: asyncio.get_running_loop().run_in_executor(pool, run, command) for command in WITHOUT_MAJORITY}
        found = {command: await one for command, one in running.items()}
    assert {command: text for command, text in found.items() if text} == {}


@pytest.mark.parametrize(("up", "raised"), [(("n1",), NoMajorityError), (("n1", "n2"), ConfigError), ((), ConfigError)])
async def test_cli_command_error_without_a_controller_majority_is_replaced_by_no_majority(
    controller: Controller,
    subjects: Subjects,
    nats_url: str,
    monkeypatch: pytest.MonkeyPatch,
    up: tuple[str, ...],
    raised: type[LiftError],
) -> None:
    """Without a majority, a controller may answer from outdated metadata."""
    monkeypatch.setattr(requests_module, "MAJORITY_S", 0.1)
    members = [pb.ControllerStatus(nodeId=name, connected=name in up) for name in ("n1", "n2", "n3")]
    controller.knows = pb.ClusterDescription(controllers=members, metadataLeader="n1" if len(up) > 1 else "")
    if not up:
        controller.knows = None

    async def work(client: Client) -> None:
        raise ConfigError("orders/0 is led by n1")

    target = Target(nats=(nats_url,), namespace=subjects.namespace)
    with pytest.raises(raised):
        await asyncio.to_thread(session.with_client, target, work)
