"""MetadataGroup: what the rest of the sidecar needs of the metadata group, whether this node is a member or follows the feed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb

Watcher = Callable[[ClusterImage, ClusterImage], None]
"""Called with the image before and after a change, on the loop's thread; must not raise and not block."""


class MetadataGroup(Protocol):
    """The metadata group as seen from this node."""

    @property
    def image(self) -> ClusterImage:
        """The newest image that this node has; another node may know a newer one."""

    @property
    def leader(self) -> str:
        """Node id of the known metadata leader, '' for none."""

    @property
    def is_controller(self) -> bool:
        """True if this node is a controller now."""

    @property
    def decides(self) -> bool:
        """True if ``image`` is certainly committed: the node is a controller and has been one since its start."""

    @property
    def counters(self) -> dict[str, int]:
        """Number of rejected, ended or lost requests, by kind."""

    @property
    def held(self) -> dict[str, int]:
        """Bytes and counts that the group holds here, by kind. Empty on other nodes."""

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image."""

    def distrust(self) -> None:
        """Load the image again, because a controller has contradicted it. A controller keeps its image."""

    async def start(self) -> None:
        """Join; returns when the local image is one that the group has had."""

    def retire(self) -> None:
        """Prepare the stop of this node: it takes no metadata leadership and does not campaign."""

    async def hand_over(self) -> None:
        """Transfer the metadata leadership to another member, if this node has it. Bounded, best effort."""

    async def stop(self) -> None:
        """Hand leadership over if need be, flush, leave."""

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Let the metadata leader decide ``request``. ``error`` in the answer says how it went. It never raises for that.

        A request without an operation id gets one; it is repeated under the same id until the deadline, and applied once.
        UNAVAILABLE: nothing was done. OUTCOME_UNKNOWN: it may have been; propose it again with the same id.
        """

    async def barrier(self, timeout_s: float = 5.0) -> bool:
        """Return whether the local image has everything that was committed before the call [M12]."""

    def status(self) -> list[pb.ControllerStatus]:
        """Return the members as known here."""

    async def events(self, question: bytes) -> dict[str, Any] | None:
        """Return the cluster events for `liftpy events`, None if this node is no controller."""

    def ticks(self) -> dict[str, float]:
        """Return the delays of the last ticks in ms, and the number of late ones. Empty on other nodes."""
