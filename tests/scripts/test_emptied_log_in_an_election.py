"""With commit policy ``quorum``, the most complete log wins the election, also if retention has emptied it.

a led, wrote x for itself alone, and died. b leads in the next epoch; what it commits with c grows old, and retention drops all of it,
on both. b and c have no record then, and yet the newest position: of the newest record that they dropped they keep the epoch, over a
restart, too. Without it a would rank before them with its x, be elected, and write other records at offsets that were committed.

Shows C9, D2, D5, D26.
"""

from __future__ import annotations

import pytest

from tests.scripts.stage import Stage


@pytest.mark.parametrize("restarted", [False, True])
def test_election_ranks_a_log_emptied_by_retention_by_the_epoch_of_its_deleted_records(restarted: bool) -> None:
    with Stage(quorum=True, reader=False) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        s.isolate(b, c)
        x = s.send(records=3)
        s.until(lambda: s.end(a) == 5)
        s.crash(a)
        s.run(0.5)  # what was on its way to them is gone
        s.reconnect(b, c)
        led = s.wait_for_leader(b, c)
        (other,) = {b, c} - {led}
        s.publish(1)
        s.settle()
        assert s.end(led) == s.end(other) == 3
        for node in (led, other):
            s.drop_prefix(node, 3)
            assert s.replica(node).log.log_start_offset == 3
        s.crash(led)
        if restarted:
            s.crash(other)
            s.start(other)
        s.start(a)
        assert s.wait_for_leader(a, other) == other
        s.publish(2)
        s.until(lambda: s.end(a) == s.end(other))
        assert s.end(other) == 5
        assert not set(x.ids) & set(s.ids(other))
        s.start(led)
        s.settle()
