"""Test PySyncObj 0.3.17 unmodified, each test in its own process, and the Raft driver of this project instead.

These tests describe the library. Should one fail with a newer version, the guard in ``sidecar/quorum`` may be able to go.
Here: an apply or a callback that raises (point 6), and the flush and the pickle of its journal. The others:

    1 disk            2, 3, 4 consensus   5 snapshot
    7, 8 membership   9, 10 apply
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import StorageError
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import RaftCore, check_library, settings
from sidecar.quorum.transport import SessionTransport


def shipped(code: str, folder: Path) -> str:
    """Return the output of ``code`` in a process with unmodified PySyncObj."""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


NODE = """
import sys, logging
logging.disable(logging.CRITICAL)
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
class Alone(SyncObj):
    calls = 0
    def _SyncObj__doApplyCommand(self, command):
        if command[:1] != b"\\0": return None
        Alone.calls += 1
        if b"raise" in command: raise ValueError
        return b"done"
conf = SyncObjConf(autoTick=False, appendEntriesUseBatch=True, raftMinTimeout=0.4, raftMaxTimeout=0.5)
node = Alone(Node("a"), [], conf, transport=Transport(None, None, []), nodeClass=Node)
def tick(times):
    for _ in range(times):
        try: node.doTick(0.005)
        except Exception: pass
while not node._isLeader(): tick(1)
"""


def test_unmodified_pysyncobj_retries_a_failing_apply_forever(tmp_path: Path) -> None:
    code = NODE + 'node._applyCommand(b"raise", lambda *a: None, 0); tick(20); print(Alone.calls)'
    assert int(shipped(code, tmp_path)) > 5


def test_unmodified_pysyncobj_applies_a_command_twice_when_a_callback_raises(tmp_path: Path) -> None:
    code = NODE + "def bad(*_): raise KeyError\nnode._applyCommand(b'once', bad, 0); tick(20); print(Alone.calls)"
    assert int(shipped(code, tmp_path)) > 1


class _Raising:
    def __init__(self) -> None:
        self.calls = 0

    def apply(self, entry: bytes, index: int) -> bytes:
        self.calls += 1
        raise ValueError(entry)

    def work_ahead(self, entry: bytes, index: int) -> bool:
        return True


class _Counting(_Raising):
    def apply(self, entry: bytes, index: int) -> bytes:
        self.calls += 1
        return b"done"


def _alone(folder: Path, machine: Any) -> RaftCore:
    check_library()
    journal = GroupJournal(folder / "journal", flush=False)
    transport = SessionTransport("a", ("a",))
    conf = settings(journal, str(folder / "snapshot"), lambda *_: None, lambda *_: None, lambda *_: None, 10_000)
    core = RaftCore("a", ("a",), conf, transport, machine)
    transport.attach(core)
    while not core.leads:
        core.doTick(0.005)
    return core


def test_raft_apply_that_raises_is_not_retried_and_stops_the_process(tmp_path: Path) -> None:
    machine = _Raising()
    core = _alone(tmp_path, machine)
    core.propose(b"raise", lambda *_: None)
    for _ in range(20):
        core.doTick(0.005)
        core.log.sync()
    assert machine.calls == 1
    assert isinstance(core.failure, ValueError)


async def test_raft_callback_that_raises_stops_the_process_after_one_apply(tmp_path: Path) -> None:
    machine = _Counting()
    core = _alone(tmp_path, machine)
    failures: list[Exception] = []
    transport = core._SyncObj__transport
    driver = GroupDriver(core, transport, core.log, lambda *_: None, lambda: None, failures.append)

    def bad(*_: Any) -> None:
        raise KeyError

    core.propose(b"once", bad)
    for _ in range(20):
        driver.tick()
    assert machine.calls == 1
    assert driver.stopped
    assert [type(failure) for failure in failures] == [KeyError]
    core.log.close()


def test_unmodified_pysyncobj_executes_a_pickle_in_the_journal_meta_file(tmp_path: Path) -> None:
    code = """
import sys, pickle, os
from pysyncobj.journal import FileJournal
path = os.path.join(sys.argv[1], "journal")
FileJournal(path)._destroy()
class Evil:
    def __reduce__(self): return print, ("executed",)
open(path + ".meta", "wb").write(pickle.dumps(Evil()))
try: FileJournal(path)
except Exception: pass
"""
    assert "executed" in shipped(code, tmp_path)


def test_raft_journal_file_that_is_a_pickle_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(pickle.dumps({"raftCommitIndex": 7}))
    with pytest.raises(StorageError):
        GroupJournal(tmp_path / "journal")


def test_unmodified_pysyncobj_never_flushes(tmp_path: Path) -> None:
    code = """
import pysyncobj, pathlib
sources = [p.read_text() for p in pathlib.Path(pysyncobj.__file__).parent.glob("*.py")]
print(sum(s.count("fsync(") + s.count("fdatasync(") for s in sources))
"""
    assert shipped(code, tmp_path) == "0"
