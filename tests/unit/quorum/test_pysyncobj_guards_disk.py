"""Test the guards of the Raft driver against faults of PySyncObj 0.3.17: files after a crash, and damaged files [M8, M13]."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import CorruptionError
from sidecar.quorum.journal import GroupJournal
from tests.born import born_fsm
from tests.unit.quorum.raft_network import bare_member, our_net

# ---- nothing is flushed ------------------------------------------------------------------------------------------------


def test_raft_messages_are_sent_only_after_the_journal_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: dict[int, int] = {}

    def flush(descriptor: int) -> None:
        status = os.fstat(descriptor)
        flushed[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fdatasync", flush)
    monkeypatch.setattr(os, "fsync", flush)
    with our_net(tmp_path) as net:
        for member in net.up.values():
            member.journal._flush = True
        sent, looked_at = net.post, 0

        def post(sender: str, receiver: str, frame: Any) -> None:
            nonlocal looked_at
            journal, path = net.up[sender].journal, tmp_path / sender / "journal"
            copy = shutil.copyfile(path, tmp_path / "copy")  # opening one writes it anew
            on_disk = GroupJournal(copy)
            held = [(j.getCurrentTerm(), j.getVotedForNodeId(), j[:]) for j in (on_disk, journal)]
            on_disk.abandon()
            assert held[0] == held[1]
            assert flushed[path.stat().st_ino] == path.stat().st_size
            looked_at += 1
            sent(sender, receiver, frame)

        net.post = post  # type: ignore[method-assign]
        lead, *_ = net.elected()
        for number in range(5):
            net.put(lead, b"%d" % number)
        assert net.run(lambda: len(net.acknowledged()) == 5)
        assert looked_at > 20


# ---- the journal is rewritten in place ---------------------------------------------------------------------------------


class _Death(BaseException):
    pass


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
@pytest.mark.parametrize("after", [False, True])
def test_raft_log_of_a_member_killed_during_a_compaction_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, after: bool
) -> None:
    """[M8]"""
    path = tmp_path / "journal"
    journal = GroupJournal(path)
    for index in range(1, 101):
        journal.add(b"command", index, 1)
    journal.setCurrentTerm(3, "b")
    journal.sync()
    journal.deleteEntriesTo(10)
    real = getattr(os, call)

    def dying(*given: Any) -> Any:
        if after:
            real(*given)
        raise _Death

    with monkeypatch.context() as patch:
        patch.setattr(os, call, dying)
        with pytest.raises(_Death):
            journal.sync()
    journal.abandon()
    again = GroupJournal(path)
    first = 11 if call == "rename" and after else 1
    assert [index for _, index, _ in again[:]] == list(range(first, 101))
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, "b")
    again.abandon()


# ---- pickle on disk ----------------------------------------------------------------------------------------------------


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_raft_journal_entry_that_is_a_pickle_is_rejected_by_the_state_machine(tmp_path: Path) -> None:
    """[M13]"""
    evil = pickle.dumps(_Evil(tmp_path / "executed"))
    folder = tmp_path / "a"
    folder.mkdir()
    journal = GroupJournal(folder / "journal")
    journal.add(b"\1", 1, 0)
    journal.add(b"\0" + evil, 2, 1)
    journal.add(b"\2" + evil, 3, 1)  # the library would read a change of the members in it
    journal.close()
    with our_net(tmp_path, "a") as net:
        assert net.run(lambda: net.values("a"))
        assert net.values("a") == [evil]
        assert net.up["a"].core.otherNodes == set()
    answer = pb.ControlResponse.FromString(born_fsm().apply(evil, 2))
    assert answer.error == pb.ControlResponse.INVALID
    assert not (tmp_path / "executed").exists()


async def test_raft_start_with_a_pickle_as_journal_or_snapshot_file_raises_corruption_error(tmp_path: Path) -> None:
    evil = pickle.dumps(_Evil(tmp_path / "executed"))
    for name in "journal", "snapshot":
        folder = tmp_path / f"with a pickle as {name}"
        folder.mkdir()
        (folder / name).write_bytes(evil)
        with pytest.raises(CorruptionError):
            bare_member(folder)
        assert (folder / name).read_bytes() == evil
    assert not (tmp_path / "executed").exists()
