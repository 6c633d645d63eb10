"""``SnapshotKeeper``: decides when a service's state is stored, and how far back the log is needed for it.

At every multiple of ``snapshot_interval_records`` the machine takes a snapshot on all nodes. A single node also stores
one after
``snapshot_interval_s`` or ``snapshot_bytes`` of the log, when the process stops, when an operator requests it, and
right below a record
that cannot be applied.

All nodes reach a multiple of ``snapshot_interval_records`` at about the same time, and ``take_snapshot`` may block for
long. They take the
snapshot there, so that the bytes can be compared, but in turn: the leader's node at once, the others after one, two,
... times the
duration of the last snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox
from liftpy.core.services.snapshot import Snapshot
from liftpy.errors import StorageError
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshot_download import SnapshotFetcher
from liftpy.service.snapshot_store import Kept, SnapshotStore

logger = logging.getLogger("liftpy.service")

_KNOWN = 64
_TOLD = 4
_NOTICED_S = 0.01
_TURN = 1.5
"""Time between the turns of two nodes, as a share of the last snapshot's duration."""
_LONGEST_TURN_S = 5.0


class SnapshotKeeper:
    """Stores the snapshots of one service in threads."""

    def __init__(
        self, store: SnapshotStore, settings: ServiceSettings, outbox: Outbox | None, fetcher: SnapshotFetcher | None = None
    ) -> None:
        self._store = store
        self._settings = settings
        self._outbox = outbox
        self._fetcher = fetcher
        self._stored: list[Kept] = []
        """The newest snapshots, ascending."""
        self._stored_s = time.monotonic()
        self._fresh_bytes = 0
        """Number of bytes of the log since the newest snapshot."""
        self._soon = False
        self._blocked_s = 0.0
        """Time for which the last snapshot blocked the service, in seconds."""
        self.given_bytes = 0
        """Number of bytes sent to services beside other nodes."""
        self.turn = 0
        """Turn of this node, from the sidecar. 0 is the first."""
        self.life = secrets.randbits(62)
        """Number that changes when the state is rebuilt."""
        self._began: Kept | None = None
        """Snapshot from which the state began, until the log has confirmed it."""
        self.digests: list[tuple[int, bytes]] = []
        """Position and digest of the last few that were stored in this life, and of what it began from: all nodes' are compared."""
        self.stored_count = 0
        """Snapshots that this process has stored."""
        self.saved_s: float | None = None
        """When the newest of them was stored, monotonic."""
        self.state_bytes = 0
        """Size of the newest snapshot, in bytes."""
        self.problem = ""
        """Why the last snapshot was not stored; shown in status where nothing worse is."""

    async def newest(self, wanted: Callable[[Snapshot], bool]) -> Snapshot | None:
        """Return the newest ``wanted`` snapshot to start from."""
        found = await asyncio.to_thread(self._store.newest_kept, wanted)
        self._began = found[1] if found is not None else None
        self._stored = [found[1]] if found is not None else []
        self._stored_s, self._fresh_bytes = time.monotonic(), 0
        self.life, self.digests = self.life + 1, []
        return found[0] if found is not None else None

    def agrees_with_the_log(self) -> None:
        """Note that the initial state belongs to this log, as far as known: other nodes may use it."""
        if self._began is not None:
            self.digests = [(self._began.position, self._began.digest), *self.digests]
            self._began = None

    async def later(self, lowest: int, wanted: Callable[[Snapshot], bool]) -> tuple[Snapshot | None, str]:
        """Return a snapshot at ``lowest`` or above, own or downloaded, and what was tried in vain."""
        if self._fetcher is None:
            return None, "nobody was asked"
        await self._fetcher.fetch(lowest, wanted)
        return await self.newest(wanted), self._fetcher.tried

    async def drop_above(self, position: int) -> None:
        """Drop snapshots past ``position``."""
        await asyncio.to_thread(self._store.drop_above, position)

    async def set_aside(self, first_wrong: int) -> None:
        """States at or past ``first_wrong`` have diverged."""
        await asyncio.to_thread(self._store.set_aside, lambda snapshot: snapshot.position >= first_wrong)

    def set_aside_diverged(self, position: int | None = None) -> None:
        """Quarantine snapshots after a divergence: those with uncompared outputs, and those at or past ``position``."""
        outbox = self._outbox
        if position is not None:
            self._store.set_aside(lambda snapshot: snapshot.position >= position)
        if outbox is not None:
            self._store.set_aside(lambda snapshot: snapshot.output_count > outbox.compared_end)

    async def save(self, snapshot: Snapshot) -> None:
        """Store a snapshot. A failure is only logged, because it only makes the next replay longer."""
        compared_end = self._outbox.compared_end if self._outbox is not None else 0
        try:
            whole = await asyncio.to_thread(snapshot.whole)
            kept = await asyncio.to_thread(self._store.save, whole, compared_end)
        except StorageError as error:
            logger.warning("%s goes on without the snapshot at %d: %s", snapshot.identity, snapshot.position, error)
            self.problem = f"snapshot at {snapshot.position}: {error.code}: {error}"
        else:
            self.problem = ""
            self._stored = [*self._stored[-_KNOWN:], kept]
            self._stored_s, self._fresh_bytes = time.monotonic(), 0
            self.stored_count, self.state_bytes, self.saved_s = self.stored_count + 1, len(whole.state), time.monotonic()
            self.digests = [*self.digests[1 - _TOLD :], (kept.position, kept.digest)]

    def held_from(self) -> int:
        """Return the position of the newest snapshot with compared outputs, 0 for none."""
        good = self._compared()
        return good[-1].position if good else 0

    def _compared(self) -> list[Kept]:
        compared_end = self._outbox.compared_end if self._outbox is not None else None
        return [kept for kept in self._stored if compared_end is None or kept.output_count <= compared_end]

    def offers(self) -> list[Kept]:
        """Return the newest snapshots for other nodes: with compared outputs, and part of this log."""
        return [kept for kept in self._compared() if kept != self._began][-self._settings.snapshots_kept :]

    # ---- not on all nodes at once --------------------------------------------------------------------------------------------
    def blocked(self, took_s: float) -> None:
        """Note how long a snapshot has blocked the service."""
        self._blocked_s = took_s

    def turn_s(self) -> float:
        """Return how long this node waits before it takes a snapshot, so that nodes take turns. 0: no wait."""
        return min(self.turn * self._blocked_s * _TURN, _LONGEST_TURN_S) if self._blocked_s >= _NOTICED_S else 0.0

    # ---- beside the multiples of snapshot_interval_records -----------------------------------------------------------------
    def came(self, size_bytes: int) -> None:
        """Count bytes that were read."""
        self._fresh_bytes += size_bytes

    def ask(self) -> None:
        """Request a snapshot at the current position."""
        self._soon = True

    @property
    def is_due(self) -> bool:
        """True if ``keep`` is to be called."""
        settings = self._settings
        late = time.monotonic() - self._stored_s >= settings.snapshot_interval_s
        return self._soon or late or self._fresh_bytes >= settings.snapshot_bytes

    async def keep(self, machine: ServiceMachine) -> None:
        """Store the current state, if it is not stored."""
        self._soon, self._stored_s, self._fresh_bytes = False, time.monotonic(), 0
        if machine.position and not machine.failed and (not self._stored or self._stored[-1].position < machine.position):
            await self.save(machine.snapshot())
