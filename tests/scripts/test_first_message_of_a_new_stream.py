"""The first message of a new stream, and the leader dies.

Everything is empty: HW is -1, the followers have no epoch, the old leader's whole log is one uncommitted record. Liftbridge
answers "-1" both for "this log is empty" and for "no such epoch", and takes its own log end for the end of an epoch that it
never had; so the old leader keeps its record under the new one's. Here epoch 0 means "none", and such a log is thrown away as
a whole.

Shows D2, D12, D13, D27.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("-1 sentinel", "no reconciliation before the fetch")


def test_first_record_of_a_stream_stored_only_on_the_dead_leader_is_truncated() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.hold("data", sender=a)
        first = s.send()
        s.until(lambda: s.end(a) == 1)
        s.crash(a)
        s.wait_for_leader(b, c)
        assert (s.end(b), s.end(c)) == (0, 0)
        s.publish(2)
        s.start(a)
        s.until(lambda: a in s.isr)
        s.settle()
        assert s.ids(a) == s.ids(b) == s.ids(c)
        assert not set(first.ids) & set(s.ids(a))
        assert s.epochs(a) == ((s.leader_epoch, 0),)


def test_first_record_of_a_returning_leader_is_truncated_under_a_new_leader_with_an_empty_log() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.hold("data", sender=a)
        s.send()
        s.until(lambda: s.end(a) == 1)
        s.crash(a)
        s.wait_for_leader(b, c)
        s.start(a)
        s.until(lambda: a in s.isr)
        assert (s.end(a), s.epochs(a)) == (0, ())
        s.publish(1)
        s.settle()
        assert s.ids(a) == s.ids(b) == s.ids(c)


def test_first_record_of_a_stream_stored_on_one_follower_makes_that_follower_leader() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        held = s.hold("data", receiver=b)
        first = s.send()
        s.until(lambda: s.end(c) == 1)
        s.run(0.01)
        assert not first.acked, "b has not acknowledged it"
        s.crash(a)
        assert s.wait_for_leader(b, c) == c, "c's log is the longest"
        held.drop()
        s.publish(1)
        assert s.ids(c)[:1] == list(first.ids), "a leader never cuts itself: the record is committed with the next"
