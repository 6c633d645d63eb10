"""A replica that left the ISR while the high watermark stood still has all committed records (KIP-966).

With fewer than ``min_isr`` members nothing is committed. So who leaves the ISR last, and leaves less than that behind, lacks nothing:
when the member that stayed fails for good, the other one leads, and nobody has to command a loss. One whose disk has lost what
it acknowledged is not complete any more, and says so itself: it registers so, or asks the leader for what it had.

Shows C5, C10, D1, D2, D20, L1.
"""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from tests.scripts.stage import Stage


def _alone(s: Stage) -> tuple[str, str]:
    """(the sole member, who left last and holds everything); the third one lacks records, and its disk is gone."""
    a, b, c = s.leader, *s.followers
    s.publish(2)
    s.settle()
    s.crash(c)
    s.until(lambda: s.isr == {a, b})
    s.publish(3)
    s.settle()
    s.crash(b)
    s.until(lambda: s.isr == {a})
    assert s.partition.complete == (b,)
    return a, b


def test_complete_replica_outside_the_isr_leads_when_the_sole_member_dies() -> None:
    with Stage() as s:
        a, b = _alone(s)
        s.send()  # not committed, and nobody is told that it is
        s.power_off(a)
        s.until(lambda: s.status is PartitionStatus.OFFLINE)
        s.start(b)
        s.wait_for_leader(b)
        assert len(s.ids(b)) == 5


def test_complete_replica_with_a_lost_disk_does_not_lead() -> None:
    with Stage() as s:
        a, b = _alone(s)
        s.empty_disk(b)
        s.crash(a)
        s.start(b, *(n for n in s.cluster.nodes if n not in (a, b)))
        s.until(lambda: s.status is PartitionStatus.OFFLINE and s.role(b) == "WAITING")
        s.always(lambda: s.leader == "", 10)
        s.start(a)
        s.wait_for_leader(a)


def test_complete_replica_that_finds_a_flipped_bit_is_no_longer_listed_as_complete() -> None:
    with Stage() as s:
        a, b = _alone(s)
        s.flip_bit(b, 4)
        s.hold("registerNode", sender=next(n for n in s.cluster.nodes if n not in (a, b)))
        s.start(b)
        s.until(lambda: s.partition.complete == ())
