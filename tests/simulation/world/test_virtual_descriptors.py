"""Test the file descriptors of large clusters: nodes notice no difference to those of the system."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = """
from tests.simulation.world.machine import interposition
interposition.install()
from tests.simulation.world.machine import virtual_descriptors
from tests.simulation.world.machine.disk import close_descriptors
from tests.simulation.world.profiles import PROFILES
from tests.simulation.world.world import World
interposition.adapt()
import errno, os

FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC

async def tell(world):
    process, folder = world.driver, world.nodes[0].disk.folder
    process.disk = world.nodes[0].disk
    paths = [folder / f"{number}.log" for number in range(6)]
    files = [os.open(path, FLAGS, 0o640) for path in paths]
    for number, file in enumerate(files):
        assert os.write(file, b"first %d " % number) == 8
    paths[0].rename(folder / "renamed.log")
    paths[1].unlink()
    paths[2].unlink()
    paths[2].write_bytes(b"another file")
    for file in files:
        assert os.writev(file, [b"sec", b"ond"]) == 6
        os.fdatasync(file)
        assert os.fstat(file).st_size == 14
    assert [os.pread(file, 99, 0) for file in files] == [b"first %d second" % number for number in range(6)]
    assert (folder / "renamed.log").read_bytes() == b"first 0 second"
    assert paths[2].read_bytes() == b"another file"
    os.ftruncate(files[5], 5)
    assert os.readlink(f"/proc/self/fd/{files[4]}") and paths[5].read_bytes() == b"first"
    assert len(process.descriptors) == 6 and descriptors.reopened >= 12
    os.close(files[0])
    for call in (os.close, os.fstat, lambda file: os.write(file, b"x"), lambda file: os.lseek(file, 0, 0)):
        try:
            call(files[0])
        except (OSError, OverflowError) as error:
            assert error.errno == errno.EBADF
        else:
            raise AssertionError("a closed file was used")
    close_descriptors(process)
    assert os.write(files[1], b"late") == 4 and os.pread(files[3], 9, 0) == b""
    assert paths[3].read_bytes() == b"first 3 second"
    os.close(files[1])
    assert not any(descriptors.folder.iterdir())

world = World(1, PROFILES["one"])
descriptors = virtual_descriptors.install(world.folder / "open", 2, interposition.running)
outcome = world.run(tell)
world.clean()
assert outcome.violations == [], outcome.violations
"""


def _run(*arguments: str) -> str:
    """Run Python in a process of its own, because the world changes the standard library. Return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_virtual_descriptors_follow_their_files_through_renames_and_removals() -> None:
    _run("-c", _PROGRAM)


def test_simulated_cluster_with_few_open_files_gives_the_same_trace_as_with_all_files_open() -> None:
    size = ("-m", "tests.simulation.world", "--nodes", "3", "--partitions", "8", "--minutes", "0.1", "--digests")
    few, everything = _run(*size, "--open-files", "4"), _run(*size, "--open-files", "0")
    assert (reopened := re.search(r"opened again (\d+) times", few)) is not None
    assert int(reopened[1]) > 100
    assert few.splitlines()[-1] == everything.splitlines()[-1] != ""
