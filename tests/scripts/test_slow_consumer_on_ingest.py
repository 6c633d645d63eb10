"""A slow consumer on ingest.

Publishers are faster than the leader. Two queues can run over. NATS's, which drops what the leader is too slow to take, in
silence: then the publisher gets no ack, and an ack is all that may be believed; the followers' fetches are dropped as well,
and if it lasts they elect another leader. And the leader's own, which is bounded in records and bytes: beyond the bound a
publisher that waits is told at once (OVERLOADED), one that does not is dropped and counted, and memory stays where it is.

Shows A1, A2, L4, L7.
"""

from __future__ import annotations

from tests.scripts.replication_bench import ReplicationBench
from tests.scripts.stage import Stage


def test_publish_dropped_by_nats_for_a_slow_consumer_is_not_acked() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        epoch = s.leader_epoch
        s.publish(2)
        s.slow_consumer(a)
        lost = [s.send() for _ in range(3)]
        s.run(1)
        s.keeps_up(a)
        kept = s.publish(2)
        assert s.outcomes(lost) == ["timed out"] * 3
        assert s.counted("dropped by a slow consumer") >= 3
        assert s.ids(a) == [1, 2, *(i for one in kept for i in one.ids)]
        assert s.leader_epoch == epoch, "a second is not enough to depose it"

        s.slow_consumer(a)
        assert s.wait_for_leader(b, c) != a
        s.publish(1)


async def test_ingest_queue_overflow_rejects_publishes_with_reply_at_once() -> None:
    bench = ReplicationBench(ingest_queue_records=16)
    for number in range(20):  # one read of the socket brings them all
        bench.publish(b"%d" % number, f"p{number}")
    await bench.turn()
    refused = [number for number in range(20) if bench.answers(f"p{number}")]
    assert len(refused) == 4
    assert bench.log.log_end_offset == 16
    for number in range(20, 30):  # the log is not committed yet: the publishers that wait are bounded too
        bench.publish(b"%d" % number, f"p{number}")
    await bench.turn()
    assert all(bench.answers(f"p{number}")[0]["error"]["err_code"] == 10167 for number in range(20, 30))
    assert bench.ingest.counters.overloaded == 14

    bench.commit()
    told = {number: bench.answers(f"p{number}") for number in range(16)}
    assert [told[number][0]["seq"] for number in range(16)] == list(range(1, 17)), "who was not refused is acknowledged, once"
    bench.publish(b"again", "p99")
    await bench.turn()
    bench.commit()
    assert bench.answers("p99")[0]["seq"] == 17
    assert bench.values() == [b"%d" % number for number in range(16)] + [b"again"]


async def test_ingest_queue_overflow_at_a_leader_without_a_lease_drops_publishes_without_an_answer() -> None:
    bench = ReplicationBench(ingest_queue_records=16, may_reject=False)
    for number in range(20):
        bench.publish(b"x", f"p{number}")
    await bench.turn()
    assert bench.bus.sent == []
    assert bench.ingest.counters.overloaded == 4
