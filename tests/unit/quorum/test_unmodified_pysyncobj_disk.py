"""Test PySyncObj 0.3.17 unmodified, then the Raft driver: files after a crash, and damaged files.

Point 1 of what the metadata group must not inherit, and its pickle on disk (8).
"""

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
from tests.unit.quorum.unmodified_pysyncobj import ShippedNet, in_process

# ---- nothing is flushed ------------------------------------------------------------------------------------------------


def flushes(folder: Path) -> Any:
    import mmap

    counts = {"fsync": 0, "fdatasync": 0, "msync": 0}

    class Map(mmap.mmap):
        def flush(self, *given: int) -> None:
            counts["msync"] += 1
            super().flush(*given)

    mmap.mmap = Map  # type: ignore[misc]
    os.fsync = lambda _: counts.update(fsync=counts["fsync"] + 1)
    os.fdatasync = lambda _: counts.update(fdatasync=counts["fdatasync"] + 1)
    net = ShippedNet(useFork=False)
    for name in net.members:
        net.start(name, journalFile=str(folder / f"{name}.journal"), fullDumpFile=str(folder / f"{name}.dump"))
    lead, *_ = net.elected()
    for number in range(20):
        net.put(lead, number)
    assert net.run(lambda: len(net.results) == 20 and net.applied_everywhere())
    net.up[lead].forceLogCompaction()
    assert net.run(lambda: (folder / f"{lead}.dump").exists())
    return counts


def test_unmodified_pysyncobj_never_flushes_votes_terms_entries_or_dumps(tmp_path: Path) -> None:
    assert in_process(flushes, tmp_path) == {"fsync": 0, "fdatasync": 0, "msync": 0}


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


def killed_in_compaction(folder: Path) -> None:
    import signal

    from pysyncobj.journal import FileJournal

    class Dying(FileJournal):
        left = -1

        def add(self, *entry: Any) -> None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            super().add(*entry)

    journal = Dying(str(folder / "journal"))
    for index in range(1, 101):
        journal.add(b"command", index, 1)
    journal.left = 20
    journal.deleteEntriesTo(10)


def entries_left(folder: Path) -> Any:
    from pysyncobj.journal import FileJournal

    return [index for _, index, _ in FileJournal(str(folder / "journal"))[:]]


def test_unmodified_pysyncobj_loses_entries_when_killed_during_a_compaction(tmp_path: Path) -> None:
    in_process(killed_in_compaction, tmp_path, dies=True)
    assert in_process(entries_left, tmp_path) == list(range(11, 30)), "and 30 to 100 are gone"


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


# ---- damage is believed ------------------------------------------------------------------------------------------------


def damaged_files(folder: Path) -> Any:
    from pysyncobj.journal import FileJournal

    path = folder / "journal"
    journal = FileJournal(str(path))
    for index in range(1, 4):
        journal.add(b"command", index, 1)
    journal.setCurrentTerm(7, "b")
    journal._destroy()
    path.write_bytes(path.read_bytes().replace(b"command", b"conmand", 1))
    changed = FileJournal(str(path))
    meta = folder / "journal.meta"
    meta.write_bytes(meta.read_bytes()[:-3])
    forgot = FileJournal(str(path))
    return [c.decode() for c, *_ in changed[:]], [(j.getCurrentTerm(), j.getVotedForNodeId()) for j in (changed, forgot)]


def test_unmodified_pysyncobj_accepts_a_flipped_bit_and_an_unreadable_meta_file(tmp_path: Path) -> None:
    commands, (before, after) = in_process(damaged_files, tmp_path)
    assert commands == ["conmand", "command", "command"]
    assert before == [7, "b"]
    assert after == [0, None], "so that it may vote again in term 7"


def test_raft_journal_with_a_flipped_bit_in_an_entry_or_vote_raises_corruption_error_on_open(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = GroupJournal(path)
    for index in range(1, 4):
        journal.add(b"command", index, 1)
        journal.setCurrentTerm(7, "beta")
        journal.sync()
    journal.close()
    whole = path.read_bytes()
    for held in (b"command", b"beta"):
        path.write_bytes(whole.replace(held, bytes([held[0] ^ 1]) + held[1:], 1))
        with pytest.raises(CorruptionError, match="must not vote"):
            GroupJournal(path)


# ---- pickle on disk ----------------------------------------------------------------------------------------------------


def pickled_entry_and_dump(folder: Path) -> Any:
    import gzip
    import pickle

    from pysyncobj.journal import FileJournal

    class Evil:
        def __init__(self, name: str) -> None:
            self.name = name

        def __reduce__(self) -> Any:
            return os.mkdir, (str(folder / self.name),)

    journal = FileJournal(str(folder / "journal"))
    journal.add(b"\1", 1, 0)
    journal.add(b"\0" + pickle.dumps(Evil("by the journal")), 2, 1)
    journal._destroy()
    (folder / "dump").write_bytes(gzip.compress(pickle.dumps(Evil("by the dump"))))
    net = ShippedNet("a", journalFile=str(folder / "journal"), fullDumpFile=str(folder / "dump"), useFork=False)
    for _ in range(300):
        try:
            net.step()
        except Exception:
            break  # the result is no command
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_unmodified_pysyncobj_executes_a_pickle_in_a_journal_entry_or_dump(tmp_path: Path) -> None:
    assert in_process(pickled_entry_and_dump, tmp_path) == ["by the dump", "by the journal"]


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
