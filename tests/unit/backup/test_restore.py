"""Test a restore: its steps, what it deletes, placement, positions and cluster-wide settings."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from liftpy.client import Client
from liftpy.client.group_admin import GroupRejectedError
from liftpy.client.placement_plans import PlacementOptions, PlacementPlan
from liftpy.client.replica_reads import DamagedRecordsError, ReplicaUnavailableError
from liftpy.config import NO_QUOTA, DefaultQuota, SessionTimes, StreamConfig
from liftpy.core.backup.manifest import CursorCopy, Manifest, PartitionCopy, StoredFile, StoredPiece, StreamCopy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.request_limits import fit
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptionError,
    LiftError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from liftpy.nats.credentials import Credentials
from liftpy.testing.memory import memory_cluster
from sidecar.backup import drill as drill_module
from sidecar.backup import restore as restore_module
from sidecar.backup.create import BackupResult
from sidecar.backup.drill import DrillResult
from sidecar.backup.restore import (
    NOTHING_WIDE,
    PREFIX,
    ClusterWide,
    Restore,
    RestoredSetting,
    RestoredStream,
    RestoreOptions,
    RestoreResult,
    StreamRestore,
    cluster_wide_of,
    helper_node,
    set_cluster_wide,
    set_cursors,
)
from sidecar.cli import backup as module
from sidecar.cli.main import exit_code
from sidecar.cli.sidecar import sidecar as sidecar_command
from sidecar.runtime.settings import SettingsLoader, Target
from tests.flat_client import FlatClient
from tests.unit.backup.stored import UID, two_backups
from tests.unit.client.admins import admin_over
from tests.unit.metadata.cluster_driver import Driver

HELPER = "restore-0000000a"
SOME_STREAM = StreamRestore(name="orders", into="orders", subject="shop.orders", config=StreamConfig())
NEW_UID = "00000b-20"


class World(FlatClient):
    """A cluster that records the changes of a restore."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.stopped_s: dict[str, float] = {}
        """Node -> how long ago it has stopped; 0 otherwise."""
        self.alive = {"n1": True, "n2": True, HELPER: False}
        self.streams: dict[str, StreamImage] = {}
        self.fails: list[Exception] = []
        """What the next descriptions meet."""
        self.copied = 0
        """Position of the follower n2, as the leader n1 reports it."""

    @property
    def image(self) -> Any:
        now_ns = time.time_ns()
        nodes = {
            node: SimpleNamespace(rack="", session_time_ns=now_ns - int(self.stopped_s.get(node, 0) * 1e9))
            for node in self.alive
        }
        return SimpleNamespace(streams=self.streams, nodes=nodes, is_live=self.alive.__getitem__, replica_counts={})

    def has(self, *replicas: str, read_only: bool = True) -> None:
        state = PartitionState(partition=0, replicas=replicas, isr=replicas, leader="", leader_epoch=9, epoch=1)
        self.streams["orders"] = StreamImage("orders", NEW_UID, "shop.orders", StreamConfig(read_only=read_only), (state,))

    async def describe_cluster(self, *, linearizable: bool = False) -> Any:
        if self.fails:
            raise self.fails.pop(0)
        return SimpleNamespace(image=self.image, controllers=())

    async def node_status(self, node_id: str) -> Any:
        row = {"uid": NEW_UID, "partition": 0, "phase": "LEADER_READY", "newest_offset": 99}
        return {"partitions": [{**row, "followers": {"n2": {"position": self.copied}}}]}

    def __getattr__(self, name: str) -> Any:
        async def asked(*args: Any, **more: Any) -> None:
            self.done.append((name, *args, *more.values()))

        return asked


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return two_backups(tmp_path)[2]


def a_restore(world: Any, manifest: Manifest, *into: str) -> Restore:
    wishes = [
        StreamRestore(name="orders", into=name, subject=f"s.{name}", config=StreamConfig()) for name in into or ("orders",)
    ]
    return Restore(world, None, manifest, wishes, RestoreOptions(target=None))  # type: ignore[arg-type]


def a_restore_with_streams(world: Any, manifest: Manifest, *into: str, is_created: bool = True) -> Restore:
    """Return a restore that has registered its helper, which has ended, and has created its streams if ``is_created``."""
    restore = a_restore(world, manifest, *into)
    restore._helper, restore._registered = SimpleNamespace(running=False), True  # type: ignore[assignment]
    for one in restore._streams if is_created else ():
        one.image = SimpleNamespace(uid=f"u-{one.wish.into}")  # type: ignore[assignment]
    return restore


async def begin(world: World, manifest: Manifest) -> None:
    """Run the first step of a restore, which removes remains of earlier restores."""
    await a_restore(world, manifest)._make_room(world.image)


@pytest.mark.parametrize(
    ("replicas", "read_only", "alive", "said"),
    [
        (("n1", "n2"), False, False, "never overwrites"), (("n1", "n2"), True, False, "never overwrites"),
        ((HELPER, "n1"), False, False, "never overwrites"), ((HELPER, "n1"), True, True, "Another process"),
        (("restore-eu", "n1"), True, False, "never overwrites"), ((HELPER, "n1"), True, False, ""),
    ],
)  # fmt: skip
async def test_restore_deletes_only_unfinished_streams_of_an_earlier_failed_restore(
    manifest: Manifest, replicas: tuple[str, ...], read_only: bool, alive: bool, said: str
) -> None:
    world = World()
    world.has(*replicas, read_only=read_only)
    world.alive |= {HELPER: alive, "restore-eu": False}
    work = begin(world, manifest)
    if said:
        with pytest.raises(AlreadyExistsError, match=said):
            await work
        assert world.done == []
    else:
        await work
        assert world.done == [("delete_stream", "orders", NEW_UID), ("remove_node", HELPER)]


async def test_restore_keeps_a_stream_that_was_opened_and_made_read_only_later(manifest: Manifest) -> None:
    """A restore was killed after it had opened the stream. Its helper is still a replica. The stream may have new records."""
    world = World()
    world.has(HELPER, "n1")
    world.streams["orders"] = replace(world.streams["orders"], config_version=2)
    with pytest.raises(AlreadyExistsError, match="never overwrites"):
        await begin(world, manifest)
    assert world.done == []


@pytest.mark.parametrize(("stopped_s", "removed"), [(30, []), (3600, [("remove_node", HELPER)])])
async def test_restore_removes_the_helper_node_of_another_restore_only_after_a_delay(
    manifest: Manifest, stopped_s: float, removed: list[tuple[str, str]]
) -> None:
    """A restore stops its helper before it creates its streams. A node of an operator may have a similar name."""
    world = World()
    world.alive["restore-eu"] = False
    world.stopped_s = {HELPER: stopped_s, "restore-eu": 3600}
    await begin(world, manifest)
    assert world.done == removed


async def test_restore_that_fails_keeps_streams_that_already_accept_publishes(manifest: Manifest, tmp_path: Path) -> None:
    for opened, left in (((), ["a", "b"]), (("a",), ["b"])):
        world, ended = World(), []
        restore = a_restore_with_streams(world, manifest, "a", "b")
        restore._open = set(opened)
        restore._scratch = scratch = tmp_path / "scratch"
        scratch.mkdir()
        await restore.undo()
        ended = [asked for asked in world.done if asked[0] == "delete_stream"]
        assert ended == [("delete_stream", name, f"u-{name}") for name in left]
        removed = [asked[1] for asked in world.done if asked[0] == "remove_node"]
        assert len(removed) == (not opened), "it may be the only replica"
        assert all(node.startswith(PREFIX) for node in removed)
        assert not scratch.exists()


async def test_restore_undo_returns_the_commands_for_everything_that_it_could_not_remove(manifest: Manifest) -> None:
    """A drill ended as if it had removed its copies."""
    world = World()
    answers = {"a": UnavailableError("no answer"), "b": NotFoundError("an operator has deleted it")}

    async def delete_stream(name: str, uid: str) -> None:
        raise answers[name]

    async def remove_node(node: str) -> None:
        raise UnavailableError("no answer")

    world.__dict__.update(delete_stream=delete_stream, remove_node=remove_node)
    restore = a_restore_with_streams(world, manifest, "a", "b")
    first, second = await restore.undo()
    assert first == "liftpy stream delete a"
    assert second.startswith("liftpy node remove restore-")


async def test_failed_restore_names_the_commands_that_remove_its_remains(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.fails = [UnavailableError("nobody leads")]
    restore = a_restore(world, manifest)
    monkeypatch.setattr(
        restore, "undo", AsyncMock(return_value=("liftpy stream delete orders", "liftpy node remove restore-1"))
    )
    with pytest.raises(UnavailableError, match=r"nobody leads.*liftpy stream delete orders; liftpy node remove restore-1"):
        await restore.run()


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ReplicaUnavailableError("no responders"), UnavailableError, 3),
        (DamagedRecordsError("a CRC is wrong", 4), CorruptionError, 1),
    ],
    ids=["unavailable", "damaged"],
)
async def test_drill_with_a_silent_replica_reports_no_damage(
    error: Exception, kind: type[LiftError], code: int, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that restarted during the comparison looked like a damaged backup. The error also names a copy that remains."""
    log = SimpleNamespace(start=0, end=10, state=None)
    stream = SimpleNamespace(logs=[log], plan=(("n1",),), uid=NEW_UID, wish=SOME_STREAM)
    restore = SimpleNamespace(
        run=AsyncMock(return_value=RestoreResult([stream])),  # type: ignore[list-item]
        undo=AsyncMock(return_value=("liftpy stream delete drill-1-0",)),
    )
    monkeypatch.setattr(drill_module, "Restore", lambda *_: restore)
    monkeypatch.setattr(drill_module, "ReplicaReads", lambda *_: SimpleNamespace(batches=AsyncMock(side_effect=error)))
    streams = {"orders": StreamImage("orders", UID, "shop.orders", StreamConfig(), ())}
    monkeypatch.setattr(drill_module, "read_image", lambda *_: SimpleNamespace(streams=streams))
    world = World()
    world.__dict__["transport"] = None
    with pytest.raises(kind, match=r"orders/0 on node n1 .*liftpy stream delete drill-1-0") as raised:
        await drill_module.drill(world, None, manifest, RestoreOptions(target=Target()))  # type: ignore[arg-type]
    assert exit_code(raised.value) == code
    restore.undo.assert_awaited_once()


@pytest.mark.parametrize("is_own", [True, False])
async def test_restore_without_an_answer_to_its_create_request_removes_only_its_own_stream(
    manifest: Manifest, is_own: bool
) -> None:
    """The stream and the helper remained, and the helper could not be removed."""
    world = RealDecisions()
    restore = a_restore_with_streams(world, manifest, "orders", is_created=False)

    async def create_stream(*_: Any, **__: Any) -> None:
        node = HELPER if is_own else "n1"
        world.cluster.create(manual=[pb.ReplicaList(partition=0, replicas=[node])])
        raise OutcomeUnknownError("no answer")

    world.cluster.register("n1")
    world.__dict__["create_stream"] = create_stream
    with pytest.raises(OutcomeUnknownError):
        await create_first_stream(restore)
    assert await restore.undo() == ()
    uid = world.image.streams["orders"].uid
    deleted = [("delete_stream", "orders", uid)] if is_own else []
    assert world.done == [*deleted, ("remove_node", HELPER)]


def test_backup_create_names_the_streams_that_were_deleted_during_the_backup(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "with_client", lambda *_, **__: BackupResult(manifest, 12, 0.5, ("bills", "prices")))
    ended = CliRunner().invoke(module.create, [str(tmp_path)])
    assert "deleted while it ran: bills, prices" in ended.stdout


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("left", "code"), [(("liftpy stream delete drill-1-0",), 4), ((), 0)])
def test_backup_drill_with_remaining_copies_exits_with_4(
    left: tuple[str, ...], code: int, as_json: bool, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = DrillResult(
        backup=manifest.backup, streams=1, partitions=1, records=1, size_bytes=1, served_s=1.0, rto_s=1.0, compared_s=1.0,
        rpo_s=1.0, left=left,
    )  # fmt: skip
    monkeypatch.setattr(module, "with_client", lambda *_, **__: result)
    ended = CliRunner().invoke(module.drill_, [str(tmp_path), *(["--json"] if as_json else [])], standalone_mode=False)
    assert ended.return_value == code
    assert (json.loads(ended.stdout)["left"] == list(left)) if as_json else all(command in ended.stderr for command in left)


async def test_restore_whose_helper_node_fails_to_start_removes_that_node(manifest: Manifest) -> None:
    world = World()
    restore = a_restore(world, manifest)

    def fails() -> None:
        raise UnavailableError("not ready")

    restore._helper = SimpleNamespace(running=False, start=lambda: None, wait_ready=fails)  # type: ignore[assignment]
    with pytest.raises(UnavailableError):
        await restore._start()
    await restore.undo()
    ((asked, node),) = world.done
    assert (asked, node.startswith(PREFIX)) == ("remove_node", True)


def test_restore_helper_with_the_settings_file_of_a_node_on_this_host_uses_none_of_its_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper could not listen on the address of the node, and ended."""
    config = tmp_path / "n1.toml"
    config.write_text(
        'node_id = "n1"\ndata = "/var/lib/liftpy"\nstatus_port = 8222\nprobe_listen = "10.0.0.7:8224"\nworkers = 4\n'
        'jetstream_api = "shop"\nlog_level = "debug"\n[credentials]\nuser = "node"\npassword = "p"\n'
    )
    monkeypatch.setattr(restore_module, "DevNode", lambda *given: given)
    options = RestoreOptions(target=Target(("nats://h:1",)), node_config=config)
    node_id, command, environment, _ = helper_node(HELPER, tmp_path / "data", options, "n1,n2", "a")  # type: ignore[misc]
    words = command[command.index("sidecar") + 1 :]
    flags = sidecar_command.make_context("sidecar", words).params
    settings = SettingsLoader(flags.pop("config"), flags, environment).load()
    assert (settings.node_id, settings.data, settings.nats) == (node_id, tmp_path / "data", ("nats://h:1",))
    assert (settings.status_port, settings.probe_listen, settings.jetstream_api, settings.workers) == (-1, "", "", 1)
    assert (settings.credentials.user, settings.log_level) == ("node", "debug")


@pytest.mark.parametrize("prefix", ["", "_INBOX_operator", "ops.inbox"])
def test_restore_helper_with_the_credentials_of_an_operator_is_a_node_that_answers_the_operator(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inbox prefix is a setting of clients. The helper rejected it and ended."""
    monkeypatch.setattr(restore_module, "DevNode", lambda *given: given)
    credentials = Credentials(user="operator", password="p", inbox_prefix=prefix, principal="operator")
    options = RestoreOptions(target=Target(("nats://h:1",), credentials=credentials))
    _, command, environment, _ = helper_node(HELPER, tmp_path / "data", options, "n1,n2", "a")  # type: ignore[misc]
    flags = sidecar_command.make_context("sidecar", command[command.index("sidecar") + 1 :]).params
    settings = SettingsLoader(flags.pop("config"), flags, environment).load()
    assert settings.credentials == Credentials(user="operator", password="p")
    assert InboxRule(settings.inbox_prefixes).allows(f"{prefix or '_INBOX'}.abc.1".encode())


class RealDecisions(World):
    """A cluster that checks and applies the requests which create partitions, as its controllers do."""

    def __init__(self, *nodes: str) -> None:
        super().__init__()
        self.cluster = Driver(nodes or (HELPER,))
        self.real = admin_over(self, Subjects("liftpy"))

    @property
    def image(self) -> Any:
        return self.cluster.fsm.image

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        request = frames.decode(payload, pb.ControlRequest)
        refused = fit(request, len(payload))
        if refused:
            return frames.seal(
                pb.ControlResponse(error=pb.ControlResponse.INVALID, detail=refused, operationId=request.operationId)
            )
        response = self.cluster.apply(request.SerializeToString())
        response.operationId = request.operationId
        return frames.seal(response)

    async def create_stream(self, name: str, subject: str, *, ready_s: float, **more: Any) -> StreamImage:
        return await self.real.create_stream(name, subject, ready_s=0, **more)

    async def plan_stream(self, name: str, subject: str, **more: Any) -> PlacementPlan:
        return await self.real.plan_stream(name, subject, **more)

    async def add_partitions(self, name: str, total: int = 0, *, ready_s: float = 0, **more: Any) -> StreamImage:
        return await self.real.add_partitions(name, total, ready_s=0, **more)


async def plan(restore: Restore, world: RealDecisions, **wish: Any) -> list[RestoredStream]:
    """Change the wishes for the streams of a restore, plan their placement, and return them."""
    for one in (streams := restore._streams):
        one.wish = replace(one.wish, **wish)
        one.plan = await restore._plan_placement(one, world.image)
    return streams


async def create_first_stream(restore: Restore) -> None:
    """Create the first stream of a restore on its helper node, with nothing in it."""
    restore._helper_id = HELPER
    await restore._create(restore._streams[0], await restore._first_epoch())


@pytest.mark.parametrize(("partitions", "leader_epoch"), [(1, 4), (1, 5_000_000), (3500, 4)])
async def test_restore_creates_the_stream_with_a_leader_epoch_above_all_earlier_epochs(
    manifest: Manifest, partitions: int, leader_epoch: int
) -> None:
    world = RealDecisions()
    copy = manifest.streams[0].partitions[0]
    stream = replace(manifest.streams[0], partitions=tuple(replace(copy, partition=number) for number in range(partitions)))
    restore = a_restore(world, replace(manifest, leader_epoch=leader_epoch, streams=(stream,)))
    await create_first_stream(restore)
    made = world.image.streams["orders"]
    assert [partition.replicas for partition in made.partitions] == [(HELPER,)] * partitions
    assert min(partition.leader_epoch for partition in made.partitions) > leader_epoch
    assert world.image.counters.next_leader_epoch > max(partition.leader_epoch for partition in made.partitions)


@pytest.mark.parametrize(
    ("policy", "racks", "planned_by", "unmet"),
    [
        ("", ("", "", "", ""), "round-robin", ""),
        ("round-robin", ("", "", "", ""), "round-robin", ""),
        ("rack-strict", ("a", "a", "b", "b"), "rack-strict", ""),
        ("rack-strict", ("", "", "", ""), "round-robin", "rack-strict"),
        ("least-loaded", ("", "", "", ""), "least-loaded", ""),
    ],
)
async def test_restore_keeps_the_placement_policy_of_the_stream(
    manifest: Manifest, policy: str, racks: tuple[str, ...], planned_by: str, unmet: str
) -> None:
    world = RealDecisions("n0")
    for number, rack in enumerate(racks, 1):
        world.cluster.register(f"n{number}", rack=rack)
    world.cluster.fence("n0")
    restore = a_restore(world, manifest)
    [one] = await plan(restore, world, placement=policy, replicas=2)
    wished = PlacementOptions(policy=planned_by)
    assert one.plan == (await world.plan_stream("x", "shop.x", replicas=2, placement=wished)).replicas
    assert unmet in one.unmet_policy
    assert bool(unmet) is bool(one.unmet_policy)
    world.cluster.register(HELPER)
    await create_first_stream(restore)
    assert world.image.streams["orders"].placement == (policy or "round-robin")


async def test_restore_into_fewer_nodes_than_min_isr_uses_all_nodes(manifest: Manifest) -> None:
    """A stream of three replicas could not be restored into a cluster of one node."""
    world = RealDecisions("n1")
    restore = a_restore(world, manifest)
    [one] = await plan(restore, world, replicas=3, config=StreamConfig(min_isr=2))
    assert one.plan == (("n1",),)
    world.cluster.register(HELPER)
    await create_first_stream(restore)
    assert world.image.streams["orders"].config.min_isr == 2, "it counts again when there are more replicas"


@pytest.mark.parametrize("policy", ["", "rack", "least-loaded"])
async def test_restore_of_many_small_streams_spreads_them_over_all_nodes(manifest: Manifest, policy: str) -> None:
    """Each dry run of a placement begins at the same node."""
    world = RealDecisions("n1", "n2", "n3", "n4")
    restore = a_restore(world, manifest, *(f"orders{number}" for number in range(8)))
    plans = [one.plan[0] for one in await plan(restore, world, placement=policy, replicas=2)]
    assert {nodes[0] for nodes in plans} == {"n1", "n2", "n3", "n4"}, "leaders"
    assert set(Counter(node for nodes in plans for node in nodes).values()) == {4}, "replicas"


async def test_restore_of_more_streams_than_the_nodes_have_room_for_is_rejected(manifest: Manifest) -> None:
    world = RealDecisions()
    for node_id in ("n1", "n2"):
        world.cluster.register(node_id, partitionBudget=1)
    world.cluster.fence(HELPER)
    plans = await plan(a_restore(world, manifest, "a", "b"), world, replicas=1)
    assert [one.plan for one in plans] == [(("n1",),), (("n2",),)]
    with pytest.raises(ConfigError, match="no room"):
        await plan(a_restore(world, manifest, "a", "b", "c"), world, replicas=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (PlacementOptions(later_policy="rack"), "needs an assignment"),
        (PlacementOptions(later_policy="nearest", assignment=((0, (HELPER,)),)), "'nearest' is not known"),
    ],
)
async def test_create_stream_with_an_impossible_policy_for_later_partitions_is_rejected(
    options: PlacementOptions, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await RealDecisions().create_stream("orders", "shop.orders", ready_s=0, placement=options)


async def test_create_stream_with_a_first_leader_epoch_out_of_bounds_is_rejected() -> None:
    world = RealDecisions()
    with pytest.raises(ConfigError, match="LeaderEpoch"):
        await world.create_stream("orders", "shop.orders", ready_s=0, first_leader_epoch=1 << 62)
    assert world.image.counters.next_leader_epoch == 1


@pytest.mark.parametrize("kind", [OutcomeUnknownError, UnavailableError])
async def test_restore_treats_a_stream_as_open_if_the_open_request_has_no_answer(
    kind: type[LiftError], manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer may be lost, and a publisher may have published."""
    world = World()
    restore = a_restore(world, manifest, "orders", "users")

    async def alter(*_: Any, **__: Any) -> None:
        raise kind("no answer")

    monkeypatch.setattr(world, "alter_stream", alter, raising=False)
    for name in ("_make_room", "_start", "_until", "_first_epoch", "_move", "undo", "_plan_placement"):
        monkeypatch.setattr(restore, name, world.__getattr__(name))
    monkeypatch.setattr(restore, "_stage", lambda scratch, run: None)
    monkeypatch.setattr(restore, "_install_logs", lambda scratch, one: None)
    monkeypatch.setattr(restore, "_create", world.__getattr__("create"))
    monkeypatch.setattr(restore_module, "helper_node", lambda *_: SimpleNamespace(running=False, interrupt=lambda: None))
    with pytest.raises(kind, match=r"no answer\. To complete .*liftpy node remove restore-.*stay, except users\.") as error:
        await restore.run()
    assert not error.value.retryable, "the same command would be rejected"
    assert restore._open == {"orders"}


@pytest.mark.parametrize(("nodes", "waits"), [(("n1",), 3), (("n1", "n2"), 0)])
@pytest.mark.parametrize("placement", ["", "rack-strict", "manual"])
async def test_restore_of_a_stream_that_waited_for_nodes_creates_it_without_a_helper(
    manifest: Manifest, nodes: tuple[str, ...], waits: int, placement: str
) -> None:
    """A stream without partitions made the restore of a whole cluster fail."""
    world = RealDecisions(*nodes)
    empty = replace(manifest, streams=(replace(manifest.streams[0], partitions=()),), cursors=())
    wish = StreamRestore(
        name="orders", into="orders", subject="shop.orders", config=StreamConfig(retention_bytes=7 << 20), replicas=2, waiting=3,
        placement=placement,
    )  # fmt: skip
    done = await Restore(world, None, empty, [wish], RestoreOptions(target=None)).run()  # type: ignore[arg-type]
    made = world.image.streams["orders"]
    assert (made.waiting, len(made.partitions), made.replica_count) == (waits, 3 - waits, 2)
    assert (made.config.retention_bytes, made.config.read_only) == (7 << 20, False)
    assert [(one.uid, one.logs) for one in done.streams] == [(made.uid, [])]
    assert not any(node.startswith(PREFIX) for node in world.image.nodes)
    with pytest.raises(AlreadyExistsError):
        await Restore(world, None, empty, [wish], RestoreOptions(target=None)).run()  # type: ignore[arg-type]


async def test_restore_that_is_canceled_reads_no_further_file_of_the_backup(tmp_path: Path) -> None:
    store, _, manifest = two_backups(tmp_path / "store")
    began, goes_on = threading.Event(), threading.Event()
    files: list[int] = []

    def tell(step: str, unit: str, done: int, total: int) -> None:
        if unit == "files":
            files.append(done)
            began.set()
            assert goes_on.wait(10)

    wish = StreamRestore(name="orders", into="orders", subject="s.orders", config=StreamConfig(), replicas=1)
    options = RestoreOptions(target=None, scratch=tmp_path)  # type: ignore[arg-type]
    restore = Restore(RealDecisions("n1"), store, manifest, [wish], options, tell=tell)  # type: ignore[arg-type]
    run = asyncio.create_task(restore.run())
    assert await asyncio.to_thread(began.wait, 10)
    run.cancel()
    await asyncio.sleep(0.05)
    assert not run.done(), "it removes no directory into which a thread still writes"
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert files == [1]
    assert os.listdir(tmp_path) == ["store"]


def a_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let a restore check without pauses. Return its time in seconds, as the only item of a list, so that a test can set it."""
    now = [0.0]
    monkeypatch.setattr(restore_module, "CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(restore_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


async def test_restore_waits_for_replicas_across_a_metadata_leader_change(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = a_clock(monkeypatch)
    world, looks = World(), 0
    restore = a_restore(world, manifest)
    world.fails = [UnavailableError("nobody leads")]

    async def is_so() -> bool:
        nonlocal looks
        looks += 1
        now[0] += restore_module.STALLED_S * 0.9
        world.has(f"n{looks if looks < 5 else 5}")
        return False

    with pytest.raises(UnavailableError, match="and the logs of the"):
        async with asyncio.timeout(10):
            await restore._until(is_so, "copies")
    assert looks in (6, 7), "twice without a change"
    restore._open.add("orders")
    with pytest.raises(UnavailableError, match=r"liftpy node remove restore-.*complete and stay\."):
        await restore._until(is_so, "copies")


async def test_restore_waits_as_long_as_a_replica_copies_a_large_log(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata do not change during the copy. A restore of 4 GiB in one partition failed after two minutes."""
    now = a_clock(monkeypatch)
    world, looks = World(), 0
    world.has("n1", "n2")
    world.streams["orders"] = replace(
        world.streams["orders"], partitions=(replace(world.streams["orders"].partitions[0], leader="n1"),)
    )

    async def is_so() -> bool:
        nonlocal looks
        looks += 1
        now[0] += restore_module.STALLED_S / 4
        world.copied = min(looks, 30)
        return False

    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError, match="no progress"):
            await a_restore(world, manifest)._until(is_so, "copies")
    assert 34 <= looks <= 36, "until the replica copies nothing more"


def of_three_partitions(manifest: Manifest) -> Manifest:
    """Return ``manifest`` with two more partitions, which are empty."""
    (stream,) = manifest.streams
    more = tuple(PartitionCopy(partition=number, start=0, high_watermark=-1) for number in (1, 2))
    return replace(manifest, streams=(replace(stream, partitions=(*stream.partitions[:1], *more)),))


async def test_restore_sets_group_positions_only_within_the_restored_log(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = [0.0], []
    monkeypatch.setattr(restore_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(restore_module, "AGAIN_S", 0)
    answers: list[Exception | None] = [UnavailableError("begins"), OutcomeUnknownError("lost"), None]

    async def reset(name: str, positions: dict[PartitionKey, int]) -> None:
        now[0] += 25.0
        asked.append((name, positions))
        if (answer := answers.pop(0) if answers else UnavailableError("nobody")) is not None:
            raise answer

    uid = [NEW_UID]

    async def bounds(name: str, partition: int) -> Any:
        return SimpleNamespace(uid=uid[0], log_start_offset=20, end_offset=90)

    groups, cursors = SimpleNamespace(reset=reset), SimpleNamespace()
    client: Any = SimpleNamespace(bounds=bounds, groups=groups, cursors=cursors, consume=lambda *_, **__: AsyncMock())
    where = (("orders", UID, 0, 5), ("orders", UID, 1, 500), ("orders", UID, 2, 55), ("other", "0-1", 0, 3))
    kept = replace(of_three_partitions(manifest), cursors=(CursorCopy(name="g", is_cursor=False, positions=where),))
    assert await set_cursors(client, kept, {"orders": NEW_UID}) == {"g": ""}
    key = [PartitionKey("orders", NEW_UID, number) for number in range(3)]
    assert asked == [("g", {key[0]: 20, key[1]: 90, key[2]: 55})] * 3
    asked.clear()
    async with asyncio.timeout(10):
        assert await set_cursors(client, kept, {"orders": NEW_UID}) == {"g": "nobody"}, "given up in the end, and said"
    answers[:] = [GroupRejectedError("it has members")]
    assert await set_cursors(client, kept, {"orders": NEW_UID}) == {"g": "it has members"}
    uid[0] = "00000c-30"
    assert await set_cursors(client, kept, {"orders": NEW_UID}) == {}, "made again meanwhile"


NOW = "00000b-20"
QUOTA = DefaultQuota(records_per_s=500, bytes_per_s=4096, by_token=2)
TIMES = SessionTimes(5500, 4000, change=3)


async def test_restore_with_one_unreachable_partition_sets_all_other_group_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    asked: list[tuple[str, int]] = []

    async def reset(name: str, positions: dict[PartitionKey, int]) -> None:
        told.append((name, {key.partition: at for key, at in positions.items()}))
        if name == "gone":
            raise NotFoundError("no such group")

    async def bounds(name: str, partition: int) -> Any:
        asked.append((name, partition))
        if partition == 1:
            raise UnavailableError("nobody serves it")
        return SimpleNamespace(uid=NOW, log_start_offset=0, end_offset=90)

    manifest = of_three_partitions(two_backups(tmp_path)[2])

    def group(name: str, *partitions: int) -> CursorCopy:
        return CursorCopy(
            name=name, is_cursor=False, positions=tuple(("orders", UID, number, 5 + number) for number in partitions)
        )

    kept = replace(manifest, cursors=(group("g", 0, 1, 2), group("gone", 0), group("h", 1), group("w", 2)))
    groups, cursors = SimpleNamespace(reset=reset), SimpleNamespace()
    client: Any = SimpleNamespace(bounds=bounds, groups=groups, cursors=cursors, consume=lambda *_, **__: AsyncMock())
    said = await set_cursors(client, kept, {"orders": NOW})
    none = "orders/1 gives no bounds (nobody serves it)"
    assert said == {"g": none, "gone": "no such group", "h": none, "w": ""}
    assert told == [("g", {0: 5, 2: 7}), ("gone", {0: 5}), ("w", {2: 7})]
    assert sorted(asked) == [("orders", number) for number in range(3)], "each once"


SHORT = SessionTimes(1000, 600)


@pytest.mark.parametrize(
    ("value", "there", "held", "fails", "why"),
    [
        (QUOTA, ("orders", "_lift-groups"), NO_QUOTA, None, ""),
        (QUOTA, ("orders", "mine"), NO_QUOTA, None, "the cluster has streams of its own: mine"),
        (QUOTA, ("orders",), DefaultQuota(bytes_per_s=7), None, "the cluster has another one: 7 bytes/s"),
        (QUOTA, ("orders", "mine"), QUOTA, None, ""),
        (QUOTA, ("orders",), NO_QUOTA, ConfigError("the level is 3"), "the level is 3"),
        (TIMES, ("orders", "_lift-groups"), SHORT, None, ""),
        (TIMES, ("orders", "mine"), SHORT, None, "the cluster has streams of its own: mine"),
        (TIMES, ("orders",), replace(SHORT, change=1), None, "the cluster has others: session 1 s, lease 0.6 s"),
        (TIMES, ("orders", "mine"), SessionTimes(5500, 4000), None, ""),
        (TIMES, ("orders",), SHORT, ConfigError("the level is 4"), "the level is 4"),
    ],
)
async def test_restore_into_an_empty_cluster_sets_the_default_quota_and_changed_session_times(
    value: DefaultQuota | SessionTimes, there: tuple[str, ...], held: Any, fails: LiftError | None, why: str
) -> None:
    told: list[dict[str, float]] = []

    async def describe(*, linearizable: bool) -> Any:
        return SimpleNamespace(image=SimpleNamespace(streams=dict.fromkeys(there), default_quota=held, session_times=held))

    async def change(**values: float) -> None:
        told.append(values)
        if fails is not None:
            raise fails

    client: Any = SimpleNamespace(
        admin=SimpleNamespace(describe_cluster=describe, set_default_quota=change, set_session_times=change)
    )
    if isinstance(value, DefaultQuota):
        wide, wanted = ClusterWide(value), {"records_per_s": 500, "bytes_per_s": 4096, "by_token": 2}
        command = "liftpy settings default-quota --quota-records 500 --quota-bytes 4096 --quota-by-token 2"
        document: dict[str, int] = asdict(value)
    else:
        wide, wanted = ClusterWide(times=value), {"session_s": 5.5, "lease_s": 4.0}
        command = "liftpy settings node-session --session 5.5 --lease 4"
        document = {"session_ms": 5500, "lease_ms": 4000}
    (found,) = await set_cluster_wide(client, wide, {"orders"})
    assert found == RestoredSetting(value, why)
    assert told == [wanted] * (held in (NO_QUOTA, SHORT) and "mine" not in there)
    assert (found.command, found.json_value) == (command, {**document, "why_not": why})


def test_backup_of_unchanged_session_times_contains_no_session_times() -> None:
    assert cluster_wide_of(ClusterImage(session_times=TIMES, default_quota=QUOTA)) == ClusterWide(QUOTA, TIMES)
    assert cluster_wide_of(ClusterImage(session_times=SessionTimes(900, 500))) == NOTHING_WIDE
    assert cluster_wide_of(ClusterImage()) == NOTHING_WIDE


@pytest.mark.parametrize("cursors", [{}, {"g": ""}, {"g": "", "h": "orders/1 gives no bounds"}])
@pytest.mark.parametrize(
    "settings",
    [[], [RestoredSetting(QUOTA), RestoredSetting(TIMES)], [RestoredSetting(TIMES), RestoredSetting(QUOTA, "level 3")]],
)
def test_restore_with_remaining_manual_steps_exits_with_4(
    cursors: dict[str, str], settings: list[RestoredSetting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_backups(tmp_path)
    done = RestoreResult([], cursors=cursors, settings=settings)
    image = ClusterImage(default_quota=QUOTA, session_times=TIMES)
    options: list[Any] = []
    monkeypatch.setattr(module, "read_image", lambda store, manifest: image)
    monkeypatch.setattr(module, "_plan_stream_restore", lambda *_: SOME_STREAM)
    monkeypatch.setattr(module, "RestoreOptions", lambda **given: options.append(given))
    monkeypatch.setattr(module, "with_client", lambda target, work, **_: done)
    left = any(one.why for one in settings)
    for wish, wanted in (("--all", ClusterWide(QUOTA, TIMES)), ("--into=orders", NOTHING_WIDE)):
        ended = CliRunner().invoke(module.restore, [str(tmp_path), wish], standalone_mode=False)
        assert ended.exception is None
        assert ended.return_value == (4 if left or "h" in cursors else 0)
        assert options.pop()["wide"] == wanted, "a cluster's, not a stream's"
    assert ("To set the missing positions later: liftpy backup cursors" in ended.stderr) == ("h" in cursors)
    assert ("liftpy settings default-quota" in ended.output) == left
    assert ("session times: session 5.5 s, lease 4 s" in ended.output) == bool(settings)
    as_json = CliRunner().invoke(module.restore, [str(tmp_path), "--all", "--json"], standalone_mode=False)
    said = json.loads(as_json.output)
    assert as_json.return_value == (4 if left or "h" in cursors else 0)
    assert (said["cursors"], set(said["settings"])) == (cursors, {"default_quota", "session_times"} if settings else set())


@pytest.mark.parametrize(
    ("until", "warning"),
    [
        ("2020-01-31T12:00:00Z", ""),
        ("2020-02-01T00:00:01Z", "was taken at 2020-02-01T00:00:00Z, before the time of --until"),
        ("9", ""),
        ("10", "orders/0 ends at offset 9 in backup b, below --until 10"),
    ],
)
def test_restore_until_a_point_after_the_backup_prints_a_warning(
    until: str, warning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = replace(backup_of(10, 1, 0), created_ns=1_580_515_200 * 10**9)
    manifest = replace(manifest, streams=(replace(manifest.streams[0], partitions=manifest.streams[0].partitions[:1]),))
    stream = StreamImage("orders", UID, "shop.orders", StreamConfig(), ())
    monkeypatch.setattr(module.Store, "newest", lambda *_: manifest)
    monkeypatch.setattr(module, "read_image", lambda store, manifest: ClusterImage(streams={"orders": stream}))
    monkeypatch.setattr(module, "with_client", lambda target, work, **_: RestoreResult([]))
    words = [str(tmp_path), "--into", "orders", "--until", until, "--json"]
    ended = CliRunner().invoke(module.restore, words, standalone_mode=False)
    assert ended.return_value == 0
    assert json.loads(ended.stdout)["backup"] == "b"
    assert (warning in ended.stderr) if warning else not ended.stderr


@pytest.mark.parametrize("option", ["", "--no-retention"])
def test_restore_of_a_backup_that_is_older_than_the_retention_warns_or_keeps_the_records(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster deleted all records within seconds after the restore."""
    config = StreamConfig(retention_age_s=86_400.0, retention_records=7, max_per_subject=3)
    stream = StreamImage("orders", UID, "shop.orders", config, ())
    restored: list[StreamConfig] = []

    def restore(client: Any, store: Any, manifest: Any, wishes: list[StreamRestore], *_: Any) -> None:
        restored.extend(one.config for one in wishes)

    def with_client(target: Any, work: Any, **_: Any) -> RestoreResult:
        with suppress(AttributeError):
            work(None)
        return RestoreResult([])

    monkeypatch.setattr(module.Store, "newest", lambda *_: backup_of(10, 1, 0))
    monkeypatch.setattr(module, "read_image", lambda store, manifest: ClusterImage(streams={"orders": stream}))
    monkeypatch.setattr(module, "with_client", with_client)
    monkeypatch.setattr(module, "Restore", restore)
    words = [str(tmp_path), "--into", "orders-then", "--stream", "orders", *filter(None, [option])]
    ended = CliRunner().invoke(module.restore, words, standalone_mode=False)
    assert ended.return_value == 0, ended
    if option:
        assert restored == [StreamConfig(max_per_subject=3)]
        assert "liftpy stream alter orders-then --retention-age 1d --retention-records 7" in ended.stderr
    else:
        assert restored == [config]
        assert "all records of stream orders in backup b are older than its retention age (1d)" in ended.stderr


def backup_of(end: int, epoch: int, position: int) -> Manifest:
    """Return the manifest of a stream with ``end`` records in partition 0, and of a cursor at ``position``."""
    file = StoredFile(path="p", size_bytes=1, sha256="")
    piece = StoredPiece(file=file, start=0, end=end, chain="", last_epoch=epoch)
    copies = (
        PartitionCopy(partition=0, start=0, high_watermark=end - 1, pieces=(piece,)),
        PartitionCopy(partition=1, start=0, high_watermark=-1),
    )
    return Manifest(
        backup="b", created_ns=0, namespace="liftpy", version="", level=0, index=0, leader_epoch=epoch, since="", image=file,
        streams=(StreamCopy(name="orders", uid=UID, partitions=copies),),
        cursors=(CursorCopy(name="reader", is_cursor=True, positions=(("orders", UID, 0, position), ("orders", UID, 1, 0))),),
    )  # fmt: skip


@pytest.fixture
async def orders() -> AsyncIterator[Client]:
    """Yield a client of a cluster whose stream ``orders`` has ten records in partition 0."""
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("orders", "orders", partitions=2, replicas=2)
        await publish_ten(client)
        yield client


async def test_restore_without_coordinators_ends_after_one_wait_for_all_groups_and_cursors(
    orders: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group and cursor waited a minute, one after another. A cluster of 500 groups took a whole day."""
    now, attempts = [0.0], 0
    monkeypatch.setattr(restore_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(restore_module, "AGAIN_S", 0.0)

    async def refuse(name: str, positions: Any) -> None:
        nonlocal attempts
        attempts += 1
        now[0] += 1.0
        raise UnavailableError("no coordinator")

    monkeypatch.setattr(orders.cursors, "set", refuse)
    manifest = backup_of(10, 1, 4)
    many = tuple(replace(manifest.cursors[0], name=f"reader{number}") for number in range(40))
    uid = (await orders.stream("orders")).uid
    results = await set_cursors(orders, replace(manifest, cursors=many), {"orders": uid})
    assert results == {f"reader{number}": "no coordinator" for number in range(40)}
    assert attempts < restore_module.COORDINATOR_S + 2 * len(many)


async def publish_ten(client: Client) -> None:
    for _ in range(10):
        await client.publish("orders", b"v")


async def test_backup_cursors_for_a_recreated_stream_sets_no_positions(orders: Client) -> None:
    backup = backup_of(10, (await orders.bounds("orders")).end_epoch, 7)
    await orders.admin.delete_stream("orders")
    created = await orders.create_stream("orders", "orders", partitions=2)
    await publish_ten(orders)
    await publish_ten(orders)
    said = await set_cursors(orders, backup, {"orders": created.uid})
    assert "orders/0 has no record of the backup" in said["reader"]
    assert await orders.cursors.describe("reader") == {created.key(1): 0}, "the copy of partition 1 is empty"


async def test_backup_cursors_sets_no_position_in_a_partition_that_the_backup_lacks(orders: Client) -> None:
    """An operator added the partition during the backup. It is not in the restored stream, or a later one has other records."""
    backup = backup_of(10, (await orders.bounds("orders")).end_epoch, 7)
    stream = await orders.stream("orders")
    for number in (1, 2):
        (cursor,) = backup.cursors
        cursor = replace(cursor, positions=(("orders", UID, 0, 7), ("orders", UID, number, 3)))
        copies = replace(backup.streams[0], partitions=backup.streams[0].partitions[:1])
        made = replace(backup, streams=(copies,), cursors=(cursor,))
        assert await set_cursors(orders, made, {"orders": stream.uid}) == {"reader": ""}
        assert await orders.cursors.describe("reader") == {stream.key(0): 7}


@pytest.mark.parametrize(("end", "position", "expected"), [(10, 7, 7), (6, 6, 6), (16, 14, 10)], ids=["all", "more", "part"])
async def test_backup_cursors_for_a_restored_stream_sets_positions_within_its_restored_records(
    orders: Client, end: int, position: int, expected: int
) -> None:
    """The restored stream has got other records since. With ``part``, some records of the backup were not restored."""
    backup = backup_of(end, (await orders.bounds("orders")).end_epoch, position)
    stream = await orders.stream("orders")
    follower = next(node for node in stream.partitions[0].replicas if node != stream.partitions[0].leader)
    await orders.admin.elect_leader("orders", 0, follower)
    await publish_ten(orders)
    assert await set_cursors(orders, backup, {"orders": stream.uid}) == {"reader": ""}
    assert await orders.cursors.describe("reader") == {stream.key(0): expected, stream.key(1): 0}
