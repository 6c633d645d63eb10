"""Test that files of a store survive a power cut, and the order of the requests of a backup."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.positions import Bounds
from liftpy.client.replica_reads import ReplicaUnavailableError
from liftpy.config import StreamConfig
from liftpy.core.backup.manifest import (
    CursorCopy,
    PartitionCopy,
    StreamCopy,
    encode_manifest,
    manifest_path,
    piece_path,
    running_path,
)
from liftpy.core.backup.pieces import without_purged
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import Purge
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import split_batches
from liftpy.errors import ConfigError, CorruptionError, NotFoundError, StorageError, UnavailableError, UnknownFormatError
from sidecar.backup import create
from sidecar.backup import store as store_module
from sidecar.backup.inspect import list_backups, prune_backups, read_image
from sidecar.backup.staging import NOWHERE, stage
from sidecar.backup.store import Store
from sidecar.disk.files import DirectoryStorage, sync_folder
from tests.batches import build_batch
from tests.unit.backup.one_partition import Cluster
from tests.unit.backup.stored import FIRST, SECOND, THIRD, UID, put_backup, seal_manifest, two_backups


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    return Cluster(monkeypatch)


class Watched:
    """A file system that records its renames."""

    def __init__(self, inner: Any, note: Callable[[str], None]) -> None:
        self._inner, self._note = inner, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def move(self, old: str, new: str) -> None:
        self._note(f"move {Path(old).name}")
        self._inner.move(old, new)


def test_backup_store_flushes_a_file_and_its_directories_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    store, done = Store.at(str(root)), []
    flush = os.fsync
    names = {}

    def flushed(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        done.extend([f"flush {path.name}"] if path.is_file() else [])
        flush(descriptor)

    def folder(path: Path) -> None:
        names[path] = sorted(one.name for one in path.iterdir())
        done.append(f"folder {path.name}")
        sync_folder(path)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(store_module, "sync_folder", folder)
    store._fs = Watched(store._fs, done.append)
    store.put("backups/b/file", b"new")
    assert [one for one in done if one != "folder " + tmp_path.name] == [
        "flush file.part", "folder b", "folder backups", "folder store", "move file.part", "folder b",
    ]  # fmt: skip
    assert names[root / "backups" / "b"] == ["file"], "behind the move"


def test_backup_store_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    store.put("backups/b/file", b"old")

    class Full(Watched):
        def open_output_stream(self, path: str, compression: None) -> Any:
            Path(path).write_bytes(b"ne")
            raise OSError(28, "no space")

    inner = store._fs
    store._fs = Full(inner, lambda what: None)
    with pytest.raises(StorageError):
        store.put("backups/b/file", b"new")
    store._fs = inner
    assert store.read("backups/b/file") == b"old"
    with pytest.raises(KeyError), store.open_for_writing("pieces/x"):
        raise KeyError("an error of the writer's is the writer's")


def test_backup_manifest_copied_from_another_backup_raises_corruption_error(tmp_path: Path) -> None:
    store, _, _ = two_backups(tmp_path)
    store.put(manifest_path(SECOND), store.read(manifest_path(FIRST)))
    with pytest.raises(CorruptionError, match="The store is damaged: use another backup"):
        store.manifest(SECOND)
    path = tmp_path / manifest_path(SECOND)
    path.rename(path.with_name(path.name + ".part"))
    assert store.backup_ids() == [FIRST], "a death before its last step"


async def test_backup_reads_the_metadata_then_the_cursors_then_the_partition_ends(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another order, a cursor is past the records, or an acknowledged stream is missing."""
    asked: list[str] = []

    def recorded(name: str, ask: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            asked.append(f"{name} {options}" if options else name)
            return await ask(*args, **options)

        return call

    async def list_groups() -> Any:
        return [SimpleNamespace(name="g"), SimpleNamespace(name="other")]

    async def describe_group(name: str) -> Any:
        queue = SimpleNamespace(key=PartitionKey("orders", UID, 0), acknowledged_below=5)
        others = (PartitionKey("elsewhere", UID, 0), PartitionKey("orders", UID, 9), PartitionKey("orders", "00000b-20", 0))
        return SimpleNamespace(positions=dict.fromkeys(others, 3), queues=[queue] if name == "g" else [])

    async def bounds_of_another_stream(stream: str, number: int) -> Bounds:
        return Bounds("00000b-20", "n1", "n1", 9, log_start_offset=0, high_watermark=-1)

    client.admin.describe_cluster = recorded("metadata", client.admin.describe_cluster)
    client.groups = SimpleNamespace(list=recorded("groups", list_groups), describe=describe_group)
    client.cursors = SimpleNamespace(list=recorded("cursors", client.cursors.list))
    client.bounds = recorded("ends", client.bounds)
    store, marks = Store.at(str(tmp_path)), []
    put = store.put

    def noted(path: str, data: bytes) -> None:
        marks.extend([json.loads(data)["since"]] if path.startswith("running/") else [])
        put(path, data)

    monkeypatch.setattr(store, "put", noted)
    taken = await create.take_backup(client, store, create.BackupOptions())
    assert marks == ["?", ""], "a prune knows of it before it has looked what to use, and what it uses then"
    assert store.sizes("running") == {}
    assert asked == ["metadata {'linearizable': True}", "groups", "cursors", "ends"]
    (cursor,) = taken.manifest.cursors
    assert (cursor.name, cursor.positions) == ("g", (("orders", UID, 0, 5),)), (
        "of a queue what is settled; nothing of other streams, and nothing of partitions that were added since"
    )
    later = await create.take_backup(client, store, create.BackupOptions())
    assert (marks[2:], later.manifest.since) == (["?", taken.manifest.backup], taken.manifest.backup)

    def loses(step: str) -> None:
        if step == "check":
            (path,) = (p for p in store.sizes("backups") if p.split("/")[1] not in store.backup_ids())
            store.remove(path)

    with pytest.raises(CorruptionError, match="Start the"):
        await create.take_backup(client, store, create.BackupOptions(), step=loses)
    client.bounds = bounds_of_another_stream
    with pytest.raises(NotFoundError, match="created again"):
        await create.take_backup(client, Store.at(str(tmp_path)), create.BackupOptions())
    assert store.backup_ids() == [taken.manifest.backup, later.manifest.backup]


@pytest.mark.parametrize("named", [(), ("gone", "orders")], ids=["all streams", "named streams"])
@pytest.mark.parametrize("at", ["its bounds are asked", "it is copied"])
@pytest.mark.parametrize("is_back", [False, True], ids=["deleted", "created again"])
async def test_backup_omits_streams_and_groups_that_are_deleted_during_the_backup(
    is_back: bool, at: str, named: tuple[str, ...], client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = (await client.admin.describe_cluster()).image
    other = replace(image.streams["orders"], name="gone", uid="00000f-1")
    here = [image.with_stream(other)]
    later = image.with_stream(replace(other, uid="00000f-2")) if is_back else image
    bounds, reads = client.bounds, create.ReplicaReads

    async def describe_cluster(*, linearizable: bool = False) -> Any:
        return SimpleNamespace(image=here[-1])

    async def bounds_of(stream: str, number: int) -> Bounds:
        if stream == "gone" and at == "its bounds are asked":
            here.append(later)
            if not is_back:
                raise NotFoundError("there is no stream 'gone'")
            return replace(await bounds(stream, number), uid="00000f-2")
        return replace(await bounds(stream, number), uid=here[0].streams[stream].uid)

    def reads_of(transport: Any, subjects: Any, address: Any) -> Any:
        async def batches(offset: int) -> Any:
            here.append(later)
            raise ReplicaUnavailableError("no responders")

        return SimpleNamespace(batches=batches) if address.stream == "gone" else reads(transport, subjects, address)

    async def list_groups() -> Any:
        return [SimpleNamespace(name="deleted"), SimpleNamespace(name="g")]

    async def describe_group(name: str) -> Any:
        if name == "deleted":
            raise NotFoundError("There is no group 'deleted'.")
        return SimpleNamespace(positions={PartitionKey(stream, UID, 0): 5 for stream in ("gone", "orders")}, queues=[])

    async def stream(name: str) -> Any:
        raise NotFoundError(f"there is no stream {name!r}")

    client.stream = stream
    monkeypatch.setattr(create, "ReplicaReads", reads_of)
    monkeypatch.setattr(client, "groups", SimpleNamespace(list=list_groups, describe=describe_group))
    monkeypatch.setattr(client.admin, "describe_cluster", describe_cluster)
    monkeypatch.setattr(client, "bounds", bounds_of)
    store = Store.at(str(tmp_path))
    if named:
        with pytest.raises(
            NotFoundError, match=r"^Stream gone was deleted during the backup\. Start the backup again without it\."
        ):
            await create.take_backup(client, store, create.BackupOptions(streams=named))
        assert store.sizes("") == {}
        return
    taken = await create.take_backup(client, store, create.BackupOptions())
    assert (taken.deleted, [stream.name for stream in taken.manifest.streams]) == (("gone",), ["orders"])
    assert taken.manifest.cursors == (CursorCopy(name="g", is_cursor=False, positions=(("orders", UID, 0, 5),)),)
    assert list_backups(store)[0].left_out == (), "a backup without a deleted stream has all streams"


@pytest.mark.parametrize("streams", [(), ("orders",)])
async def test_backup_after_a_partial_one_of_other_streams_uses_the_pieces_of_the_backup_before(
    client: Any, tmp_path: Path, streams: tuple[str, ...]
) -> None:
    """It copied all records again."""
    store = Store.at(str(tmp_path))
    options = create.BackupOptions(piece_bytes=3 * client.log[0].header.size_bytes, streams=streams)
    first = (await create.take_backup(client, store, options)).manifest
    second = create.new_backup_id(datetime.now(UTC), first.backup)
    partial = put_backup(store, second, first.streams[0].partitions[0], left_out=("users",))
    users = StreamCopy(name="users", uid="00000b-0", partitions=(PartitionCopy(partition=0, start=0, high_watermark=-1),))
    store.put_manifest(replace(partial, streams=(users,)))
    taken = await create.take_backup(client, store, options)
    assert taken.manifest.since == first.backup
    pieces = taken.manifest.streams[0].partitions[0].pieces
    assert [piece in first.streams[0].partitions[0].pieces for piece in pieces] == [True, True, False]


async def test_backup_after_one_of_another_namespace_uses_the_pieces_of_its_own_namespace(client: Any, tmp_path: Path) -> None:
    """With the backups of two clusters in one store, each backup copied all records again."""
    store = Store.at(str(tmp_path))
    options = create.BackupOptions(piece_bytes=3 * client.log[0].header.size_bytes)
    first = (await create.take_backup(client, store, options)).manifest
    other = await create.take_backup(client, store, replace(options, namespace="other"))
    assert other.manifest.since == ""
    taken = (await create.take_backup(client, store, options)).manifest
    assert taken.since == first.backup
    assert taken.streams[0].partitions[0].pieces[0] == first.streams[0].partitions[0].pieces[0]


async def test_backup_after_one_of_a_newer_version_uses_the_pieces_of_the_backup_before(client: Any, tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    options = create.BackupOptions(piece_bytes=3 * client.log[0].header.size_bytes)
    first = (await create.take_backup(client, store, options)).manifest
    newer = create.new_backup_id(datetime.now(UTC), first.backup)
    content = {**json.loads(encode_manifest(first))["manifest"], "format": 2, "backup": newer}
    store.put(manifest_path(newer), seal_manifest(content))
    assert (await create.take_backup(client, store, options)).manifest.since == first.backup
    with pytest.raises(UnknownFormatError, match=newer):
        await create.take_backup(client, store, replace(options, since=newer))


class SmallDisk:
    """A file system with a capacity of ``room_bytes``."""

    def __init__(self, inner: Any, root: Path, room_bytes: int) -> None:
        self._inner, self._root, self.room_bytes = inner, root, room_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextmanager
    def open_output_stream(self, path: str, **more: Any) -> Iterator[Any]:
        def write(data: bytes) -> None:
            used = sum(one.stat().st_size for one in self._root.rglob("*") if one.is_file())
            stream.write(data[: max(0, self.room_bytes - used)])
            stream.flush()
            if used + len(data) > self.room_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")

        with self._inner.open_output_stream(path, **more) as stream:
            yield SimpleNamespace(write=write)


async def test_backup_to_a_full_disk_removes_its_partial_files(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next backup has space and finds no marker of the failed one."""
    store, _, _ = two_backups(tmp_path)
    before = store.sizes("")
    disk = SmallDisk(store._fs, tmp_path, 0)
    full = Store(disk, str(tmp_path))
    full._is_local = True
    options = create.BackupOptions(since="", piece_bytes=3 * client.log[0].header.size_bytes)
    needed = 0
    with monkeypatch.context() as roomy:
        roomy.setattr(disk, "room_bytes", 1 << 30)
        taken = await create.take_backup(client, full, options)
        needed = sum(store.sizes("").values()) - sum(before.values())
        for path in set(store.sizes("")) - set(before):
            store.remove(path)
    for room_bytes in range(0, needed, max(1, needed // 40)):
        disk.room_bytes = sum(before.values()) + room_bytes
        with pytest.raises(StorageError, match=r"No space left.*Remove old backups \(liftpy backup prune\)"):
            await create.take_backup(client, full, options)
        assert store.sizes("") == before, f"with {room_bytes} bytes left"
    disk.room_bytes = 1 << 30
    assert (await create.take_backup(client, full, options)).manifest.size_bytes == taken.manifest.size_bytes


async def test_backup_renews_its_mark_as_long_as_it_runs_and_removes_it(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create, "MARK_INTERVAL_S", 0.0)
    store, bounds = Store.at(str(tmp_path)), client.bounds
    renewed: list[int] = []

    async def slow_bounds(stream: str, number: int) -> Bounds:
        """Answer when the mark has been renewed twice."""
        async with asyncio.timeout(10):
            while len(set(renewed)) < 3:
                path = min(store.sizes("running"), key=len)  # another one is the new mark that is being written
                renewed.append(json.loads(store.read(path))["renewed_ns"])
                await asyncio.sleep(0)
        return await bounds(stream, number)

    client.bounds = slow_bounds
    await create.take_backup(client, store, create.BackupOptions())
    assert renewed == sorted(renewed)
    assert store.sizes("running") == {}


async def test_backup_cancelled_during_a_write_leaves_no_files(client: Any, tmp_path: Path) -> None:
    """The cleanup waits for the thread that writes."""
    store, _, _ = two_backups(tmp_path)
    before, put = store.sizes(""), store.put
    begun, may_write, written = threading.Event(), threading.Event(), threading.Event()

    def slow_put(path: str, data: bytes) -> None:
        begun.set()
        may_write.wait()
        put(path, data)
        written.set()

    store.put = slow_put  # type: ignore[method-assign]
    taking = asyncio.create_task(create.take_backup(client, store, create.BackupOptions()))
    await asyncio.to_thread(begun.wait)
    taking.cancel()
    await asyncio.wait([taking], timeout=0.2)
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await asyncio.to_thread(written.wait)
    assert store.sizes("") == before


@pytest.mark.parametrize("leaves", ["mark", "pieces", "image"])
def test_backup_prune_with_the_id_of_a_failed_backup_removes_all_its_files(tmp_path: Path, leaves: str) -> None:
    store, _, _ = two_backups(tmp_path)
    before = store.sizes("")
    store.put(running_path(THIRD), b'{"since": "?"}')
    if leaves == "pieces":
        store.put(piece_path("orders", UID, 0, 5, THIRD), b"half a piece")
    if leaves == "image":
        store.put(f"backups/{THIRD}/image", b"an image")
    now = datetime(2026, 11, 3, 1, tzinfo=UTC)
    assert prune_backups(store, 2, now).waits_for == (THIRD,)
    with pytest.raises(NotFoundError, match="no unfinished backup"):
        prune_backups(store, 2, now, died=("20261103T000000Z-000000ff",))
    prune_backups(store, 2, now, died=(THIRD,))
    assert store.sizes("") == before


async def test_restored_log_contains_no_records_of_a_purge_pending_at_the_backup(client: Any, tmp_path: Path) -> None:
    """A later backup, taken after the cluster forgot the purge, has none either."""
    store = Store.at(str(tmp_path / "store"))
    keys = [b"ann", b"bob", b"cid", b"dan"]
    client.log = split_batches(
        b"".join(
            build_batch([b"%d" % number] * 4, keys=keys if number else [b"ann"] * 4, base_offset=number * 4, leader_epoch=3)
            for number in range(20)
        )
    )
    client.purges = (Purge(number=5, keys=(b"ann",), end_offset=41),)
    options = create.BackupOptions(piece_bytes=3 * client.log[0].header.size_bytes)
    first = (await create.take_backup(client, store, options)).manifest
    purged = list(client.log)
    client.log, client.purges = [without_purged(batch, client.purges) for batch in purged], ()
    second = (await create.take_backup(client, store, options)).manifest
    for manifest in (first, second):
        folder = tmp_path / manifest.backup
        (copy,) = manifest.streams[0].partitions
        purges = read_image(store, manifest).streams["orders"].partitions[0].purges
        stage(store, copy, StreamConfig(), folder, NOWHERE, lambda path: None, purges)
        log, _ = Log.open(DirectoryStorage(folder), StreamConfig())
        found = split_batches(b"".join(log.read(0, 1 << 20).chunks))
        at = [
            int(offset)
            for batch in found
            if batch.record_count
            for offset, key in zip(batch.offsets(), batch.columns.keys.to_list(), strict=True)  # type: ignore[union-attr]
            if key == b"ann"
        ]
        assert at == list(range(44, 80, 4))
        assert sum(batch.record_count for batch in found if not batch.header.control) == 80 - 4 - 10
        assert log.log_end_offset == 80


async def test_backup_that_restarts_a_partition_copy_deletes_the_earlier_pieces(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spent(size_bytes: int) -> None:
        client.deletes_end = 70 if len(client.asked) > 3 else 0  # tombstones are deleted that the copy has not read

    monkeypatch.setattr(create, "BackupRateLimit", lambda rate: SimpleNamespace(spent=spent))
    options = create.BackupOptions(since="", piece_bytes=client.log[0].header.size_bytes)
    taken = await create.take_backup(client, Store.at(str(tmp_path)), options)
    assert len(client.asked) > len(client.log), "it was not copied again"
    assert taken.reused_bytes == 0


def test_backup_store_without_directory_permission_raises_with_the_directory() -> None:
    with pytest.raises(StorageError, match="Cannot write to the backup store /proc/nobody"):
        Store.at("/proc/nobody").put("running/a", b"")


@pytest.mark.parametrize(
    "url", ["s3://KEY:SECRET@bucket/p?bogus=1", "gs://KEY:SECRET@bucket", "s4://KEY:SECRET@bucket", "s3://KEY:SECRET@[x"]
)
def test_backup_store_error_about_a_url_contains_no_secret(url: str) -> None:
    with pytest.raises(ConfigError, match="Cannot open the backup store") as error:
        Store.at(url)
    assert "SECRET" not in str(error.value)


async def test_backup_that_fails_at_one_partition_writes_no_file_of_the_others_later(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = (await client.admin.describe_cluster()).image
    both = image.with_stream(replace(image.streams["orders"], name="broken", uid="00000f-1"))
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def described(**_: Any) -> Any:
        return SimpleNamespace(image=both)

    async def bounds_of(stream: str, number: int) -> Bounds:
        if stream == "broken":
            await asked.wait()
            raise UnavailableError("The partition has no leader.")
        return Bounds(UID, "n1", "n1", 9, log_start_offset=40, high_watermark=79)

    async def state() -> tuple[int, bytes]:
        asked.set()
        await may_answer.wait()
        return 80, b"state"

    monkeypatch.setattr(client.admin, "describe_cluster", described)
    monkeypatch.setattr(client, "bounds", bounds_of)
    monkeypatch.setattr(create, "ReplicaReads", lambda *_: SimpleNamespace(state=state))
    store = Store.at(str(tmp_path))
    with pytest.raises(UnavailableError):
        await create.take_backup(client, store, create.BackupOptions())
    may_answer.set()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
    assert store.sizes("") == {}
