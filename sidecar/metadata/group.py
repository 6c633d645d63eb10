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
        """Node id of the metadata leader as known here, '' when there is none."""

    @property
    def is_controller(self) -> bool:
        """Whether this node is one of the controllers now."""

    @property
    def decides(self) -> bool:
        """Whether ``image`` is what was committed for certain: the node is a controller, and was one since it started."""

    @property
    def counters(self) -> dict[str, int]:
        """What was refused, ended or lost on the way to the group, by kind."""

    @property
    def held(self) -> dict[str, int]:
        """What the group keeps here, by kind: bytes and counts; nothing on a node that is no controller."""

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image."""

    def distrust(self) -> None:
        """A controller has contradicted the local image: have it made anew, unless this node is a controller itself."""

    async def start(self) -> None:
        """Join; returns when the local image is one that the group has had."""

    def retire(self) -> None:
        """This node is about to stop: it takes no leadership of the group over, and does not campaign."""

    async def hand_over(self) -> None:
        """Let another member lead the group, where this one does, and wait until it is known; bounded, best effort."""

    async def stop(self) -> None:
        """Hand leadership over if need be, flush, leave."""

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Have ``request`` decided by the metadata leader; the answer's ``error`` tells how it went. Never raises for that.

        A request without an operation id gets one; it is repeated under the same id until the deadline, and applied once.
        UNAVAILABLE: nothing was done. OUTCOME_UNKNOWN: it may have been; propose it again with the same id.
        """

    async def barrier(self, timeout_s: float = 5.0) -> bool:
        """Whether the local image now holds everything that was committed before the call [M12]."""

    def status(self) -> list[pb.ControllerStatus]:
        """The members as known here."""

    async def events(self, question: bytes) -> dict[str, Any] | None:
        """What happened in the cluster, as `liftpy events` asks for it; None: a node that is no controller does not know it."""

    def ticks(self) -> dict[str, float]:
        """How late the last ticks of the group came, ms, and how many were ever late; empty on a node that is no controller."""
