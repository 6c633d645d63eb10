"""Test the thread of the metadata group: a blocked event loop does not stop Raft, nor the reverse."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.dev.nats_server import NatsServer
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.group_role import MetadataConnection
from sidecar.metadata.group_thread import GroupThread, _read_consistently
from sidecar.metadata.membership import Heartbeats, HeartbeatTimes
from sidecar.runtime.settings import NodeSettings
from tests.until import until


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
async def group(server: NatsServer, tmp_path: Path) -> AsyncIterator[GroupThread]:
    namespace = f"t{time.monotonic_ns()}"
    settings = NodeSettings("n1", tmp_path, nats=(server.url,), controllers=("n1",), namespace=namespace)
    folder, inboxes = DataDirectory(tmp_path), InboxRule(("_INBOX.",))
    failures: list[Exception] = []
    thread = GroupThread(lambda: MetadataConnection(settings, folder, Subjects(namespace), inboxes, Counter()), failures.append)
    await thread.start()
    yield thread
    await thread.stop()
    folder.close()
    assert failures == []


async def _register(group: GroupThread, node: str = "n1") -> pb.ControlResponse:
    said = pb.RegisterNode(nodeId=node, flushedAlways=True)
    SUPPORTED_LEVELS.write_to(said)
    return await group.propose(pb.ControlRequest(registerNode=said))


def _stand_still(seconds: float) -> None:
    """Block the event loop with Python code, like a long piece of partition work."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_metadata_thread_calls_image_watchers_in_order_on_the_event_loop_of_the_node(group: GroupThread) -> None:
    shown: list[tuple[ClusterImage, ClusterImage]] = []
    group.watch(lambda before, after: shown.append((before, after)))
    start = group.image
    for number in range(20):
        assert (await _register(group, f"x{number}")).error == pb.ControlResponse.OK
    async with asyncio.timeout(30):
        while len(group.image.nodes) < 20:
            await asyncio.sleep(0.001)
    assert shown[0][0] is start
    assert all(later[0] is earlier[1] for earlier, later in pairwise(shown))
    assert shown[-1][1] is group.image
    assert group.leader == "n1"
    assert [member.nodeId for member in group.status()] == ["n1"]
    assert isinstance(group.counters, dict)


async def test_metadata_thread_sends_heartbeats_while_the_event_loop_of_the_node_is_blocked(group: GroupThread) -> None:
    assert (await _register(group)).error == pb.ControlResponse.OK
    beats: list[tuple[int, pb.ControlResponse]] = []
    heartbeat = pb.Heartbeat(nodeId="n1", incarnation=1)
    running = Heartbeats(group.role, heartbeat, HeartbeatTimes(0.02, 5.0), lambda *answer: beats.append(answer))
    task = asyncio.run_coroutine_threadsafe(running.run(), group.loop)
    async with asyncio.timeout(30):
        while not beats:
            await asyncio.sleep(0.001)
    before = len(beats)
    began_ns = time.monotonic_ns()
    _stand_still(0.4)
    ended_ns = time.monotonic_ns()
    assert len(beats) == before
    await asyncio.sleep(0)
    assert len([sent for sent, _ in beats if sent > began_ns]) >= 5, "they left while the loop stood still"
    assert all(answer.error == pb.ControlResponse.OK for _, answer in beats)
    assert beats[-1][0] <= ended_ns + 1_000_000_000
    task.cancel()


async def test_metadata_thread_sends_no_heartbeats_after_the_node_loop_is_blocked_for_a_session(group: GroupThread) -> None:
    await _register(group)
    beats: list[int] = []
    heartbeat = pb.Heartbeat(nodeId="n1", incarnation=1)
    running = Heartbeats(group.role, heartbeat, HeartbeatTimes(0.02, 0.2), lambda sent_ns, _: beats.append(sent_ns))
    task = asyncio.run_coroutine_threadsafe(running.run(), group.loop)
    async with asyncio.timeout(30):
        while not beats:
            await asyncio.sleep(0.001)
    began_ns = time.monotonic_ns()
    _stand_still(0.8)
    ended_ns = time.monotonic_ns()
    await asyncio.sleep(0)
    assert not [sent for sent in beats if began_ns + 500_000_000 < sent < ended_ns]
    async with asyncio.timeout(30):
        while not [sent for sent in beats if sent > ended_ns]:  # it turns again
            await asyncio.sleep(0.001)
    task.cancel()


async def test_metadata_thread_runs_calls_from_the_node_loop_on_its_own_event_loop(
    group: GroupThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(group.role.current, "distrust", lambda: asked.append(threading.current_thread().name))
    group.distrust()
    await until(lambda: bool(asked))
    assert asked == [group._thread.name], "on its own loop"
    assert not group.role.current._log.core.retired  # type: ignore[union-attr]
    group.retire()
    assert group.role.current._log.core.retired  # type: ignore[union-attr]
    assert set(group.ticks()) == set(group.role.current.ticks())
    assert group.held == group.role.current.held
    handed: list[str] = []

    async def hand_over() -> None:
        handed.append(threading.current_thread().name)

    monkeypatch.setattr(group.role.current, "hand_over", hand_over)
    await group.hand_over()
    assert handed == asked


def test_metadata_thread_read_during_a_concurrent_change_is_retried() -> None:
    tries: list[int] = []

    def read() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return "read"

    assert _read_consistently(read, "") == "read"
    assert len(tries) == 3


async def test_metadata_thread_ends_when_the_metadata_group_is_closed(server: NatsServer, tmp_path: Path) -> None:
    folder, inboxes = DataDirectory(tmp_path), InboxRule(("_INBOX.",))
    settings = NodeSettings("n1", tmp_path, nats=(server.url,), controllers=("n1",), namespace="ends")
    thread = GroupThread(lambda: MetadataConnection(settings, folder, Subjects("ends"), inboxes, Counter()), pytest.fail)
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.5)
    try:
        await thread.start()
        assert sys.getswitchinterval() < 0.01, "neither loop waits long for the other"
    finally:
        sys.setswitchinterval(before)
    await thread.stop()
    assert not thread._thread.is_alive()
    assert thread.loop.is_closed()
    await thread.stop()
    folder.close()
