"""No subscriber exists while the leader is dead: publishes and fetches fail at once with "no responders".

NATS answers a request on a subject without subscribers by itself. For a publisher that is a clear no: the message is nowhere. For
a follower it is no sign that its log is complete: an error leads into a back-off, never into the idle sleep, and never makes it
cut or serve anything.

Shows A2, D9, L1, L4.
"""

from __future__ import annotations

from tests.scripts.stage import Stage


def test_publish_without_responders_in_an_election_is_not_stored() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        silent = s.counted("no responders")
        s.crash(a)
        lost = [s.send() for _ in range(3)]
        s.run(0.2)
        assert s.counted("no responders") > silent
        assert (s.end(b), s.end(c)) == (3, 3), "no answer is no reason to cut"
        s.wait_for_leader(b, c)
        asked = s.counted("no responders") - silent
        assert asked < 60, "they back off"
        s.publish(2)
        assert not any(one.acked for one in lost)
        assert not {i for one in lost for i in one.ids} & set(s.ids(s.leader))


def test_record_on_one_follower_is_readable_after_an_election_without_responders() -> None:
    """The true HW is above the HW of the followers. A follower that truncates to its own HW loses acknowledged records."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.hold("notice", sender=a)
        acked = s.publish(1)
        s.crash(a)
        s.run(0.5)
        s.wait_for_leader(b, c)
        assert set(acked[0].ids) <= set(s.ids(s.leader))
