"""Identity of the data directory, and whether it may have lost records since the last run. The registration contains both.

In two cases the node leaves ISRs (C7). The first case is damage in a log (``recovery.py``). From the first damage to the
registration, the file ``unreported-damage`` stands for it, because the next recovery finds nothing. The second case is the
file ``lazy-flush`` in the data directory. It means that a log was open with a flush policy other than ``always``, and that the
process did not flush all its logs at its end.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.errors import WrongDataDirectoryError
from sidecar.disk.data_folder import LAZY_FLUSH, UNREPORTED_DAMAGE, DataDirectory, NodeIdentity


@dataclass(frozen=True, slots=True)
class PreviousProcess:
    """Facts about the last process that ran on the data directory.

    ``incarnation``: its incarnation. 0: there was none. ``flushed_always``: True if a kill could not lose acknowledged
    records.
    """

    incarnation: int
    clean_stop: bool
    flushed_always: bool


def unknown_folders(folder: DataDirectory, image: ClusterImage) -> list[str]:
    """Return the directories of streams that are not in the image: deleted streams, or streams of another cluster.

    The node keeps their data. It deletes data only after a committed deletion of this stream [M11].
    """
    known = {f"{stream.name}-{stream.uid}" for stream in image.streams.values()}
    return sorted(path.name for path in (folder.path / "streams").glob("*") if path.name not in known)


class NodeFile:
    """The ``node`` file and the clean-stop marker of a locked data directory."""

    def __init__(self, folder: DataDirectory, node_id: str) -> None:
        self._folder = folder
        stored = folder.load_identity()
        if stored is not None and stored.node_id != node_id:
            raise WrongDataDirectoryError(
                f"Data directory {folder.path} belongs to node {stored.node_id!r}, not to {node_id!r}. Check --data "
                "and --node-id."
            )
        self._stored = stored or NodeIdentity(node_id)
        if not self._stored.starts.folder_id:
            self._stored = replace(self._stored, starts=replace(self._stored.starts, folder_id=secrets.token_hex(8)))
        has_damage = folder.has_mark(UNREPORTED_DAMAGE)
        self.previous = PreviousProcess(
            self._stored.incarnation,
            clean_stop=self._stored.stopped_cleanly and not has_damage,
            flushed_always=not (folder.has_mark(LAZY_FLUSH) or has_damage),
        )

    def count_start(self) -> DirectoryIdentity:
        """Increase the number of starts in the data directory, and store it with a new nonce, before the process registers [S15]."""
        nonce = 1 + secrets.randbelow((1 << 64) - 1)
        self._stored = replace(self._stored, starts=self._stored.starts.next(nonce))
        self._folder.store_identity(self._stored)
        return self._stored.starts

    def begin(self, incarnation: int) -> None:
        """Store the incarnation of this process in the data directory. The directory now counts as not cleanly stopped.

        The metadata group has recorded which replicas may lack records. So a kill makes no other replica incomplete.
        """
        self._stored = replace(self._stored, incarnation=incarnation, starts=self._stored.starts.after_registration())
        self._folder.store_identity(self._stored)
        self._folder.remove_mark(UNREPORTED_DAMAGE)

    def end_flushed(self) -> None:
        """Note that all records are on the disk at the end of this process, although the stop is not clean.

        Call it only in a process that has registered. Until then, the metadata group may not know what an earlier process lost.
        """
        self._folder.remove_mark(LAZY_FLUSH)

    def end_cleanly(self, log_ends: Mapping[str, int] = MappingProxyType({})) -> None:
        """Store the clean-stop marker. All acknowledged data is on disk, and no more data will be written [S9].

        ``log_ends``: name of each log -> its log end offset (exclusive).
        """
        self._folder.store_log_ends(self._stored.starts.registered, log_ends)
        self._folder.store_identity(replace(self._stored, clean_incarnation=self._stored.incarnation))
        self._folder.remove_mark(LAZY_FLUSH)
