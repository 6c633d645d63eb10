"""With commit policy ``quorum``, copies on a majority do not commit a record of an older epoch (Raft, figure 8).

x was written in epoch 1 and reached two of five. In epoch 2 another leader wrote y at the same offset, for itself alone, and died. The
old leader leads again and gives x to a third: a majority has it. But whoever holds y has the higher last epoch, and in Raft it may win
the next election and cut x. So a leader commits by counting only what is of its own epoch, and what lies below that with it. (Here a
second thing stands in the way: a leader that was deposed is out of the ISR, and not elected before it has cut and joined again.)

Shows D1, D2, D4, C5.
"""

from __future__ import annotations

from tests.scripts.stage import Stage

KILLS = ("a quorum commits older epochs",)


def test_quorum_record_of_an_older_epoch_on_a_majority_is_not_committed() -> None:
    with Stage(nodes=5, factor=5, quorum=True) as s:
        a, b, *others = s.leader, *s.followers
        s.publish(2)
        s.settle()
        s.isolate(*others)
        x = s.send()
        s.until(lambda: s.end(b) == 3)
        s.crash(a, b)
        s.reconnect(*others)
        other = s.wait_for_leader(*others)
        rest = [node for node in others if node != other]
        s.isolate(*rest)
        y = s.send()
        s.until(lambda: s.end(other) == 3)
        s.crash(other)
        s.reconnect(*rest)
        s.start(a, b)
        again = s.wait_for_leader(a, b)
        s.until(lambda: sum(s.end(node) == 3 for node in (a, b, *rest)) >= 3)
        s.run(1)
        assert s.true_hw == 1, "three of five have it, and it is not committed"
        assert not x.acked
        s.publish(1)
        assert s.true_hw == 3, "a record of the own epoch commits what lies below it"
        s.start(other)
        s.until(lambda: s.isr == {a, b, *others})
        s.settle()
        assert s.leader == again
        assert set(x.ids) <= set(s.ids(other))
        assert not set(y.ids) & set(s.ids(other))


def test_quorum_commit_of_a_record_of_the_current_epoch_commits_earlier_records() -> None:
    with Stage(quorum=True) as s:
        a, b, c = s.leader, *s.followers
        s.isolate(c)
        x = s.send()
        s.until(lambda: s.end(b) == 1)
        s.crash(a)
        s.reconnect(c)
        new = s.wait_for_leader(b, c)
        s.publish(1)
        assert s.true_hw == s.end(new) - 1
        assert (set(x.ids) <= set(s.ids(new))) == (len(s.ids(new)) == 2)
