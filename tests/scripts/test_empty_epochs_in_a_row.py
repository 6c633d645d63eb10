"""Several leaders in a row write no record.

Leaders come and go and write nothing. Epochs without a record leave no trace in any log, so that the largest epoch that a
leader knows may be far below its own, and a follower may ask for one that the leader has never heard of. The answer is the
largest one that is not above it, with its true end; "-1" or the leader's own log end would be wrong.

Shows C2, D12, D13, D14, D27.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("-1 sentinel", "off-by-one epoch start")


def test_leader_epochs_without_records_have_no_entry_in_the_epoch_cache() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        first = s.leader_epoch
        for node in (b, c, a, b, c):
            s.move_leader(node)
        last = s.leader_epoch
        assert last == first + 5
        s.publish(2)
        s.settle()
        assert s.epochs(a) == s.epochs(b) == s.epochs(c) == ((first, 0), (last, 2))


def test_replicas_are_equal_after_leader_epochs_without_records_in_an_empty_stream() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        for node in (b, c, a):
            s.move_leader(node)
        lonely = s.hold("data", sender=a)
        lost = s.send()  # the first record of all, in the third empty epoch, on a only
        s.until(lambda: s.end(a) == 1)
        s.crash(a)
        lonely.drop()
        s.wait_for_leader(b, c)
        s.move_leader(({b, c} - {s.leader}).pop())
        s.start(a)
        s.until(lambda: a in s.isr)
        s.publish(1)
        s.settle()
        assert s.epochs(a) == s.epochs(b) == s.epochs(c) == ((s.leader_epoch, 0),)
        assert not set(lost.ids) & set(s.ids(a))


def test_leader_after_epochs_without_records_makes_a_returning_replica_truncate() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        lonely = s.hold("data", sender=a)
        lost = s.send(records=4)
        s.until(lambda: s.end(a) == 6)
        s.crash(a)
        lonely.drop()
        s.wait_for_leader(b, c)
        for node in (c, b, c):
            if s.leader != node:
                s.move_leader(node)
        s.start(a)
        s.until(lambda: a in s.isr)
        assert (s.end(a), len(s.epochs(a))) == (2, 1)
        s.publish(1)
        s.settle()
        assert s.epochs(a) == s.epochs(c)
        assert not set(lost.ids) & set(s.ids(a))
