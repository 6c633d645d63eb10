"""A fetch response of a dead leader arrives after the follower has truncated (KAFKA-18991).

c asks a for what follows offset 2; the answer is long on its way. Meanwhile a dies, b leads another epoch, c cuts and follows
b. Then a's answer comes, and it fits exactly on the end of c's log. Appended, it would put a record of a dead epoch where b's
log has another one. An answer counts only for the one request that is waited for.

Shows D5, D15, D16.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("stale response accepted",)


def test_fetch_response_of_a_dead_leader_is_dropped() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.hold("data", receiver=b)
        late = s.hold("data", sender=a, receiver=c)
        lost = s.send()
        s.until(lambda: any(answer.batches for answer in late.messages))
        s.crash(a)
        fresh = s.hold("data", sender=b, receiver=c)
        s.wait_for_leader(b)
        s.until(lambda: s.phase(c) == "FOLLOWER_FETCH")  # it waits for an answer, to another request
        assert s.end(c) == 3
        late.release()
        assert s.end(c) == 3
        assert s.counted("dropped answer: stale request") == 1
        fresh.release()
        s.publish(2)
        s.settle()
        assert s.ids(b) == s.ids(c)
        assert not set(lost.ids) & set(s.ids(c))


def test_fetch_response_after_the_request_timeout_is_dropped() -> None:
    """Within one epoch the request timed out, was repeated and answered. Then the first answer arrives, too."""
    with Stage() as s:
        _, _, c = s.leader, *s.followers
        s.cluster.nodes[c].awaits_more = False  # it is woken and fetches; of second answers: test_second_fetch_response
        s.publish(2)
        s.settle()
        late = s.hold("data", receiver=c, at_most=1)
        sent = s.send(records=3)
        assert s.outcome(sent) == "acked"
        s.settle()
        before = s.counted("dropped answer: stale request")
        assert late.messages[0].batches
        late.release()
        assert s.counted("dropped answer: stale request") == before + 1
        assert s.end(c) == 5
