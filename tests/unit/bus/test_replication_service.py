"""The leader's shell keeps the way back to a fetch that was answered with nothing, for one more answer."""

from __future__ import annotations

import pytest

from liftpy.replica import effects as do
from liftpy.wire import frames
from liftpy.wire._pb import replication_pb2 as pb
from liftpy.wire.batch import split_batches
from tests.scripts.desk import Desk


def fetch(desk: Desk, replica: str, kept_for: str) -> bytes:
    """A fetch at the log end and its empty answer."""
    request = pb.ReplicationRequest(
        replicaID=replica, offset=desk.log.newest_offset, leaderEpoch=1, requestId=1, awaitsMore=True
    )
    desk.bus.deliver(desk.subjects.replicate("orders", 0), frames.encode(request), f"liftpy.inbox.{replica}.1.1")
    event = desk.fetches.pop()
    assert event.awaits_more
    effect = do.SendFetchResponse(event.token, event.offset + 1, 1 << 20, 1, kept_for)
    desk.replication.send_response(effect, desk.log, desk.log.high_watermark)
    (answer,) = desk.bus.take(f"liftpy.inbox.{replica}")
    return answer


def more(desk: Desk, replica: str, from_offset: int) -> list[bytes]:
    desk.replication.answer_waiter(do.AnswerWaiter(replica, from_offset, 1 << 20, 1), desk.log, desk.log.high_watermark)
    return desk.bus.take(f"liftpy.inbox.{replica}")


async def test_the_records_go_the_way_of_the_empty_answer_flushed_or_not() -> None:
    desk = Desk()
    assert not frames.decode_replication_response(fetch(desk, "n2", "n2")).batches
    desk.publish(b"one")
    await desk.turn()
    assert desk.log.flushed_end_offset == 0
    (answer,) = more(desk, "n2", 0)
    response = frames.decode_replication_response(answer)
    assert (response.leader_epoch, response.high_watermark) == (1, -1)
    assert [value for batch in split_batches(response.batches) for value in batch.values()] == [b"one"]
    assert more(desk, "n2", 0) == [], "one for one fetch"


async def test_hw_goes_the_same_way_and_the_way_stays_kept() -> None:
    desk = Desk()
    fetch(desk, "n2", "n2")
    for high_watermark in (4, 5):
        desk.replication.tell_waiter(do.TellWaiter("n2", 1), high_watermark)
        (answer,) = desk.bus.take("liftpy.inbox.n2")
        told = frames.decode_replication_response(answer)
        assert (told.leader_epoch, told.high_watermark, bytes(told.batches)) == (1, high_watermark, b"")
    desk.publish(b"one")
    await desk.turn()
    assert more(desk, "n2", 0)
    desk.replication.tell_waiter(do.TellWaiter("n2", 1), 6)
    desk.replication.tell_waiter(do.TellWaiter("n4", 1), 6)
    assert desk.bus.take("liftpy.inbox.n2") == desk.bus.take("liftpy.inbox.n4") == []


async def test_nothing_is_sent_where_nothing_was_kept_or_nothing_is_new() -> None:
    desk = Desk()
    fetch(desk, "n2", "")
    fetch(desk, "n3", "n3")
    assert more(desk, "n3", 0) == [], "an empty answer says: you are caught up"
    desk.publish(b"one")
    await desk.turn()
    assert more(desk, "n2", 0) == []
    assert more(desk, "n4", 0) == []


async def test_a_leader_that_stops_forgets_who_waits() -> None:
    desk = Desk()
    fetch(desk, "n2", "n2")
    desk.replication.stop()
    desk.publish(b"one")
    await desk.turn()
    assert more(desk, "n2", 0) == []


@pytest.mark.parametrize("reply", ["_INBOX.x", "liftpy.inbox.n4.x", "liftpy.inbox.n2", "liftpy.inbox.n20.x", "orders", ""])
async def test_a_replica_is_answered_under_its_own_inbox_alone(reply: str) -> None:
    desk = Desk()
    for subject, request in (
        (desk.subjects.replicate("orders", 0), pb.ReplicationRequest(replicaID="n2", requestId=1)),
        (desk.subjects.offset("orders", 0), pb.LeaderEpochOffsetRequest(replicaID="n2")),
    ):
        desk.bus.deliver(subject, frames.encode(request), reply)
    assert desk.fetches == []
    assert desk.counters["reply refused"] == 2
