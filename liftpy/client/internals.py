"""What a Client has to do with internal streams: the cluster's own, whose names begin with ``_``."""

from __future__ import annotations

import asyncio

from liftpy.client.admin import Admin
from liftpy.cluster.image import INSUFFICIENT_NODES, StreamImage
from liftpy.errors import NotFoundError, UnavailableError
from liftpy.wire.subjects import GROUPS_STREAM

_PLACED_S = 10.0
_POLL_S = 0.25


class Internals:
    """Mixed into Client."""

    _admin: Admin

    async def stream(self, name: str) -> StreamImage:
        """As ``Client.stream``."""
        raise NotImplementedError

    def allow_internal(self) -> None:
        """From here on this client may make, change, cut and delete internal streams: without it that is refused. Nobody publishes to
        one, or finds one by a pattern that does not begin with ``_`` itself; they are read by name, as any other."""
        self._admin.internal = True

    async def groups_stream(self) -> StreamImage:
        """The stream of what members of groups and workers of queues say; made where it is not there yet, as the nodes' settings say
        (``groups_partitions``, ``groups_replicas``). Raises UnavailableError (also: there are not enough nodes), ConfigError."""
        give_up_at = asyncio.get_running_loop().time() + _PLACED_S
        try:
            found = await self.stream(GROUPS_STREAM)
        except NotFoundError:
            found = await self._admin.open_groups()
        while not found.partitions:
            if asyncio.get_running_loop().time() >= give_up_at:
                raise UnavailableError(f"stream {GROUPS_STREAM} is made, and waits for more nodes ({INSUFFICIENT_NODES})")
            await asyncio.sleep(_POLL_S)
            found = await self._admin.stream(GROUPS_STREAM)
        return found
