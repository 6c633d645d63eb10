"""Test that a node without a metadata member deletes nothing that a controller does not confirm [M11]."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

import liftpy.core.metadata.data_deletion as data_deletion
import sidecar.partition.deletions as asking
import sidecar.partition.replica_manager as module
from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.records import PartitionStateChanged, StreamDeleted, replay
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import StorageError
from sidecar.disk.data_folder import DataDirectory
from sidecar.partition.metric_sums import NodeCounts
from tests.born import born_fsm, registration
from tests.unit.partition.shell_parts import process_tools
from tests.unit.partition.test_partition_opening import Group
from tests.until import until

UNAVAILABLE = pb.ControlResponse(error=pb.ControlResponse.UNAVAILABLE)


class Controllers:
    """The truth, and who asks it."""

    def __init__(self) -> None:
        self.fsm = born_fsm()
        self.count = self.asked = self.distrusted = 0
        self.decides = False
        self.own_image: Any = None
        """Image of a node that is behind. None: the truth."""
        self.answer: Callable[[pb.ControlResponse], pb.ControlResponse] = lambda response: response
        for node in "abc":
            self.do(registerNode=registration(nodeId=node))
        self.do(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=3, partitions=5))

    @property
    def image(self) -> ClusterImage:
        return self.own_image or self.fsm.image

    def do(self, **request: Any) -> pb.ControlResponse:
        self.count += 1
        entry = pb.ControlRequest(operationId=self.count.to_bytes(16, "big"), timeNs=self.count, **request)
        return pb.ControlResponse.FromString(self.fsm.apply(entry.SerializeToString(), self.count))

    async def propose(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        assert request.linearizable, "a controller that is behind knows nothing of the stream either"
        await asyncio.sleep(0)
        self.asked += 1
        return self.answer(self.do(describeStream=request.describeStream))

    def distrust(self) -> None:
        self.distrusted += 1


class Worker:
    leads = False
    log = SimpleNamespace(log_end_offset=7)

    def __init__(self, key: Any, deleted: list[bool]) -> None:
        self.key, self.deleted = key, deleted

    def announce_change(self) -> None: ...

    def update(self, state: Any, live: Any) -> None:
        pass

    async def stop(self, *, delete: bool) -> bool:
        self.deleted.append(delete)
        return True


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Node ``a``, which holds five partitions, and what was stopped: whether with its data."""
    controllers, deleted = Controllers(), list[bool]()

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> Worker:
        return Worker(key, deleted)

    monkeypatch.setattr(module, "open_worker", open_worker)
    monkeypatch.setattr(asking, "_PAUSE_S", 0.001)
    monkeypatch.setattr(asking, "_GIVE_UP_AFTER_S", 0.05)
    settings = SimpleNamespace(node_id="a", replication=ReplicationConfig())
    deletions = asking.Deletions(controllers, "a")  # type: ignore[arg-type]
    later: list[Any] = []
    tools: Any = SimpleNamespace(
        settings=settings,
        **process_tools(),
        deletions=deletions,
        folder=SimpleNamespace(delete_partition=later.append),
        promises=SimpleNamespace(forget=lambda folder: None),
        pool=None,
    )
    partitions = module.Partitions(tools, Mock(NodeCounts))
    partitions.image_changed(ClusterImage(), controllers.image)
    async with asyncio.timeout(30):
        await partitions.wait_until_open()
        parts = SimpleNamespace(
            controllers=controllers,
            deleted=deleted,
            later=later,
            partitions=partitions,
            deletions=deletions,
            folder=tools.folder,
            ends_cleanly=True,
        )
        yield parts
        assert await partitions.stop() is parts.ends_cleanly


def without_stream(image: ClusterImage) -> ClusterImage:
    return replay(image, StreamDeleted("s", image.streams["s"].uid))


def held_elsewhere(image: ClusterImage) -> ClusterImage:
    stream = image.streams["s"]
    for p in stream.partitions:
        moved = replace(p, replicas=("b", "c"), isr=("b",), leader="b", last_leader="b", epoch=p.epoch + 1)
        image = replay(image, PartitionStateChanged("s", stream.uid, moved))
    return image


@pytest.mark.parametrize("forged", [without_stream, held_elsewhere])
async def test_partition_deletion_in_a_forged_metadata_record_deletes_nothing(node: Any, forged: Any) -> None:
    true = node.controllers.image
    node.partitions.image_changed(true, forged(true))
    await node.partitions.wait_until_open()
    assert node.deleted == [False] * 5
    assert node.controllers.distrusted
    assert len(node.partitions) == 0
    node.partitions.image_changed(forged(true), true)
    await node.partitions.wait_until_open()
    assert len(node.partitions) == 5


async def test_partition_deletion_confirmed_by_a_controller_deletes_the_data_after_one_request(node: Any) -> None:
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.wait_until_open()
    assert node.deleted == [True] * 5
    assert (node.controllers.asked, node.controllers.distrusted) == (1, 0)


async def test_partition_deletion_of_a_recreated_stream_deletes_only_the_old_data(node: Any) -> None:
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.controllers.do(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=3, partitions=5))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.wait_until_open()
    assert node.deleted == [True] * 5
    assert len(node.partitions) == 5


@pytest.mark.parametrize("answer", [UNAVAILABLE, pb.ControlResponse(), pb.ControlResponse(stream=pb.Stream(name="s"))])
async def test_partition_deletion_without_a_controller_response_deletes_nothing(node: Any, answer: pb.ControlResponse) -> None:
    node.controllers.answer = lambda _: answer
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.wait_until_open()
    assert node.deleted == [False] * 5
    assert node.controllers.distrusted == 0


async def test_partition_deletion_confirmed_late_deletes_the_data(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATER_S", 0.001)
    node.controllers.answer = lambda _: UNAVAILABLE
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.wait_until_open()
    assert (node.deleted, node.later) == ([False] * 5, [])
    node.controllers.answer = lambda response: response
    async with asyncio.timeout(30):
        while len(node.later) < 5:
            await asyncio.sleep(0.001)
    assert sorted(key.partition for key in node.later) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("is_open", [True, False], ids=["open partition", "moved while the node was down"])
async def test_partition_deletion_that_the_disk_rejects_is_logged_and_repeated(
    node: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_open: bool
) -> None:
    tries = Counter[PartitionKey]()

    def fail_twice(key: PartitionKey) -> None:
        tries[key] += 1
        if tries[key] <= 2:
            raise StorageError("the disk does not answer")
        node.later.append(key)

    monkeypatch.setattr(module, "_DELETE_AGAIN_S", 0.001)
    node.folder.delete_partition = fail_twice
    before = node.controllers.image
    if not is_open:
        node.controllers.answer = lambda _: UNAVAILABLE
        node.partitions.image_changed(before, held_elsewhere(before))
        await node.partitions.wait_until_open()
        monkeypatch.setattr(node.deletions, "is_allowed", AsyncMock(return_value=True))
        await node.partitions.delete_moved_logs([f"s-{before.streams['s'].uid}/0"])
    else:
        node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
        node.partitions.image_changed(before, node.controllers.image)
        await node.partitions.wait_until_open()
    count = 5 if is_open else 1
    await until(lambda: len(node.later) == count)
    lines = [line for line in caplog.messages if "error=the disk does not answer: retrying in" in line]
    assert (len(lines), set(tries.values())) == (2 * count, {3})


@pytest.fixture
def _remembers_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_deletion, "REMEMBERED", 1)


@pytest.mark.usefixtures("_remembers_one_stream")
async def test_partition_deletion_that_waits_is_not_forgotten_while_other_streams_are_deleted(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LATER_S", 0.05)
    node.controllers.answer = lambda _: UNAVAILABLE
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.wait_until_open()
    node.controllers.answer = lambda response: response
    for _ in range(3):
        for request in (
            {"createStream": pb.CreateStream(name="t", subject="t.x", replicationFactor=3, partitions=1)},
            {"deleteStream": pb.DeleteStream(name="t")},
        ):
            before = node.controllers.image
            node.controllers.do(**request)
            node.partitions.image_changed(before, node.controllers.image)
            await node.partitions.wait_until_open()
    await until(lambda: sum(key.stream == "s" for key in node.later) == 5)


async def test_partition_manager_stop_with_undeleted_files_is_not_clean(node: Any) -> None:
    """Nothing has flushed the log, because its files should go."""

    def fail(key: PartitionKey) -> None:
        raise StorageError("the disk does not answer")

    node.folder.delete_partition = fail
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.wait_until_open()
    node.ends_cleanly = False
    assert (await node.partitions.stop(), node.partitions.all_flushed) == (False, False)


async def test_partition_without_an_open_log_is_deleted_with_its_stream(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(node: Any, key: Any, subject: str, config: Any) -> None:
        raise StorageError("cannot create the log")

    monkeypatch.setattr(module, "open_worker", fail)
    before = node.controllers.image
    node.controllers.do(createStream=pb.CreateStream(name="t", subject="t.x", replicationFactor=3, partitions=2))
    with_stream = node.controllers.image
    node.partitions.image_changed(before, with_stream)
    await node.partitions.wait_until_open()
    assert len(node.partitions.failed) == 2
    node.controllers.do(deleteStream=pb.DeleteStream(name="t"))
    node.partitions.image_changed(with_stream, node.controllers.image)
    await until(lambda: len(node.later) == 2)
    assert node.partitions.failed == {}


async def test_partition_that_returns_during_its_late_deletion_keeps_its_data(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller answers before the partitions come back. The node opens them before it processes the answer."""
    monkeypatch.setattr(module, "LATER_S", 0.001)
    before = node.controllers.image
    moved, answered = held_elsewhere(before), asyncio.Event()
    node.controllers.answer = lambda _: UNAVAILABLE
    node.partitions.image_changed(before, moved)
    await node.partitions.wait_until_open()
    assert node.deleted == [False] * 5

    asked: list[PartitionKey] = []

    async def is_allowed(key: PartitionKey) -> bool:
        asked.append(key)
        await answered.wait()
        return True

    monkeypatch.setattr(node.deletions, "is_allowed", is_allowed)
    await until(lambda: len(asked) == 5)
    node.partitions.image_changed(moved, before)
    await node.partitions.wait_until_open()
    assert len(node.partitions) == 5
    answered.set()
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert node.later == []


async def test_partition_manager_stop_ends_the_deletion_of_orphaned_partitions(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[PartitionKey] = []

    async def is_allowed(key: PartitionKey) -> bool:
        asked.append(key)
        await asyncio.Event().wait()
        return True

    before = node.controllers.image
    node.controllers.answer = lambda _: UNAVAILABLE
    node.partitions.image_changed(before, held_elsewhere(before))
    await node.partitions.wait_until_open()
    monkeypatch.setattr(node.deletions, "is_allowed", is_allowed)
    node.partitions.delete_moved_logs([f"s-{before.streams['s'].uid}/0"])
    await until(lambda: asked)
    assert await node.partitions.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_partition_deletion_waits_for_a_controller_election(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_GIVE_UP_AFTER_S", 30.0)
    answers = iter([UNAVAILABLE] * 3)
    node.controllers.answer = lambda response: next(answers, response)
    before = node.controllers.image
    node.controllers.do(deleteStream=pb.DeleteStream(name="s"))
    node.partitions.image_changed(before, node.controllers.image)
    await node.partitions.wait_until_open()
    assert node.deleted == [True] * 5


# ---- streams that the cluster does not know ------------------------------------------------------------------------------
@pytest.mark.parametrize("restarted", [False, True])
async def test_unknown_stream_directories_are_deleted_only_when_a_controller_confirms(tmp_path: Path, restarted: bool) -> None:
    controllers, folder, forgotten = Controllers(), DataDirectory(tmp_path), list[str]()
    stream = controllers.image.streams["s"]
    name = f"s-{stream.uid}"
    for number in (0, 3):
        folder.partition_storage(PartitionKey("s", stream.uid, number)).replace("x", b"12345")
        folder.mark_log(f"{name}/{number}")
    controllers.own_image = ClusterImage()  # of a node that has not heard of the stream yet
    unknown = asking.UnknownStreams([name, "gone"], folder, controllers, forgotten.append)  # type: ignore[arg-type]
    assert unknown.names() == [name]
    assert "the cluster has that stream" in (await unknown.remove([name]))["error"]
    controllers.do(deleteStream=pb.DeleteStream(name="s"))
    controllers.answer = lambda _: UNAVAILABLE
    assert "no controller confirms" in (await unknown.remove([name]))["error"]
    assert (unknown.names(), forgotten) == ([name], [])
    assert folder.list_marked_logs() == {f"{name}/0", f"{name}/3"}
    controllers.answer = lambda response: response
    if restarted:  # the process ended within a removal
        folder.delete_partition(PartitionKey("s", stream.uid, 0))
    assert (await unknown.remove([name]))["removed"] == [name]
    assert sorted(forgotten) == [f"{name}/{number}" for number in ([3] if restarted else [0, 3])]
    assert (unknown.names(), folder.list_marked_logs(), list((tmp_path / "streams").iterdir())) == ([], frozenset(), [])


async def test_unknown_stream_directory_requested_twice_is_removed_once(tmp_path: Path) -> None:
    controllers, folder = Controllers(), DataDirectory(tmp_path)
    names = ["s-00000a-1", "s-00000b-1"]
    for name in names:
        folder.partition_storage(PartitionKey(*name.split("-", 1), 0)).replace("x", b"12345")
    unknown = asking.UnknownStreams(names, folder, controllers, lambda _: None)  # type: ignore[arg-type]
    said = await asyncio.gather(unknown.remove([names[0], names[0]]), unknown.remove([names[0]]))
    assert said == [
        {"removed": [names[0]], "bytes": 5},
        {"error": f"no directory {names[0]} of a stream that the cluster does not know: it has {names[1]}"},
    ]


async def test_unknown_stream_directories_are_listed_without_a_look_at_all_of_them(tmp_path: Path) -> None:
    """Each request for the health of a node lists them."""
    controllers, folder = Controllers(), DataDirectory(tmp_path)
    names = [f"t-{number:06x}-1" for number in range(asking.MOST_UNKNOWN + 3)]
    for name in names:
        (tmp_path / "streams" / name).mkdir(parents=True)
    stream = controllers.image.streams["s"]
    looked: list[str] = []

    def get(name: str) -> StreamImage:
        looked.append(name)
        return stream

    controllers.own_image = SimpleNamespace(streams=SimpleNamespace(get=get))
    known = f"s-{stream.uid}"
    unknown = asking.UnknownStreams([known, *names], folder, controllers, lambda _: None)  # type: ignore[arg-type]
    assert unknown.names() == names[: asking.MOST_UNKNOWN]
    assert len(looked) == asking.MOST_UNKNOWN + 1
    controllers.answer = lambda _: GONE
    assert (await unknown.remove(names[:2]))["removed"] == names[:2]
    assert unknown.names() == names[2 : asking.MOST_UNKNOWN + 2]


# ---- one question at a time ------------------------------------------------------------------------------------------------
GONE = pb.ControlResponse(error=pb.ControlResponse.NOT_FOUND)
KEYS = [PartitionKey("s", f"u{number}", number) for number in range(4)]


def there(key: PartitionKey, *replicas: str) -> pb.ControlResponse:
    """What a controller says of a partition that is on ``replicas``."""
    stream = pb.Stream(name=key.stream, uid=key.uid)
    stream.partitions.add(partition=key.partition, replicas=replicas)
    return pb.ControlResponse(stream=stream)


class Scripted:
    """A group that gives one answer after another, the last one again and again."""

    def __init__(self, *answers: pb.ControlResponse, decides: bool = False) -> None:
        self.answers, self.asked, self.distrusted = list(answers), list[tuple[str, float]](), 0
        self.decides = decides
        self.deletions = asking.Deletions(self, "a")  # type: ignore[arg-type]
        self.before_answer: Callable[[], object] = lambda: None

    async def propose(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        self.asked.append((request.describeStream.uid, timeout_s))
        await asyncio.sleep(0)
        self.before_answer()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def distrust(self) -> None:
        self.distrusted += 1


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept between two questions; the clock goes on by it."""
    waits, now_s = list[float](), [1000.0]
    sleep = asyncio.sleep

    async def fake(wait_s: float) -> None:
        waits.append(wait_s)
        now_s[0] += wait_s
        await sleep(0)

    made = SimpleNamespace(sleep=fake, Lock=asyncio.Lock, Event=asyncio.Event)
    monkeypatch.setattr(asking, "asyncio", made)
    monkeypatch.setattr(asking, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return waits


async def test_partition_deletion_request_ends_when_the_node_stops(slept: list[float]) -> None:
    group = Scripted(UNAVAILABLE)
    group.before_answer = lambda: len(group.asked) == 3 and group.deletions.close()
    assert not await group.deletions.is_allowed(KEYS[0])
    assert len(group.asked) == 3
    assert not await group.deletions.is_allowed(KEYS[1])
    assert len(group.asked) == 3, "nor asks"


async def test_partition_deletion_requests_one_confirmation_per_deleted_stream_but_one_per_moved_partition() -> None:
    group = Scripted(GONE)
    assert [await group.deletions.is_allowed(KEYS[0]) for _ in range(3)] == [True] * 3
    assert len(group.asked) == 1
    group = Scripted(there(KEYS[0], "b", "c"), there(KEYS[0], "a", "b"))
    assert [await group.deletions.is_allowed(KEYS[0]) for _ in range(2)] == [True, False]
    assert (len(group.asked), group.distrusted) == (2, 1)


async def test_partition_deletions_of_one_stream_share_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Scripted(GONE)
    assert await asyncio.gather(*(group.deletions.is_allowed(KEYS[0]) for _ in range(5))) == [True] * 5
    assert (len(group.asked), group.deletions._asking) == (1, {})
    monkeypatch.setattr(asking, "_REMEMBERED", 2)
    for key in KEYS[1:3]:
        assert await group.deletions.is_allowed(key)
    assert list(group.deletions._deleted) == ["u1", "u2"], "the last two"


@pytest.mark.parametrize("allowed", [True, False])
async def test_orphaned_partition_directories_are_deleted_only_when_a_controller_confirms(allowed: bool) -> None:
    group = Group()
    for node in ("a", "b"):
        group.start_node(node)
    lists = [pb.ReplicaList(partition=number, replicas=[node]) for number, node in enumerate("ab")]
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", placement="manual", manual=lists, partitions=2))
    stream = group.fsm.image.streams["s"]
    asked: list[PartitionKey] = []
    gone: list[PartitionKey] = []

    async def confirms(key: PartitionKey) -> bool:
        asked.append(key)
        return allowed

    node: Any = SimpleNamespace(
        settings=SimpleNamespace(node_id="a", replication=ReplicationConfig()),
        **process_tools(),
        deletions=SimpleNamespace(is_allowed=confirms, close=lambda: None),
        folder=SimpleNamespace(delete_partition=gone.append),
        promises=SimpleNamespace(forget=lambda folder: None),
        pool=None,
    )
    partitions = module.Partitions(node, Mock(NodeCounts))
    partitions.image_changed(ClusterImage(), group.fsm.image)
    partitions._workers[stream.key(0)] = SimpleNamespace()  # type: ignore[assignment]
    elsewhere = stream.key(1)
    folders = [f"s-{stream.uid}/{number}" for number in (0, 1, 7)]
    async with asyncio.timeout(30):
        await partitions.delete_moved_logs([*folders, "s-another/1", "t-u/0"])
    assert asked == [elsewhere]
    assert gone == ([elsewhere] if allowed else [])
