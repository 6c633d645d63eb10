"""``python -m tests.system.backup.dying create|restore URL NATS STEP [SCRATCH]``: do it, and be killed by SIGKILL before that step."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from liftpy.client import connect
from liftpy.config import DefaultQuota
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.inspect import read_image
from sidecar.backup.restore import ClusterWide, Restore, RestoreOptions, StreamRestore
from sidecar.backup.store import Store
from sidecar.runtime.settings import Target

CREATE_STEPS = ("begin", "barrier", "pieces", "image", "check", "manifest", "end")
RESTORE_STEPS = ("look", "stage", "register", "create", "serve", "replicate", "settings", "open", "leave", "remove", "cursors")
PIECE_BYTES = 50_000
QUOTA = DefaultQuota(records_per_s=1_000_000)


def wishes_for(store: Store) -> list[StreamRestore]:
    """All streams of the newest backup, under their names."""
    manifest = store.newest()
    image = read_image(store, manifest)
    return [
        StreamRestore(
            name=s.name,
            into=s.name,
            subject=image.streams[s.name].subject,
            config=image.streams[s.name].config,
            replicas=image.streams[s.name].replica_count,
        )
        for s in manifest.streams
    ]


async def main(what: str, url: str, nats: str, dies_at: str, scratch: str) -> None:
    """As the module says."""

    def step(name: str) -> None:
        if name == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    store = Store.at(url)
    async with connect(nats) as client:
        if what == "create":
            await take_backup(client, store, BackupOptions(piece_bytes=PIECE_BYTES), step=step)
        else:
            options = RestoreOptions(target=Target(nats=(nats,)), scratch=Path(scratch), wide=ClusterWide(QUOTA))
            await Restore(client, store, store.newest(), wishes_for(store), options, step).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
