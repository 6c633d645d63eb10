"""Loads the group coordinators when the groups stream has its first replica on this node.

A node without such a replica coordinates no group. It does not import the coordinators, the client library and the
replicated services, which need 5 MB.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from liftpy.core.base.worker_assignment import WorkerShare
from liftpy.core.metadata.image import ClusterImage
from liftpy.nats.cancellation import end_tasks
from sidecar.groups.partitions import hosted_partitions
from sidecar.runtime.tasks import spawn

if TYPE_CHECKING:
    from sidecar.groups.coordinators import GroupCoordinators

logger = logging.getLogger("liftpy.groups")


class CoordinatorsOnDemand:
    """Creates the group coordinators of a node when they are first needed. Call ``follow`` for every image.

    ``make``: creates an object of the given class, which is loaded by then.
    """

    def __init__(self, node_id: str, share: WorkerShare, make: Callable[[type[GroupCoordinators]], GroupCoordinators]) -> None:
        self.running: GroupCoordinators | None = None
        """The coordinators. None: the groups stream had no replica here yet."""
        self._node_id = node_id
        self._share = share
        self._make = make
        self._image = ClusterImage()
        self._loading: asyncio.Task[None] | None = None
        self._closed = False

    def follow(self, old: ClusterImage, image: ClusterImage) -> None:
        """Let the coordinators match the replicas of this node in the new ``image``."""
        self._image = image
        if self.running is not None:
            self.running.follow(old, image)
        elif self._loading is None and not self._closed and hosted_partitions(image, self._node_id, self._share):
            self._loading = spawn(self._load(), "loading the group coordinators")

    async def _load(self) -> None:
        try:
            coordinators = await asyncio.to_thread(_load_class)
            self.running = self._make(coordinators)
        except Exception as error:  # a node that cannot coordinate groups still stores records
            logger.error("group coordinators not loaded error=%r: retrying after the next metadata change", error)
            self._loading = None
        else:
            self.running.follow(ClusterImage(), self._image)

    async def close(self) -> None:
        self._closed = True
        await end_tasks([self._loading])
        if self.running is not None:
            await self.running.close()


def _load_class() -> type[GroupCoordinators]:
    """Import the coordinators. It takes 0.1 s, so call it in a thread."""
    from sidecar.groups.coordinators import GroupCoordinators

    return GroupCoordinators
