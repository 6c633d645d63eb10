"""The images that stopped controllers hold, read from their folders: as of the last entry that all of them have applied."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from liftpy.core.metadata.codec import image_to_bytes
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.image import ClusterImage
from sidecar.quorum.journal import GroupJournal, change_in
from sidecar.quorum.snapshot_file import decode_snapshot_file


def _entries(folder: Path) -> tuple[ClusterFsm, int, list[tuple[int, bytes]]]:
    fsm, journal = ClusterFsm(elections=True), GroupJournal(folder / "journal")
    snapshot = folder / "snapshot"
    if snapshot.exists():
        fsm.restore(decode_snapshot_file(snapshot.read_bytes()).image)
    found = []
    for position in range(len(journal)):
        entry = journal[position]
        assert isinstance(entry, tuple)
        command, index, _ = entry
        if index > fsm.image.index and (command[:1] == b"\x00" or change_in(command, index) is not None):
            found.append((index, command[1:]))
    last = journal.last_index
    journal.close()
    return fsm, last, found


def images(folders: Iterable[Path]) -> list[ClusterImage]:
    """One for each raft folder, all after the same entry."""
    read = [_entries(folder) for folder in folders]
    common = max(min(last for _, last, _ in read), max(fsm.image.index for fsm, _, _ in read))
    for fsm, _, entries in read:
        for index, entry in entries:
            if index <= common:
                fsm.apply(entry, index)
    return [fsm.image for fsm, _, _ in read]


def equal(found: list[ClusterImage]) -> bool:
    """Byte for byte, digest included."""
    return len({image_to_bytes(image) for image in found}) == 1
