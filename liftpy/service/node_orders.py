"""``NodeOrders``: the last order of the node (JoinLog) to a service, and the lease until which it is valid."""

from __future__ import annotations

import math
import time

from liftpy.core.wire._pb import service_pb2 as pb


class NodeOrders:
    """The last order of a node to a service.

    ``is_same_process``: True if the node runs in this process. Its orders need no lease.
    """

    def __init__(self, *, is_same_process: bool) -> None:
        self._is_same_process = is_same_process
        self.last: pb.JoinLog | None = None
        """Last order. It may be no longer valid. None: there was none."""
        self.contact_s = 0.0
        """Monotonic time of the last order, in seconds."""

    def accept(self, order: pb.JoinLog) -> None:
        """Use a new order, or an equal one that renews the lease."""
        self.last, self.contact_s = order, time.monotonic()

    def revoke(self) -> None:
        """Let the last order be no longer valid."""
        self.contact_s = -math.inf

    @property
    def valid(self) -> pb.JoinLog | None:
        """The last order, if it is still valid by its lease."""
        order = self.last
        if order is None:
            return None
        if self._is_same_process:
            return order if self.contact_s > -math.inf else None
        return order if time.monotonic() - self.contact_s < order.leaseMs / 1000 else None

    @property
    def is_beside_leader(self) -> bool:
        """True if the service runs on the node of the partition's leader."""
        order = self.valid
        return order is not None and order.leads

    @property
    def log_start_offset(self) -> int:
        """First offset of the log, from the last order. 0: there was none."""
        return self.last.startOffset if self.last is not None else 0
