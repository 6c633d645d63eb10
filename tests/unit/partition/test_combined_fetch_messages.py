"""Test combined fetches between two nodes over NATS."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.combined_fetches import MAX_PER_QUESTION
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire.decode_errors import REPLY, by_reason
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import ProtocolError
from sidecar.partition.combined_fetches import FetchCombiner, FetchSender
from sidecar.partition.replication import AnswerRouter
from sidecar.runtime.timers import Timers

QUICK = ReplicationConfig(max_idle_wait_s=0.02, max_lag_time_s=1.0)


class Bus:
    """One node's; what it sends is kept in ``sent`` and goes to nobody by itself."""

    def __init__(self, node: str) -> None:
        self.inbox = f"liftpy.inbox.{node}.unguessable"
        self.sinks: dict[str, Callable[..., None]] = {}
        self.sent: list[tuple[str, bytes, str]] = []
        self.works = True

    def listen(self, subject: str, sink: Callable[..., None]) -> Any:
        self.sinks[subject] = sink

    def send(self, subject: str, pieces: tuple[bytes, ...], reply: str = "") -> bool:
        if self.works:
            self.sent.append((subject, b"".join(pieces), reply))
        return self.works

    def answer(self, reply: str, payload: bytes, headers: bytes = b"") -> None:
        self.sinks[f"{self.inbox}.*.*"](reply.encode(), b"", payload, headers)


class Side:
    """A node's shell, its partitions' events, and which of them a leader confirms."""

    def __init__(self, node: str) -> None:
        self.bus = Bus(node)
        self.events: list[tuple[str, int, ev.Event]] = []
        self.waits: set[int] = set()
        """Partitions that confirm."""
        self.counters: Counter[str] = Counter()
        self.timers = Timers()
        shell: Any = self.bus
        rule = InboxRule((Subjects().inboxes(),))
        self.talk = FetchCombiner(
            AnswerRouter(shell), Subjects(), FetchSender(node, 7), rule, QUICK, self.timers, self._deliver, self.counters
        )

    def _deliver(self, stream: str, partition: int, uid: str, event: ev.Event) -> None:
        self.events.append((stream, partition, event))
        if isinstance(event, ev.CombinedFetchReceived) and partition in self.waits:
            self.talk.confirm(do.ConfirmCombinedFetch(token=event.token))

    def wait(self, partition: int, leader: str = "n1") -> PartitionKey:
        key = PartitionKey("orders", "u1", partition)
        effect = do.CombineFetch(request_id=100 + partition, leader=leader, leader_epoch=3)
        self.talk.wait(key, effect, lambda event: self.events.append(("orders", partition, event)))
        return key

    async def question(self) -> tuple[str, bytes, str]:
        """The next one that holds a fetch; those without are taken out."""
        for _ in range(2000):
            while self.bus.sent:
                subject, frame, reply = self.bus.sent.pop(0)
                if frames.decode(frame, pb.QuietFetches).fetches:
                    return subject, frame, reply
                self.bus.answer(reply, frames.encode(pb.QuietFetchesAnswer()))
            await asyncio.sleep(0.005)
        raise AssertionError("no question")

    async def asked_for(self, partitions: set[int], to: Side) -> None:
        """Let ``to`` answer until all of ``partitions`` have been asked for."""
        seen: set[int] = set()
        while not partitions <= seen:
            _, frame, reply = await self.question()
            seen |= {fetch.partition for fetch in frames.decode(frame, pb.QuietFetches).fetches}
            self.bus.answer(reply, answer_of(to, frame, reply))

    def ended(self) -> dict[int, int | None]:
        return {
            partition: event.last_answer_ns for _, partition, event in self.events if isinstance(event, ev.CombinedFetchEnded)
        }


def answer_of(leader: Side, frame: bytes, reply: str) -> bytes:
    _, body = envelope.decode(frame, MessageType.QUIET_FETCHES)
    leader.talk.answer_question(reply.encode(), body)
    subject, answer, _ = leader.bus.sent.pop()
    assert subject == reply
    return answer


@pytest.fixture
async def follower() -> Any:
    side = Side("n2")
    yield side
    side.talk.close()
    side.timers.close()


@pytest.fixture
async def leader() -> Any:
    side = Side("n1")
    yield side
    side.talk.close()
    side.timers.close()


async def test_combined_fetch_of_a_follower_is_confirmed_by_its_leader(follower: Side, leader: Side) -> None:
    for partition in range(6):
        follower.wait(partition)
    leader.waits = {0, 1, 3, 4, 5}
    subject, frame, reply = await follower.question()
    assert subject == "liftpy.notify.n1"
    assert reply.startswith(follower.bus.inbox)
    follower.bus.answer(reply, answer_of(leader, frame, reply))
    await follower.asked_for(set(range(6)), leader)
    assert set(follower.ended()) == {2}
    assert len(follower.talk) == 5
    event = next(event for _, partition, event in leader.events if partition == 4)
    assert event == ev.CombinedFetchReceived(token=event.token, replica="n2", incarnation=7, leader_epoch=3, request_id=104)
    await follower.asked_for({0, 1, 3, 4, 5}, leader)
    assert set(follower.ended()) == {2}


async def test_combined_fetch_on_a_lost_connection_ends_the_wait_of_its_partitions_at_once(follower: Side) -> None:
    follower.bus.works = False
    follower.wait(0)
    while not follower.ended():
        await asyncio.sleep(0.005)
    assert follower.ended()[0] is not None
    assert not follower.counters, "at once, and not as if its leader's node were silent"


async def test_combined_fetch_to_a_silent_leader_ends_the_wait_of_its_partitions_and_is_counted(follower: Side) -> None:
    follower.wait(0)
    while not follower.ended():
        await asyncio.sleep(0.005)
    assert follower.counters["idle_poll_timeout"] == 1
    follower.events.clear()
    follower.wait(1)
    assert follower.ended() == {1: None}
    follower.wait(2, leader="n3")
    assert set(follower.ended()) == {1}


async def test_combined_fetch_response_with_another_request_id_or_count_is_ignored(follower: Side) -> None:
    follower.wait(0)
    _, _, reply = await follower.question()
    prefix, number = reply.rsplit(".", 1)
    follower.bus.answer(f"{prefix}.{int(number) + 1}", frames.encode(pb.QuietFetchesAnswer(over=[0], count=1)))
    follower.bus.answer(reply, frames.encode(pb.QuietFetchesAnswer(over=[0], count=2)))
    assert not follower.ended()


async def test_combined_fetch_response_of_invalid_bytes_is_counted(follower: Side) -> None:
    follower.wait(0)
    _, _, reply = await follower.question()
    follower.bus.answer(reply, b"\x00garbage")
    assert sum(by_reason(follower.counters).values()) == 1
    assert not follower.ended()


async def test_combined_fetch_response_with_unknown_indexes_ends_no_wait(follower: Side) -> None:
    follower.wait(0)
    _, _, reply = await follower.question()
    follower.bus.answer(reply, frames.encode(pb.QuietFetchesAnswer(over=[1, 99], count=1)))
    assert not follower.ended()
    assert len(follower.talk) == 1


def body(**fields: Any) -> bytes:
    question = pb.QuietFetches(**{"replicaID": "n2", "incarnation": 7, **fields})
    question.fetches.add(stream="orders", streamUid="u1", partition=0, leaderEpoch=3, requestId=100)
    return question.SerializeToString()


async def test_combined_fetch_is_answered_only_to_the_inbox_of_the_named_replica(leader: Side) -> None:
    leader.waits = {0}
    for reply in (
        b"",
        b"liftpy.orders.0.replicate",
        b"_INBOX.x",
        b"liftpy.inbox.n3.x.1.1",
        b"liftpy.inbox.n2",
        b"liftpy.inbox.n2.*",
    ):
        leader.talk.answer_question(reply, memoryview(body()))
        assert not leader.events
    assert leader.counters[REPLY] == 6
    leader.talk.answer_question(b"liftpy.inbox.n2.x.1.1", memoryview(body()))
    ((subject, frame, _),) = leader.bus.sent
    assert subject == "liftpy.inbox.n2.x.1.1"
    assert frames.decode(frame, pb.QuietFetchesAnswer) == pb.QuietFetchesAnswer(count=1)


async def test_combined_fetch_confirmation_of_an_earlier_request_is_ignored(leader: Side) -> None:
    earlier: list[int] = []

    def deliver(stream: str, partition: int, uid: str, event: ev.Event) -> None:
        assert isinstance(event, ev.CombinedFetchReceived)
        for token in earlier:
            leader.talk.confirm(do.ConfirmCombinedFetch(token=token))
        earlier.append(event.token)

    leader.talk._deliver = deliver
    for _ in range(3):
        leader.talk.answer_question(b"liftpy.inbox.n2.x.1.1", memoryview(body()))
        _, frame, _ = leader.bus.sent.pop()
        assert list(frames.decode(frame, pb.QuietFetchesAnswer).over) == [0]
    assert len(earlier) == 3


async def test_combined_fetch_request_that_is_too_long_or_empty_is_rejected(leader: Side) -> None:
    many = pb.QuietFetches(replicaID="n2", fetches=[pb.QuietFetch()] * (MAX_PER_QUESTION + 1))
    with pytest.raises(ProtocolError, match=str(MAX_PER_QUESTION + 1)):
        leader.talk.answer_question(b"liftpy.inbox.n2.x.1.1", memoryview(many.SerializeToString()))
    with pytest.raises(ProtocolError):
        leader.talk.answer_question(b"liftpy.inbox.n2.x.1.1", memoryview(b"\xff\xff\xff"))
    assert not leader.bus.sent
    most = pb.QuietFetches(replicaID="n2", fetches=many.fetches[1:])
    assert leader.talk.decode_question(b"liftpy.inbox.n2.x.1.1", memoryview(most.SerializeToString())) == most


async def test_combined_fetch_response_to_another_request_confirms_no_partition(follower: Side, leader: Side) -> None:
    follower.wait(0)
    _, frame, reply = await follower.question()
    right = answer_of(leader, frame, reply)
    said = frames.decode(right, pb.QuietFetchesAnswer)
    assert said.question == frames.decode(frame, pb.QuietFetches).question > 0
    said.question += 1
    follower.bus.answer(reply, frames.seal(said))
    assert follower.ended() == {}
    assert by_reason(follower.counters) == {"addressee": 1}
    follower.bus.answer(reply, right)
    async with asyncio.timeout(30):
        while follower.ended() == {}:  # the leader did not confirm it, and that is heard
            await asyncio.sleep(0)
