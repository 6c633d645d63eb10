"""What placement says when a map can't be made."""

from __future__ import annotations

from liftpy.errors import ConfigError


class PlacementError(ConfigError):
    """The request for a placement is wrong; the text says how. Blame: the caller."""

    code = "PLACEMENT"


class NoRoomError(PlacementError):
    """The nodes hold as many partitions as they take. Do: add nodes, delete streams, or raise the nodes' limit of open files."""

    code = "NO_ROOM"
    retryable = True


class NotEnoughNodesError(PlacementError):
    """There are fewer nodes than replicas. Do: start more nodes, or ask for fewer replicas."""

    code = "NOT_ENOUGH_NODES"
    retryable = True
