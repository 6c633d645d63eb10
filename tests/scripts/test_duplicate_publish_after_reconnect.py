"""A publish is sent again after a reconnect.

The ack was lost with the connection, and the publisher can't know whether the record was stored. Sent again without more, it
is another record, and is acknowledged as such: an ack names exactly one record, and none is acknowledged for two. A publisher
that must not repeat itself says what it expects: `Nats-Expected-Last-Sequence`. Then the second attempt is refused if the
first was stored, and stored if it was not, also by the next leader.

Shows A1, A2, A3 (by the expected sequence), A4.
"""

from __future__ import annotations

from tests.scripts.replication_bench import ReplicationBench
from tests.scripts.stage import Stage


def _expecting(last: int) -> bytes:
    return b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\n\r\n" % last


def test_publish_repeated_without_message_id_after_a_lost_ack_is_stored_twice_in_order() -> None:
    with Stage() as s:
        s.publish(1)
        lost = s.hold("ack", receiver="p0", at_most=1)
        first = s.send()
        assert s.outcome(first) == "timed out"
        lost.drop()
        (again,) = s.publish(1)
        assert s.ids(s.leader) == [1, *first.ids, *again.ids], "stored once for each time that it was sent, in order"
        assert again.ack is not None
        assert again.ack.offset == 2, "the ack names the record of this attempt, not of the first one"


def test_publish_repeated_after_a_lost_publish_is_stored_once() -> None:
    with Stage() as s:
        s.publish(1)
        lost = s.hold("publish", at_most=1)
        first = s.send()
        assert s.outcome(first) == "timed out"
        lost.drop()
        (again,) = s.publish(1)
        assert s.ids(s.leader) == [1, *again.ids]


def test_publish_repeated_during_a_leader_reconnect_is_stored_once() -> None:
    """Messages in flight to the leader are lost. A message that it received is stored once, even if NATS repeats it."""
    with Stage() as s:
        a = s.leader
        s.publish(2)
        sent = [s.send() for _ in range(3)]
        s.cluster.network.drop_in_flight(a)
        later = s.publish(1)
        outcomes = s.outcomes(sent)
        assert set(outcomes) <= {"acked", "timed out"}
        held = s.ids(a)
        assert len(held) == len(set(held))
        assert held == [1, 2, *(i for one in sent if one.acked for i in one.ids), *later[0].ids]


async def test_publish_repeated_with_expected_sequence_is_stored_at_most_once() -> None:
    bench = ReplicationBench()
    bench.publish(b"one", "p", _expecting(0))
    await bench.turn()
    bench.commit()
    assert bench.answers("p") == [{"stream": "orders", "seq": 1}]
    bench.publish(b"one", "p", _expecting(0))  # its ack was lost; it tries again
    bench.publish(b"two", "p", _expecting(1))
    bench.publish(b"two", "p", _expecting(1))  # the same, in one read of the socket
    await bench.turn()
    bench.commit()
    answers = bench.answers("p")
    assert sorted(answer.get("seq", 0) for answer in answers) == [0, 0, 2]
    assert bench.values() == [b"one", b"two"]
    assert all(answer["error"]["err_code"] == 10071 for answer in answers if "error" in answer)
