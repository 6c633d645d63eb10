"""A backup of a running cluster, restored into one that has none of its folders; more of it: `python -m tests.system.backup`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable
from pathlib import Path

import pytest

from liftpy.config import DefaultQuota, SessionTimes
from liftpy.core.base.ids import PartitionKey
from liftpy.core.wire.batch import split_batches
from liftpy.errors import AlreadyExistsError
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.inspect import list_backups, read_image, verify_backup
from sidecar.backup.restore import ClusterWide, Restore, RestoredSetting, RestoreOptions, StreamRestore
from sidecar.backup.store import Store
from sidecar.dev.cluster import DevCluster
from sidecar.runtime.settings import Target
from tests.integration.conftest import Bench, close_bench, open_bench, show

pytestmark = pytest.mark.processes


async def test_backup_restore_returns_the_committed_records_byte_for_byte(
    bench: Bench, stream_name: str, tmp_path: Path
) -> None:
    """Under load, after many LeaderEpochs; offsets, LeaderEpochs, positions; increments; nothing is overwritten [D1, D14, R3, R9]."""
    client, store = bench.client, Store.at(str(tmp_path / "store"))
    stream = await bench.create(stream_name, partitions=3)  # nothing is published to the last one
    async with client.publisher(stream_name, 1) as publisher:
        for number in range(3000):
            await publisher.send(b"%d" % number * 9)
    jobs = await bench.create(f"{stream_name}-jobs")
    async with client.producer(jobs.name, id="job") as producer:
        await (await producer.send_many([b"%d" % number for number in range(30)]))
    await client.admin.truncate_before(jobs.name, 0, 30)
    await client.create_stream(f"e{stream_name}", f"e.{stream_name}", first_leader_epoch=5_000_000)
    at = [PartitionKey(stream_name, stream.uid, 0), PartitionKey(stream_name, stream.uid, 1)]
    await bench.until(lambda: _said(client.groups.reset(f"g{stream_name}", {at[1]: 1234})), "a group has a position")
    await bench.until(lambda: _said(client.cursors.set(f"c{stream_name}", {at[1]: 77})), "a cursor has one")

    async def load() -> None:
        for number in range(1_000_000):
            await bench.nc.request(f"data.{stream_name}", b"under load %d" % number, timeout=5)

    loading = asyncio.create_task(load())
    await bench.until(lambda: _past(bench, stream_name, 50), "the load runs")
    options = BackupOptions(streams=(stream_name, jobs.name), piece_bytes=20_000)
    first = await take_backup(client, store, options)
    second = await take_backup(client, store, options)
    loading.cancel()
    assert second.manifest.since == first.manifest.backup
    assert second.reused_bytes >= 20_000, "pieces that are full are not written again"
    assert second.written_bytes < first.written_bytes
    copies = second.manifest.streams[0].partitions
    assert copies[1].high_watermark == 2999
    assert copies[0].high_watermark >= 50
    assert [entry.faults for entry in list_backups(store)] == [(), ()]
    assert verify_backup(store, second.manifest).faults == []
    assert store.sizes("running") == {}
    assert second.manifest.streams[1].partitions[0].state is not None, "the records of the job are gone, and it is known"
    before = [await _bytes(bench, "n2", stream_name, copy.high_watermark, copy.partition) for copy in copies]

    with DevCluster(1, on_line=show) as other:
        fresh = await open_bench(other)
        try:
            manifest = store.newest()
            was = read_image(store, manifest).streams[stream_name]
            wish = StreamRestore(name=stream_name, into=stream_name, subject=was.subject, config=was.config, replicas=3)
            wide = ClusterWide(DefaultQuota(records_per_s=1_000_000), SessionTimes(1800, 1100, change=2))
            target = RestoreOptions(target=Target(nats=(other.nats_url,)), scratch=tmp_path, wide=wide)
            jobs_wish = StreamRestore(name=jobs.name, into=jobs.name, subject=jobs.subject, config=jobs.config, replicas=3)
            done = await Restore(fresh.client, store, manifest, [wish, jobs_wish], target).run()
            async with fresh.client.producer(jobs.name, id="job") as producer:
                assert producer.next_sequence(0) == 30, "its records are gone, and its place is known"
            now = (await fresh.client.admin.describe_cluster(linearizable=True)).image
            restored = now.streams[stream_name]
            assert restored.uid != stream.uid
            assert manifest.leader_epoch >= 5_000_000
            assert list(now.nodes) == ["n1"], "the helper is gone"
            assert [partition.replicas for partition in restored.partitions] == [("n1",)] * 3
            assert not restored.config.read_only
            after = [await _bytes(fresh, "n1", stream_name, copy.high_watermark, copy.partition) for copy in copies]
            assert after == before
            for copy in copies:
                bounds = await fresh.client.bounds(stream_name, copy.partition)
                assert (bounds.log_start_offset, bounds.high_watermark) == (0, copy.high_watermark)
            key = PartitionKey(stream_name, restored.uid, 1)
            assert (await fresh.client.groups.describe(f"g{stream_name}")).positions == {key: 1234}
            assert await fresh.client.cursors.describe(f"c{stream_name}") == {key: 77}
            assert done.settings == [RestoredSetting(value) for value in (wide.quota, wide.times) if value is not None]
            assert now.default_quota == wide.quota
            assert now.session_times is not None
            assert (now.session_times.session_ms, now.session_times.lease_ms) == (1800, 1100)
            assert done.cursors == {f"c{stream_name}": "", f"g{stream_name}": ""}
            ack = json.loads((await fresh.nc.request(f"data.{stream_name}.1", b"and on", timeout=5)).data)
            assert ack["seq"] == 3001
            assert restored.partitions[1].leader_epoch > manifest.leader_epoch
            with pytest.raises(AlreadyExistsError, match="never overwrites"):
                await Restore(fresh.client, store, manifest, [wish], target).run()
            assert os.listdir(tmp_path) == ["store"], "the scratch folders are gone"
        finally:
            await close_bench(fresh)


async def _said(command: Awaitable[None]) -> bool:
    await command
    return True


async def _past(bench: Bench, name: str, offset: int) -> bool:
    return (await bench.client.bounds(name)).high_watermark >= offset


async def _bytes(bench: Bench, node: str, name: str, high_watermark: int, partition: int) -> bytes:
    """All batches up to there, as the node serves them."""
    found = await bench.read_from(node, name, high_watermark + 1, partition)
    return b"".join(batch.view for batch in split_batches(found) if batch.last_offset <= high_watermark)
