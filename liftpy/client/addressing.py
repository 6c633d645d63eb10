"""Where a partition's messages go, and when that is doubtful: then the metadata group is asked anew, seldom enough."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from liftpy.client.outgoing import Address
from liftpy.errors import ConfigError, LiftError, NotFoundError

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0


class Addressing:
    """``address``: the newest known. ``moved`` is called when it has changed, ``lost`` when there is no such stream or partition.

    ``find`` asks for it; None: nobody can be asked, and the address stays as it is.
    """

    def __init__(
        self,
        address: Address,
        find: Callable[[], Awaitable[Address]] | None,
        moved: Callable[[], None],
        lost: Callable[[LiftError], None],
    ) -> None:
        self.address = address
        self._find = find
        self._moved = moved
        self._lost = lost
        self.task: asyncio.Task[None] | None = None
        """Asks, in the background; to be ended with its owner."""
        self._ask_at = 0.0
        self._wait_s = _FIRST_WAIT_S
        self.unknown = False
        """There was no such stream or partition when it was asked last: ``look`` before anything is sent."""

    def sure(self) -> None:
        """The addressed leader has answered."""
        self._wait_s = _FIRST_WAIT_S

    def doubt(self) -> None:
        """Ask in the background, unless that was done a moment ago; the moments grow until ``sure``."""
        now = asyncio.get_running_loop().time()
        if self._find is None or now < self._ask_at or (self.task is not None and not self.task.done()):
            return
        self._ask_at, self._wait_s = now + self._wait_s, min(self._wait_s * 2, _LONGEST_WAIT_S)
        self.task = asyncio.create_task(self._doubted(), name="address of a stream")

    async def _doubted(self) -> None:
        try:
            await self.look()
        except (NotFoundError, ConfigError) as error:
            self._lost(error)
        except LiftError:
            pass  # nobody is there to ask, or it is not for us: it stays as it is

    async def look(self) -> None:
        """Ask now; raises NotFoundError, ConfigError, and as requests do."""
        assert self._find is not None
        try:
            address = await self._find()
        except (NotFoundError, ConfigError):
            self.unknown = True
            raise
        self.unknown = False
        if address != self.address:
            self.address = address
            self._moved()
