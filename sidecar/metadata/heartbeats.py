"""Heartbeats: what keeps a node's session, sent from the metadata group's own loop, whatever the node's partitions do meanwhile.

A node whose own loop stands still serves nobody and must not look alive: when it has not taken an answer for as long as a session, no
heartbeat is sent until it does. How fresh its leases are is another matter: they run on only with answers that the node's loop takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

from liftpy.wire._pb import cluster_pb2 as pb
from sidecar import clock
from sidecar.metadata.group import MetadataGroup

Answered = Callable[[int, pb.ControlResponse], None]
"""(monotonic ns at which the heartbeat was sent, the answer), on the node's loop."""


class HeartbeatPace(NamedTuple):
    """How often a node beats, and how long its session is."""

    every_s: float
    session_s: float


class Heartbeats:
    """``run`` on the loop of ``group``; ``answered`` is called on the loop that made this. ``pace`` may be changed at any time."""

    def __init__(self, group: MetadataGroup, heartbeat: pb.Heartbeat, pace: HeartbeatPace, answered: Answered) -> None:
        self.pace = pace
        self._group = group
        self._heartbeat = heartbeat
        self._answered = answered
        self._home = asyncio.get_running_loop()
        self._home_turned = time.monotonic()
        self._asked_home = False

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            started = time.monotonic()
            if started - self._home_turned < self.pace.session_s:
                await self._one_beat()
            self._ask_home()
            await asyncio.sleep(max(0.0, started + self.pace.every_s - time.monotonic()))

    async def _one_beat(self) -> None:
        request = pb.ControlRequest(heartbeat=self._heartbeat)
        sent_ns = clock.now_ns()
        response = await self._group.propose(request, self.pace.session_s / 2)
        with contextlib.suppress(RuntimeError):  # the node's loop has ended
            self._home.call_soon_threadsafe(self._answered, sent_ns, response)

    def _ask_home(self) -> None:
        """Have the node's loop say that it turns."""
        if not self._asked_home:
            self._asked_home = True
            with contextlib.suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._turned)

    def _turned(self) -> None:
        self._asked_home, self._home_turned = False, time.monotonic()
