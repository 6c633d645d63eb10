"""``python -m tests.system.backup.compacted --rounds 30``: backups of cleaned streams that are written; exit 1 at a violation.

Three streams on three nodes are written without a pause, with small segments: ``keyed`` is compacted, with deletes; ``subjects`` has
``max_per_subject``; ``both`` has both. Each round takes a backup of them (most use the pieces of the one before), verifies it, restores
it into another cluster and compares the restored records with all that was acknowledged up to the end of the copy:

- The newest record of each key is there, or its delete is in effect; the newest records of each subject are there.
- Each record that is there was acknowledged at its offset, with this key and value.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from random import Random

from liftpy.client import Client, Publisher, connect
from liftpy.config import StreamConfig
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError, OutcomeUnknownError, PublishRejectedError, TombstonesMissedError, UnavailableError
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.inspect import verify_backup
from sidecar.backup.restore import Restore, RestoreOptions, StreamRestore
from sidecar.backup.store import Store
from sidecar.dev.cluster import DevCluster
from sidecar.runtime.settings import Target
from tests.system.backup.__main__ import ViolationError, must

KEYS, SUBJECTS, KEPT = 3000, 30, 100
DELETE_SHARE = 0.2
_COMMON = {"segment_bytes": 128 * 1024, "delete_retention_s": 10.0, "dedup_window_s": 1.0}
CONFIGS = {
    "keyed": StreamConfig(compaction=True, **_COMMON),  # type: ignore[arg-type]
    "subjects": StreamConfig(max_per_subject=KEPT, **_COMMON),  # type: ignore[arg-type]
    "both": StreamConfig(compaction=True, max_per_subject=KEPT, **_COMMON),  # type: ignore[arg-type]
}
BYTES_PER_S = 1_000_000
"""Of a backup: its copies take longer than compaction takes to come by."""
_AT_ONCE = 32
PATIENCE_S = 120.0
"""Of every wait."""


@dataclass(frozen=True, slots=True)
class Said:
    """A record that was acknowledged."""

    offset: int
    subject: str
    key: bytes | None
    value: bytes | None


@dataclass
class Writer:
    """Writes one stream. ``acked``: by offset."""

    stream: str
    rng: Random
    acked: dict[int, Said] = field(default_factory=dict)
    unsure: list[Said] = field(default_factory=list)
    """Records without an answer, at offset -1: stored or not."""
    number: int = 0
    pending: set[int] = field(default_factory=set)
    """Numbers of the records that are not answered yet."""

    @property
    def config(self) -> StreamConfig:
        """Of its stream."""
        return CONFIGS[self.stream]

    async def run(self, client: Client) -> None:
        """Write all keys in turn, for ever."""
        count = SUBJECTS if self.config.max_per_subject else 1
        publishers = [await client.publisher(self.stream, subject=f"data.{self.stream}.s{number}") for number in range(count)]
        await asyncio.gather(*(self._write(publishers) for _ in range(_AT_ONCE)))

    async def _write(self, publishers: list[Publisher]) -> None:
        while True:
            number, self.number = self.number, self.number + 1
            key = number % KEYS
            chosen = key % len(publishers) if self.rng.random() < 0.9 else self.rng.randrange(len(publishers))
            deletes = self.config.compaction and self.rng.random() < DELETE_SHARE
            value = None if deletes else b"%d " % number + b"x" * self.rng.randint(500, 1500)
            name = b"k%d" % key if self.config.compaction else None
            said = Said(-1, f"s{chosen}", name, value)
            self.pending.add(number)
            try:
                ack = await publishers[chosen].publish(value, key=name)
                self.acked[ack.offset] = replace(said, offset=ack.offset)
            except OutcomeUnknownError:
                self.unsure.append(said)
            except (UnavailableError, PublishRejectedError):
                pass  # it is not stored
            finally:
                self.pending.discard(number)


def wrong(writer: Writer, end: int, found: list[Record]) -> list[str]:
    """What a restored log of the records below ``end`` lacks, or has and should not."""
    there = {record.offset: record for record in found}
    said = [writer.acked[offset] for offset in sorted(writer.acked) if offset < end]
    unsure = {(one.key, one.value) for one in writer.unsure}
    faults = [
        f"offset {offset} was never sent, or is not below {end}"
        for offset, record in there.items()
        if offset >= end or (offset not in writer.acked and (record.key, record.value) not in unsure)
    ]
    for offset, record in there.items():
        known = writer.acked.get(offset)
        if known is not None and (known.key, known.value) != (record.key, record.value):
            faults.append(f"offset {offset} has another key or value")
    newest: dict[bytes, Said] = {}
    by_subject: dict[str, list[Said]] = defaultdict(list)
    for one in said:
        by_subject[one.subject].append(one)
        if one.key is not None:
            newest[one.key] = one
    config, unsure_keys = writer.config, {one.key for one in writer.unsure}
    recent: set[int] = set()
    for subject, some in by_subject.items():
        maybe = sum(one.subject == subject for one in writer.unsure)
        kept = max(config.max_per_subject - maybe, 0) if config.max_per_subject else len(some)
        recent.update(one.offset for one in some[len(some) - min(kept, len(some)) :])
    for one in said:
        superseded = (
            config.compaction
            and one.key is not None
            and (newest[one.key] is not one or one.value is None or one.key in unsure_keys)
        )
        if one.offset in recent and not superseded and one.offset not in there:
            faults.append(f"{one.key or one.subject!r} lacks its newest record, at {one.offset}")
    for key, one in newest.items() if config.compaction else ():
        if one.value is None and one.offset not in there and one.offset in recent and key not in unsure_keys:
            older = [record.offset for record in found if record.key == key]
            faults += [f"{key!r} was deleted at {one.offset}, and its value at {older[-1]} is back"] if older else []
    return faults


async def _read(client: Client, stream: str) -> list[Record]:
    """All records; begun anew where the restored stream drops its deletes while it is read [R12]."""
    while True:
        with contextlib.suppress(TombstonesMissedError):
            return [record async for record in client.consume(stream, until="end", start="earliest")]


async def _round(number: int, source: Client, target: Client, url: str, store: Store, writers: list[Writer]) -> str:
    began = time.monotonic()
    since = "" if number % 5 == 1 else None
    taken = await take_backup(source, store, BackupOptions(bytes_per_s=BYTES_PER_S, piece_bytes=1_000_000, since=since))
    sent = {writer.stream: set(writer.pending) for writer in writers}
    found = verify_backup(store, taken.manifest)
    must(not found.faults, f"verify: {found.faults}")
    copies = {stream.name: stream.partitions[0] for stream in taken.manifest.streams}
    wishes = [
        StreamRestore(name=name, into=f"{name}-{number}", subject=f"r{number}.{name}.>", config=CONFIGS[name], replicas=1)
        for name in copies
    ]
    options = RestoreOptions(target=Target(nats=(url,)), cursors=False)
    await Restore(target, store, taken.manifest, wishes, options).run()
    counts = []
    for writer in writers:
        end = copies[writer.stream].high_watermark + 1
        still = sent[writer.stream]  # they were committed, and their acks are on the way
        await _until(lambda writer=writer, still=still: not writer.pending & still, f"{writer.stream}: all acks come")
        records = await _read(target, f"{writer.stream}-{number}")
        faults = wrong(writer, end, records)
        must(not faults, f"{writer.stream} below {end}: {len(faults)} faults: {'; '.join(faults[:4])}")
        counts.append(f"{writer.stream} {len(records)} of {end}")
        await target.admin.delete_stream(f"{writer.stream}-{number}")
    kept = f", {taken.reused_bytes >> 10} KiB of earlier pieces" if taken.reused_bytes else ""
    return f"{number:3} {'; '.join(counts)}; copied in {taken.took_s:.1f} s{kept} ({time.monotonic() - began:.0f} s)"


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        must(time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}")
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _writing(client: Client, writers: list[Writer]) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(writer.run(client)) for writer in writers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run(rounds: int, seed: int) -> int:
    """All rounds; the exit code."""
    rng = Random(seed)
    writers = [Writer(name, Random(rng.random())) for name in CONFIGS]
    with tempfile.TemporaryDirectory(prefix="liftpy-backup-") as folder, DevCluster(3) as cluster, DevCluster(1) as other:
        store = Store.at(folder)
        async with connect(cluster.nats_url) as source, connect(other.nats_url) as target:
            for writer in writers:
                await source.create_stream(writer.stream, f"data.{writer.stream}.>", config=writer.config)
            try:
                async with _writing(source, writers) as tasks:
                    await _until(lambda: all(writer.number > KEYS for writer in writers), "each key is written once")
                    for number in range(1, rounds + 1):
                        print(await _round(number, source, target, other.nats_url, store, writers), flush=True)
                        if ended := [task for task in tasks if task.done()]:
                            ended[0].result()
            except (ViolationError, LiftError) as violation:
                print(f"VIOLATION with seed {seed}: {type(violation).__name__}: {violation}", flush=True)
                return 1
    total = sum(len(writer.acked) for writer in writers)
    unsure = sum(len(writer.unsure) for writer in writers)
    print(
        f"{rounds} rounds with seed {seed}: {total} records acknowledged, {unsure} without an answer; each restored key and subject is "
        "as it was"
    )
    return 0


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.backup.compacted", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    return asyncio.run(run(given.rounds, given.seed))


if __name__ == "__main__":
    sys.exit(main())
