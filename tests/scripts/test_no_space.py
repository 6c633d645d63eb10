"""The disk is full: on the leader, on a follower, or on a controller.

A leader that can't write says so, once, to those who ask (a negative ack means that the message is nowhere), and does not go
on as if it could: another leads. A follower that can't write falls behind, and the ISR goes on without it; nothing that is
acknowledged depends on it. What cannot be stored was never stored: no half batch is left. A member of the metadata group that
can't store its journal stops, for the group may not count on it.

Shows A2, D20, D26, S4, S8, M2, M4.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.small_files import EPOCHS_NAME
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import StorageError
from sidecar.quorum.journal import GroupJournal
from tests.scripts.stage import STREAM, Stage


def test_no_space_on_the_leader_rejects_publishes_and_moves_the_leadership() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.fill_disk(a)
        refused = [s.send(), s.send()]
        s.until(lambda: s.role(a) == "FAILED")
        refused.append(s.send())
        assert s.outcomes(refused) == ["NO_SPACE", "timed out", "no responders"], "it says so once, and listens no more"
        assert s.shadow(a).log_end_offset == 3
        s.wait_for_leader(b, c)
        s.publish(3)
        s.free_disk(a)
        s.restart(a)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert not {i for one in refused for i in one.ids} & set(s.ids(a))


def test_no_space_for_the_second_record_stores_the_first_and_rejects_the_second() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(1)
        size = s.storage(a).used_bytes()
        s.publish(1)
        s.fill_disk(a, 2 * (s.storage(a).used_bytes() - size) - 1)
        assert s.outcomes([s.send(), s.send()])[1] == "NO_SPACE", "what fits is stored, what does not is refused"
        assert s.shadow(a).log_end_offset == 3
        s.wait_for_leader(b, c)
        s.publish(1)


def test_no_space_on_a_follower_removes_it_from_the_isr() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        epoch = s.leader_epoch
        s.publish(3)
        s.settle()
        s.fill_disk(c)
        s.send()
        s.until(lambda: s.role(c) == "FAILED")
        s.until(lambda: s.isr == {a, b})
        s.publish(3)
        assert s.leader_epoch == epoch
        s.free_disk(c)
        s.restart(c)
        s.until(lambda: s.isr == {a, b, c})
        assert s.ids(c) == s.ids(a)


def test_delete_records_frees_space_in_a_log_that_the_full_disk_has_closed() -> None:
    with Stage(stream=StreamConfig(segment_bytes=4096)) as s:
        a, b, c = s.leader, *s.followers
        s.publish(60, records=50)
        s.settle()
        s.until(lambda: EPOCHS_NAME in s.storage(c).names())
        s.fill_disk(c)
        s.send()
        s.until(lambda: s.role(c) == "FAILED")
        log, before = s.replica(c).log, s.storage(c).used_bytes()
        assert (log.is_full, len(log.segments) > 4) == (True, True)
        delete = pb.TruncateBefore(stream=STREAM, uid=s.cluster.key.uid, partition=0, offset=2700)
        assert s.command(pb.ControlRequest(truncateBefore=delete)).error == pb.ControlResponse.OK
        s.until(lambda: s.replica(c).apply_retention(0) or log.log_start_offset == 2700, 90)  # no state file can be stored
        assert s.storage(c).used_bytes() < before / 2
        assert s.role(c) == "FAILED", "only a new process appends to this log"
        s.power_off(c)
        s.free_disk(c)
        s.start(c)
        s.until(lambda: s.isr == {a, b, c})
        assert s.replica(c).log.log_start_offset == 2700
        assert s.ids(c) == s.ids(a)


def test_flush_error_on_the_leader_fails_its_replica_and_moves_the_leadership() -> None:
    """The page cache may hold what the disk refused. The process does not retry the disk, and no publisher gets an ack."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.fail_next_flush(a)
        lost = s.send()
        s.until(lambda: s.role(a) == "FAILED")
        s.wait_for_leader(b, c)
        s.publish(1)
        assert s.outcome(lost) == "timed out"


def test_no_space_in_the_metadata_journal_raises_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = GroupJournal(path)
    journal.add(b"kept", 1, 1)
    journal.sync()

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with patch.object(os, "write", full):
        journal.add(b"lost", 2, 1)
        journal.setCurrentTerm(7, "n2")
        with pytest.raises(StorageError):  # the driver stops the member: no message leaves that shows entry, term or vote
            journal.sync()
    dead = tmp_path / "what the next process finds"
    dead.write_bytes(path.read_bytes())
    journal.close()
    again = GroupJournal(dead)
    assert [again[i][0] for i in range(len(again))] == [b"kept"]
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (0, None)
    again.close()
