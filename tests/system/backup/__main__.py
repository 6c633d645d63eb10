"""``python -m tests.system.backup [kills] [lost] [rescue]``: backups of real nodes under load; exit 1 at the first violation.

``kills``: a backup, and a restore, killed by SIGKILL before each of their steps; earlier backups stay whole, and the next one, and
the next restore, do what they should. ``lost``: all folders are deleted; everything up to the backup's HW is there again byte for
byte, positions go on, a drill agrees, ``until`` an offset. ``rescue``: two of three controllers are lost with their folders; what was
acknowledged ALL is there, LeaderEpochs go on beyond all earlier ones, and a controller that comes back with its old folder changes
nothing [C1, C2, D1-D5].
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from liftpy.client import Client, connect
from liftpy.client.replica_reads import ReplicaAddress, ReplicaReads
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import LiftError, NotFoundError
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.drill import drill
from sidecar.backup.inspect import list_backups, prune_backups, verify_backup
from sidecar.backup.restore import PREFIX, ClusterWide, Restore, RestoreOptions
from sidecar.backup.staging import LogDigest, RestorePoint
from sidecar.backup.store import Store
from sidecar.dev.cluster import DevCluster
from sidecar.runtime.settings import Target
from tests.system.backup.dying import CREATE_STEPS, PIECE_BYTES, QUOTA, RESTORE_STEPS, wishes_for

STREAM, PARTITIONS = "orders", 2
RECORDS = 5_000
_PATIENCE_S = 60.0


class ViolationError(AssertionError):
    """What must hold does not."""


def must(condition: object, what: str) -> None:
    """Raise ViolationError unless it holds."""
    if not condition:
        raise ViolationError(what)


async def retried(what: object, *, patience_s: float = _PATIENCE_S) -> object:
    """The answer of ``what()``, asked again while it fails."""
    give_up = time.monotonic() + patience_s
    while True:
        try:
            return await what()  # type: ignore[operator]
        except (LiftError, TimeoutError):
            if time.monotonic() > give_up:
                raise
            await asyncio.sleep(0.2)


async def fill(client: Client, replicas: int = 3) -> None:
    """The stream with RECORDS in each partition, and a group."""
    stream = await client.create_stream(STREAM, f"shop.{STREAM}", partitions=PARTITIONS, replicas=replicas)
    for partition in range(PARTITIONS):
        async with client.publisher(STREAM, partition) as publisher:
            acks = [await publisher.send(b"%d" % number * 7) for number in range(RECORDS)]
            await asyncio.gather(*acks)
    await retried(lambda: client.groups.reset("readers", {PartitionKey(STREAM, stream.uid, 1): 4321}))


@contextlib.asynccontextmanager
async def load(nats: str) -> AsyncIterator[list[int]]:
    """Publishes that never end; the offsets in partition 0 that were acknowledged."""
    acknowledged: list[int] = []

    async def publish() -> None:
        async with connect(nats) as client, await client.publisher(STREAM) as publisher:
            while True:
                with contextlib.suppress(LiftError):
                    acknowledged.append((await (await publisher.send(b"under load"))).offset)

    task = asyncio.create_task(publish())
    try:
        yield acknowledged
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def digest_of(client: Client, partition: int, end: int, node: str = "") -> str:
    """Of all batches below ``end``, as ``node`` (default: the leader) serves them."""
    stream = await client.stream(STREAM)
    address = ReplicaAddress(
        stream=STREAM, uid=stream.uid, partition=partition, node=node or stream.partitions[partition].leader, patience_s=30
    )
    reads, position, digest = ReplicaReads(client.transport, Subjects("liftpy"), address), 0, LogDigest()
    while position < end:
        batches, position = await reads.batches(position)
        for batch in batches:
            if batch.base_offset < end:
                digest.add(batch)
    return digest.hexdigest()


def dying(*words: str) -> int:
    """The exit code of a process that is killed before a step."""
    return subprocess.run([sys.executable, "-m", "tests.system.backup.dying", *words], check=False, timeout=300).returncode


def all_whole(store: Store) -> int:
    """How many backups there are; each is listed whole, and is."""
    for entry in list_backups(store):
        must(not entry.faults and entry.manifest is not None, f"{entry.backup} is listed as {entry.faults}")
        assert entry.manifest is not None
        found = verify_backup(store, entry.manifest)
        must(not found.faults, f"{entry.backup}: {found.faults}")
    return len(list_backups(store))


async def kills(folder: Path) -> None:
    """Each step of both."""
    store = Store.at(str(folder / "store"))
    with DevCluster(3) as cluster:
        async with connect(cluster.nats_url) as client, load(cluster.nats_url):
            await fill(client)
            await take_backup(client, store, BackupOptions(piece_bytes=PIECE_BYTES))
            for step in CREATE_STEPS:
                before = all_whole(store)
                code = await asyncio.to_thread(dying, "create", str(folder / "store"), cluster.nats_url, step, "")
                must(code == -9, f"it ended with {code} before {step}")
                must(all_whole(store) == before + (step == "end"), f"killed before {step} it left another number of backups")
                taken = await take_backup(client, store, BackupOptions(piece_bytes=PIECE_BYTES))
                must(taken.reused_bytes > 0, "the next one uses no piece")
                print(f"create killed before {step:10} the others are whole, the next one is too", flush=True)
            for path in store.sizes("running"):  # they began two days ago, and their processes are gone
                store.remove(path)
                earlier = datetime.now(UTC) - timedelta(days=2)
                store.put(f"running/{earlier:%Y%m%dT%H%M%SZ}-{path[-8:]}", b'{"since": ""}')
            must(prune_backups(store, 1, datetime.now(UTC)).waits_for == (), "who died two days ago is waited for")
            must(all_whole(store) == 1, "one is kept")
    copies = store.newest().streams[0].partitions
    scratch = folder / "scratch"
    scratch.mkdir()
    with DevCluster(3) as cluster:
        async with connect(cluster.nats_url) as client:
            expected: list[str] = []
            for step in (*RESTORE_STEPS, ""):
                code = await asyncio.to_thread(dying, "restore", str(folder / "store"), cluster.nats_url, step, str(scratch))
                must(code == (-9 if step else 0), f"it ended with {code} before {step}")
                await _judge_restore(client, store, step, scratch, cluster)
                found = [await digest_of(client, copy.partition, copy.high_watermark + 1) for copy in copies]
                expected = expected or found
                must(found == expected, f"another log after a kill before {step}")
                print(f"restore killed before {step or 'nothing':10} whole after the next one", flush=True)
                await client.admin.delete_stream(STREAM)


async def _judge_restore(client: Client, store: Store, step: str, scratch: Path, cluster: DevCluster) -> None:
    """Before it takes publishes, the next restore begins anew; behind that it is there."""
    opened = step in RESTORE_STEPS[RESTORE_STEPS.index("leave") :] or not step
    options = RestoreOptions(target=Target(nats=(cluster.nats_url,)), scratch=scratch, wide=ClusterWide(QUOTA))
    if opened:
        must(
            await client.admin.default_quota() == QUOTA,
            f"killed before {step or 'nothing'} it takes publishes without the quota",
        )
        stream = await client.stream(STREAM)
        must(not stream.config.read_only, f"after a kill before {step} it takes no publishes")
        helpers = [n for n in (await client.admin.describe_cluster()).image.nodes if n.startswith(PREFIX)]
        for helper in helpers:
            await client.admin.set_node(helper, leaving=True)
            for partition in stream.partitions:
                kept = [n for n in partition.replicas if not n.startswith(PREFIX)]
                await client.admin.reassign(stream, partition.partition, kept)
            await retried(lambda helper=helper: client.admin.remove_node(helper))
        return
    with contextlib.suppress(NotFoundError):
        must((await client.stream(STREAM)).config.read_only, f"killed before {step} it left a stream that takes publishes")

    async def again() -> None:
        await Restore(client, store, store.newest(), wishes_for(store), options).run()

    await retried(again)  # the helper of the one that was killed takes a moment to end


async def lost(folder: Path) -> None:
    """All folders are deleted."""
    store = Store.at(str(folder / "store"))
    with DevCluster(3) as cluster:
        async with connect(cluster.nats_url) as client, load(cluster.nats_url) as acknowledged:
            await fill(client)
            while len(acknowledged) < 1000:
                await asyncio.sleep(0.05)
            taken = await take_backup(client, store, BackupOptions())
            copies = taken.manifest.streams[0].partitions
            before = [await digest_of(client, copy.partition, copy.high_watermark + 1) for copy in copies]
    print(f"backup of {sum(c.high_watermark + 1 for c in copies)} records under load in {taken.took_s:.2f} s", flush=True)
    with DevCluster(3) as cluster:
        target = RestoreOptions(target=Target(nats=(cluster.nats_url,)), scratch=folder)
        async with connect(cluster.nats_url) as client:
            began = time.monotonic()
            await Restore(client, store, taken.manifest, wishes_for(store), target).run()
            print(f"restored to three nodes in {time.monotonic() - began:.1f} s", flush=True)
            for node in cluster.nodes:
                after = [await digest_of(client, copy.partition, copy.high_watermark + 1, node) for copy in copies]
                must(after == before, f"{node} holds something else than was backed up")
            stream = await client.stream(STREAM)
            positions = (await client.groups.describe("readers")).positions
            must(positions == {PartitionKey(STREAM, stream.uid, 1): 4321}, f"the group is at {positions}")
            async with client.publisher(STREAM, 1) as publisher:
                ack = await (await publisher.send(b"and on"))
            must(ack.offset == copies[1].high_watermark + 1, f"the next record got {ack.offset}")
            must(ack.leader_epoch > taken.manifest.leader_epoch, "a LeaderEpoch was used twice")
            drilled = await drill(client, store, taken.manifest, target)
            print(
                f"drill: RTO {drilled.rto_s:.1f} s for {drilled.records} records, compared in {drilled.compared_s:.1f} s",
                flush=True,
            )
            names = sorted((await client.admin.describe_cluster(linearizable=True)).image.streams)
            must(names == ["_groups", STREAM], f"the drill has left something: {names}")
            wish = replace(wishes_for(store)[0], into="cut", subject="cut.orders")
            await Restore(client, store, taken.manifest, [wish], replace(target, until=RestorePoint(offset=1234))).run()
            must((await client.bounds("cut", 1)).high_watermark == 1234, "it does not end where it was to")


async def rescue(folder: Path) -> None:
    """Two of three controllers are lost with their disks."""
    data = folder / "data"
    cluster = DevCluster(4, data=data)
    cluster.start()
    try:
        async with connect(cluster.nats_url) as client:
            await fill(client, replicas=4)
            async with load(cluster.nats_url) as acknowledged:
                while len(acknowledged) < 1000:
                    await asyncio.sleep(0.05)
                most = max(acknowledged)
                await asyncio.to_thread(lambda: [node.kill() for node in cluster.nodes.values()])
            most = max(most, *acknowledged)
    finally:
        cluster.stop()
    shutil.rmtree(data / "n2")
    (data / "n3").rename(data / "n3-old")
    liftpy = str(Path(sys.executable).parent / "liftpy")
    words = [
        "controllers",
        "force-recover",
        "--data",
        str(data / "n1"),
        "--data",
        str(data / "n4"),
        "--new-controllers",
        "n1,n4",
        "--confirm",
        "liftpy",
    ]
    print(
        (await asyncio.to_thread(subprocess.run, [liftpy, *words], check=True, capture_output=True, text=True)).stdout,
        flush=True,
    )
    cluster = DevCluster(4, data=data)
    cluster._prepare()
    try:
        for name in ("n1", "n4"):
            cluster.nodes[name].start()
        for name in ("n1", "n4"):
            cluster.nodes[name].wait_ready()
        async with connect(cluster.nats_url) as client:
            await _judge_rescued(client, most, cluster)
            (data / "n3-old").rename(data / "n3")
            cluster.nodes["n3"].start()
            await asyncio.to_thread(cluster.nodes["n3"].wait_ready)
            must(await _controllers(client) == ["n1", "n4"], "the old controller is one again")
            await _judge_rescued(client, most, cluster)
    finally:
        cluster.stop()
    print(f"rescued: {most + 1} acknowledged records, on both nodes alike, also with an old controller back", flush=True)


async def _controllers(client: Client) -> list[str]:
    state = await client.admin.describe_cluster(linearizable=True)
    return sorted(one.node_id for one in state.controllers)


async def _judge_rescued(client: Client, most: int, cluster: DevCluster) -> None:
    async def led() -> list[int]:
        image = (await client.admin.describe_cluster()).image
        stream = image.streams[STREAM]
        if not all(p.leader and all(map(image.is_live, p.isr)) for p in stream.partitions):
            raise NotFoundError("a partition has no leader, or somebody who is gone in its ISR")
        return [(await client.bounds(STREAM, p.partition)).high_watermark for p in stream.partitions]

    high = await retried(led)
    assert isinstance(high, list)
    must(high[0] >= most, f"HW is {high[0]}, {most} was acknowledged [D1]")
    must(high[1] >= RECORDS - 1, f"HW of partition 1 is {high[1]}")
    stream = await client.stream(STREAM)
    must(all(p.leader_epoch > 1 << 20 for p in stream.partitions), "a LeaderEpoch may have been used before [C2]")
    for partition in stream.partitions:
        found = {
            node: await digest_of(client, partition.partition, high[partition.partition] + 1, node) for node in partition.isr
        }
        must(len(set(found.values())) == 1, f"replicas differ: {found} [D4]")
    async with client.publisher(STREAM) as publisher:
        await (await publisher.send(b"and on"))


PARTS = {"kills": kills, "lost": lost, "rescue": rescue}


def main() -> int:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    for name in parser.parse_args().parts or PARTS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="liftpy-backup-") as folder:
            try:
                asyncio.run(PARTS[name](Path(folder)))
            except ViolationError as violation:
                print(f"VIOLATION in {name}: {violation}", flush=True)
                return 1
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
