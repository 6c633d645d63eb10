"""Backups of a simulated cluster while its streams grow."""

from __future__ import annotations

import random

from liftpy.core.backup.manifest import Manifest
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.inspect import verify_backup
from sidecar.backup.store import Store
from tests.simulation.world.load.clients import Clients, Model, Place
from tests.simulation.world.world import World


class Backups:
    """Takes backups, each with the pieces of the one before, and reads each of them."""

    def __init__(self, world: World, model: Model, clients: Clients) -> None:
        self.world = world
        self.model = model
        self.clients = clients
        self.store = Store.at(str(world.folder / "backups"))

    def start(self) -> None:
        """Start the client."""
        self.clients.begin("backup", self._run(random.Random(f"backup {self.world.seed}")))

    async def _run(self, draw: random.Random) -> None:
        client = await self.clients.connect()
        while not self.clients.stopping:
            await self.clients.sleep(draw.random() * 12)
            options = BackupOptions(since=draw.choice((None, None, "")), piece_bytes=draw.choice((1 << 24, 20_000)))
            await self.model.call("backup", self._take(client, options))
        await client.close()

    async def _take(self, client: object, options: BackupOptions) -> Manifest:
        acked = {place: max(offsets) for place, offsets in self.model.acked.items() if offsets}
        result = await take_backup(client, self.store, options)  # type: ignore[arg-type]
        checked = verify_backup(self.store, result.manifest)
        if checked.faults:
            self.world.scheduler.violated(f"backup {result.manifest.backup}: {checked.faults[:3]}")
        ends = self._ends(result.manifest)
        missing = [(place, offset) for place, offset in acked.items() if place in ends and ends[place] <= offset]
        if missing and not self.model.may_lose:
            self.world.scheduler.violated(
                f"backup {result.manifest.backup} ends before acknowledged records: {missing[:3]}, {ends}"
            )
        self.world.scheduler.counters["backups"] += 1
        return result.manifest

    @staticmethod
    def _ends(manifest: Manifest) -> dict[Place, int]:
        return {
            (stream.name, partition.partition): partition.high_watermark + 1
            for stream in manifest.streams
            for partition in stream.partitions
        }

    async def check(self) -> None:
        """Take a backup of the quiet cluster: it must succeed."""
        async with self.world.connect() as client:
            if await self.model.call("backup at the end", self._take(client, BackupOptions())) is None:
                self.world.scheduler.violated("no backup of a quiet cluster")
