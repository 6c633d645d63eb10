"""A node loses only its metadata connection or only its data connection.

Two ways to be half dead. A leader that the metadata group cannot hear must fall silent before its successor speaks, though
its followers fetch happily; publishers reach both. A leader that its followers cannot hear must be replaced, though its
heartbeats are fine. And a follower without a metadata path fetches on, and does not count: it is fenced, so nobody may elect
it, and nobody waits for it.

Shows C1, C6, C9, D22, A2, L1.
"""

from __future__ import annotations

from liftpy.config import AckPolicy
from tests.scripts.stage import Stage

KILLS = ("no lease", "negative ack without a lease", "fetches of other epochs count")


def test_leader_without_metadata_connection_sends_no_acks_and_is_replaced() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.cut_metadata(a)
        s.run(0.4)
        s.publish(1)  # its lease still runs
        s.until(lambda: s.phase(a) == "LEADER_NO_LEASE")
        mute = s.hold("ack", sender=a)
        silent = [s.send(AckPolicy.LEADER), s.send()]
        s.wait_for_leader(b, c)
        assert s.role(a) == "LEADER"
        assert [one.outcome for one in silent] == ["waiting"] * 2
        s.publish(2, AckPolicy.LEADER)  # a hears these too, and says nothing
        s.run(5)
        assert mute.count == 0
        s.mend_metadata(a)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert s.ids(a) == s.ids(b) == s.ids(c)


def test_leader_without_a_lease_below_min_isr_sends_no_rejection() -> None:
    with Stage(min_isr=2) as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        s.crash(b, c)
        s.until(lambda: s.isr_known_to(a) == {a})
        assert s.outcome(s.send()) == "BELOW_MIN_ISR"
        s.cut_metadata(a)
        s.until(lambda: s.phase(a) == "LEADER_NO_LEASE")
        assert s.outcome(s.send()) == "timed out", "another may lead by now, and have stored it"


def test_leader_without_data_connection_is_replaced_after_the_leader_timeout() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.isolate(a)
        took_s = s.until(lambda: s.is_open(b) or s.is_open(c))
        assert 2 <= took_s <= 5, "as soon as its followers have missed it for max_leader_timeout"
        assert s.cluster.group.image.is_live(a)
        assert s.role(a) != "LEADER", "it hears of it by the metadata"
        s.publish(2)
        s.reconnect(a)
        s.until(lambda: s.isr == {a, b, c})


def test_follower_without_metadata_connection_leaves_the_isr() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        epoch = s.leader_epoch
        s.cut_metadata(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(2)
        s.until(lambda: s.end(c) == 4)
        s.always(lambda: s.isr == {a, b} and s.leader_epoch == epoch, 10)
        s.mend_metadata(c)
        s.until(lambda: s.isr == {a, b, c})


def test_follower_without_data_connection_leaves_the_isr() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        epoch = s.leader_epoch
        s.isolate(c)
        waiting = s.send()
        s.run(2)
        assert not waiting.acked, "c is in the ISR, and does not have it"
        s.until(lambda: s.isr == {a, b})
        s.publish(2)
        assert s.leader_epoch == epoch
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
