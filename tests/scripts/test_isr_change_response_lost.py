"""The response to an ISR change is lost, and the leader must count both ISRs (KIP-497).

The leader asked for c to join. The metadata group recorded it, but neither the answer nor the image reaches the leader. If it
commits with the old, smaller ISR, c may be elected without those records. So from the request on, until the image shows a
higher Epoch, everyone who may have become a member counts (the maximal ISR); and "no answer" is not "no".

Shows D2, D3, D6, C8.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("no maximal ISR", "unknown outcome taken for a refusal")


def test_isr_change_with_a_lost_response_counts_the_new_member_for_commits() -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(2)

        answer = s.hold("changeIsr answer", "image", receiver=a)
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        assert s.isr_known_to(a) == {a, b}, "a has not heard of it"
        s.isolate(c)
        late = s.send()
        s.until(lambda: s.position(b) == 4)
        s.always(lambda: s.hw(a) == 3 and not late.acked, 1.4)  # past the time-out of a's proposal

        s.crash(a, b)
        answer.drop()
        s.reconnect(c)
        s.wait_for_leader(c)
        assert s.ids(c) == [1, 2, 3, 4], "c has all that was acknowledged"


def test_isr_change_with_a_lost_response_takes_effect_with_the_next_metadata_update() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.hold("changeIsr answer", sender="", receiver=a, at_most=2)  # two answers are lost, the image is not
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        s.publish(3)
        assert s.isr_known_to(a) == {a, b, c}
