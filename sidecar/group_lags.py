"""GroupLags: looks from time to time how far the groups of this node's coordinators are behind (``liftpy.group.lags``).

Where a partition ends, this node mostly knows itself: it has a replica in sync. Of others the coordinator that leads asks, at most
``ASKS`` questions a look, so a scrape asks nobody. A look takes ``SLICE_S`` of the event loop at once and then leaves it alone for
``PAUSE_S``, however many positions there are: it takes longer then, and what is shown is older.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.transport import Transport
from liftpy.errors import LiftError, UnavailableError
from liftpy.group.coordinator import GroupCoordinator
from liftpy.group.lags import MOST_PARTITIONS, GroupLabels, GroupLag, KnownEnds, read_by
from liftpy.ids import PartitionKey
from liftpy.wire.subjects import Subjects
from sidecar import clock

EVERY_S = 2.0
SLICE_S, PAUSE_S = 0.002, 0.05
ASKS = 20
ASKED_AT_ONCE = 8
PATIENCE_S = 1.0
LOOK_FAILED = "looks at groups that failed"
_LOOKED_AT_ONCE = 64
"""Positions between two looks at the clock."""

BoundsOf = Callable[[PartitionKey], tuple[int, int] | None]
"""(log start, HW + 1) of a partition of which this process has a replica in sync; None: it has none."""


class GroupLags:
    """``bounds_of``: where a partition begins and ends that is here. ``of``: how far the groups are whose coordinators lead here, by
    label."""

    def __init__(self, bounds_of: BoundsOf, namespace: str, labels: GroupLabels | None = None) -> None:
        self._bounds_of = bounds_of
        self._namespace = namespace
        self._labels = labels or GroupLabels()
        self._ends = KnownEnds()
        self.of: dict[str, GroupLag] = {}

    async def look(self, coordinators: Iterator[tuple[GroupCoordinator, bool]], transport: Transport | None) -> None:
        """One look at the groups of ``coordinators``, of which True ones lead; then questions, if somebody leads."""
        found: dict[str, GroupLag] = {}
        read: set[PartitionKey] = set()
        elsewhere: set[PartitionKey] = set()
        began, count = time.monotonic(), 0
        for state, leads in coordinators:
            groups = state.groups
            for name in list(groups):
                if (group := groups.get(name)) is None or group.cursor:
                    continue
                lag = GroupLag()
                for key, position in read_by(group):
                    count += 1
                    if count % _LOOKED_AT_ONCE == 0 and time.monotonic() - began > SLICE_S:
                        await asyncio.sleep(PAUSE_S)
                        began = time.monotonic()
                    self._look_at(key, read, elsewhere if leads else None)
                    lag.add(self._ends.get(key), position, clock.now_ns())
                if leads:
                    found[name] = lag
        self.of = self._labels.shown(found)
        self._ends.keep(read)
        if transport is not None and elsewhere:
            await self._ask(transport, elsewhere)

    def _look_at(self, key: PartitionKey, read: set[PartitionKey], elsewhere: set[PartitionKey] | None) -> None:
        """Have its end known, where it is here; else it is to be asked for, if this is a leader's."""
        if key in read or len(read) >= MOST_PARTITIONS:
            return
        read.add(key)
        bounds = self._bounds_of(key)
        if bounds is not None:
            start, end = bounds
            self._ends.told(key, end, clock.now_ns(), start)
        elif elsewhere is not None:
            elsewhere.add(key)

    async def _ask(self, transport: Transport, keys: set[PartitionKey]) -> None:
        wanted = iter(self._ends.to_ask(keys, ASKS))

        async def some() -> None:
            for key in wanted:
                await self._ask_for(transport, key)

        await asyncio.gather(*(some() for _ in range(ASKED_AT_ONCE)))

    async def _ask_for(self, transport: Transport, key: PartitionKey) -> None:
        options = ReadOptions(patience_s=PATIENCE_S, answer_timeout_s=PATIENCE_S)
        reader = PartitionReader(transport, Subjects(self._namespace), key.stream, key.partition, options)
        try:
            bounds, _ = await reader.bounds(key.uid)
        except UnavailableError:
            return  # it still ends there or later
        except LiftError:
            self._ends.forget(key)  # it is gone, or another stream by now
        else:
            self._ends.told(key, bounds.end_offset, clock.now_ns(), bounds.log_start_offset)
