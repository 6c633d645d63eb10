"""A simulated process deletes partitions that have moved away, as ``sidecar.partition.replica_manager`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.metadata import data_deletion
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.simulation.replica.clock import MS

if TYPE_CHECKING:
    from tests.simulation.replica.process import SimProcess

_ASKS_AGAIN_NS = 300 * MS


def key_of(folder: str) -> PartitionKey:
    """Return the partition of a simulated directory."""
    stream, *uid, number = folder.split("-")
    return PartitionKey(stream, "-".join(uid), int(number))


class Leaving:
    """Deletions of one process."""

    def __init__(
        self, process: SimProcess, stop: Callable[[PartitionKey], str], deleted: Callable[[str], None], over: Callable[[], None]
    ) -> None:
        """``stop``: stops a replica and returns its directory.

        ``deleted``: called after a deletion. ``over``: called when the partition may be opened again.
        """
        self._process = process
        self.throttle = CatchupThrottle.from_config(process.cluster.config)
        self._stop = stop
        self._deleted = deleted
        self._over = over
        self.unopened: dict[str, Log] = {}
        """Logs that it found at its start, by folder, and that no replica has taken."""
        self.ending: set[str] = set()
        """Directories for which the metadata group is asked whether they may be deleted. They are not opened in this time."""

    def follow(self, image: ClusterImage) -> None:
        """Stop partitions that ``image`` shows elsewhere, and check unopened directories."""
        process, logs = self._process, self.unopened
        for key in [key for key in process.replicas if self._is_elsewhere(key, image)]:
            self._end(key, self._stop(key))
        for name in [name for name in logs if self._is_elsewhere(key_of(name), image)]:
            logs.pop(name).close(clean=False)
            self._end(key_of(name), name)

    def _is_elsewhere(self, key: PartitionKey, image: ClusterImage) -> bool:
        found = image.find(key.stream, key.uid, key.partition)
        return found is not None and self._process.node_id not in found[1].holders

    def _end(self, key: PartitionKey, folder: str) -> None:
        self.ending.add(folder)
        self._ask(key, folder)

    def _ask(self, key: PartitionKey, folder: str) -> None:
        process = self._process

        def answered(response: pb.ControlResponse) -> None:
            if folder in self.ending:
                allowed = data_deletion.may_delete(response, key, process.node_id)
                if allowed is not None:
                    self.ending.discard(folder)
                    if allowed:
                        self._delete(key, folder)
                    self._over()

        def again() -> None:
            if folder in self.ending:
                self._ask(key, folder)

        process.cluster.group.propose(
            process.host,
            data_deletion.question(key),
            lambda response: process.run(lambda: answered(response)) if response else None,
        )
        process.later(_ASKS_AGAIN_NS, again)

    def _delete(self, key: PartitionKey, folder: str) -> None:
        process = self._process
        process.cluster.checkers.deletes(process, key)
        process.cluster.counters["data deleted: moved away"] += 1
        process.disk.folders.pop(folder, None)
        self._deleted(folder)
