"""Test manifests, pieces, chains, verify, list and prune on a store in a directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from liftpy.core.backup.manifest import (
    NO_CHAIN,
    CursorCopy,
    PartitionCopy,
    StreamCopy,
    backup_moment,
    decode_manifest,
    encode_manifest,
    is_backup_id,
    manifest_path,
    piece_path,
    running_path,
    writer_of,
)
from liftpy.core.backup.pieces import reusable_pieces
from liftpy.errors import (
    ConfigError,
    CorruptionError,
    InvalidNameError,
    LiftError,
    NotFoundError,
    StorageError,
    UnknownFormatError,
)
from sidecar.backup.create import BackupOptions, new_backup_id, take_backup
from sidecar.backup.inspect import list_backups, prune_backups, read_image, verify_backup
from sidecar.backup.store import Store
from tests.unit.backup.stored import FIRST, SECOND, THIRD, UID, copied, log_of, put_backup, seal_manifest, two_backups

if TYPE_CHECKING:
    from liftpy.client import Client

NOW = datetime(2026, 11, 24, tzinfo=UTC)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_backup_manifest_after_encode_and_decode_is_equal(tmp_path: Path) -> None:
    _, _, manifest = two_backups(tmp_path)
    manifest = replace(manifest, cursors=(CursorCopy(name="g", is_cursor=False, positions=(("orders", UID, 0, 55),)),))
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_backup_manifest_with_any_flipped_bit_is_rejected(tmp_path: Path) -> None:
    store, one, _ = two_backups(tmp_path)
    data = store.read(manifest_path(one.backup))
    for position in range(0, len(data), 7):  # 7 and 8 have no divisor in common: every bit of a byte has its turn
        wrong = bytearray(data)
        wrong[position] ^= 1 << position % 8
        with pytest.raises(CorruptionError, match=r"manifest\.json"):
            decode_manifest(bytes(wrong))


def test_backup_manifest_with_another_json_layout_is_rejected(tmp_path: Path) -> None:
    store, one, _ = two_backups(tmp_path)
    whole = json.loads(store.read(manifest_path(one.backup)))
    with pytest.raises(CorruptionError, match=r"of this backup \(manifest\.json\) was"):
        decode_manifest(json.dumps(whole).encode())


def test_backup_manifest_of_another_format_is_rejected(tmp_path: Path) -> None:
    store, one, _ = two_backups(tmp_path)
    content = json.loads(store.read(manifest_path(one.backup)))["manifest"]
    assert seal_manifest(content) == store.read(manifest_path(one.backup))
    with pytest.raises(UnknownFormatError, match="format 2"):
        decode_manifest(seal_manifest(content | {"format": 2}))


def test_backup_path_with_an_invalid_name_is_rejected() -> None:
    with pytest.raises(InvalidNameError):
        piece_path("../orders", UID, 0, 0, FIRST)
    path = piece_path("orders", UID, 0, 0, FIRST)
    assert writer_of(path) == FIRST
    assert writer_of("pieces/orders/x/0/notes.txt") == ""
    assert writer_of("pieces/orders/x/0/0-other.batches") == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"path": "pieces/orders', '"path": "pieces/../orders'),
        ('"name": "orders"', '"name": "../orders"'),
        ('"high_watermark": 79', '"high_watermark": 80'),
        ('"start": 30', '"start": 20'),
        ('"end": 60', '"end": 65'),
        ('"end": 80', '"end": 79'),
        ('"epoch": 4', '"epoch": 5'),
    ],
)
def test_backup_manifest_with_impossible_values_is_rejected(tmp_path: Path, old: str, new: str) -> None:
    store, one, _ = two_backups(tmp_path)
    text = json.dumps(json.loads(store.read(manifest_path(one.backup)))["manifest"], sort_keys=True)
    assert old in text
    with pytest.raises(CorruptionError, match=r"manifest\.json"):
        decode_manifest(seal_manifest(json.loads(text.replace(old, new))))


def test_incremental_backup_reuses_full_pieces_and_copies_the_last_partial_piece_again(tmp_path: Path) -> None:
    _, one, two = two_backups(tmp_path)
    old, new = one.streams[0].partitions[0], two.streams[0].partitions[0]
    assert [piece.end for piece in old.pieces] == [30, 60, 80]
    assert new.pieces[:2] == old.pieces[:2]
    assert [(piece.start, piece.end) for piece in new.pieces[2:]] == [(60, 90), (90, 100)]
    assert new.chain == copied(Store.at(str(tmp_path / "other")), THIRD, log_of(10), per_piece=100).chain, "however it is cut"


@pytest.mark.parametrize(
    ("start", "high_watermark", "ends"),
    [(0, 79, [30, 60]), (29, 79, [30, 60]), (30, 79, [60]), (70, 79, []), (0, 58, [30]), (0, 59, [30, 60])],
)
def test_incremental_backup_reuses_only_pieces_between_log_start_and_high_watermark(
    tmp_path: Path, start: int, high_watermark: int, ends: list[int]
) -> None:
    _, one, _ = two_backups(tmp_path)
    old = one.streams[0].partitions[0]
    chain, kept = reusable_pieces(old, start, high_watermark, old.pieces[0].file.size_bytes)
    assert [piece.end for piece in kept] == ends
    dropped = [piece for piece in old.pieces[:2] if piece.end <= start]
    assert chain == (dropped[-1].chain if dropped else NO_CHAIN)
    assert reusable_pieces(None, start, high_watermark, 1) == (NO_CHAIN, ())


def test_backup_verify_with_a_flipped_bit_in_any_file_reports_the_file(tmp_path: Path) -> None:
    store, _, two = two_backups(tmp_path)
    assert verify_backup(store, two).faults == []
    assert verify_backup(store, two).files == len(two.files)
    for path in sorted(two.files):
        file = tmp_path / path
        data = file.read_bytes()
        for position in (0, len(data) // 2, len(data) - 1):
            wrong = bytearray(data)
            wrong[position] ^= 0x10
            file.write_bytes(wrong)
            found = verify_backup(store, two)
            assert len(found.faults) == 1, (path, position, found.faults)
            assert path in found.faults[0]
            assert "SHA-256" in found.faults[0]
        file.write_bytes(data)
    assert verify_backup(store, two).faults == []
    text = tmp_path / manifest_path(SECOND)
    text.write_bytes(text.read_bytes().replace(b'"start": 0', b'"start": 1'))
    with pytest.raises(CorruptionError, match=f"{SECOND}/manifest.json"):
        store.newest()


def test_backup_verify_reports_a_piece_of_another_log(tmp_path: Path) -> None:
    """Each piece is whole. The chain shows that it belongs to another log."""
    store, one, _ = two_backups(tmp_path)
    for other, says in (
        (log_of(8, epoch=2), "does not follow the batch before it"),
        (log_of(8, value=b"%x"), "with other content"),
    ):
        pieces = copied(store, THIRD, other).pieces
        mixed = replace(one.streams[0].partitions[0], pieces=(one.streams[0].partitions[0].pieces[0], *pieces[1:]))
        manifest = put_backup(store, THIRD, mixed)
        assert any(says in fault for fault in verify_backup(store, manifest).faults), says


def test_backup_whose_metadata_contains_another_stream_uid_raises_corruption(tmp_path: Path) -> None:
    store, one, _ = two_backups(tmp_path)
    wrong = replace(one, streams=(replace(one.streams[0], uid="00000b-20", partitions=()),))
    with pytest.raises(CorruptionError, match="another stream orders"):
        read_image(store, wrong)
    wrong = replace(one, streams=(replace(one.streams[0], uid="00000b-20"),))
    with pytest.raises(CorruptionError, match="another stream orders"):
        read_image(store, wrong)


def test_backup_list_reports_a_missing_or_changed_file_as_a_fault_of_the_backup(tmp_path: Path) -> None:
    store, one, two = two_backups(tmp_path)
    assert [(entry.backup, entry.faults) for entry in list_backups(store)] == [(FIRST, ()), (SECOND, ())]
    last = tmp_path / two.streams[0].partitions[0].pieces[-1].file.path
    last.write_bytes(last.read_bytes() + b"x")
    assert f"not {last.stat().st_size - 1}" in list_backups(store)[1].faults[0]
    last.unlink()
    first, second = list_backups(store)
    assert first.faults == ()
    assert "is missing" in second.faults[0]
    (tmp_path / manifest_path(SECOND)).unlink()
    assert [entry.backup for entry in list_backups(store)] == [FIRST], "without a manifest there is none"
    (tmp_path / manifest_path(FIRST)).write_text("{}")
    assert list_backups(store)[0].manifest is None
    with pytest.raises(NotFoundError, match=SECOND):
        store.newest(SECOND)
    assert read_image(store, one).streams["orders"].uid == UID


def test_backup_prune_removes_only_unreferenced_files(tmp_path: Path) -> None:
    store, one, two = two_backups(tmp_path)
    store.put("pieces/orders/notes.txt", b"not ours")
    dead = piece_path("orders", UID, 0, 5, "20261101T000001Z-0000000d")
    store.put(dead, b"of a backup that died")
    before = files_of(tmp_path)
    would = prune_backups(store, 1, NOW, dry_run=True)
    assert files_of(tmp_path) == before
    assert (would.backups, would.backup_count_before) == ((FIRST,), 2)
    done = prune_backups(store, 1, NOW)
    assert done.backups == (FIRST,)
    gone = {f for f in one.files if f not in two.files}
    assert before - files_of(tmp_path) == {*gone, dead, manifest_path(FIRST)}
    assert set(done.files) == {*(f for f in gone if f.startswith("pieces/")), dead}
    assert verify_backup(store, two).faults == []
    with pytest.raises(ConfigError):
        prune_backups(store, 0, NOW)


def test_backup_prune_keeps_files_of_a_running_backup(tmp_path: Path) -> None:
    store, one, two = two_backups(tmp_path)
    running = f"{NOW:%Y%m%dT%H%M%SZ}-0000000e"
    store.put(running_path(running), json.dumps({"since": FIRST}).encode())
    store.put(piece_path("orders", UID, 0, 5, running), b"being written")
    before = files_of(tmp_path)
    done = prune_backups(store, 1, NOW)
    assert files_of(tmp_path) == before
    assert done.waits_for == (running,)
    store.put(running_path(running), b"")
    assert prune_backups(store, 1, NOW).backups == ()
    assert files_of(tmp_path) == before, "it has not said yet"
    for ahead in (datetime(2026, 11, 26, tzinfo=UTC), datetime(2036, 11, 26, tzinfo=UTC)):
        assert prune_backups(store, 1, ahead).waits_for == (running,)
    assert files_of(tmp_path) == before, "that a day has gone one clock says, and nothing else"
    for hours, gone in ((11, False), (12, True)):
        later = f"{NOW + timedelta(hours=hours):%Y%m%dT%H%M%SZ}-0000000f"
        store.put(running_path(later), b'{"since": ""}')
        assert prune_backups(store, 1, NOW + timedelta(hours=23)).waits_for == (running, later), "nor is it a day old"
        assert (running not in prune_backups(store, 1, datetime(2036, 11, 26, tzinfo=UTC)).waits_for) is gone
        store.remove(running_path(later))
    assert set(list_backups(store)[0].manifest.files) == set(two.files)  # type: ignore[union-attr]
    assert not any(path.startswith("running/") or running in path for path in files_of(tmp_path)), "a day later it has died"
    assert one.backup == FIRST


def test_backup_prune_keeps_files_of_a_backup_that_runs_for_days(tmp_path: Path) -> None:
    """Its pieces were deleted after a day, if another backup had begun. The backup then failed at its end."""
    store, _, _ = two_backups(tmp_path)
    running, later = (f"{NOW + timedelta(hours=hours):%Y%m%dT%H%M%SZ}-0000000e" for hours in (0, 48))
    piece = piece_path("orders", UID, 0, 5, running)
    store.put(piece, b"being written")
    store.put(running_path(later), b'{"since": ""}')
    for renewed_h, is_alive in ((47, True), (24, False)):
        renewed_ns = int((NOW + timedelta(hours=renewed_h)).timestamp()) * 10**9
        store.put(running_path(running), json.dumps({"since": "", "renewed_ns": renewed_ns}).encode())
        done = prune_backups(store, 2, NOW + timedelta(hours=48))
        assert (running in done.waits_for, piece in files_of(tmp_path)) == (is_alive, is_alive)
    assert running_path(running) not in files_of(tmp_path)


class Meanwhile(Store):
    """A store that calls ``happens`` before the first removal of a prune."""

    happens: Callable[[], None]

    def remove_folder(self, path: str) -> None:
        super().remove_folder(path)
        self.happens()


def test_backup_prune_keeps_a_backup_that_starts_or_ends_during_the_prune(tmp_path: Path) -> None:
    _, one, _ = two_backups(tmp_path)
    store = Meanwhile.at(str(tmp_path))
    assert isinstance(store, Meanwhile)
    running, later = (f"{NOW + timedelta(seconds=n):%Y%m%dT%H%M%SZ}-0000000e" for n in (1, 2))
    store.put(running_path(running), b'{"since": ""}')
    partition = copied(store, running, log_of(4))

    def ends() -> None:
        put_backup(store, running, partition)
        store.remove(running_path(running))

    store.happens = ends
    done = prune_backups(store, 1, NOW)
    assert (done.backups, done.waits_for) == ((FIRST,), (running,))
    assert verify_backup(store, store.manifest(running)).faults == [], "its pieces were no orphans: its manifest came behind"
    store.happens = lambda: None
    assert prune_backups(store, 2, NOW).waits_for == ()
    assert not {f for f in one.files if f not in store.manifest(SECOND).files} & files_of(tmp_path), (
        "the next one takes the rest"
    )

    def begins() -> None:
        store.put(running_path(later), b'{"since": "?"}')
        store.put(piece_path("orders", UID, 0, 5, later), b"being written")

    store.happens = begins
    prune_backups(store, 1, NOW)
    assert {running_path(later), piece_path("orders", UID, 0, 5, later)} <= files_of(tmp_path)


def test_backup_prune_keeps_the_marker_file_of_a_backup_started_during_the_prune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, _ = two_backups(tmp_path)
    later = f"{NOW:%Y%m%dT%H%M%SZ}-0000000e"
    remove = store.remove

    def removed(path: str) -> None:
        remove(path)
        monkeypatch.setattr(store, "remove", remove)
        store.put(running_path(later), b'{"since": "?"}')

    monkeypatch.setattr(store, "remove", removed)
    assert prune_backups(store, 1, NOW).files
    assert running_path(later) in files_of(tmp_path), "the next prune has to know of it"


def test_backup_prune_keeps_the_newest_complete_backups(tmp_path: Path) -> None:
    store, one, two = two_backups(tmp_path)
    (tmp_path / two.streams[0].partitions[0].pieces[-1].file.path).unlink()
    assert prune_backups(store, 1, NOW).backups == (), "the newest is not whole"
    assert verify_backup(store, one).faults == []
    (tmp_path / manifest_path(SECOND)).write_text("{}")
    with pytest.raises(LiftError):
        prune_backups(store, 1, NOW)
    assert verify_backup(store, one).faults == [], "what an unreadable manifest names is not known: nothing goes"


def test_backup_prune_never_counts_a_partial_backup_in_the_place_of_a_complete_one(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    ids = [f"202611{day:02}T000000Z-0000000a" for day in range(1, 8)]
    full, others, same = (), ("users",), ("_groups",)
    for backup, left_out in zip(ids, (full, others, full, others, others, others, same), strict=True):
        put_backup(store, backup, copied(store, backup, log_of(2)), left_out=left_out)
    assert prune_backups(store, 2, NOW, dry_run=True).backups == (*ids[:2], *ids[3:5]), "an internal stream does not count"
    assert prune_backups(store, 1, NOW).backups == tuple(ids[:6])
    for backup in ids[:3]:
        put_backup(store, backup, copied(store, backup, log_of(2)), left_out=others)
    store.remove_folder(f"backups/{ids[6]}")
    assert prune_backups(store, 2, NOW).backups == (ids[0],), "a store of partial backups is pruned, too"


def test_backup_prune_keeps_the_newest_backups_of_each_namespace(tmp_path: Path) -> None:
    """Two clusters made backups in one store. The backups of one of them replaced all backups of the other one."""
    store = Store.at(str(tmp_path))
    for backup, namespace in ((FIRST, "eu"), (SECOND, "eu"), (THIRD, "us")):
        store.put_manifest(replace(put_backup(store, backup, copied(store, backup, log_of(2))), namespace=namespace))
    assert prune_backups(store, 1, NOW).backups == (FIRST,)
    assert [verify_backup(store, store.manifest(backup)).faults for backup in (SECOND, THIRD)] == [[], []]


def test_backup_prune_keeps_an_incomplete_backup_that_no_complete_one_replaces(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path))
    first = put_backup(store, FIRST, copied(store, FIRST, log_of(2)), left_out=("users",))
    users = StreamCopy(name="users", uid="00000b-0", partitions=(PartitionCopy(partition=0, start=0, high_watermark=-1),))
    store.put_manifest(replace(first, streams=(*first.streams, users)))
    store.remove(first.streams[0].partitions[0].pieces[0].file.path)
    put_backup(store, SECOND, copied(store, SECOND, log_of(2)), left_out=("users",))
    assert [bool(one.faults) for one in list_backups(store)] == [True, False]
    assert prune_backups(store, 1, NOW).backups == (), "the metadata and the other files of users may still be of use"
    put_backup(store, THIRD, copied(store, THIRD, log_of(2)))
    assert prune_backups(store, 1, NOW).backups == (FIRST, SECOND)


def test_backup_prune_removes_nothing_while_a_backup_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _, two = two_backups(tmp_path)
    read = store.read

    def fails(path: str) -> bytes:
        if path == two.image.path:
            raise StorageError("the network is down")
        return read(path)

    monkeypatch.setattr(store, "read", fails)
    before = files_of(tmp_path)
    with pytest.raises(StorageError, match="network"):
        prune_backups(store, 1, NOW)
    assert files_of(tmp_path) == before
    assert list_backups(store)[1].faults == ("the network is down",)


@pytest.mark.parametrize("format_version", [1, 2], ids=["it is damaged", "a newer version wrote it"])
def test_backup_prune_removes_nothing_while_the_newest_manifest_is_unreadable(tmp_path: Path, format_version: int) -> None:
    store, one, two = two_backups(tmp_path)
    content = {**json.loads(encode_manifest(two))["manifest"], "format": format_version, "backup": THIRD}
    (tmp_path / manifest_path(THIRD)).parent.mkdir()
    (tmp_path / manifest_path(THIRD)).write_bytes(b"{}" if format_version == 1 else seal_manifest(content))
    before = files_of(tmp_path)
    with pytest.raises(StorageError, match=THIRD):
        prune_backups(store, 1, NOW)
    assert files_of(tmp_path) == before
    assert verify_backup(store, one).faults == []


@pytest.mark.parametrize("ahead_s", [0, 3600], ids=["in the same second", "the clock was set back"])
def test_backup_ids_created_in_one_second_or_after_a_clock_jump_increase(ahead_s: int) -> None:
    """A restore once used the backup before the newest one, of the same second."""
    taken = [new_backup_id(NOW + timedelta(seconds=ahead_s))]
    for _ in range(20):
        taken.append(new_backup_id(NOW, taken[-1]))
    assert sorted(taken) == taken
    assert all(is_backup_id(backup) for backup in taken)
    later = NOW + timedelta(days=1, microseconds=999_999)
    assert backup_moment(new_backup_id(later, taken[-1])) == NOW + timedelta(days=1)
    assert not is_backup_id("20261341T250000Z-00000000"), "no such time"


async def test_backup_id_of_a_new_backup_is_greater_than_all_ids_in_the_store(tmp_path: Path) -> None:
    store, _, two = two_backups(tmp_path)
    ahead = new_backup_id(datetime(2096, 1, 1, tzinfo=UTC))
    (tmp_path / manifest_path(ahead)).parent.mkdir(parents=True)
    (tmp_path / manifest_path(ahead)).write_text("{}")
    begun: list[str] = []

    def step(name: str) -> None:
        begun.extend(path.split("/")[1] for path in store.sizes("running"))
        if name == "barrier":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await take_backup(cast("Client", None), store, BackupOptions(), step=step)
    assert begun
    assert min(begun) > ahead > two.backup


def test_backup_store_opened_by_url_or_path_reads_the_written_files(tmp_path: Path) -> None:
    store = Store.at(f"file://{tmp_path}/deep/store")
    assert store.sizes("backups") == {}
    assert store.backup_ids() == []
    store.put("backups/x/y", b"12")
    assert store.sizes("backups") == {"backups/x/y": 2}
    assert Store.at(f"{tmp_path}/deep/store").read("backups/x/y") == b"12"
    store.remove("backups/x/y")
    store.remove("backups/x/y")
    store.remove_folder("backups/zzz")
    with pytest.raises(CorruptionError, match="backups/x/y is missing"):
        store.read("backups/x/y")
    with pytest.raises(ConfigError, match="Cannot open the backup store"):
        Store.at("gopher://x/y")
    with pytest.raises(NotFoundError):
        store.newest()


@pytest.mark.parametrize("start", [0, 70])
def test_backup_of_an_empty_partition_has_no_pieces(tmp_path: Path, start: int) -> None:
    """Its backup could not be read."""
    empty = PartitionCopy(partition=0, start=start, high_watermark=start - 1)
    assert (empty.chain, empty.epoch, empty.size_bytes) == (NO_CHAIN, 0, 0)
    store = Store.at(str(tmp_path))
    whole = put_backup(store, FIRST, copied(store, FIRST, log_of(2)))
    stream = whole.streams[0]
    both = replace(whole, streams=(replace(stream, partitions=(stream.partitions[0], replace(empty, partition=1))),))
    assert decode_manifest(encode_manifest(both)) == both
    store.put_manifest(put_backup(store, SECOND, empty))
    assert [one.faults for one in list_backups(store)] == [(), ()]
    assert verify_backup(store, store.newest()).faults == []
