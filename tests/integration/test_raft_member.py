"""Members of the metadata group over a real nats-server, in one process: a start without one of them, and a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.dev.nats_server import NatsServer
from sidecar.metadata.member import RaftMember
from sidecar.metadata.member_log import MemberDirectory
from sidecar.transport.connection import BusConnection
from tests.until import until

OK = pb.ControlResponse.OK
DEADLINE_S = 20.0


@pytest.fixture
async def url() -> AsyncIterator[str]:
    with NatsServer() as server:
        yield server.url


class Controllers:
    """Some members, each with a folder and a connection; started and stopped by name."""

    def __init__(self, url: str, folder: Path, names: str = "abc", compact_after: int = 10_000) -> None:
        self.url, self.folder, self.names, self.compact_after = url, folder, tuple(names), compact_after
        self.running: dict[str, tuple[RaftMember, BusConnection]] = {}
        self.failures: list[Exception] = []
        self.bootstrap_majority = False

    async def start(self, *names: str) -> None:
        await asyncio.gather(*(self._start(name) for name in names or self.names))

    async def _start(self, name: str) -> None:
        connection = BusConnection("raft")
        await connection.connect(
            self.url, reconnect_time_wait=0.1, max_reconnect_attempts=-1, inbox_prefix=Subjects("t").inbox(name)
        )
        member = RaftMember(
            MemberDirectory(name, self.names, self.folder / name, self.bootstrap_majority, self.compact_after),
            connection,
            Subjects("t"),
            ReplicationConfig(),
            self.failures.append,
            InboxRule(("_INBOX.",)),
        )
        self.running[name] = member, connection
        async with asyncio.timeout(DEADLINE_S):
            await member.start()

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self.running):
            member, connection = self.running.pop(name)
            await member.stop()
            await connection.close()

    def __getitem__(self, name: str) -> RaftMember:
        return self.running[name][0]


@pytest.fixture
async def controllers(url: str, tmp_path: Path) -> AsyncIterator[Controllers]:
    group = Controllers(url, tmp_path)
    yield group
    await group.stop()
    assert not group.failures


def register(node_id: str) -> pb.ControlRequest:
    return pb.ControlRequest(
        registerNode=pb.RegisterNode(nodeId=node_id, minLevel=SUPPORTED_LEVELS.least, maxLevel=SUPPORTED_LEVELS.most)
    )


async def test_controllers_with_bootstrap_majority_start_without_the_third_member(controllers: Controllers) -> None:
    controllers.bootstrap_majority = True
    await controllers.start("a", "b")
    assert (await controllers["a"].propose(register("a"))).error == OK
    controllers.bootstrap_majority = False
    await controllers.start("c")
    assert "a" in controllers["c"].image.nodes
    await controllers.stop("a")
    assert (await controllers["c"].propose(register("c"), 15)).error == OK


async def test_controller_that_cannot_write_its_snapshot_stops_and_keeps_its_entries(url: str, tmp_path: Path) -> None:
    group = Controllers(url, tmp_path, names="a", compact_after=20)
    await group.start()
    assert (await group["a"].propose(register("n0"))).error == OK
    (tmp_path / "a" / "snapshot.tmp").mkdir()  # opening it for writing fails
    for number in range(1, 30):
        if group.failures:
            break
        await group["a"].propose(register(f"n{number}"), timeout_s=5.0)
    await until(lambda: group.failures)
    (tmp_path / "a" / "snapshot.tmp").rmdir()
    await group.stop()
    await group.start()
    await until(lambda: "n0" in group["a"].image.nodes)
    await group.stop()
