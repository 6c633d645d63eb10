"""``Upgrader``: beside the partition's leader, writes the decision that activates the next version of a service.

See ``versions.py``.
"""

from __future__ import annotations

import logging
import math
import time

from liftpy.client import Client
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.versions import VersionDecision
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.errors import LiftError
from liftpy.service.bad_record_writer import DecisionWriter
from liftpy.service.settings import ServiceSettings

logger = logging.getLogger("liftpy.service")

AGAIN_S = 10.0
"""Time to look for an appended decision before it is made again, in seconds."""


class Upgrader:
    """Upgrader of one service process."""

    def __init__(self, client: Client, settings: ServiceSettings) -> None:
        self._writer = DecisionWriter(client, "", settings.emit_timeout_s)
        self._service = settings.service
        self._decided_s = -math.inf

    def due(self, order: pb.JoinLog, machine: ServiceMachine) -> tuple[VersionDecision, bool] | None:
        """Return the decision to write now, and whether as the first record of the log.

        None for none. The next call is rate-limited.
        """
        active, newest = machine.active_version, machine.version
        first = order.highWatermark < 0 and machine.position == 0 and newest > active + 1
        version = newest if first else active + 1
        if version > min(newest, order.lowestVersion) or time.monotonic() - self._decided_s < AGAIN_S:
            return None
        self._decided_s = time.monotonic()
        return VersionDecision(self._service, version, order.leaderEpoch), first

    async def decide(self, machine: ServiceMachine, decision: VersionDecision, first: bool) -> None:
        """Append the decision. After a failure it is due again later."""
        try:
            await self._writer.upgrade(machine.identity, decision, first=first)
        except LiftError as error:
            logger.warning("%s: version %d could not be decided: %s: %s", machine.identity, decision.version, error.code, error)
