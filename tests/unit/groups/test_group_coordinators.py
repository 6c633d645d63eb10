"""Test the group coordinators of a node: start, restart, stop and reports."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sidecar.groups.coordinators as module
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.worker_assignment import WHOLE
from liftpy.core.groups.coordinator import EarlierGroupCoordinator, GroupCoordinator
from liftpy.core.metadata.features import QUEUE_EPOCHS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import GROUPS_STREAM
from liftpy.errors import UnavailableError
from liftpy.service import Identity, Role, ServiceMachine
from sidecar.groups.coordinators import GroupCoordinators
from sidecar.groups.on_demand import CoordinatorsOnDemand
from sidecar.groups.partitions import hosted_partitions
from sidecar.runtime.settings import NodeSettings
from tests.unit.metadata.small_images import a_partition, a_stream, an_image
from tests.until import until


def image_of(*replicas: str, uid: str = "u1", name: str = GROUPS_STREAM) -> ClusterImage:
    """Return an image of a stream whose partition N is on the nodes ``replicas[N]``."""
    partitions = [a_partition(partition=n, replicas=tuple(nodes)) for n, nodes in enumerate(replicas)]
    return an_image(replace(a_stream(*partitions), name=name, uid=uid))


def keys(*numbers: int, uid: str = "u1") -> set[PartitionKey]:
    return {PartitionKey(GROUPS_STREAM, uid, number) for number in numbers}


def test_group_coordinators_of_a_node_run_for_its_replicas_of_the_groups_stream() -> None:
    assert hosted_partitions(image_of("abc", "bc", "ca"), "a") == keys(0, 2)
    assert hosted_partitions(image_of("abc", name="orders"), "a") == set()
    assert hosted_partitions(ClusterImage(), "a") == set()


class Host:
    """Stand in for a ServiceHost that runs until it is stopped or fails."""

    made: list[Host]
    fails: list[Exception]

    def __init__(
        self, factory: Callable[[], Any], settings: Any, transport: Any, namespace: str, reader_of: Any, said: Any
    ) -> None:
        assert said is say
        self.settings, self.namespace, self.problem = settings, namespace, ""
        self.machine: ServiceMachine | None = None
        self.factory = factory
        self.stopped = asyncio.Event()
        self.ended = False
        Host.made.append(self)

    async def run(self) -> None:
        if Host.fails:
            raise Host.fails.pop()
        await self.stopped.wait()
        self.ended = True

    def stop(self) -> None:
        self.stopped.set()


class Connection:
    is_closed = False

    async def leave(self) -> None:
        pass

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the arguments of each connection. Hosts and connections are stand-ins."""
    told: list[dict[str, Any]] = []
    Host.made, Host.fails = [], []

    async def opened(_: list[str], **options: Any) -> Connection:
        told.append(options)
        return Connection()

    monkeypatch.setattr(module, "ServiceHost", Host)
    monkeypatch.setattr(module, "open_connection", opened)
    monkeypatch.setattr(module, "Transport", lambda connection: connection)
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    return told


@pytest.fixture
def long_waits(connections: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the wait after a failure longer than a test."""
    monkeypatch.setattr(module, "_AGAIN_S", 3600)
    monkeypatch.setattr(module, "_LONGEST_AGAIN_S", 3600)


def settings(folder: Path, **more: Any) -> NodeSettings:
    return NodeSettings("a", folder, controllers=("a",), **more)


def say(*_: Any) -> None:
    raise AssertionError("the host in its place says nothing")


def nothing_read(_: PartitionKey) -> None:
    return None


NOTHING_READ: Any = SimpleNamespace(exists=lambda key: True, reads_of=nothing_read, bounds_of=nothing_read)
SAYS: Any = SimpleNamespace(process_local=say)


def running() -> list[Host]:
    return [host for host in Host.made if not host.stopped.is_set()]


async def test_group_coordinators_start_and_stop_with_the_replicas_of_the_groups_stream(
    connections: list[dict[str, Any]], tmp_path: Path
) -> None:
    made = GroupCoordinators(settings(tmp_path), tmp_path / "groups", Counter(), NOTHING_READ, SAYS)
    made.follow(ClusterImage(), image_of("ab", "b", "a"))
    await until(lambda: len(Host.made) == 2)
    assert {host.settings.partition for host in Host.made} == {0, 2}
    assert [options["inbox_prefix"] for options in connections] == [b"_INBOX_liftpy-groups"], "one connection for all"
    made.follow(ClusterImage(), image_of("ab", "b", "a"))
    made.follow(ClusterImage(), image_of("ab", "ba", "b"))
    await until(lambda: len(Host.made) == 3 and sum(host.ended for host in Host.made) == 1)
    assert sorted(host.settings.partition for host in running()) == [0, 1]
    made.follow(ClusterImage(), image_of("ab", uid="u2"))
    await until(lambda: len(Host.made) == 4 and len(running()) == 1)
    assert [row["partition"] for row in made.report()] == [0]
    await made.close()
    assert all(host.ended for host in Host.made)
    made.follow(ClusterImage(), image_of("ab"))
    assert made.report() == [], "nothing begins after the end"


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Bounds of the delays that were drawn. Each delay is 0."""
    drawn: list[tuple[float, float]] = []
    monkeypatch.setattr(module.random, "uniform", lambda low, high: drawn.append((low, high)) or 0.0)
    return drawn


async def test_group_coordinators_below_the_level_of_queue_epochs_run_the_earlier_version(
    connections: list[dict[str, Any]], delays: list[tuple[float, float]], tmp_path: Path
) -> None:
    counters: Counter[str] = Counter()
    made = GroupCoordinators(settings(tmp_path), tmp_path, counters, NOTHING_READ, SAYS)
    image = replace(image_of("ab", "a"), feature_level=QUEUE_EPOCHS - 1)
    made.follow(ClusterImage(), image)
    await until(lambda: len(running()) == 2)
    assert {host.factory for host in running()} == {EarlierGroupCoordinator}
    made.follow(image, replace(image, feature_level=QUEUE_EPOCHS))
    await until(lambda: len(Host.made) == 4 and len(running()) == 2)
    assert {host.factory for host in running()} == {GroupCoordinator}
    assert delays.count((0, module.RESTART_SPREAD_S)) == 2, "each one restarts at a time of its own"
    assert (counters["coordinator_restarted"], [row["restarts"] for row in made.report()]) == (0, [0, 0])
    await made.close()


@pytest.mark.usefixtures("long_waits")
async def test_group_coordinator_that_waits_after_a_failure_restarts_at_the_level_of_queue_epochs(
    connections: list[dict[str, Any]], delays: list[tuple[float, float]], tmp_path: Path
) -> None:
    made = GroupCoordinators(settings(tmp_path), tmp_path, Counter(), NOTHING_READ, SAYS)
    Host.fails = [UnavailableError("no server")]
    image = replace(image_of("a"), feature_level=QUEUE_EPOCHS - 1)
    made.follow(ClusterImage(), image)
    await until(lambda: made.report()[0]["restarts"] == 1)
    made.follow(image, replace(image, feature_level=QUEUE_EPOCHS))
    await until(lambda: [host.factory for host in Host.made] == [EarlierGroupCoordinator, GroupCoordinator])
    await made.close()


async def test_group_coordinator_that_fails_restarts_without_ending_the_node(
    connections: list[dict[str, Any]], tmp_path: Path
) -> None:
    counters: Counter[str] = Counter()
    made = GroupCoordinators(settings(tmp_path), tmp_path, counters, NOTHING_READ, SAYS)
    Host.fails = [RuntimeError("a defect"), UnavailableError("no server")]
    made.follow(ClusterImage(), image_of("a"))
    await until(lambda: len(Host.made) == 3)
    await until(lambda: made.report()[0]["problem"] == "")
    assert made.report()[0]["restarts"] == counters["coordinator_restarted"] == 2
    await made.close()


@pytest.mark.usefixtures("long_waits")
async def test_group_coordinator_that_is_not_running_is_reported_with_its_problem(
    connections: list[dict[str, Any]], tmp_path: Path
) -> None:
    made = GroupCoordinators(settings(tmp_path), tmp_path, Counter(), NOTHING_READ, SAYS)
    Host.fails = [UnavailableError("no server")]
    made.follow(ClusterImage(), image_of("a"))
    await until(lambda: made.report()[0]["restarts"])
    said = made.report()[0]
    assert (said["role"], said["problem"], said["groups"]) == ("", "UNAVAILABLE: no server", 0)
    await asyncio.wait_for(made.close(), 5)


async def test_group_coordinator_that_restores_a_snapshot_reports_its_former_groups(
    connections: list[dict[str, Any]], tmp_path: Path
) -> None:
    made = GroupCoordinators(settings(tmp_path), tmp_path, Counter(), NOTHING_READ, SAYS)
    made.follow(ClusterImage(), image_of("a"))
    await until(lambda: bool(Host.made))
    host = Host.made[0]
    host.machine = machine = ServiceMachine(host.factory(), Identity("groups", "s", "u1", 0), snapshot_interval_records=100)
    machine.start(None)
    machine.change_role(Role.LEADER, 1)
    opens = pb.GroupCommand(group="nightly", open=pb.OpenCursor()).SerializeToString()
    machine.apply([Record(0, 0, None, opens, (), "", "_INBOX.a", 1)])
    host.factory()  # the next state is not read yet
    assert made.report()[0]["groups"] == 1
    assert [row["group"] for row in made.group_rows()] == ["nightly"]
    await made.close()


@pytest.mark.parametrize("more", [{"run_group_coordinators": False}, {"inbox_prefixes": ("_INBOX.",)}])
async def test_group_coordinators_disabled_in_the_settings_do_not_start(
    connections: list[dict[str, Any]], tmp_path: Path, more: dict[str, Any]
) -> None:
    made = GroupCoordinators(settings(tmp_path, **more), tmp_path, Counter(), NOTHING_READ, SAYS)
    made.follow(ClusterImage(), image_of("a"))
    assert made.report() == []
    await made.close()
    assert not Host.made


async def test_group_coordinators_without_their_inbox_prefix_log_the_prefix_as_the_setting_needs_it(
    connections: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = GroupCoordinators(settings(tmp_path, inbox_prefixes=("_INBOX.",)), tmp_path, Counter(), NOTHING_READ, SAYS)
    made.follow(ClusterImage(), image_of("a"))
    await made.close()
    prefixes = ("_INBOX.", *re.findall(r"missing_inbox_prefix=(\S+):", caplog.text))
    made = GroupCoordinators(settings(tmp_path, inbox_prefixes=prefixes), tmp_path, Counter(), NOTHING_READ, SAYS)
    made.follow(ClusterImage(), image_of("a"))
    await until(lambda: len(Host.made) == 1)
    await made.close()


async def test_group_coordinator_restart_waits_for_the_end_of_the_former_coordinator(
    connections: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Otherwise both write one snapshot, and the older state is written last."""
    made = GroupCoordinators(settings(tmp_path), tmp_path, Counter(), NOTHING_READ, SAYS)
    made.follow(ClusterImage(), image_of("a", "a"))
    await until(lambda: len(Host.made) == 2)
    first = next(host for host in Host.made if host.settings.partition == 0)
    ends, first.stop = first.stop, lambda: None  # type: ignore[method-assign]
    made.follow(ClusterImage(), image_of("b", "b"))
    made.follow(ClusterImage(), image_of("a", "a"))
    await until(lambda: len(Host.made) == 3)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert len(Host.made) == 3, "of the other partition alone: that one has ended"
    ends()
    await until(lambda: len(Host.made) == 4)
    assert sorted(host.settings.partition for host in running()) == [0, 1]
    await made.close()


async def test_group_coordinator_of_a_replica_that_moves_away_during_the_connect_does_not_start(
    connections: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it keeps the lock of its snapshots, and the coordinator cannot run when the replica comes back."""
    connected, opened = asyncio.Event(), module.open_connection

    async def slow(servers: list[str], **options: Any) -> Any:
        await connected.wait()
        return await opened(servers, **options)

    monkeypatch.setattr(module, "open_connection", slow)
    made = GroupCoordinators(settings(tmp_path), tmp_path, Counter(), NOTHING_READ, SAYS)
    made.follow(ClusterImage(), image_of("a"))
    await asyncio.sleep(0)
    made.follow(ClusterImage(), image_of("b"))
    connected.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert Host.made == []
    made.follow(ClusterImage(), image_of("a"))
    await until(lambda: len(Host.made) == 1)
    await made.close()


async def test_group_coordinator_that_fails_after_a_long_run_restarts_without_a_long_pause(
    connections: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def waited(_: asyncio.Event, timeout_s: float) -> None:
        pauses.append(timeout_s)

    times = iter([0, 1, 2, 3, 100, 200])
    monkeypatch.setattr(module, "_wait", waited)
    monkeypatch.setattr(module, "_AGAIN_S", 1.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(times, 300)))
    made = GroupCoordinators(settings(tmp_path), tmp_path, Counter(), NOTHING_READ, SAYS)
    Host.fails = [RuntimeError("a defect")] * 3
    made.follow(ClusterImage(), image_of("a"))
    await until(lambda: len(Host.made) == 4)
    assert (pauses, made.report()[0]["restarts"]) == ([1.0, 2.0, 1.0], 3)
    await made.close()


class Created:
    """Stand in for GroupCoordinators, which records its images."""

    def __init__(self) -> None:
        self.followed: list[ClusterImage] = []
        self.closed = False

    def follow(self, _: ClusterImage, image: ClusterImage) -> None:
        self.followed.append(image)

    async def close(self) -> None:
        self.closed = True


async def test_coordinators_on_demand_are_created_once_for_the_newest_image_with_a_replica_here() -> None:
    created: list[Created] = []

    def make(_: type[GroupCoordinators]) -> Any:
        created.append(Created())
        return created[-1]

    demand = CoordinatorsOnDemand("a", WHOLE, make)
    without, first, second = image_of("bc"), image_of("abc"), image_of("ab", uid="u2")
    demand.follow(ClusterImage(), without)
    demand.follow(without, first)
    demand.follow(first, second)
    await until(lambda: bool(created) and created[0].followed == [second])
    demand.follow(second, without)
    await demand.close()
    (one,) = created
    assert (one.followed, one.closed) == ([second, without], True)


async def test_coordinators_on_demand_that_cannot_be_created_are_created_after_the_next_image() -> None:
    created: list[Created] = []
    failures = [ImportError("no module")]

    def make(_: type[GroupCoordinators]) -> Any:
        if failures:
            raise failures.pop()
        created.append(Created())
        return created[-1]

    demand = CoordinatorsOnDemand("a", WHOLE, make)

    def is_running() -> bool:
        demand.follow(ClusterImage(), image_of("abc"))
        return demand.running is not None

    await until(is_running)
    await demand.close()
    assert len(created) == 1


async def test_coordinators_on_demand_are_not_created_after_close() -> None:
    """The image of a node that stops changes until the end."""
    demand = CoordinatorsOnDemand("a", WHOLE, lambda _: pytest.fail("the node has closed them"))
    await demand.close()
    earlier = asyncio.all_tasks()
    demand.follow(ClusterImage(), image_of("abc"))
    assert asyncio.all_tasks() == earlier
