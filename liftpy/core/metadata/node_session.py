"""A node's view of its session: when a heartbeat answer extends the leases, and the result of a registration. Pure.

An answer extends the lease from the moment that the heartbeat was sent, and only when the local image is as new as the
answer [D22].
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from liftpy.config import NS_PER_MS
from liftpy.core.metadata.features import UNSUPPORTED
from liftpy.core.wire._pb import cluster_pb2 as pb

MAX_WAITING = 64
"""Answered heartbeats that wait for the image; of more, the oldest are worth nothing any more."""


class Registered(Enum):
    """Meaning of an answer to a registration."""

    TAKEN_IN = "this process is the node now"
    TAKEN = "another process runs in its place: ask again for as long as one may need to end"
    REFUSED = "the group never takes it"
    UNSPOKEN = "the cluster is at a feature level that this version does not speak"
    AGAIN = "nothing is decided: ask again under the same operation id"


def registered(response: pb.ControlResponse) -> Registered:
    """Judge the answer to a RegisterNode."""
    match response.error:
        case pb.ControlResponse.OK:
            return Registered.TAKEN_IN
        case pb.ControlResponse.EXISTS:
            return Registered.TAKEN
        case pb.ControlResponse.INVALID if response.detail.startswith(UNSUPPORTED):
            return Registered.UNSPOKEN
        case pb.ControlResponse.INVALID | pb.ControlResponse.STALE:
            return Registered.REFUSED
    return Registered.AGAIN


class Granted(NamedTuple):
    """A granted lease."""

    sent_ns: int
    """When the heartbeat was sent, monotonic: from there it runs."""
    lease_ns: int
    """Lease in the answer, in nanoseconds. 0: that of the node's settings."""


class AnsweredHeartbeats:
    """Heartbeat answers that wait until the local image is as new as they are. Both methods return the current lease,
    None: none.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Granted, int]] = deque(maxlen=MAX_WAITING)
        """Each with the index of the image that the answer was made on."""

    def answered(self, sent_ns: int, answer: pb.ControlResponse, seen_index: int) -> Granted | None:
        """Process a heartbeat answer. Return a granted lease. ``seen_index``: newest image that all parts of this node have."""
        granted = Granted(sent_ns, answer.leaseMs * NS_PER_MS)
        if seen_index >= answer.index:
            self._waiting.clear()
            return granted
        self._waiting.append((granted, answer.index))
        return None

    def image_seen(self, index: int) -> Granted | None:
        """Note that all parts of this node have the image ``index``."""
        granted = None
        while self._waiting and self._waiting[0][1] <= index:
            granted, _ = self._waiting.popleft()
        return granted
