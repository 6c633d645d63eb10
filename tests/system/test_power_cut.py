"""The shim below a process, and the cut: what was flushed is there, the rest is gone or half there, a failed flush stays one."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.powercut.cut import ALL, FLUSH_FAILS, FLUSH_SLOW, NO_SPACE, WRITE_FAILS, WRITE_SHORT, NoShimError, Rule
from tests.system.powercut.machine import Machine

PAGE = 4096


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    try:
        return Machine(tmp_path)
    except NoShimError as error:
        pytest.skip(str(error))


# ---- data -------------------------------------------------------------------------------------------------------------------
def test_power_cut_removes_visible_unflushed_bytes(machine: Machine) -> None:
    machine.run("file = made('a', b'one'); os.write(file, b'two')")
    assert machine.files() == {"a": b"onetwo"}
    assert machine.run("print(open('a').read())") == "onetwo"
    assert machine.cut() == {"a": b"one"}


@pytest.mark.parametrize(
    "flush",
    [
        "os.write(file, b'two'); os.fsync(file)",
        "os.writev(file, [b'tw', b'o']); os.fdatasync(file)",
        "other = opened('a', os.O_WRONLY | os.O_APPEND | os.O_DSYNC); os.write(other, b'two')",
        "other = opened('a', os.O_RDWR); os.pwrite(other, b'two', 3); os.fsync(other)",
        "other = opened('a', os.O_RDWR); os.pwritev(other, [b'two'], 3); os.fsync(other)",
        "other = opened('a', os.O_RDWR); os.pwritev(other, [b'two'], 3, os.RWF_DSYNC)",
        "python = open('a', 'ab'); python.write(b'two'); python.flush(); os.fsync(python.fileno())",
        "source = made('b', b'two', False); other = opened('a', os.O_RDWR); os.lseek(other, 3, 0);"
        "os.sendfile(other, source, 0, 3); os.fsync(other); os.unlink('b')",
        "source = made('b', b'two', False); other = opened('a', os.O_RDWR);"
        "os.copy_file_range(source, other, 3, 0, 3); os.fsync(other); os.unlink('b')",
    ],
)
def test_power_cut_preserves_bytes_flushed_by_any_flush_call(machine: Machine, flush: str) -> None:
    machine.run("file = made('a', b'one')\n" + flush)
    assert machine.cut() == {"a": b"onetwo"}


def test_power_cut_preserves_only_flushed_truncations(machine: Machine) -> None:
    machine.run(
        "for name in 'abc': made(name, b'0123456789')\n"
        "os.ftruncate(opened('a'), 5)\n"
        "file = opened('b'); os.ftruncate(file, 5); os.write(file, b'x'); os.fdatasync(file)\n"
        "file = opened('c', os.O_RDWR | os.O_TRUNC); os.write(file, b'y'); os.ftruncate(file, 4); os.fsync(file)"
    )
    assert machine.cut() == {"a": b"0123456789", "b": b"01234x", "c": b"y\0\0\0"}


def test_power_cut_preserves_bytes_written_during_a_flush_and_flushed_by_the_next(machine: Machine) -> None:
    machine.run(
        "import threading; file = made('a', b'')\n"
        "done = []\ndef flush():\n    while not done: os.fdatasync(file)\n"
        "threads = [threading.Thread(target=flush) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for number in range(2000): os.write(file, b'%07d ' % number)\n"
        "done.append(1)\nfor thread in threads: thread.join()\n"
        "os.fdatasync(file)"
    )
    assert machine.cut() == {"a": b"".join(b"%07d " % number for number in range(2000))}


# ---- names ------------------------------------------------------------------------------------------------------------------
def test_power_cut_removes_a_new_file_whose_directory_was_not_flushed(machine: Machine) -> None:
    machine.run("os.fdatasync(made('a', b'one', False))")
    assert machine.files() == {"a": b"one"}
    assert machine.cut() == {}
    machine.run("made('b', b'two', False); sync_folder()")
    assert machine.cut() == {"b": b""}, "the name, not the bytes"


@pytest.mark.parametrize("folder_flushed", [False, True])
def test_power_cut_reverts_renames_and_deletions_whose_directory_was_not_flushed(
    machine: Machine, folder_flushed: bool
) -> None:
    machine.run("for name in 'abcd': made(name, name.encode())")
    machine.run("os.rename('a', 'A'); os.replace('b', 'c'); os.unlink('d')" + ("; sync_folder()" if folder_flushed else ""))
    assert machine.files() == {"A": b"a", "c": b"b"}
    after = machine.cut()
    assert after == ({"A": b"a", "c": b"b"} if folder_flushed else {"a": b"a", "b": b"b", "c": b"c", "d": b"d"})


def test_power_cut_reverts_directory_changes_whose_parent_was_not_flushed(machine: Machine) -> None:
    machine.run(
        "for name in 'xyz': os.mkdir(name)\nfor name in 'xy': made(name + '/f', b'1'); sync_folder(name)\nsync_folder()\n"
        "made('z/f', b'1', False); os.rename('x', 'X'); import shutil; shutil.rmtree('y'); os.mkdir('w')"
    )
    machine.cut()
    assert sorted(p.name for p in machine.data.iterdir()) == ["x", "y", "z"]
    assert machine.files() == {"x/f": b"1", "y/f": b"1"}
    machine.run("os.rename('x', 'X'); os.unlink('y/f'); os.rmdir('y'); sync_folder()")
    assert machine.cut() == {"X/f": b"1"}


def test_power_cut_does_not_confuse_files_that_reuse_an_inode(machine: Machine) -> None:
    machine.run(
        "os.close(made('a', b'one')); number = os.stat('a').st_ino; time.sleep(0.01); os.unlink('a')\n"
        "for name in 'bcdefgh':\n    os.fsync(made(name, b'two', False))\n    if os.stat(name).st_ino == number: break"
    )
    assert machine.cut() == {"a": b"one"}


# ---- several cuts, several nodes -------------------------------------------------------------------------------------------


def test_power_cut_preserves_a_random_part_of_the_unflushed_bytes(machine: Machine) -> None:
    machine.run(
        "for number in range(40):\n    folder = '%d' % number; os.mkdir(folder)\n"
        "    file = made(folder + '/a', b'A' * 10); sync_folder(folder); sync_folder()\n"
        "    os.write(file, b'B' * 5000); made(folder + '/b', b'', False)"
    )
    after = machine.cut(random.Random(7))
    logs = [after[f"{number}/a"] for number in range(40)]
    for log in logs:
        assert log.startswith(b"A" * 10)
        assert not log.strip(b"AB\0")
    assert len({len(log) // 500 for log in logs}) > 5
    assert {log[-1:] for log in logs} >= {b"B", b"\0"}
    assert {f"{number}/b" in after for number in range(40)} == {False, True}


# ---- failures ---------------------------------------------------------------------------------------------------------------
def test_bytes_of_a_failed_flush_are_lost_in_a_power_cut_despite_later_flushes(machine: Machine) -> None:
    machine.run("made('a', b'one')")
    machine.power.fail(Rule(FLUSH_FAILS, "a"))
    said = machine.run(
        "file = opened('a'); os.write(file, b'two'); print(failure_of(os.fdatasync, file), failure_of(os.fsync, file))"
    )
    assert said == f"{-errno.EIO} None"
    assert machine.power.hits() == [1]
    assert machine.run("os.fsync(opened('a')); print(open('a').read())") == "onetwo", (
        "the next process sees it, and is told that it is safe"
    )
    assert machine.cut(random.Random(1)) == machine.cut() == {"a": b"one"}


def test_bytes_written_again_after_a_failed_flush_survive_a_power_cut(machine: Machine) -> None:
    machine.power.fail(Rule(FLUSH_FAILS, "*", skip=2))
    machine.run(
        f"file = made('a', b'A' * {2 * PAGE}); os.write(file, b'B' * {2 * PAGE}); print(failure_of(os.fsync, file))\n"
        f"os.write(file, b'C' * {PAGE}); os.pwrite(opened('a', os.O_RDWR), b'D', {2 * PAGE}); os.fsync(file)"
    )
    page_of_d = b"D" + b"B" * (PAGE - 1)
    assert machine.cut() == {"a": b"A" * 2 * PAGE + page_of_d + bytes(PAGE) + b"C" * PAGE}, "whole pages, and zeros between"


def test_power_cut_after_a_failed_directory_flush_removes_its_new_files(machine: Machine) -> None:
    machine.power.fail(Rule(FLUSH_FAILS, ""))
    assert machine.run("os.fsync(made('a', b'1', False)); print(failure_of(sync_folder))") == str(-errno.EIO)
    assert machine.cut() == {}


def _program(text: str) -> Callable[[Machine], str]:
    return lambda machine: machine.run("file = made('n1/raft/journal', b'12345', False); " + text)


@pytest.mark.parametrize(
    ("rules", "program", "said", "left"),
    [
        ([Rule(WRITE_FAILS, "n1/*", skip=1)], "print(failure_of(os.write, file, b'67'))", -errno.EIO, b"12345"),
        ([Rule(WRITE_SHORT, "n?/raft/*", skip=1, value=1)], "print(os.write(file, b'67'))", 1, b"123456"),
        ([Rule(WRITE_SHORT, "n2/*", value=1)], "print(os.write(file, b'67'))", 2, b"1234567"),
        (
            [Rule(WRITE_SHORT, "*journal", skip=1, value=1), Rule(WRITE_FAILS, "*journal", error=errno.ENOSPC)],
            "os.writev(file, [b'6', b'7']); print(failure_of(os.write, file, b'7'), os.write(file, b'8'))",
            f"{-errno.ENOSPC} 1",
            b"1234568",
        ),
    ],
)
def test_injected_write_fault_returns_its_error_to_the_process(
    machine: Machine, rules: list[Rule], program: str, said: object, left: bytes
) -> None:
    machine.run("os.makedirs('n1/raft')")
    if len(rules) == 2:  # the second one would strike the first write, which the first one lets pass
        rules[1] = Rule(rules[1].op, rules[1].pattern, error=rules[1].error, skip=1)
    machine.power.fail(*rules)
    assert _program(program)(machine) == str(said)
    assert machine.files() == {"n1/raft/journal": left}


def test_fault_rules_apply_to_the_file_of_their_pattern_until_removed(machine: Machine) -> None:
    machine.power.fail(Rule(FLUSH_FAILS, "b", ALL), Rule(FLUSH_FAILS, "a", ALL, errno.ENOSPC))
    count = "file = made('a', b'1', False); print([failure_of(os.fsync, file) for _ in range(3)])"
    assert machine.run(count) == str([-errno.ENOSPC] * 3)
    assert machine.power.hits() == [0, 3]
    machine.power.heal()
    assert machine.run(count) == str([None] * 3)


def test_slow_flush_fault_delays_a_flush_that_then_survives_a_power_cut(machine: Machine) -> None:
    machine.power.fail(Rule(FLUSH_SLOW, "a", ALL, value=50))
    took = machine.run("began = time.monotonic(); made('a', b'1'); print(time.monotonic() - began)")
    assert float(took) >= 0.05
    assert machine.cut() == {"a": b"1"}


# ---- the node's own folders -------------------------------------------------------------------------------------------------
_MAKES = """
from pathlib import Path
from sidecar.disk import data_folder, files
"""
_NODE = (
    _MAKES + "folder = data_folder.DataDirectory(Path('nodes/n1')); files.make_folder(folder.raft)\n"
    "files.replace_file(folder.raft / 'journal', b'vote')\n"
    "files.DirectoryStorage(folder.path / 'streams' / 's-u' / '0').replace('hw', b'1')\n"
)
_MADE = {"nodes/n1/raft/journal": b"vote", "nodes/n1/streams/s-u/0/hw": b"1"}


def test_data_directory_of_a_new_node_survives_a_power_cut(machine: Machine) -> None:
    machine.run(_NODE)
    left = machine.cut()
    left.pop("nodes/n1/lock", None)
    assert left == _MADE


def test_directory_entries_left_unflushed_by_a_killed_process_are_flushed_at_the_next_start(machine: Machine) -> None:
    machine.run("os.mkdir('nodes'); sync_folder()")
    machine.run(_NODE.replace("files\n", "files\nfiles.sync_folder = data_folder.sync_folder = lambda folder: None\n", 1))
    machine.run(_NODE)
    left = machine.cut()
    left.pop("nodes/n1/lock", None)
    assert left == _MADE


def test_full_disk_fault_reports_zero_free_space(machine: Machine) -> None:
    words = (
        "import shutil; os.makedirs('in', exist_ok=True); print(shutil.disk_usage('in').free, shutil.disk_usage('.').free > 0)"
    )
    assert machine.run(words) not in ("0 True", "0 False")
    machine.power.fail(Rule(NO_SPACE, "in", ALL))
    assert machine.run(words) == "0 True"
    machine.power.heal()
    assert machine.run(words) not in ("0 True", "0 False")
