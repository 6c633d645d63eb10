"""A request of the old leader to remove a follower from the ISR arrives after that follower became leader.

b was slow, so a wanted it out of the ISR; before that arrives, the leadership has gone to b. The request names the leader, its
LeaderEpoch and the Epoch that it was made on; inside apply none of them is true any more. If the check were made when the request
was received, or not at all, the leader would not be in its own ISR.

Shows C3, C4, D2.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage

KILLS = ("check-then-apply ISR",)


@pytest.mark.parametrize("back", [False, True])
def test_isr_shrink_request_about_the_newly_elected_leader_is_rejected(back: bool) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        asked = s.hold("changeIsr", sender=a)
        s.isolate(b)
        s.until(lambda: asked.count > 0, within_s=10)
        s.reconnect(b)
        s.settle()
        s.move_leader(b)
        if back:
            s.move_leader(a)
        refused = s.counted("changeIsr STALE") + s.counted("changeIsr FENCED")
        asked.release()
        s.run(0.5)
        assert s.counted("changeIsr STALE") + s.counted("changeIsr FENCED") > refused
        assert s.isr == {a, b, c}
        s.publish(2)
