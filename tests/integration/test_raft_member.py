"""Members of the metadata group over a real nats-server, in one process: order, restart, snapshots, the feed, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import CorruptionError, StorageError
from sidecar.dev.nats_server import NatsServer
from sidecar.metadata.control import Forwarder
from sidecar.metadata.feed import FeedSubscriber
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
            lambda reply: reply.startswith(b"_INBOX."),
        )
        self.running[name] = member, connection
        async with asyncio.timeout(DEADLINE_S):
            await member.start()

    async def asked(self, request: pb.ControlRequest, timeout_s: float = DEADLINE_S) -> pb.ControlResponse:
        """As an operator asks, of whoever leads."""
        operator = await nats.connect(self.url)
        forwarder = Forwarder(operator, Subjects("t"), "operator")
        forwarder._subject = Subjects("t").control_admin()
        try:
            return await forwarder.request_until_decided(request, timeout_s)
        finally:
            await operator.close()

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self.running):
            member, connection = self.running.pop(name)
            await member.stop()
            await connection.close()

    def __getitem__(self, name: str) -> RaftMember:
        return self.running[name][0]

    @property
    def leader(self) -> str:
        return next((n for n, (m, _) in self.running.items() if m.leader == n), "")


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


def create(name: str) -> pb.ControlRequest:
    return pb.ControlRequest(createStream=pb.CreateStream(name=name, subject=name, replicationFactor=1))


async def test_new_controllers_wait_for_the_last_member_and_log_its_name(
    controllers: Controllers, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.create_task(controllers.start("a", "b"))
    await until(lambda: sum("waits for c: the first start" in line for line in caplog.messages) >= 2)
    assert not waiting.done()
    await controllers.start("c")
    await waiting
    assert (await controllers["a"].propose(register("a"))).error == OK


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


async def test_node_outside_the_metadata_group_receives_changes_by_the_metadata_feed(
    controllers: Controllers, url: str
) -> None:
    await controllers.start()
    await controllers["a"].propose(register("a"))
    connection = await nats.connect(url, inbox_prefix=Subjects("t").inbox("d"))
    follower = FeedSubscriber("d", connection, Subjects("t"))
    seen: list[int] = []
    follower.watch(lambda _, image: seen.append(image.index))
    async with asyncio.timeout(DEADLINE_S):
        await follower.start()
    assert "a" in follower.image.nodes
    response = await follower.propose(create("orders"))
    assert response.error == pb.ControlResponse.INVALID  # a node is no operator
    response = await follower.propose(register("d"))
    assert response.error == OK, response.detail
    assert await follower.barrier()
    assert "d" in follower.image.nodes
    assert follower.leader == controllers.leader
    assert seen == sorted(seen)
    await follower.stop()
    await connection.close()


@pytest.mark.parametrize("lost", ["journal", "snapshot"])
async def test_controller_without_its_journal_or_snapshot_file_raises_at_start(url: str, tmp_path: Path, lost: str) -> None:
    group = Controllers(url, tmp_path, compact_after=10)
    await group.start()
    await group["a"].propose(register("a"))
    for number in range(40):
        await group.asked(create(f"s{number}"))
    await until(lambda: (tmp_path / "a" / "snapshot").exists())
    await group.stop()
    (tmp_path / "a" / lost).unlink()
    with pytest.raises(CorruptionError, match="with the same id"):
        await group.start("a")
    for _, connection in group.running.values():
        await connection.close()


async def test_controller_that_cannot_flush_its_journal_stops_with_the_disk_error(url: str, tmp_path: Path) -> None:
    group = Controllers(url, tmp_path, names="a")
    await group.start()

    def fail() -> None:
        raise StorageError("no space left on device")

    group["a"]._log.journal.sync = fail  # type: ignore[method-assign]
    response = await group["a"].propose(register("a"), timeout_s=0.5)
    assert response.error == pb.ControlResponse.OUTCOME_UNKNOWN
    assert [str(failure) for failure in group.failures] == ["no space left on device"]
    del group["a"]._log.journal.sync
    await group.stop()
