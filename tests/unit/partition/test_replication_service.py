"""The leader's shell keeps the way back to a fetch that was answered with nothing, for one more answer."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.ids import PartitionKey
from liftpy.replica import effects as do
from liftpy.replica import events
from liftpy.replica.events import RefusalReason
from liftpy.wire import frames
from liftpy.wire._pb import replication_pb2 as pb
from liftpy.wire.batch import build_batch, split_batches
from liftpy.wire.refusals import by_reason
from liftpy.wire.subjects import Subjects
from sidecar.partition.replication import AnswerRouter, FetchClient
from tests.scripts.desk import Desk

KEY = PartitionKey("s", "u1", 0)


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
    assert desk.counters["refused: reply subject"] == 2


async def test_fetches_that_are_refused_are_counted_by_reason() -> None:
    desk = Desk()
    for token, reason in enumerate((RefusalReason.UNKNOWN, RefusalReason.UNKNOWN, RefusalReason.STALE_EPOCH)):
        desk.replication.send_refusal(do.SendFetchRefusal(token, reason, 1, 0))
    assert by_reason(desk.counters) == {"implausible request id": 2, "fetch, stale epoch": 1}


def follower() -> tuple[FetchClient, list[events.Event], Counter[str]]:
    bus: Any = SimpleNamespace(inbox="_INBOX.n", max_payload=1 << 20, listen=lambda *_: None, send=lambda *_: True)
    heard: list[events.Event] = []
    counters: Counter[str] = Counter()
    return FetchClient(AnswerRouter(bus), Subjects("liftpy"), KEY, "n2", heard.append, counters), heard, counters


@pytest.mark.parametrize("at", range(12, 36))
def test_an_answer_that_was_changed_on_its_way_is_as_if_it_had_not_come(at: int) -> None:
    """An HW that was changed would be believed, and an error would end a fetch whose answer is still on its way."""
    client, heard, counters = follower()
    batch = build_batch([b"v"], base_offset=0, leader_epoch=1, timestamp_ns=1)
    answer = bytearray(frames.replication_response_header(1, 5, (batch,)) + batch)
    client._answered(1, bytes(answer), b"")
    assert [type(event) for event in heard] == [events.FetchAnswered]
    answer[at] ^= 4
    client._answered(1, bytes(answer), b"")
    assert (len(heard), counters) == (1, {"refused: checksum": 1})


def test_what_comes_damaged_again_and_again_is_said_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    client, heard, _ = follower()
    batch = bytearray(build_batch([b"v" * 50], base_offset=0, leader_epoch=1, timestamp_ns=1))
    batch[-1] ^= 1  # as the leader's disk has it: the envelope is right
    for _ in range(1000):
        client._answered(1, frames.replication_response_header(1, 5, (batch,)) + bytes(batch), b"")
    assert len(heard) == 1000
    assert 1 <= len([r for r in caplog.records if "came damaged" in r.getMessage()]) <= 3
