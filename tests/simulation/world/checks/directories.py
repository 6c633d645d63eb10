"""Rules of data directories: a clean stop leaves everything on the disk, the right log ends, and no unfinished file."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from liftpy.core.wire.batch import split_batches
from liftpy.errors import CorruptionError
from sidecar.disk.data_folder import LAZY_FLUSH, LOG_ENDS_NAME, UNREPORTED_DAMAGE
from sidecar.disk.files import decode_checked_json
from tests.simulation.world.checks.raft_files import wrong_raft_directory
from tests.simulation.world.machine.disk import Disk, real_listdir
from tests.simulation.world.machine.scheduler import Process

_MOST_SHOWN = 5
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
_STAYS_REMOVED = re.compile(rf"held/.+|streams/[^/]+/\d+|{UNREPORTED_DAMAGE}|{LAZY_FLUSH}").fullmatch
"""Marks and logs that a node must not meet again after it has removed them, relative to its data directory."""
_NEVER_FLUSHED = "lock"
"""End of the names of lock files, which a node creates again if they are missing."""


def check_stop(process: Process) -> None:
    """Check the end of a node that was ready and that an operator has stopped: it is clean, and so is its data directory.

    After a disk error the stop may be unclean. On a slow disk a worker process may take more than 10 s, and is then killed.
    """
    disk: Disk = process.disk
    if disk.failures or disk.was_full or disk.is_damaged or disk.was_slow:
        return
    if not process.program.was_clean:
        process.scheduler.violated(f"{process.name} has not stopped cleanly, and nothing has failed")
    elif wrong := [*wrong_directory(disk), *_wrong_raft_directory(process)]:
        process.scheduler.violated(f"{process.name} has stopped cleanly: {', '.join(wrong[:_MOST_SHOWN])}")


def wrong_directory(disk: Disk) -> list[str]:
    """Return what is wrong with the data directory of a process that has stopped cleanly."""
    folder = disk.folder
    wrong = [f"a power cut may lose {path}" for path in disk.unflushed() if not path.endswith(_NEVER_FLUSHED)]
    wrong += [f"a power cut may bring back {path}" for path in disk.restorable() if _STAYS_REMOVED(path)]
    wrong += [f"it has left {path.relative_to(folder)}" for path in sorted(folder.rglob("*.tmp"))]
    empty = [path for path in sorted((folder / "streams").glob("*")) if not real_listdir(path)]
    wrong += [f"it has left the empty folder {path.relative_to(folder)}" for path in empty]
    wrong += [f"{path.relative_to(folder)} has the mode {mode:o}" for path, mode in _wrong_modes(folder)]
    wrong += [f"it has left the mark {name}" for name in (UNREPORTED_DAMAGE, LAZY_FLUSH) if (folder / name).exists()]
    ends = decode_checked_json((folder / LOG_ENDS_NAME).read_bytes())["ends"]
    for name, end in sorted(ends.items()):
        found = _log_end(folder / "streams" / name)
        if found != end:
            wrong.append(f"the log {name} ends at {found}, and {LOG_ENDS_NAME} says {end}")
        if not (folder / "held" / name.replace("/", ".")).exists():
            wrong.append(f"the log {name} has no mark that the node holds it")
    for mark in sorted(path.name for path in (folder / "held").glob("*")):
        if not (folder / "streams" / "/".join(mark.rsplit(".", 1))).is_dir():
            wrong.append(f"the mark {mark} has no log")
    return wrong


def _wrong_modes(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files and folders below ``folder`` that others may read, or that their owner and its group may not."""
    for path in sorted(folder.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (_FOLDER_MODE if path.is_dir() else _FILE_MODE):
            yield path, mode


def _wrong_raft_directory(process: Process) -> list[str]:
    """Return what is wrong with the raft directory, if the process was a controller at its end."""
    group = process.program.group
    if group is None or not group.is_controller:
        return []
    return wrong_raft_directory(process.disk.folder / "raft", process.name, group.image)


def _log_end(log: Path) -> int | str:
    """Return the offset behind the last record of a log, or what is wrong with its segments."""
    segments = sorted(log.glob("*.log"))
    if not segments:
        return "no segment"
    end = int(segments[0].stem)
    for segment in segments:
        if int(segment.stem) < end:
            return f"{end} before the segment {segment.name}"
        end = int(segment.stem)
        try:
            for batch in split_batches(segment.read_bytes()):
                end = batch.next_offset
        except CorruptionError as error:
            return f"{segment.name} with an error: {error}"
    return end
