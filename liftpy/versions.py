"""Every format that is written to a disk: the versions that this code reads, and the one that it writes at each feature level.

Two rules, which a test holds as far as code can. Version N reads all that N - 1 wrote at any level. And nothing new is written before
the level that brings it is finalized, so that until then the way back is open: a new format version is a row of ``features.py`` too.
What is only a cache (an index, a state) is written anew where it does not fit, and so needs no level.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftpy.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DiskFormat:
    """``code``: module and constant of the newest version; ``writes``: feature level -> version from there on."""

    where: str
    code: str
    reads: tuple[int, ...]
    writes: Mapping[int, int]
    is_cache: bool = False
    """It can be made again from what is beside it."""

    def written_at(self, level: int) -> int:
        """The version that is written at a feature level."""
        return self.writes[max(since for since in self.writes if since <= level)]


DISK_FORMATS: Mapping[str, DiskFormat] = {
    "record batch": DiskFormat("<base>.log of a partition", "liftpy.wire.batch:VERSION", (1,), {1: 1}),
    "small files of a log": DiskFormat(
        "high-watermark, leader-epochs, compaction-horizon, <base>.index, scrub",
        "liftpy.log.small_files:_VERSION",
        (1,),
        {1: 1},
    ),
    "derived state": DiskFormat(
        "state-<offset> of a partition", "liftpy.log.small_files:_VERSION", (1,), {1: 1}, is_cache=True
    ),
    "promises": DiskFormat("promises/promises of a node", "liftpy.log.promises:_VERSION", (1,), {1: 1}),
    "node file": DiskFormat("node, in the data folder", "sidecar.disk.data_folder:_FORMAT", (1,), {1: 1}),
    "group's journal": DiskFormat("raft/journal of a controller", "sidecar.raft.journal:_MAGIC", (1,), {1: 1}),
    "group's snapshot file": DiskFormat("raft/snapshot of a controller", "sidecar.raft.snapshot_file:_VERSION", (1,), {1: 1}),
    "group's lineage": DiskFormat("raft/lineage of a controller", "sidecar.raft.lineage:_FORMAT", (1,), {1: 1}),
    "image": DiskFormat("within raft/snapshot", "liftpy.cluster.snapshot:LEVELLED", (1, 2), {1: 1, 2: 2}),
    "backup": DiskFormat("backups/<id>/manifest.json of a store of backups", "liftpy.backup.manifest:FORMAT", (1,), {1: 1}),
    "service snapshot": DiskFormat(
        "a service's own folder", "liftpy.service.snapshot:VERSION", (2, 3, 4), {1: 4}, is_cache=True
    ),
}
"""Name -> what it is. A service snapshot that uses nothing of version 4 is written as 3; the log replays what can't be read."""
