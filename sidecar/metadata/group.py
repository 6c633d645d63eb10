"""MetadataGroup: the one face of the metadata group, and what every process does alike.

The face has two backends: ``RaftMember`` on a controller, ``FeedSubscriber`` on any other node. ``GroupRole`` exchanges one for the
other. ``GroupThread`` runs the current backend in its own thread and is the face on the loop of the node. A worker process reaches
the backend of its node through ``RelayedGroup``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb

Watcher = Callable[[ClusterImage, ClusterImage], None]
"""Called with the image before and after a change, on the loop of the group; must not raise and not block."""


class MetadataGroup(ABC):
    """The metadata group as seen from this process.

    A method that is not abstract does what a process without a controller does. ``RaftMember`` overrides it.
    """

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []

    @property
    @abstractmethod
    def image(self) -> ClusterImage:
        """The newest image that this process has. Another process may know a newer one."""

    @property
    def leader(self) -> str:
        """Node id of the known metadata leader, '' for none."""
        return ""

    @property
    def is_controller(self) -> bool:
        """True if this node is a controller now."""
        return False

    @property
    def decides(self) -> bool:
        """True if ``image`` is certainly committed: the node is a controller and has been one since its start."""
        return False

    @property
    def counters(self) -> dict[str, int]:
        """Number of rejected, ended or lost requests, by kind."""
        return {}

    @property
    def held(self) -> dict[str, int]:
        """Bytes and counts that a controller holds for the group, by kind."""
        return {}

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image."""
        self._watchers.append(callback)

    def _notify(self, before: ClusterImage, after: ClusterImage) -> None:
        for watcher in self._watchers:
            watcher(before, after)

    def distrust(self) -> None:
        """Load the image again, because a controller has contradicted it. A controller keeps its image."""

    def bus_changed(self, online: bool) -> None:
        """Note that the connection was lost or is back. The feed notices missed entries as a gap."""

    def prefer(self, every_s: float) -> None:
        """Set the interval of the preferred-leader check of a controller, in seconds. 0: never."""

    async def start(self) -> None:
        """Join; returns when the local image is one that the group has had."""

    def retire(self) -> None:
        """Prepare the stop of this node: it takes no metadata leadership and does not campaign."""

    async def hand_over(self) -> None:
        """Transfer the metadata leadership to another member, if this node has it. Bounded, best effort."""

    async def stop(self) -> None:
        """Transfer the metadata leadership if this node has it, flush, leave."""

    @abstractmethod
    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Let the metadata leader decide ``request``. ``error`` in the answer says how it went. It never raises for that.

        A request without an operation id gets one; it is repeated under the same id until the deadline, and applied once.
        UNAVAILABLE: nothing was done. OUTCOME_UNKNOWN: it may have been; propose it again with the same id.
        """

    async def barrier(self, timeout_s: float = 5.0) -> bool:
        """Return whether the local image has everything that was committed before the call [M12]."""
        return False

    def status(self) -> list[pb.ControllerStatus]:
        """Return the members as known here. Only controllers know them."""
        return []

    async def events(self, question: bytes) -> dict[str, Any] | None:
        """Return the cluster events for `liftpy events`, None if this node is no controller."""
        return None

    def ticks(self) -> dict[str, float]:
        """Return the delays of the last ticks in ms, and the number of late ones. Only controllers have ticks."""
        return {}
