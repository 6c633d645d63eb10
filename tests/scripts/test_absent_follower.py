"""A follower dies: commits continue after half a second, not after its session. A follower with a slow link stays in the ISR.

HW waits for every member of the ISR. The leader asks the bus for those who hold it back in silence, and "no responders", twice, is a
proof; a node that does not answer proves nothing. When both followers are gone together, as when the bus comes back, the leader
does not go on alone.

Shows D20, D21, L3, and the policy's side of C6.
"""

from __future__ import annotations

from tests.scripts.stage import Stage


def test_leader_with_an_absent_follower_commits_before_its_session_ends() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.crash(c)
        sent = s.send()
        s.until(lambda: sent.acked, within_s=0.8)
        assert s.isr == {a, b}
        s.start(c)
        s.until(lambda: s.isr == {a, b, c})


def test_paused_follower_process_stays_in_the_isr() -> None:
    with Stage() as s:
        *_, c = s.followers
        s.publish(2)
        s.pause(c)
        sent = s.send()
        s.always(lambda: c in s.isr and not sent.acked, 1.0)
        s.resume(c)
        s.until(lambda: sent.acked)


def test_leader_whose_followers_all_crashed_at_once_does_not_commit_alone() -> None:
    with Stage(min_isr=1, lease_s=1.5) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.crash(b, c)
        sent = s.send()
        s.always(lambda: s.isr == {a, b, c} and not sent.acked, 1.0)
        s.start(b, c)
        s.settle()
