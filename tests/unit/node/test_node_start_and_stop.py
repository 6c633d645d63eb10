"""Test start and stop of a node over a real data directory with scripted parts: the order, and the marker of a clean stop [S9]."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from immutables import Map

import sidecar.node.node
from liftpy.config import CommitPolicy, StreamConfig
from liftpy.core.base.partition import PartitionState
from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.log.recovery import OpenReport, RecoveryResult
from liftpy.core.log.small_files import Checkpoint
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.errors import ConfigError, DataDirectoryLockedError, LiftError, NoSpaceError
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.identity import NodeFile, PreviousProcess
from sidecar.node.node import Node
from sidecar.node.reload import ReloadResult
from sidecar.partition.recovery import RecoveredLogs
from sidecar.runtime.restarts import EXIT_TO_REPAIR
from sidecar.runtime.settings import NodeSettings, SettingsLoader
from sidecar.workers.workers import Workers

_LOG, _OTHER = "orders-000001-1/0", "orders-000001-1/1"


class World:
    """Everything beside the node and its folder. ``told``: in order; ``during``: what happens while a part does what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.during: dict[str, Callable[[], None]] = {}
        self.logs_are_clean = True
        self.refused = ""
        self.registered: dict[str, Any] = {}
        self.image = replace(ClusterImage(), index=9)

    def say(self, what: str) -> None:
        self.told.append(what)
        if what in self.during:
            self.during[what]()

    def marker(self) -> PreviousProcess:
        """What the next process on the folder finds."""
        folder = DataDirectory(self.folder)
        try:
            return NodeFile(folder, "n1").previous
        finally:
            folder.close()

    def part(self, name: str, **given: Any) -> Any:
        """A part whose methods, awaited or not, say their names."""
        return _Part(self, name, given)


class _Done:
    def __await__(self) -> Any:
        return iter(())


class _Part:
    def __init__(self, world: World, name: str, given: dict[str, Any]) -> None:
        self._world, self._name = world, name
        self.__dict__.update(given)

    def __getattr__(self, method: str) -> Any:
        def called(*_: Any, **__: Any) -> _Done:
            self._world.say(f"{self._name} {method}")
            return _Done()

        return called


class Members(_Part):
    """The membership of the node."""

    incarnation = 0

    async def register(self, previous_incarnation: int, **said: Any) -> int:
        self._world.registered = {"previous_incarnation": previous_incarnation, **said}
        self._world.say("register")
        if self._world.refused:
            raise LiftError(self._world.refused)
        self.incarnation = previous_incarnation + 1
        return self.incarnation


class Held(_Part):
    """The partitions of the node: none."""

    all_flushed = False
    log_ends: Mapping[str, int] = MappingProxyType({})

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def led_partitions(self) -> list[Any]:
        return []

    async def stop(self) -> bool:
        self._world.say("logs closed")
        return self._world.logs_are_clean


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "data")

    async def links(*_: Any) -> Any:
        ingest = made.part("ingest", waiting_bytes=0)
        return made.part("links", all=list, replication=made.part("bus", requires_credentials=True), ingest=ingest)

    async def nobody_before(*_: Any) -> None:
        made.say("nobody runs")

    def build(node: Node, *_: Any) -> None:
        labels = SimpleNamespace(patterns=())
        node.partitions = Held(  # type: ignore[assignment]
            made,
            "partitions",
            {"counts": SimpleNamespace(labels=labels), "copy_limit": SimpleNamespace(change=lambda replication: None)},
        )

    module = sidecar.node.node
    monkeypatch.setattr(module, "open_links", links)
    monkeypatch.setattr(module, "wait_for_predecessor", nobody_before)
    monkeypatch.setattr(module, "GroupThread", lambda *_: made.part("group", image=made.image))
    monkeypatch.setattr(module, "Membership", lambda *_: Members(made, "member", {}))
    monkeypatch.setattr(module, "exit_after", lambda seconds, code=1: None)
    monkeypatch.setattr(module, "probe_flushes", lambda path: None)
    monkeypatch.setattr("sidecar.status.health.EVERY_S", 3600.0)  # it looks at parts that are not here
    monkeypatch.setattr(Node, "_create_parts", build)
    for method in ("begin", "end_cleanly"):
        real = getattr(NodeFile, method)

        def said(file: NodeFile, *given: int, real: Any = real, method: str = method) -> None:
            made.say({"begin": "incarnation stored", "end_cleanly": "marker"}[method])
            real(file, *given)

        monkeypatch.setattr(NodeFile, method, said)
    return made


async def started(world: World) -> Node:
    node = Node(NodeSettings("n1", world.folder))
    said = await node.start()
    assert said["incarnation"] == node.incarnation
    return node


async def test_node_start_reports_whether_the_previous_process_stopped_cleanly(world: World) -> None:
    for before, clean in enumerate((True, False, True, False)):
        node = await started(world)
        assert world.registered["previous_incarnation"] == before
        assert world.registered["clean_stop"] is (before % 2 == 1)
        if not clean:
            node.fatal(LiftError("a bug"))
        await node.stop()
        assert world.marker() == PreviousProcess(before + 1, clean, True)


@pytest.mark.parametrize(
    ("hand_over", "logs_are_clean", "workers_are_clean", "code", "transfers", "is_clean"),
    [
        pytest.param(True, True, True, 0, True, True, id="stop"),
        pytest.param(False, True, True, 0, False, True, id="stop of the whole cluster"),
        pytest.param("a bug", True, True, 1, False, False, id="failure"),
        pytest.param(None, True, True, EXIT_TO_REPAIR, True, False, id="repair"),
        pytest.param(True, False, True, 0, True, False, id="unclean logs"),
        pytest.param(True, True, False, 0, True, False, id="unclean workers"),
    ],
)
async def test_node_stop_transfers_leadership_and_writes_the_clean_marker_only_if_its_reason_allows_it(
    world: World,
    hand_over: bool | str | None,
    logs_are_clean: bool,
    workers_are_clean: bool,
    code: int,
    transfers: bool,
    is_clean: bool,
) -> None:
    async def stop_workers(left_s: float) -> bool:
        return workers_are_clean

    node = await started(world)
    world.logs_are_clean, node._workers.stop = logs_are_clean, stop_workers  # type: ignore[method-assign]
    if hand_over is None:
        node.repair("s/0: damage")
    else:
        node.request_stop(transfer_leaderships=bool(hand_over))
    if isinstance(hand_over, str):
        node.fatal(LiftError(hand_over))
    assert await node.stop() == code
    steps = {"group hand_over", "partitions close_subjects", "member drain", "member leave"}
    assert steps & set(world.told) == (steps if transfers else set())
    assert world.marker().clean_stop is is_clean


@pytest.mark.parametrize(
    ("flushed", "failure", "complete"),
    [(True, None, True), (False, None, False), (True, NoSpaceError("full"), True), (True, LiftError("a bug"), False)],
)
async def test_node_stop_after_a_full_disk_removes_the_lazy_flush_mark_if_all_logs_are_flushed(
    world: World, flushed: bool, failure: Exception | None, complete: bool
) -> None:
    node = await started(world)
    mark = world.folder / "lazy-flush"
    mark.touch()
    world.logs_are_clean, node.partitions.all_flushed = False, flushed  # type: ignore[union-attr]
    if failure is None:
        node.repair("s/0: 300 MiB are free now")
    else:
        node.fatal(failure)
    await node.stop()
    assert (mark.exists(), world.marker().clean_stop) == (not complete, False)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("fail", "code"),
    [(lambda node: node.fatal(NoSpaceError("full")), 1), (lambda node: node.repair("s/0: damage"), 0)], ids=["fatal", "repair"],
)  # fmt: skip
async def test_node_stop_that_was_requested_ends_without_a_restart(
    world: World, fail: Callable[[Any], None], code: int, is_late: bool
) -> None:
    node = await started(world)
    if is_late:
        world.during["logs closed"] = lambda: fail(node)
    else:
        fail(node)
    node.request_stop(transfer_leaderships=True)
    assert await node.stop() == code


@pytest.mark.parametrize("when", ["group retire", "member drain", "logs closed", "member leave", "group stop"])
async def test_node_stop_with_a_failure_during_the_stop_writes_no_clean_marker(world: World, when: str) -> None:
    """The metadata member, or a log, may fail while the node stops cleanly."""
    node = await started(world)
    world.during[when] = lambda: node.fatal(LiftError("too late to be nothing"))
    node.request_stop(transfer_leaderships=True)
    assert await node.stop() == 1
    assert when in world.told
    assert not world.marker().clean_stop


@pytest.mark.parametrize(
    "when", ["group hand_over", "member drain", "member close", "logs closed", "member leave", "group stop"]
)
async def test_node_stop_with_a_component_that_fails_to_close_closes_the_others_without_clean_marker(
    world: World, when: str
) -> None:
    def fails() -> None:
        raise LiftError(f"a bug at: {when}")

    node = await started(world)
    world.told.clear()
    world.during[when] = fails
    node.request_stop(transfer_leaderships=True)
    with pytest.raises(LiftError, match=f"a bug at: {when}"):
        await node.stop()
    assert {"member close", "logs closed", "group stop", "links close"} <= set(world.told)
    assert not world.marker().clean_stop
    DataDirectory(world.folder).close()  # its lock is free


async def test_node_stop_during_the_recovery_unlocks_the_data_directory_after_its_threads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next process would recover the same log at the same time."""
    recovering, may_end = threading.Event(), threading.Event()

    def recover(storage: Any, **_: Any) -> RecoveryResult:
        recovering.set()
        assert may_end.wait(30)
        return RecoveryResult([], Checkpoint(), OpenReport(), storage)

    (world.folder / "streams" / "orders-U1" / "0").mkdir(parents=True)
    monkeypatch.setattr("sidecar.partition.recovery.recover", recover)
    node = Node(NodeSettings("n1", world.folder))
    starting = asyncio.ensure_future(node.start())
    await asyncio.to_thread(recovering.wait, 30)
    starting.cancel()
    node.request_stop(transfer_leaderships=True)
    stopping = asyncio.ensure_future(node.stop())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert not stopping.done()
    with pytest.raises(DataDirectoryLockedError):
        DataDirectory(world.folder)
    may_end.set()
    assert await stopping == 0
    DataDirectory(world.folder).close()


async def test_node_start_does_not_wait_for_a_hanging_flush_probe(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr(sidecar.node.node, "probe_flushes", lambda path: [60.0] if gate.wait(60) else None)
    try:
        node = await asyncio.wait_for(started(world), 30)
    finally:
        gate.set()
    node.request_stop(transfer_leaderships=False)
    assert await node.stop() == 0


async def test_node_reload_during_the_start_applies_to_parts_that_start_later(world: World) -> None:
    class Source:
        sources: ClassVar[dict[str, str]] = {}

        def load(self) -> NodeSettings:
            return NodeSettings("n1", world.folder, metrics_streams=("shop-*",))

    node = Node(NodeSettings("n1", world.folder), again=cast(SettingsLoader, Source()))
    reloads: list[asyncio.Task[ReloadResult]] = []
    world.during["nobody runs"] = lambda: reloads.append(asyncio.ensure_future(node.reloading.reload()))
    await node.start()
    assert (await reloads[0]).applied == ("metrics_streams",)
    partitions: Any = node.partitions
    assert partitions.counts.labels.patterns == ("shop-*",)
    await node.stop()


def recovery_finds(
    monkeypatch: pytest.MonkeyPatch, of_worker: dict[str, list[str]] | None = None, **found: list[str]
) -> list[bool]:
    """Let the recovery find these logs. ``of_worker``: logs of a worker process.

    Return a list that says of each recovery whether the stop before it was clean.
    """
    seen: list[bool] = []

    async def run(logs: RecoveredLogs, folder: DataDirectory, pool: Any, *, clean_stop: bool, share: WorkerShare) -> None:
        seen.append(clean_stop)
        for kind, names in found.items():
            setattr(logs, kind, list(names))

    async def recovered(workers: Workers) -> dict[str, list[str]]:
        return {"damaged": [], "confined": [], "suspect": [], **(of_worker or {})}

    monkeypatch.setattr(RecoveredLogs, "run", run)
    monkeypatch.setattr(Workers, "wait_until_recovered", recovered)
    return seen


def lead_by(world: World, *states: PartitionState, config: StreamConfig | None = None) -> None:
    """Give the cluster a stream with these partitions."""
    orders = StreamImage(name="orders", uid="000001-1", subject="orders", config=config or StreamConfig(), partitions=states)
    world.image = replace(world.image, streams=Map({"orders": orders}))


async def test_node_start_counts_the_damaged_logs_of_its_worker_processes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await started(world)).stop()
    assert world.marker().clean_stop
    recovery_finds(monkeypatch, {"damaged": ["orders-U1/0"], "suspect": ["orders-U1/1", "orders-U1/2"]})
    world.refused = "the group can't be asked"
    node = Node(NodeSettings("n1", world.folder))
    with pytest.raises(LiftError):
        await node.start()
    assert node.counters["suspect_log"] == 2
    await node.stop()
    assert not world.marker().clean_stop
    assert not world.marker().flushed_always, "it leaves the ISRs"


@pytest.mark.parametrize(
    ("of_worker", "lost", "is_lazy", "named"),
    [
        ({"damaged": [_OTHER], "confined": [_OTHER]}, [], False, [0, 1]),
        ({"damaged": [_OTHER], "confined": [_OTHER]}, [], True, []),
        ({"damaged": [_OTHER]}, [], False, []),
        ({"suspect": [_OTHER]}, [], False, []),
        ({}, [_OTHER], False, []),
    ],
    ids=["confined damage", "unflushed records may be lost", "unconfined damage", "suspect log", "missing log"],
)
async def test_node_start_names_damaged_logs_if_the_others_are_complete(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    of_worker: dict[str, list[str]],
    lost: list[str],
    is_lazy: bool,
    named: list[int],
) -> None:
    """A lost end or directory, or a failed flush, means that the disk may have lost records of any log."""
    recovery_finds(monkeypatch, of_worker, damaged=[_LOG], confined=[_LOG], missing=lost)
    if is_lazy:
        world.folder.mkdir()
        (world.folder / "lazy-flush").touch()
    partitions = [
        PartitionState(partition=number, replicas=("n1",), isr=("n1",), leader="n1", leader_epoch=1, epoch=1)
        for number in range(2)
    ]
    lead_by(world, *partitions)
    node = await started(world)
    said = world.registered
    assert (said["clean_stop"], said["flushed_always"]) == (False, False)
    assert [log.partition for log in said["damaged_logs"]] == named
    await node.stop()


@pytest.mark.parametrize(
    ("config", "state", "is_lost"),
    [
        (StreamConfig(), {"isr": ("n2", "n1")}, True),
        (StreamConfig(min_isr=2), {"isr": ("n2",), "complete": ("n1",)}, True),
        (StreamConfig(commit_policy=CommitPolicy.QUORUM), {"isr": ("n2",)}, True),
        (StreamConfig(commit_policy=CommitPolicy.QUORUM), {"isr": ("n2",), "incomplete": ("n1",)}, False),
        (StreamConfig(), {"isr": ("n2",)}, False),
    ],
)
async def test_node_start_reports_a_missing_log_directory_of_a_replica_that_may_lead(
    world: World, monkeypatch: pytest.MonkeyPatch, config: StreamConfig, state: dict[str, Any], is_lost: bool
) -> None:
    await (await started(world)).stop()
    recovery_finds(monkeypatch, missing=[_LOG])
    partition = PartitionState(partition=0, replicas=("n1", "n2", "n3"), leader="n2", leader_epoch=1, epoch=1, **state)
    lead_by(world, partition, config=config)
    node = await started(world)
    assert (world.registered["clean_stop"], world.registered["flushed_always"]) == (not is_lost, not is_lost)
    await node.stop()


async def test_node_start_that_fails_writes_no_clean_marker(world: World) -> None:
    world.refused = "no such weight"
    node = Node(NodeSettings("n1", world.folder))
    with pytest.raises(LiftError, match="no such weight"):
        await node.start()
    node.request_stop(transfer_leaderships=True)
    assert await node.stop() == 0
    assert not {"marker", "member drain", "member leave", "incarnation stored"} & set(world.told)
    assert world.marker() == PreviousProcess(0, False, True)


async def test_node_start_after_a_failed_start_that_found_damage_registers_an_unclean_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should this process end before it has registered: the next one finds nothing of it, for recovery has set it aside."""
    await (await started(world)).stop()
    assert world.marker() == PreviousProcess(1, True, True)
    suspect = ["orders-U1/1", "orders-U1/2"]
    seen = recovery_finds(monkeypatch, damaged=["orders-U1/0"], suspect=suspect)
    world.refused = "the group can't be asked"
    node = Node(NodeSettings("n1", world.folder))
    with pytest.raises(LiftError):
        await node.start()
    await node.stop()
    assert (world.registered["clean_stop"], world.registered["flushed_always"]) == (False, False)
    assert node.counters["suspect_log"] == 2
    assert world.marker() == PreviousProcess(1, False, False)
    world.refused = ""
    again = recovery_finds(monkeypatch, suspect=suspect)
    await (await started(world)).stop()
    assert (world.registered["clean_stop"], world.registered["flushed_always"]) == (False, False)
    assert seen + again == [True, False], "a tail that has to be cut is damage after a clean stop"


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"
    }


async def test_node_with_a_copied_data_directory_of_another_id_is_rejected(world: World, tmp_path: Path) -> None:
    node = await started(world)
    await node.stop()
    (log := world.folder / "streams" / "orders-U1" / "0" / "0.log").parent.mkdir(parents=True)
    log.write_bytes(b"records")
    copy = Path(shutil.copytree(world.folder, tmp_path / "copy"))
    before, said = _content(copy), len(world.told)
    other = Node(NodeSettings("n2", copy))
    with pytest.raises(ConfigError, match="node 'n1', not to 'n2"):
        await other.start()
    other.request_stop(transfer_leaderships=True)
    await other.stop()
    assert not {"nobody runs", "register", "marker"} & set(world.told[said:])
    assert _content(copy) == before


async def test_node_start_without_a_node_file_registers_an_empty_data_directory(world: World) -> None:
    """So it counts as empty [C7]: the node leaves the ISRs that it is in, and its logs are compared with their leaders'."""
    node = await started(world)
    await node.stop()
    first = world.registered["starts"]
    (world.folder / "streams" / "orders-U1" / "0").mkdir(parents=True)
    (world.folder / "node").unlink()
    await (await started(world)).stop()
    again = world.registered["starts"]
    assert world.registered["previous_incarnation"] == 0
    assert again.starts == 1
    assert again.folder_id != first.folder_id
    assert again.earlier == ()
