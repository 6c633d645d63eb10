"""Test that a service without state starts from a verified snapshot of another node, or from none."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from liftpy.core.services.snapshot import SnapshotOffer, SnapshotRange, SnapshotSearch
from liftpy.core.services.versions import VersionDecision, VersionError
from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import CorruptionError, DataLossError, UnknownFormatError
from liftpy.nats.transport import NoRespondersError
from liftpy.service import Identity, Outbox, Role, Snapshot, snapshots
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import SnapshotFetcher, SnapshotKeeper, SnapshotServer, SnapshotStore
from tests.batches import build_batch
from tests.only_in import only_in
from tests.unit.services.feeder_node import EndlessSearch, FakeLog, Node, Sum
from tests.until import until

WHO = Identity("sum", "in", "u1", 0)
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
ALL = SnapshotRange(0, 1000, 1 << 20)


def offer(node: str, position: int, digest: bytes = A, size_bytes: int = 10) -> SnapshotOffer:
    return SnapshotOffer(node, position, digest, size_bytes, 0)


# ---- which one -----------------------------------------------------------------------------------------------------------
def test_service_snapshot_peer_search_prefers_snapshots_that_more_nodes_agree_on() -> None:
    search = SnapshotSearch()
    search.set_offers("n2", [offer("n2", 400), offer("n2", 500, B)])
    search.set_offers("n3", [offer("n3", 400), offer("n3", 450, B)])
    search.set_offers("n4", [offer("n4", 600, C)])
    assert search.best(ALL) is None, "nothing is agreed on"
    search.set_agreed({400: (A, 2), 450: (C, 2), 500: (B, 1), 600: (B, 2), 700: (b"short", 3), 800: (A, 0)})
    assert search.best(ALL) == offer("n3", 400)
    search.note_failure(offer("n3", 400), "broke off")
    assert search.best(ALL) == offer("n2", 400)
    search.note_failure(offer("n2", 400), "broke off")
    assert search.best(ALL) == offer("n2", 500, B)
    search.note_failure(offer("n2", 500, B), "broke off")
    assert search.best(ALL) is None
    told = search.explain(ALL)
    assert "n2 the snapshot at 500: broke off; n3" in told
    assert "those at 400, 450, 500, 600 from 0 on" in told
    assert SnapshotSearch().explain(ALL) == "there is no other node to ask"


@pytest.mark.parametrize(
    ("reach", "told"),
    [
        (SnapshotRange(400, 600, 1), "those at 400, 600 from 400 on"),
        (SnapshotRange(401, 599, 1), "none from 401 on"),
        (SnapshotRange(401, 600, 1), "those at 600 from 401 on"),
        (SnapshotRange(0, 400, 1), "those at 400 from 0 on"),
    ],
)
def test_service_snapshot_peer_search_without_a_result_explains_the_answer_of_each_node(
    reach: SnapshotRange, told: str
) -> None:
    search = SnapshotSearch()
    search.set_agreed({400: (A, 2), 600: (B, 1)})
    search.note_answer("n3", "does not answer")
    search.note_answer("n2", "has none")
    assert search.explain(reach) == f"n2 has none; n3 does not answer; sidecars agree on {told}"


def test_service_snapshot_peer_search_retries_a_node_after_a_timeout_but_not_after_wrong_bytes() -> None:
    search = SnapshotSearch(barred=frozenset([B]))
    search.set_agreed({400: (A, 2), 500: (B, 2)})
    offers = {node: [offer(node, 400), offer(node, 500, B)] for node in ("n2", "n3")}
    for node, theirs in offers.items():
        search.set_offers(node, theirs)
    search.note_failure(offer("n3", 400), "other bytes", lies=True)
    search.note_failure(offer("n2", 400), "no answer")
    assert search.best(ALL) is None
    for node, theirs in offers.items():
        search.set_offers(node, theirs)
    assert search.best(ALL) == offer("n2", 400)


# ---- between processes -----------------------------------------------------------------------------------------------------
class Bus:
    """Requests and answers between snapshot fetchers and servers. ``spoil`` changes answers."""

    def __init__(self) -> None:
        self.connection = self
        self.max_payload_bytes = 20_000
        self.listening: dict[str, Any] = {}
        self.answers: dict[str, bytes] = {}
        self.asked: list[tuple[str, pb.PeerSnapshotRequest]] = []
        self.spoil: Any = lambda node, question, answer: answer
        self.replicas = ("n1", "n2", "n3")
        self.order: Any = pb.JoinLog(startOffset=20, highWatermark=99)

    async def subscribe(self, subject: str, cb: Any, pending_msgs_limit: int) -> Any:
        self.listening[subject] = cb

        async def unsubscribe() -> None:
            del self.listening[subject]

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, subject: str, payload: bytes) -> None:
        self.answers[subject] = payload

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        node, question = subject.rsplit(".", 1)[1], frames.decode(payload, pb.PeerSnapshotRequest)
        self.asked.append((node, question))
        if subject not in self.listening:
            raise NoRespondersError(subject)
        await self.listening[subject](SimpleNamespace(data=payload, reply="_INBOX.1"))
        answer = self.spoil(node, question, frames.decode(self.answers.pop("_INBOX.1"), pb.PeerSnapshotAnswer))
        if isinstance(answer, Exception):
            raise answer
        return frames.seal(answer)

    async def stream(self, name: str) -> Any:
        assert name == "in"
        return SimpleNamespace(uid="u1", partitions=[SimpleNamespace(replicas=self.replicas)])

    def agree(self, *snapshots: tuple[int, bytes, int]) -> None:
        del self.order.agreed[:]
        for position, digest, nodes in snapshots:
            self.order.agreed.add(position=position, digest=digest, nodes=nodes)


class Peer:
    """The snapshot store and the snapshot server of one process."""

    def __init__(self, bus: Bus, node: str, folder: Path, **settings: Any) -> None:
        self.settings = ServiceSettings("sum", "in", node, folder / node, **({"snapshot_fetch_timeout_s": 0.0} | settings))
        self.store = SnapshotStore(folder / node, WHO, kept=2, max_bytes=1 << 20)
        self.outbox = Outbox("u1/0")
        self.keeper = SnapshotKeeper(self.store, self.settings, self.outbox)
        transport: Any = bus
        client: Any = bus
        given = (transport, Subjects("ns"), self.settings, WHO, self.store)
        self.giver = SnapshotServer(*given, self.keeper)
        self.fetcher = SnapshotFetcher(client, *given, lambda: bus.order)
        self.task: asyncio.Task[None] | None = None

    async def has(self, *snapshots: Snapshot) -> list[bytes]:
        """Store snapshots and return their digests."""
        for snapshot in snapshots:
            await self.keeper.save(snapshot)
        self.task = asyncio.create_task(self.giver.run())
        await asyncio.sleep(0)
        return [digest for _, digest in self.keeper.digests]


def snapshot(position: int, state: bytes = b"state", outputs: int = 0) -> Snapshot:
    return Snapshot(WHO, position, 3, 7, outputs, ((9, "timer"),), state)


@pytest.fixture
async def bus() -> Any:
    made = Bus()
    yield made
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert made.listening == {}


def file_of(store: SnapshotStore, position: int) -> Path:
    return store.folder / f"{position:020d}.snapshot"


def anything(_: Snapshot) -> bool:
    return True


async def test_service_snapshot_fetch_copies_a_snapshot_in_chunks(bus: Bus, tmp_path: Path) -> None:
    new, old = Peer(bus, "n1", tmp_path, snapshot_chunk_bytes=4096), Peer(bus, "n2", tmp_path)
    state = os.urandom(30_000)
    first, newest = await old.has(snapshot(30, state), snapshot(40, state, outputs=5))
    bus.agree((30, first, 2), (40, newest, 2))
    assert await new.fetcher.fetch(20, anything)
    assert new.store.positions() == [30], "the outputs of the other are not compared yet"
    assert new.store.newest() == snapshot(30, state)
    pieces = [question for _, question in bus.asked if question.digest]
    assert {question.maxBytes for question in pieces} == {4096}
    assert [question.start for question in pieces] == list(range(0, 30_000, 4096))
    size_bytes = file_of(new.store, 30).stat().st_size
    assert (new.fetcher.fetched_bytes, old.keeper.given_bytes) == (size_bytes, size_bytes)
    assert not list(new.store.folder.glob("*.incoming"))
    assert new.fetcher.problem == ""
    assert ("n3", b"") in [(node, question.digest) for node, question in bus.asked], "all were asked"


async def _spoiled(bus: Bus, tmp_path: Path, spoil: Any) -> tuple[Peer, bytes]:
    """Return two nodes: n3 is requested first and sends wrong data, n2 sends correct data."""
    peers = [Peer(bus, node, tmp_path) for node in ("n1", "n2", "n3")]
    for peer in peers[1:]:
        (digest,) = await peer.has(snapshot(30))
    bus.agree((30, digest, 2))
    bus.spoil = lambda node, question, answer: spoil(answer) if node == "n3" and question.digest else answer
    return peers[0], digest


def changed(answer: pb.PeerSnapshotAnswer) -> pb.PeerSnapshotAnswer:
    answer.data = bytes([answer.data[0] ^ 1]) + answer.data[1:]
    return answer


def empty(answer: pb.PeerSnapshotAnswer) -> pb.PeerSnapshotAnswer:
    return pb.PeerSnapshotAnswer(node=answer.node)


def too_long(answer: pb.PeerSnapshotAnswer) -> pb.PeerSnapshotAnswer:
    return pb.PeerSnapshotAnswer(node=answer.node, data=answer.data + b"x")


def silent(answer: pb.PeerSnapshotAnswer) -> Exception:
    return NoRespondersError("gone")


@pytest.mark.parametrize("spoil", [changed, empty, too_long, silent])
async def test_service_snapshot_fetch_after_invalid_data_continues_with_the_next_node(
    bus: Bus, tmp_path: Path, spoil: Any
) -> None:
    new, _ = await _spoiled(bus, tmp_path, spoil)
    assert await new.fetcher.fetch(20, anything)
    assert new.store.newest() == snapshot(30)
    assert next(node for node, question in bus.asked if question.digest) == "n3"
    size_bytes = file_of(new.store, 30).stat().st_size
    assert new.fetcher.fetched_bytes == (2 * size_bytes if spoil is changed else size_bytes), "no more than was asked for"
    assert not list(new.store.folder.glob("*.incoming"))


async def test_service_snapshot_fetch_without_an_agreed_snapshot_raises_with_the_tried_nodes(bus: Bus, tmp_path: Path) -> None:
    new, digest = await _spoiled(bus, tmp_path, changed)
    bus.agree((30, C, 2))
    assert not await new.fetcher.fetch(20, anything)
    assert new.store.positions() == []
    assert new.fetcher.tried == "n2 offers 30; n3 offers 30; sidecars agree on those at 30 from 20 on"
    bus.agree((30, digest, 1))
    assert not await new.fetcher.fetch(31, anything)
    assert not await new.fetcher.fetch(20, lambda snapshot: snapshot.position < 30)
    bus.order.startOffset = 31
    assert not await new.fetcher.fetch(20, anything), "the log start has moved on"
    bus.order.startOffset = 30
    assert await new.fetcher.fetch(20, anything)
    file_of(new.store, 30).unlink()
    assert not await new.fetcher.fetch(20, anything), "it was taken a moment ago, and was of no use"


async def test_service_snapshot_fetch_retries_until_a_node_has_a_snapshot(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_FIRST_PAUSE_S", 0.001)
    new, old = Peer(bus, "n1", tmp_path, snapshot_fetch_timeout_s=60.0), Peer(bus, "n2", tmp_path)
    task = asyncio.create_task(new.fetcher.fetch(20, anything))
    while len(bus.asked) < 5:
        await asyncio.sleep(0.001)
    assert "looks for a snapshot beside another node" in new.fetcher.problem
    (digest,) = await old.has(snapshot(30))
    bus.agree((30, digest, 1))
    async with asyncio.timeout(30):
        assert await task


async def test_service_snapshot_fetch_while_the_node_holds_no_replica_waits_for_its_orders(bus: Bus, tmp_path: Path) -> None:
    new, old = Peer(bus, "n1", tmp_path, snapshot_fetch_timeout_s=0.05), Peer(bus, "n2", tmp_path)
    order, bus.order = bus.order, None
    (digest,) = await old.has(snapshot(30))
    task = asyncio.create_task(new.fetcher.fetch(20, anything))
    await until(lambda: len(bus.asked) >= 3 or task.done())
    assert not task.done(), "the time of a search counts only while the sidecar says which snapshots are right"
    bus.order = order
    bus.agree((30, digest, 1))
    async with asyncio.timeout(30):
        assert await task


async def test_service_snapshot_fetch_while_the_log_of_its_node_is_behind_waits_for_the_log(bus: Bus, tmp_path: Path) -> None:
    new, old = Peer(bus, "n1", tmp_path, snapshot_fetch_timeout_s=0.05), Peer(bus, "n2", tmp_path)
    (digest,) = await old.has(snapshot(30))
    bus.agree((30, digest, 1))
    bus.order.highWatermark, reached = 5, bus.order.highWatermark
    task = asyncio.create_task(new.fetcher.fetch(4, anything))
    await until(lambda: len(bus.asked) >= 3 or task.done())
    assert not task.done()
    bus.order.highWatermark = reached
    async with asyncio.timeout(30):
        assert await task


async def test_service_snapshot_fetch_ends_when_no_snapshot_is_needed_any_more(bus: Bus, tmp_path: Path) -> None:
    new, needed = Peer(bus, "n1", tmp_path, snapshot_fetch_timeout_s=600.0), [True]
    task = asyncio.create_task(new.fetcher.fetch(20, anything, lambda: bool(needed)))
    await until(lambda: new.fetcher.problem)
    needed.clear()
    assert not await task


async def test_service_snapshot_fetch_completes_if_the_snapshot_is_deleted_during_the_transfer(
    bus: Bus, tmp_path: Path
) -> None:
    new, old = Peer(bus, "n1", tmp_path), Peer(bus, "n2", tmp_path)
    (digest,) = await old.has(snapshot(30))
    bus.agree((30, digest, 1))

    def dropped(node: str, question: Any, answer: Any) -> Any:
        if not question.digest:
            file_of(old.store, 30).unlink()
            old.keeper._stored = []
        return answer

    bus.spoil = dropped
    assert await new.fetcher.fetch(20, anything)
    assert new.store.newest() == snapshot(30)


async def test_service_snapshot_server_rejects_requests_for_another_partition_or_stream(bus: Bus, tmp_path: Path) -> None:
    old = Peer(bus, "n2", tmp_path)
    (digest,) = await old.has(snapshot(30))
    arrived = bus.listening["ns.service.sum.snapshot.n2"]

    async def ask(data: bytes | None = None, reply: str = "_INBOX.9", **fields: Any) -> pb.PeerSnapshotAnswer | None:
        question = pb.PeerSnapshotRequest(**({"service": "sum", "stream": "in", "streamUid": "u1", "maxBytes": 10} | fields))
        await arrived(SimpleNamespace(data=frames.seal(question) if data is None else data, reply=reply))
        answer = bus.answers.pop("_INBOX.9", None)
        return None if answer is None else frames.decode(answer, pb.PeerSnapshotAnswer)

    assert await ask(b"garbage") is None
    for nowhere in ("", "orders", "ns.control.admin", "_INBOXX.9", "_INBOX.*"):
        assert await ask(reply=nowhere) is None
    assert bus.answers == {}, "nobody is answered outside the inboxes [A5]"
    assert await ask(partition=1) is None
    assert await ask(stream="other") is None
    assert await ask(service="other") is None
    assert "the stream is u1 here" in (await ask(streamUid="u2")).problem  # type: ignore[union-attr]
    assert [one.position for one in (await ask()).offers] == [30]  # type: ignore[union-attr]
    assert len((await ask(digest=digest, position=30)).data) == 10  # type: ignore[union-attr]
    assert "snapshot at offset 30 no" in (await ask(digest=C, position=30)).problem  # type: ignore[union-attr]
    for start in (10_000, (1 << 64) - 1):
        assert "has " in (await ask(digest=digest, position=30, start=start)).problem  # type: ignore[union-attr]


# ---- the store -------------------------------------------------------------------------------------------------------------
def test_service_snapshot_store_rejects_incomplete_or_foreign_incoming_snapshots(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, WHO, kept=2, max_bytes=1 << 20)
    other = SnapshotStore(tmp_path / "other", WHO, kept=2, max_bytes=1 << 20)
    digest = other.save(snapshot(30), 0).digest
    data = file_of(other, 30).read_bytes()
    incoming = store.receive_snapshot(30)
    incoming.write(data[:50])
    with pytest.raises(CorruptionError, match="digest"):
        incoming.finish(digest)
    assert store.positions() == []
    again = store.receive_snapshot(30)  # a process that died left the first one
    assert len(list(store.folder.glob("*.incoming"))) == 1
    again.write(data)
    assert again.finish(digest) == snapshot(30)
    again.close()
    assert store.newest() == snapshot(30)
    wrong = store.receive_snapshot(31)
    wrong.write(data)
    with pytest.raises(CorruptionError, match="offset 30"):
        wrong.finish(digest)
    wrong.close()
    newer = data[:8] + b"\xff\x00" + data[10:]
    strange = store.receive_snapshot(30)
    strange.write(newer)
    with pytest.raises((CorruptionError, UnknownFormatError)):
        strange.finish(digest)
    strange.close()
    assert list(store.folder.iterdir()) == [file_of(store, 30)]


# ---- the feeder ------------------------------------------------------------------------------------------------------------
async def test_service_record_feeder_with_a_log_start_above_its_snapshots_fetches_one_from_another_node(
    bus: Bus, tmp_path: Path
) -> None:
    log = FakeLog()
    log.append(45)
    healthy = Node(log, tmp_path / "healthy")
    await healthy.start()
    await healthy.at(45)
    await healthy.stored(10, 30, 40)
    old = Peer(bus, "n2", tmp_path)
    digests = await old.has(*(replace(s, output_count=0) for s in [healthy.store.newest()] if s))
    bus.agree((40, digests[0], 1))
    new = Peer(bus, "n1", tmp_path)
    log.log_start = 35
    late = Node(log, tmp_path / "n1", fetcher=new.fetcher)
    bus.order.startOffset, bus.order.highWatermark = 35, 44
    await late.start()
    await late.at(45)
    assert late.services[-1].values == healthy.services[-1].values
    assert late.keeper.digests[0] == (40, digests[0]), "others may compare it"
    await late.close()
    for path in new.store.folder.glob("*.snapshot"):
        path.write_bytes(b"damaged")
    bus.replicas = ("n1",)
    hopeless = Node(log, tmp_path / "n1", fetcher=new.fetcher)
    with pytest.raises(DataLossError, match=r"starts at offset 35.*there is no other node to ask"):
        await hopeless.start()
    await healthy.close()


class One(Sum):
    """A service whose state names the version that applied each record."""

    version: ClassVar[int] = 1

    def on_record(self, record: Record) -> None:
        self.values.append(f"{self.active_version}:{record.offset}")


class Two(One):
    version = 2


class Three(One):
    version = 3


def log_of_two_versions() -> FakeLog:
    """Return a log whose first 13 records belong to version 1, and the rest to version 2."""
    log = FakeLog()
    log.append(12)
    decision = VersionDecision("sum", 2, 1).headers()
    log.batches.append(build_batch([b""], base_offset=12, leader_epoch=1, headers=[decision]))
    log.append(22)
    return log


@pytest.mark.parametrize("own", [(), (10,)])
async def test_service_with_code_that_is_too_new_for_its_state_starts_from_the_snapshot_of_another_node(
    bus: Bus, tmp_path: Path, own: tuple[int, ...]
) -> None:
    log = log_of_two_versions()
    before = Node(log, tmp_path / "before", Two, kept=5)
    await before.start()
    await before.at(35)
    await before.stored(10, 20, 30)
    taken = {at: before.store.newest(lambda stored, at=at: stored.position == at) for at in (10, 20, 30)}
    old, new = Peer(bus, "n2", tmp_path), Peer(bus, "n1", tmp_path)
    digests = await old.has(*(taken[at] for at in (10, 20)))
    bus.agree((10, digests[0], 2), (20, digests[1], 1))  # the one from before the second version is preferred
    bus.order.startOffset, bus.order.highWatermark = 0, 34
    for at in own:
        new.store.save(taken[at], 0)
    node = Node(log, tmp_path / "n1", Three, fetcher=new.fetcher)
    await node.start()
    await node.at(35)
    assert node.services[-1].values == before.services[-1].values
    for one in (before, node):
        await one.close()


async def test_service_with_code_that_is_too_new_for_all_snapshots_raises_with_the_tried_nodes(
    bus: Bus, tmp_path: Path
) -> None:
    new = Peer(bus, "n1", tmp_path)
    bus.order.startOffset, bus.order.highWatermark = 0, 34
    node = Node(log_of_two_versions(), tmp_path / "n1", Three, fetcher=new.fetcher)
    await node.start()
    with pytest.raises(VersionError, match=r"Start version 2 on all nodes first\. Or .*version 2 or later.*: n2 .*n3 "):
        await node.at(35)
    await node.close()


class LoudTwo(Two):
    def on_record(self, record: Record) -> None:
        super().on_record(record)
        self.emit(b"x")


class LoudThree(LoudTwo):
    version = 3


async def test_service_that_is_no_leader_any_more_ends_its_search_for_a_snapshot_that_its_code_supports(tmp_path: Path) -> None:
    log, search = log_of_two_versions(), EndlessSearch()
    before = Node(log, tmp_path, LoudTwo, kept=5)
    await before.start()
    await before.at(35)
    await before.stored(10, 20, 30)
    await before.close()
    node = Node(log, tmp_path, LoudThree, kept=5, fetcher=search, max_records=2)
    await node.start()
    await node.at(35)
    node.outbox.outputs_committed(12)  # the snapshot with so few outputs is of the first version
    node.become(Role.LEADER, 2)
    await until(lambda: search.is_searching)
    node.become(Role.FOLLOWER, 3)
    begun = len(node.services)
    await node.until(lambda: len(node.services) > begun)
    await node.at(35)
    await node.close()


@pytest.mark.parametrize("reads", [True, False])
async def test_service_record_feeder_overtaken_by_retention_fetches_a_later_snapshot(
    bus: Bus, tmp_path: Path, reads: bool
) -> None:
    """The node reports the new log start with a read, or with an order while a read has no answer."""
    log = FakeLog()
    log.append(5)
    fetched: list[int] = []

    async def fetch(lowest: int, wanted: Any, needed: Any) -> bool:
        fetched.append(lowest)
        bus.replicas = ()
        await behind.keeper.save(snapshot(log.log_start, b"[]"))
        return True

    behind = Node(log, tmp_path / "n1", fetcher=SimpleNamespace(fetch=fetch, tried="nothing"))
    await behind.start()
    await behind.at(5)
    if not reads:
        fetches, log.deaf = log.fetches, True
        behind.feeder.ask_again()
        await until(lambda: log.fetches > fetches)
        log.deaf = False
    log.append(55)
    log.log_start = 50
    if reads:
        behind.feeder.ask_again()
    else:
        behind.become(Role.FOLLOWER, 2)
    await behind.at(60)
    assert fetched == [6 if reads else 50]
    await behind.close()


@pytest.mark.parametrize(("passed_s", "taken"), [(10.0, True), (10.1, False)])
async def test_service_snapshot_fetch_from_a_too_slow_node_continues_with_another_node(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed_s: float, taken: bool
) -> None:
    """The limit is 64 KiB a second on average, after a slow start."""
    new, old = Peer(bus, "n1", tmp_path), Peer(bus, "n2", tmp_path)
    (digest,) = await old.has(snapshot(30, b"x" * 9000))
    bus.agree((30, digest, 1))
    now_s = [1000.0]
    only_in(monkeypatch, snapshots, "time", monotonic=lambda: now_s[0])

    def late(node: str, question: Any, answer: Any) -> Any:
        now_s[0] += passed_s if question.digest else 0.0
        return answer

    bus.spoil = late
    assert await new.fetcher.fetch(20, anything) is taken
    assert new.store.positions() == ([30] if taken else [])
