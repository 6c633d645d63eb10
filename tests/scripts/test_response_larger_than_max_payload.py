"""A response would be larger than the NATS server's max_payload.

A server closes the connection of a client that sends more than max_payload; a leader that did would lose its followers at
each catch-up, and a follower that is sent nothing, with the header that says "caught up", would join the ISR without the
records. So a response is made of as many whole batches as fit; no batch is made that would not fit; and if the server's limit
was lowered afterwards, nothing is sent at all.

Shows D19, D23, S8 (others go on), L3.
"""

from __future__ import annotations

from liftpy.replica import effects as do
from liftpy.replica.events import FetchReceived
from liftpy.testing.messages import FetchResponse
from liftpy.wire import frames
from liftpy.wire._pb import replication_pb2 as pb
from liftpy.wire.batch import split_batches
from tests.scripts.desk import Desk, FakeBus
from tests.scripts.stage import Stage

KILLS = (
    "an empty answer when it does not fit",
    "batches of any size",
)


def _fetch(desk: Desk, offset: int) -> list[bytes]:
    """A follower's fetch that acknowledges ``offset``, and what it gets."""
    request = pb.ReplicationRequest(
        replicaID="n2", offset=offset, leaderEpoch=1, offsetEpoch=1, incarnation=1, requestId=1, maxBytes=1 << 20,
        streamUid=desk.key.uid,
    )  # fmt: skip
    desk.bus.deliver(desk.subjects.replicate("orders", 0), frames.encode(request), "_INBOX.n2.1.1")
    event: FetchReceived = desk.fetches.pop()
    effect = do.SendFetchResponse(event.token, event.offset + 1, event.max_bytes, 1)
    desk.replication.send_response(effect, desk.log, desk.log.high_watermark)
    return desk.bus.take("_INBOX.n2")


async def test_as_many_whole_batches_as_fit() -> None:
    desk = Desk(FakeBus(max_payload=64 * 1024))
    for number in range(40):
        desk.publish(bytes([number]) * 9000)
        await desk.turn()
    desk.commit()
    offset, responses = -1, 0
    while offset < 39:
        (frame,) = _fetch(desk, offset)
        assert len(frame) <= desk.bus.max_payload
        batches = split_batches(frames.decode_replication_response(frame).batches)
        assert batches[0].base_offset == offset + 1
        offset, responses = batches[-1].last_offset, responses + 1
    assert responses > 40 * 9000 // desk.bus.max_payload
    assert desk.bus.errors == {}


async def test_no_batch_is_made_that_would_not_fit() -> None:
    desk = Desk(FakeBus(max_payload=64 * 1024))
    desk.publish(b"x" * (64 * 1024 - 100), "large")
    for _ in range(12):
        desk.publish(b"y" * 9000, "small")
    await desk.turn()
    assert desk.answers("large")[0]["error"]["err_code"] == 10054
    assert sum(batch.record_count for batch in desk.batches()) == 12
    desk.commit()
    offset = -1
    while offset < 11:
        (frame,) = _fetch(desk, offset)
        offset = split_batches(frames.decode_replication_response(frame).batches)[-1].last_offset


async def test_the_limit_was_lowered_and_the_batch_is_there() -> None:
    desk = Desk()
    desk.publish(b"x" * 500_000)
    await desk.turn()
    desk.commit()
    desk.bus.max_payload = 64 * 1024
    assert _fetch(desk, -1) == [], "an empty response would say: you are caught up"
    assert _fetch(desk, -1) == []
    assert desk.bus.errors["larger than max_payload"] == 2
    assert len(_fetch(desk, 0)) == 1, "a follower that has it is told that it is caught up"


def test_a_follower_catches_up_in_small_steps() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(30)
        s.cluster.network.max_payload_bytes = 600
        sizes: list[int] = []
        gate = s.cluster.network.gate
        assert gate is not None

        def watch(sender: str, receiver: str, message: object, arrive: object) -> bool:
            if isinstance(message, FetchResponse):
                sizes.append(len(message.batches))
            return gate(sender, receiver, message, arrive)  # type: ignore[arg-type]

        s.cluster.network.gate = watch
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        assert s.end(c) == 31
        assert 0 < max(sizes) <= 600


def test_a_batch_that_no_response_can_carry_keeps_its_follower_out() -> None:
    with Stage(min_isr=2) as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(1, records=6)
        s.cluster.network.max_payload_bytes = 128  # the operator lowers max_payload below what is stored
        s.reconnect(c)
        s.until(lambda: s.counted("response larger than max_payload") >= 3)
        s.always(lambda: c not in s.isr and s.end(c) == 1, 3)
        s.cluster.network.max_payload_bytes = 1 << 20
        s.until(lambda: s.isr == {a, b, c})
