"""With commit policy ``quorum``, every complete replica may lead next, in the ISR or not.

Any majority of the replica set may hold a committed record, and any majority that tells its positions finds it. So a replica
that is just outside the ISR counts: it tells its position in an election, and without it two of three could not elect. It
may lead next, too: a publish that a new leader refuses may still live in its log, if it follows the deposed leader still.
So a negative ack waits until everybody who may lead next has fetched from the new leader, or until a record of the new leadership is
committed: from then on no log of an earlier one wins an election. HW needs no new record either, once all of them hold the log.

Shows A2, C5, L1, L3.
"""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from tests.scripts.stage import Stage


def _just_outside(s: Stage) -> tuple[str, str, str]:
    """(leader, member, complete replica that the ISR does not hold)."""
    a, b, c = s.leader, *s.followers
    s.publish(3)
    s.settle()
    s.isolate(c)
    s.until(lambda: s.isr_known_to(a) == {a, b})
    s.publish(2)
    return a, b, c


def test_quorum_election_counts_a_complete_replica_outside_the_isr() -> None:
    with Stage(quorum=True) as s:
        a, b, c = _just_outside(s)
        s.hold("changeIsr", sender=a)
        s.reconnect(c)
        s.until(lambda: s.end(c) == s.end(b) == 5)
        s.crash(a)
        s.wait_for_leader(b, c)
        s.publish(1)


def test_quorum_election_with_an_incomplete_replica_elects_the_longest_log() -> None:
    with Stage(quorum=True) as s:
        a, b, c = _just_outside(s)
        s.crash(a)
        s.reconnect(c)
        s.wait_for_leader(b)
        s.publish(1)
        s.settle()
        assert s.end(c) == 6


def test_quorum_leader_sends_no_negative_ack_while_a_replica_outside_the_isr_may_lead() -> None:
    with Stage(nodes=5, factor=5, min_isr=4, quorum=True, idle_polls_before_quiet=10) as s:
        a, b, c, d, e = s.leader, *s.followers
        s.publish(2)
        s.settle()
        s.isolate(d, e)
        s.until(lambda: s.isr_known_to(a) == {a, b, c})
        joining = s.hold("changeIsr", sender=a)
        s.reconnect(d, e)
        s.run(1)
        s.cut_metadata(a, d)
        joining.drop()
        joins = [s.hold("changeIsr", sender=leader) for leader in (b, c)]
        other = c if s.wait_for_leader(b, c) == b else b
        s.isolate(e)
        s.until(lambda: e not in s.isr and s.position(other) is not None)
        s.run(6)  # longer than the lag time: e is wanted no more
        for join in joins:
            join.drop()
        sent = s.send()
        s.until(lambda: set(sent.ids) <= set(s.ids(a)) and set(sent.ids) <= set(s.ids(d)))
        s.run(0.1)
        s.crash(a, b, c)
        s.reconnect(e)
        s.mend_metadata(a, d)
        s.start(other)
        s.wait_for_leader(d, other)
        s.start(a, b, c)
        s.until(lambda: len(s.isr) == 5)
        s.publish(1)
        assert s.outcome(sent) in ("acked", "timed out")


def test_quorum_leader_sends_a_negative_ack_when_all_replicas_have_joined_the_isr() -> None:
    with Stage(nodes=5, factor=5, min_isr=5, quorum=True) as s:
        a = s.leader
        s.publish(2)
        s.restart(a)
        s.wait_for_leader()
        s.isolate(s.followers[-1])
        s.until(lambda: len(s.isr_known_to(s.leader)) == 4)
        assert s.outcome(s.send()) == "BELOW_MIN_ISR"


def test_new_quorum_leader_commits_its_log_without_a_new_record() -> None:
    with Stage(quorum=True) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        held = s.hold("fetch", receiver=a)
        s.send()
        s.until(lambda: s.end(a) == 3)
        s.restart(a)
        held.drop()
        s.settle()
        assert s.status is PartitionStatus.ONLINE
        assert {s.hw(node) for node in (a, b, c)} == {s.end(s.leader) - 1}
        answer = s.ask_latest(s.leader)
        assert answer is not None
        assert not answer.error
