"""Test the restore of group positions and cluster settings: a failure is reported and the restore continues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from liftpy.client import Client
from liftpy.config import NO_QUOTA, DefaultQuota, SessionTimes
from liftpy.core.backup.manifest import CursorCopy, Manifest, PartitionCopy, StoredFile, StoredPiece, StreamCopy
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import ConfigError, LiftError, NotFoundError, UnavailableError
from liftpy.testing.memory import memory_cluster
from sidecar.backup.restore import (
    NOTHING_WIDE,
    ClusterWide,
    RestoredSetting,
    RestoreResult,
    cluster_wide_of,
    set_cluster_wide,
    set_cursors,
)
from sidecar.cli import backup as module
from tests.unit.backup.stored import UID, two_backups

NOW = "00000b-20"
QUOTA = DefaultQuota(records_per_s=500, bytes_per_s=4096, by_token=2)
TIMES = SessionTimes(5500, 4000, change=3)


async def test_restore_with_one_unreachable_partition_sets_all_other_group_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    asked: list[tuple[str, int]] = []

    async def reset(name: str, positions: dict[PartitionKey, int]) -> None:
        told.append((name, {key.partition: at for key, at in positions.items()}))
        if name == "gone":
            raise NotFoundError("no such group")

    async def bounds(name: str, partition: int) -> Any:
        asked.append((name, partition))
        if partition == 1:
            raise UnavailableError("nobody serves it")
        return SimpleNamespace(uid=NOW, log_start_offset=0, end_offset=90)

    manifest = two_backups(tmp_path)[2]

    def group(name: str, *partitions: int) -> CursorCopy:
        return CursorCopy(
            name=name, is_cursor=False, positions=tuple(("orders", UID, number, 5 + number) for number in partitions)
        )

    kept = replace(manifest, cursors=(group("g", 0, 1, 2), group("gone", 0), group("h", 1), group("w", 2)))
    groups, cursors = SimpleNamespace(reset=reset), SimpleNamespace()
    client: Any = SimpleNamespace(bounds=bounds, groups=groups, cursors=cursors, consume=lambda *_, **__: AsyncMock())
    said = await set_cursors(client, kept, {"orders": NOW})
    none = "orders/1 gives no bounds (nobody serves it)"
    assert said == {"g": none, "gone": "no such group", "h": none, "w": ""}
    assert told == [("g", {0: 5, 2: 7}), ("gone", {0: 5}), ("w", {2: 7})]
    assert sorted(asked) == [("orders", number) for number in range(3)], "each once"


SHORT = SessionTimes(1000, 600)


@pytest.mark.parametrize(
    ("value", "there", "held", "fails", "why"),
    [
        (QUOTA, ("orders", "_lift-groups"), NO_QUOTA, None, ""),
        (QUOTA, ("orders", "mine"), NO_QUOTA, None, "the cluster has streams of its own: mine"),
        (QUOTA, ("orders",), DefaultQuota(bytes_per_s=7), None, "the cluster has another one: 7 bytes/s"),
        (QUOTA, ("orders", "mine"), QUOTA, None, ""),
        (QUOTA, ("orders",), NO_QUOTA, ConfigError("the level is 3"), "the level is 3"),
        (TIMES, ("orders", "_lift-groups"), SHORT, None, ""),
        (TIMES, ("orders", "mine"), SHORT, None, "the cluster has streams of its own: mine"),
        (TIMES, ("orders",), replace(SHORT, change=1), None, "the cluster has others: session 1 s, lease 0.6 s"),
        (TIMES, ("orders", "mine"), SessionTimes(5500, 4000), None, ""),
        (TIMES, ("orders",), SHORT, ConfigError("the level is 4"), "the level is 4"),
    ],
)
async def test_restore_into_an_empty_cluster_sets_the_default_quota_and_changed_session_times(
    value: DefaultQuota | SessionTimes, there: tuple[str, ...], held: Any, fails: LiftError | None, why: str
) -> None:
    told: list[dict[str, float]] = []

    async def describe(*, linearizable: bool) -> Any:
        return SimpleNamespace(image=SimpleNamespace(streams=dict.fromkeys(there), default_quota=held, session_times=held))

    async def change(**values: float) -> None:
        told.append(values)
        if fails is not None:
            raise fails

    client: Any = SimpleNamespace(
        admin=SimpleNamespace(describe_cluster=describe, set_default_quota=change, set_session_times=change)
    )
    if isinstance(value, DefaultQuota):
        wide, wanted = ClusterWide(value), {"records_per_s": 500, "bytes_per_s": 4096, "by_token": 2}
        command = "liftpy settings default-quota --quota-records 500 --quota-bytes 4096 --quota-by-token 2"
        document: dict[str, int] = asdict(value)
    else:
        wide, wanted = ClusterWide(times=value), {"session_s": 5.5, "lease_s": 4.0}
        command = "liftpy settings node-session --session 5.5 --lease 4"
        document = {"session_ms": 5500, "lease_ms": 4000}
    (found,) = await set_cluster_wide(client, wide, {"orders"})
    assert found == RestoredSetting(value, why)
    assert told == [wanted] * (held in (NO_QUOTA, SHORT) and "mine" not in there)
    assert (found.command, found.json_value) == (command, {**document, "why_not": why})


def test_backup_of_unchanged_session_times_contains_no_session_times() -> None:
    assert cluster_wide_of(ClusterImage(session_times=TIMES, default_quota=QUOTA)) == ClusterWide(QUOTA, TIMES)
    assert cluster_wide_of(ClusterImage(session_times=SessionTimes(900, 500))) == NOTHING_WIDE
    assert cluster_wide_of(ClusterImage()) == NOTHING_WIDE


@pytest.mark.parametrize("cursors", [{}, {"g": ""}, {"g": "", "h": "orders/1 gives no bounds"}])
@pytest.mark.parametrize(
    "settings",
    [[], [RestoredSetting(QUOTA), RestoredSetting(TIMES)], [RestoredSetting(TIMES), RestoredSetting(QUOTA, "level 3")]],
)
def test_restore_with_remaining_manual_steps_exits_with_4(
    cursors: dict[str, str], settings: list[RestoredSetting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_backups(tmp_path)
    done = RestoreResult([], cursors=cursors, settings=settings)
    image = ClusterImage(default_quota=QUOTA, session_times=TIMES)
    options: list[Any] = []
    monkeypatch.setattr(module, "read_image", lambda store, manifest: image)
    monkeypatch.setattr(module, "_plan_stream_restore", lambda *_: None)
    monkeypatch.setattr(module, "RestoreOptions", lambda **given: options.append(given))
    monkeypatch.setattr(module, "with_client", lambda target, work, **_: done)
    left = any(one.why for one in settings)
    for wish, wanted in (("--all", ClusterWide(QUOTA, TIMES)), ("--into=orders", NOTHING_WIDE)):
        ended = CliRunner().invoke(module.restore, [str(tmp_path), wish], standalone_mode=False)
        assert ended.exception is None
        assert ended.return_value == (4 if left or "h" in cursors else 0)
        assert options.pop()["wide"] == wanted, "a cluster's, not a stream's"
    assert ("liftpy backup cursors" in ended.output) == ("h" in cursors)
    assert ("liftpy settings default-quota" in ended.output) == left
    assert ("session times: session 5.5 s, lease 4 s" in ended.output) == bool(settings)
    as_json = CliRunner().invoke(module.restore, [str(tmp_path), "--all", "--json"], standalone_mode=False)
    said = json.loads(as_json.output)
    assert as_json.return_value == (4 if left or "h" in cursors else 0)
    assert (said["cursors"], set(said["settings"])) == (cursors, {"default_quota", "session_times"} if settings else set())


def backup_of(end: int, epoch: int, position: int) -> Manifest:
    """Return the manifest of a stream with ``end`` records in partition 0, and of a cursor at ``position``."""
    file = StoredFile(path="p", size_bytes=1, sha256="")
    piece = StoredPiece(file=file, start=0, end=end, chain="", last_epoch=epoch)
    copies = (
        PartitionCopy(partition=0, start=0, high_watermark=end - 1, pieces=(piece,)),
        PartitionCopy(partition=1, start=0, high_watermark=-1),
    )
    return Manifest(
        backup="b", created_ns=0, namespace="liftpy", version="", level=0, index=0, leader_epoch=epoch, since="", image=file,
        streams=(StreamCopy(name="orders", uid=UID, partitions=copies),),
        cursors=(CursorCopy(name="reader", is_cursor=True, positions=(("orders", UID, 0, position), ("orders", UID, 1, 0))),),
    )  # fmt: skip


@pytest.fixture
async def orders() -> AsyncIterator[Client]:
    """Yield a client of a cluster whose stream ``orders`` has ten records in partition 0."""
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await asyncio.to_thread(cluster.serve_groups)
        await client.create_stream("orders", "orders", partitions=2, replicas=2)
        await publish_ten(client)
        yield client


async def publish_ten(client: Client) -> None:
    for _ in range(10):
        await client.publish("orders", b"v")


async def test_backup_cursors_for_a_recreated_stream_sets_no_positions(orders: Client) -> None:
    backup = backup_of(10, (await orders.bounds("orders")).end_epoch, 7)
    await orders.admin.delete_stream("orders")
    created = await orders.create_stream("orders", "orders", partitions=2)
    await publish_ten(orders)
    await publish_ten(orders)
    said = await set_cursors(orders, backup, {"orders": created.uid})
    assert "orders/0 has no record of the backup" in said["reader"]
    assert await orders.cursors.describe("reader") == {created.key(1): 0}, "the copy of partition 1 is empty"


@pytest.mark.parametrize(("end", "position", "expected"), [(10, 7, 7), (6, 6, 6), (16, 14, 10)], ids=["all", "more", "part"])
async def test_backup_cursors_for_a_restored_stream_sets_positions_within_its_restored_records(
    orders: Client, end: int, position: int, expected: int
) -> None:
    """The restored stream has got other records since. With ``part``, some records of the backup were not restored."""
    backup = backup_of(end, (await orders.bounds("orders")).end_epoch, position)
    stream = await orders.stream("orders")
    follower = next(node for node in stream.partitions[0].replicas if node != stream.partitions[0].leader)
    await orders.admin.elect_leader("orders", 0, follower)
    await publish_ten(orders)
    assert await set_cursors(orders, backup, {"orders": stream.uid}) == {"reader": ""}
    assert await orders.cursors.describe("reader") == {stream.key(0): expected, stream.key(1): 0}
