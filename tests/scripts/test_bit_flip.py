"""A bit flips on a disk: of a follower, of the leader, in the metadata group's journal.

A batch does not match its CRC any more, in the middle of a log or at its end. It is complete, so it was not torn by a crash.
The replica leaves the ISR, and copies the records from other replicas. A leader transfers its leadership before a reader gets a
wrong byte. A controller with a damaged metadata journal does not start.

Shows C7, D1, D3, R3, S2, S3.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from liftpy.errors import CorruptionError
from sidecar.quorum.journal import GroupJournal
from tests.scripts.stage import Stage

KILLS = ("lossy restart stays in the ISR",)


@pytest.mark.parametrize("record", [2, 5])
def test_bit_flip_on_a_follower_removes_it_from_the_isr_until_repaired(record: int) -> None:
    with Stage(min_isr=1) as s:
        a, b, c = s.leader, *s.followers
        s.publish(6)
        s.settle()
        s.crash(c)
        s.flip_bit(c, record)
        s.isolate(c)
        s.start(c)
        s.until(lambda: s.isr == {a, b})
        assert s.counted("damage found") == 1
        s.crash(a)
        s.reconnect(c)
        assert s.wait_for_leader(b, c) == b
        s.until(lambda: s.isr == {b, c})
        assert s.ids(c) == s.ids(b) == [1, 2, 3, 4, 5, 6]


def test_bit_flip_on_the_leader_moves_the_leadership_and_repairs_the_log() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(6)
        s.settle()
        s.crash(a)
        s.flip_bit(a, 2)
        s.start(a)  # long before its session ends
        s.until(lambda: a not in s.isr)
        assert s.wait_for_leader(b, c) != a
        s.publish(1)
        s.until(lambda: s.isr == {a, b, c})
        assert s.ids(a) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("entry", [1, 3])
def test_bit_flip_in_the_metadata_journal_is_detected_at_the_next_start(tmp_path: Path, entry: int) -> None:
    path = tmp_path / "journal"
    journal = GroupJournal(path)
    for index in range(1, 6):
        journal.add(b"request %d" % index, index, 1)
        journal.sync()
    journal.close()
    data = bytearray(path.read_bytes())
    data[data.index(b"request %d" % entry)] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptionError):
        GroupJournal(path)
