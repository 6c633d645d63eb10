"""SnapshotKeeper: when a service's state is stored, and how far back the log is needed because of it.

At every multiple of ``snapshot_every`` the machine brings a snapshot about, on all nodes alike. On one node alone it is also stored
after ``snapshot_interval_s`` or ``snapshot_bytes`` of the log, when the process is told to stop, when an operator asks, and right
below a record that can't be applied.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from liftpy.errors import StorageError
from liftpy.service.machine import ServiceMachine
from liftpy.service.outbox import Outbox
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshot import Snapshot
from liftpy.service.store import SnapshotStore

logger = logging.getLogger("liftpy.service")

_KNOWN = 64
_TOLD = 4


class SnapshotKeeper:
    """Stores the snapshots of one service in threads."""

    def __init__(self, store: SnapshotStore, settings: ServiceSettings, outbox: Outbox | None) -> None:
        self._store = store
        self._settings = settings
        self._outbox = outbox
        self._stored: list[tuple[int, int]] = []
        """Position and output count of the newest snapshots, ascending."""
        self._stored_s = time.monotonic()
        self._fresh_bytes = 0
        """Of the log, since the newest snapshot."""
        self._soon = False
        self.life = secrets.randbits(62)
        """Another one whenever the state begins anew."""
        self.digests: list[tuple[int, bytes]] = []
        """Position and digest of the last few that were stored in this life: all nodes' are compared."""
        self.problem = ""
        """Why the last snapshot was not stored; shown in status where nothing worse is."""

    async def newest(self, wanted: Callable[[Snapshot], bool]) -> Snapshot | None:
        """The newest snapshot that is ``wanted``: the state begins from it."""
        snapshot = await asyncio.to_thread(self._store.newest, wanted)
        self._stored = [(snapshot.position, snapshot.output_count)] if snapshot is not None else []
        self._stored_s, self._fresh_bytes = time.monotonic(), 0
        self.life, self.digests = self.life + 1, []
        return snapshot

    async def drop_above(self, position: int) -> None:
        """What lies past ``position`` is of no use any more."""
        await asyncio.to_thread(self._store.drop_above, position)

    async def set_aside(self, first_wrong: int) -> None:
        """States at or past ``first_wrong`` have diverged."""
        await asyncio.to_thread(self._store.set_aside, lambda snapshot: snapshot.position >= first_wrong)

    def set_aside_diverged(self, position: int | None = None) -> None:
        """The service has diverged: no later process begins from a state whose outputs were not compared, or is at or past
        ``position``."""
        outbox = self._outbox
        if position is not None:
            self._store.set_aside(lambda snapshot: snapshot.position >= position)
        if outbox is not None:
            self._store.set_aside(lambda snapshot: snapshot.output_count > outbox.compared_end)

    async def save(self, snapshot: Snapshot) -> None:
        """Store it; one that can't be is said, and the records go on: it only shortens the next replay."""
        compared_end = self._outbox.compared_end if self._outbox is not None else 0
        try:
            digest = await asyncio.to_thread(self._store.save, snapshot, compared_end)
        except StorageError as error:
            logger.warning("%s goes on without the snapshot at %d: %s", snapshot.identity, snapshot.position, error)
            self.problem = f"snapshot at {snapshot.position}: {error.code}: {error}"
        else:
            self.problem = ""
            self._stored = [*self._stored[-_KNOWN:], (snapshot.position, snapshot.output_count)]
            self._stored_s, self._fresh_bytes = time.monotonic(), 0
            self.digests = [*self.digests[1 - _TOLD :], (snapshot.position, digest)]

    def held_from(self) -> int:
        """Position of the newest snapshot that a replay can begin from whatever comes to light: whose outputs are compared; 0: none."""
        compared_end = self._outbox.compared_end if self._outbox is not None else None
        good = [position for position, outputs in self._stored if compared_end is None or outputs <= compared_end]
        return good[-1] if good else 0

    # ---- beside the multiples of snapshot_every ----------------------------------------------------------------------------
    def came(self, size_bytes: int) -> None:
        """So much of the log was read."""
        self._fresh_bytes += size_bytes

    def ask(self) -> None:
        """Somebody wants a snapshot, wherever the state is."""
        self._soon = True

    @property
    def is_due(self) -> bool:
        """Whether ``keep`` is to be called."""
        settings = self._settings
        late = time.monotonic() - self._stored_s >= settings.snapshot_interval_s
        return self._soon or late or self._fresh_bytes >= settings.snapshot_bytes

    async def keep(self, machine: ServiceMachine) -> None:
        """Store the state as it is, where there is one that is not stored."""
        self._soon, self._stored_s, self._fresh_bytes = False, time.monotonic(), 0
        if machine.position and not machine.failed and (not self._stored or self._stored[-1][0] < machine.position):
            await self.save(machine.snapshot())
