"""What was lost with connections that a server cut: it knows what it had delivered, we know what arrived [A11].

The difference was with the server, or on its way. Of connections that are closed a nats-server tells named accounts only, not the
global one; there what it said last, while the connection was open, is the least that was lost. A server that is gone can't be asked.
What is published before a connection is back, and heard by no subscription, isn't in any number either.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from liftpy.dataclass import dataclass
from liftpy.replica.overflow import Overflow
from sidecar.bus.backlog import Backlog, Told
from sidecar.tasks import spawn

logger = logging.getLogger("liftpy.ingest")

_TRIES = 5
_TRY_S = 0.2


@dataclass(frozen=True, slots=True)
class _Cut:
    server_id: str
    client_id: int
    last: Told | None
    """What its server said of it last, while it was open."""


class Cuts:
    """Of one connection of a node, ever."""

    def __init__(self, backlog: Backlog | None, overflow: Overflow) -> None:
        self._backlog = backlog
        self._overflow = overflow
        self._cuts: deque[_Cut] = deque()
        """Lost connections whose last bytes are still in the buffer."""
        self._seen = 0
        """Messages that had arrived when the last of the others was passed."""
        self.lost_messages = 0
        """Delivered by a server, and never arrived."""
        self.unknown = 0
        """Connections of which nobody can say it."""
        self._last: Told | None = None

    def lost(self, server_id: str, client_id: int) -> None:
        """A connection was lost; what it brought before may not have been looked at yet."""
        last, self._last = self._last, None
        self._cuts.append(_Cut(server_id, client_id, last))

    def passed(self, seen: int) -> None:
        """All that it brought has been looked at: ``seen`` messages since the node started."""
        cut, arrived = self._cuts.popleft(), seen - self._seen
        self._seen = seen
        spawn(self._judge(cut, arrived), "counting what a cut connection cost")

    def told(self, told: Told) -> None:
        """What the server says of the connection while it is open."""
        self._last = told

    async def _judge(self, cut: _Cut, arrived: int) -> None:
        told = await self._ask(cut)
        self.unknown += told is None
        named = cut.server_id, cut.client_id
        known = [t.delivered for t in (told, cut.last) if t is not None and (t.server_id, t.client_id) == named]
        lost = max([arrived, *known]) - arrived
        self.lost_messages += lost
        if told is None:
            least = f"{lost} at least" if lost else "an unknown number"
            logger.warning("publishes were lost with a connection, and the server can't say how many: %s", least)
            return
        if "pending" in told.reason.lower():
            self._overflow.cut_at(told.backlog_bytes)
        if lost:
            logger.warning("publishes were lost with a connection that the server closed (%s): %d", told.reason, lost)

    async def _ask(self, cut: _Cut) -> Told | None:
        """What the server says of the connection, once it is closed; None if it says nothing."""
        answers: asyncio.Queue[Told] = asyncio.Queue()
        for _ in range(_TRIES if self._backlog is not None else 0):
            assert self._backlog is not None
            self._backlog.ask(cut.server_id, cut.client_id, answers.put_nowait, at_once=True)
            try:
                told = await asyncio.wait_for(answers.get(), _TRY_S)
            except TimeoutError:
                continue
            if told.reason:
                return told
            await asyncio.sleep(_TRY_S)
        return None
