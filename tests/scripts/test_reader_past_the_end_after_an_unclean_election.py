"""A reader has read records that an unclean election lost: the reader gets an error, whatever its offset.

a alone holds the last records, which are committed and were read; a dies for good and b is made leader by command. The new log is
shorter at first and longer later. A replica that only lags, and one that has not agreed with its leader, never says "cut".

Shows R6, C11.
"""

from __future__ import annotations

import pytest

from liftpy.core.wire._pb.client_pb2 import ReadResponse
from liftpy.core.wire.batch import split_batches
from tests.scripts.stage import Stage
from tests.scripts.test_unclean_election_only_on_command import elect

Answer = tuple[ReadResponse, memoryview]


def read(s: Stage, node: str, offset: int, last: tuple[int, int] = (-1, 0)) -> Answer:
    answer = s.ask(node, offset=offset, lastOffset=last[0], lastEpoch=last[1], minHighWatermark=-1)
    assert answer is not None
    return answer


def last_of(answer: Answer) -> tuple[int, int]:
    batch = split_batches(answer[1])[-1]
    return batch.last_offset, batch.leader_epoch


@pytest.mark.parametrize("later", [0, 5], ids=["shorter", "longer"])
def test_reader_of_records_lost_in_an_unclean_election_gets_the_truncation_offset(later: int) -> None:
    with Stage(min_isr=1, reader=False) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        common = last_of(read(s, a, 0))
        s.crash(b, c)
        s.until(lambda: s.isr == {a}, within_s=15)
        s.publish(2)
        lost = last_of(read(s, a, 0))
        assert (common[0], lost[0]) == (1, 3)
        s.crash(a)
        s.start(b, c)
        s.until(lambda: not s.leader, within_s=15)
        elect(s, b, unclean=True)
        s.ghost.lost(2)
        s.wait_for_leader(b)
        s.until(lambda: s.isr == {b, c})
        s.publish(later)
        s.settle()
        for node in (b, c):
            told, _ = read(s, node, 4, lost)
            wanted = (ReadResponse.CUT, 2) if node == b else (ReadResponse.NOT_READY, 0)  # only a leader can know
            assert (told.error, told.cutEndOffset) == wanted, (node, told)
            assert not read(s, node, 2, common)[0].error, "who had read only what is still there goes on"


def test_reader_at_a_former_leader_gets_not_ready_for_committed_records() -> None:
    """c has the longer log of epoch 1, and leads the third epoch; what it has of the first is committed there. Meanwhile a leads the
    second for itself, with its own records in that place (found by seed 2014585)."""
    with Stage(reader=False) as s:
        a, b, c = s.leader, *s.followers
        s.publish(2)
        s.settle()
        s.hold("data", "wake", sender=a, receiver=b)
        tail = s.send(records=3)
        s.until(lambda: s.position(c) == 4)
        s.cut(b, c)
        s.move_leader(b, wait=False)  # its log ends at 2
        s.until(lambda: s.is_open(b))
        s.run(0.1)
        s.cut_metadata(b)
        s.send(records=4)
        s.until(lambda: s.end(b) == 6)
        s.move_leader(c, wait=False)
        s.until(lambda: s.is_open(c))
        s.until(lambda: s.hw(c) >= 4, within_s=60)
        seen = last_of(read(s, c, 0))
        zombie, _ = read(s, b, seen[0] + 1, seen)
        assert s.role(b) == "LEADER"
        assert zombie.error == ReadResponse.NOT_READY
        s.mend_metadata(b)
        assert set(tail.ids) <= set(s.ids(c))


def test_reader_at_a_lagging_replica_gets_not_ready() -> None:
    with Stage(quorum=True, reader=False) as s:
        a, b, _ = s.leader, *s.followers
        s.publish(2)
        s.settle()
        with s.holding("fetch", sender=b):
            s.publish(3)
            last = last_of(read(s, a, 0))
            assert last[0] == 4
            assert s.end(b) < 5
            assert read(s, b, 5, last)[0].error == ReadResponse.NOT_READY
        s.settle()
        assert not read(s, b, 5, last)[0].error
