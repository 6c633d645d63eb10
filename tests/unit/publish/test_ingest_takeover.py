"""Test an Ingest that continues with the buffer of its standby: no gap, no overlap, one answer each."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from liftpy.config import AckPolicy
from liftpy.core.publish.acks import Publishers
from liftpy.core.publish.dedup_window import StoredId
from liftpy.core.publish.standby import FailoverBacklog
from liftpy.core.replication.events import DuplicateReceived
from tests.unit.publish.ingest_bench import Bench, FakeBus, turn


class FakeSubscription(FakeBus):
    """The subscription by which the node has stood by."""

    lost: Any = None
    is_denied = False

    def feed_to(self, sink: Any, on_dropped: Any, lost: Any) -> None:
        self.sink, self.lost = sink, lost


class Leader(Bench):
    """Begins with ``taken`` in place of a subscription of its own."""

    def __init__(self, taken: FailoverBacklog, may_reject: bool = True, **config: Any) -> None:
        super().__init__(may_reject, **config)
        self.ingest.stop()
        self.bus.listened = 0
        self.repeated: list[DuplicateReceived] = []
        self.ingest.start(taken)

    def feed(self, event: Any) -> None:
        if isinstance(event, DuplicateReceived):
            self.repeated.append(event)
        else:
            super().feed(event)

    def answers(self, through: int) -> list[tuple[str, dict[str, Any]]]:
        self.acks.release(AckPolicy.ALL, through, 1, 0)
        parts = [line.split(b"\r\n") for line in self.bus.lines]
        return [(head.split()[1].decode(), json.loads(body)) for head, body, _ in parts]


def message(payload: bytes, inbox: bytes = b"", block: bytes = b"") -> tuple[bytes, bytes, bytes, bytes]:
    return b"ev", inbox, payload, block


async def test_ingest_takeover_stores_buffered_messages_before_new_ones() -> None:
    hearing = FakeSubscription()
    leader = Leader(FailoverBacklog(hearing, fresh=[message(b"a"), message(b"b", b"_INBOX.b")]))
    hearing.sink(b"ev", b"", b"c", b"")  # type: ignore[misc]
    await turn()
    assert leader.counts() == [3]
    assert (leader.bus.listened, leader.ingest.is_subscribed) == (0, True)
    assert [inbox for inbox, _ in leader.answers(2)] == ["_INBOX.b"]


async def test_ingest_takeover_acks_buffered_messages_already_in_the_log() -> None:
    known = [(StoredId(offset, offset), Publishers(AckPolicy.ALL, [b"_INBOX.%d" % offset])) for offset in (7, 5)]
    leader = Leader(FailoverBacklog(FakeSubscription(), known=known))
    assert leader.repeated == [DuplicateReceived(last_offset=5)]
    assert leader.answers(6) == [("_INBOX.5", {"stream": "s", "seq": 6})]
    assert leader.answers(7)[1:] == [("_INBOX.7", {"stream": "s", "seq": 8})]
    assert leader.ingest.is_idle


async def test_ingest_takeover_rejects_buffered_conditional_publishes_once_the_leader_may_send_rejections() -> None:
    block = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\n\r\n"
    for may_reject in (False, True):
        leader = Leader(FailoverBacklog(FakeSubscription(), undecided=[message(b"a", b"_INBOX.a", block)]), may_reject)
        leader.ingest.settle()
        leader.ingest.settle()
        assert leader.ingest.is_idle is may_reject
        told = [(inbox, said["error"]["err_code"]) for inbox, said in leader.answers(9)]
        assert told == ([("_INBOX.a", 10008)] if may_reject else [])
        assert leader.counts() == []


async def test_ingest_takeover_without_the_standby_connection_subscribes_on_the_ingest_connection() -> None:
    hearing = FakeSubscription()
    leader = Leader(FailoverBacklog(hearing))
    hearing.lost()
    assert (hearing.sink, leader.bus.listened, leader.ingest.is_subscribed) == (None, 1, False)
    leader.publish(b"a")
    await turn()
    assert leader.counts() == [1]


async def test_ingest_takeover_that_unsubscribed_resubscribes_on_the_ingest_connection() -> None:
    hearing = FakeSubscription()
    leader = Leader(FailoverBacklog(hearing))
    leader.ingest.leave()
    hearing.lost()
    assert (hearing.left, leader.bus.listened) == (1, 0), "it is leaving anyway"
    leader.ingest.resubscribe()
    assert (hearing.sink, leader.bus.listened) == (None, 1)
    leader.ingest.stop()
    assert leader.bus.sink is None


async def test_ingest_takeover_with_a_lost_connection_accepts_nothing_until_it_resubscribes() -> None:
    for by_standby in (True, False):
        hearing = FakeSubscription()
        leader = Leader(FailoverBacklog(hearing))
        if not by_standby:
            leader.ingest.stop()
            leader.ingest.start()
        link, listened = (hearing, 0) if by_standby else (leader.bus, 1)
        lost = hearing.lost if by_standby else leader.ingest.process_link_loss
        if by_standby:
            leader.ingest.process_link_loss()
            assert (hearing.left, leader.bus.left) == (0, 0), "it hears by the other one"
        leader.replica.has_standby = True
        lost()
        lost()
        assert (link.left, leader.bus.listened) == (1, listened)
        link.sink(b"ev", b"", b"on its way", b"")
        await turn()
        assert leader.counts() == [1]
        leader.ingest.resubscribe()
        assert leader.bus.listened == listened + 1
        leader.publish(b"later")
        await turn()
        assert leader.counts() == [1, 1]
        leader.ingest.stop()
        leader.ingest.process_link_loss()
        assert leader.bus.left == (0 if by_standby else 1), "it listens to nothing"


async def test_ingest_takeover_with_a_denied_subscription_does_not_transfer_the_leadership() -> None:
    hearing = FakeSubscription()
    leader = Leader(FailoverBacklog(hearing))
    leader.replica.has_standby = hearing.is_denied = True
    hearing.lost()
    assert (hearing.left, leader.bus.listened) == (0, 1)


async def test_ingest_takeover_stores_one_batch_per_turn_in_order() -> None:
    hearing = FakeSubscription()
    leader = Leader(FailoverBacklog(hearing, fresh=[message(b"%d" % number) for number in range(35)]), batch_max_records=10)
    took = []
    while sum(leader.counts()) < 36:
        if len(took) == 1:
            hearing.sink(b"ev", b"", b"later", b"")  # type: ignore[misc]
        await asyncio.sleep(0)
        took.append(leader.counts())
    assert took[-1] == [10, 10, 10, 6]
    assert all(len(now) - len(before) <= 1 for before, now in itertools.pairwise(took))


async def test_ingest_takeover_that_is_stopped_discards_the_remaining_messages() -> None:
    class Deposed(Leader):
        def feed(self, event: Any) -> None:
            super().feed(event)
            self.ingest.stop()

    leader = Deposed(
        FailoverBacklog(FakeSubscription(), fresh=[message(b"%d" % number) for number in range(35)]), batch_max_records=10
    )
    for _ in range(5):
        await turn()
    assert leader.counts() == [10]
