"""``MetadataGroup``: the interface to the metadata group for all other parts of a node.

There are two backends: ``RaftMember`` on a controller, and ``FeedSubscriber`` on any other node. ``GroupRole`` replaces
one by the other when needed. ``GroupThread`` runs the current backend in its own thread, and implements the interface
on the event loop of the node. A worker process uses ``RelayedGroup``, which forwards to the node's backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb

Watcher = Callable[[ClusterImage, ClusterImage], None]
"""Callback with the image before and after a change.

It runs on the event loop of the group. It must not raise an error or block.
"""


class MetadataGroup(ABC):
    """The metadata group as this process sees it.

    Methods that are not abstract have the behavior of a process without a controller. ``RaftMember`` overrides them.
    """

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        self.ticked: Callable[[], None] = lambda: None
        """Callback after each Raft tick of a controller. Messages that it sends leave in one write with those of the tick."""

    @property
    @abstractmethod
    def image(self) -> ClusterImage:
        """Newest image that this process has. Other processes may have a newer one."""

    @property
    def leader(self) -> str:
        """Node id of the known metadata leader. '': none."""
        return ""

    @property
    def is_controller(self) -> bool:
        """True if this node is a controller now."""
        return False

    @property
    def decides(self) -> bool:
        """True if ``image`` is certainly committed, because this node has been a controller since its start."""
        return False

    @property
    def counters(self) -> dict[str, int]:
        """Number of rejected, failed or lost requests, by reason."""
        return {}

    @property
    def held(self) -> dict[str, int]:
        """Sizes of the data that a controller stores for the metadata group, by kind."""
        return {}

    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image."""
        self._watchers.append(callback)

    def _notify(self, before: ClusterImage, after: ClusterImage) -> None:
        for watcher in self._watchers:
            watcher(before, after)

    def distrust(self) -> None:
        """Drop the image and request it again, because a controller has contradicted it.

        On a controller, the call has no effect.
        """

    def bus_changed(self, online: bool) -> None:
        """Process a change of the NATS connection. ``online``: False if it was lost, True if it is connected again."""

    def prefer(self, every_s: float) -> None:
        """Set how often a controller moves leaderships back to preferred leaders. ``every_s``: seconds, 0: never."""

    async def start(self) -> None:
        """Join the group. Return when this process has an image of the group."""

    def retire(self) -> None:
        """Prepare the stop of this node: from now on it does not become metadata leader, and it starts no election."""

    async def hand_over(self) -> None:
        """Transfer the metadata leadership to another member if this node has it. Give up after a time limit."""

    async def stop(self) -> None:
        """Transfer the metadata leadership if this node has it, flush the log, and leave the group."""

    @abstractmethod
    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Send ``request`` to the metadata leader and return the answer. Its field ``error`` contains the result.

        The call does not raise an error for a rejected request. A request without an operation id gets one. It is repeated
        under this id until the deadline, and is applied once. UNAVAILABLE: nothing changed. OUTCOME_UNKNOWN: the request may be
        applied. Propose it again with the same operation id.
        """

    def send_heartbeat(self, request: pb.ControlRequest, answered: Callable[[pb.ControlResponse], None]) -> None:
        """Send a heartbeat to the metadata leader once, without waiting. ``answered``: called with the answer, if one arrives.

        Without responders on NATS, the answer is UNAVAILABLE. Only a process with its own backend sends heartbeats.
        """
        raise NotImplementedError

    def status(self) -> list[pb.ControllerStatus]:
        """Return the state of each member of the metadata group, as this process knows it. Only controllers know it."""
        return []

    async def events(self, question: bytes) -> dict[str, Any] | None:
        """Return the cluster events that ``question`` requests, for `liftpy events`. None: this node is no controller."""
        return None

    def ticks(self) -> dict[str, float]:
        """Return the delays of the last Raft ticks in ms, and the number of late ticks. Only controllers have ticks."""
        return {}
