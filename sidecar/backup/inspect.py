"""Lists, verifies and prunes the backups in a store. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from liftpy.core.backup.manifest import Manifest, backup_moment, is_backup_id
from liftpy.core.backup.pieces import check_file, checked_batches, checked_state, doomed_backups, missing_files, unnamed_pieces
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.strict_json import load_json
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.snapshot import decode_snapshot
from liftpy.errors import ConfigError, CorruptionError, LiftError, NotFoundError, StorageError
from sidecar.backup.store import Store

RUNNING_AGE = timedelta(days=1)
"""Age at which an unfinished backup may count as dead."""
NEWER_AGE = RUNNING_AGE / 2
"""Minimum time by which a later backup in the same store began after it. The own clock alone is not trusted."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A backup with a manifest.

    ``manifest``: None if it is unreadable. ``faults``: problems found by names and sizes, without reading data.
    """

    backup: str
    manifest: Manifest | None
    faults: tuple[str, ...]


@dataclass(slots=True)
class Verified:
    """Result of reading a whole backup. Each entry of ``faults`` names a file."""

    backup: str
    files: int = 0
    size_bytes: int = 0
    batches: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Deleted backups, or backups that would be deleted. ``waits_for``: running backups that still need some files."""

    backups: tuple[str, ...]
    files: tuple[str, ...]
    size_bytes: int
    waits_for: tuple[str, ...]
    of_backups: int
    """Number of backups before the prune."""


def list_backups(store: Store) -> list[Listed]:
    """Return all backups, oldest first."""
    sizes = store.sizes("pieces") | store.sizes("backups")
    found = []
    for backup in store.backup_ids():
        try:
            manifest = store.manifest(backup)
            found.append(Listed(backup, manifest, tuple(missing_files(manifest, sizes))))
        except StorageError as error:
            found.append(Listed(backup, None, (str(error),)))
    return found


def read_image(store: Store, manifest: Manifest) -> ClusterImage:
    """Read the metadata of a backup.

    Raises CorruptionError with the name of the file, IncompatibleVersionError for a newer version.
    """
    data = store.read(manifest.image.path)
    check_file(manifest.image, data)
    try:
        image = decode_snapshot(data)
    except CorruptionError as error:
        raise CorruptionError(f"File {manifest.image.path} of the backup is damaged: {error}") from None
    for stream in manifest.streams:
        known = image.streams.get(stream.name)
        if known is None or known.uid != stream.uid or len(known.partitions) != len(stream.partitions):
            raise CorruptionError(
                f"File {manifest.image.path} of the backup has another stream {stream.name} than the manifest. Use "
                "another backup."
            )
    return image


def verify_backup(store: Store, manifest: Manifest, tell: Callable[[str], None] = lambda path: None) -> Verified:
    """Read every byte of a backup: digests, each batch's own CRC, the order of offsets and epochs, the chains, the states."""
    found = Verified(manifest.backup, files=1, size_bytes=manifest.image.size_bytes)
    try:
        read_image(store, manifest)
    except LiftError as error:
        found.faults.append(str(error))
    for stream in manifest.streams:
        for partition in stream.partitions:
            if partition.state is not None:
                tell(partition.state.file.path)
                key = PartitionKey(stream.name, stream.uid, partition.partition)
                try:
                    checked_state(partition.state, store.read(partition.state.file.path), key)
                except LiftError as error:
                    found.faults.append(str(error))
                found.files += 1
                found.size_bytes += partition.state.file.size_bytes
            before, epoch = partition.before, 0
            for piece in partition.pieces:
                tell(piece.file.path)
                try:
                    found.batches += len(checked_batches(piece, store.read(piece.file.path), before, epoch))
                except StorageError as error:
                    found.faults.append(str(error))
                before, epoch = piece.chain, piece.last_epoch
                found.files += 1
                found.size_bytes += piece.file.size_bytes
    return found


def prune_backups(store: Store, keep: int, now: datetime, *, dry_run: bool = False, died: Collection[str] = ()) -> Pruned:
    """Remove all but the newest ``keep`` complete backups, and files that no manifest names.

    Manifests are removed first. A prune that fails therefore leaves complete backups, and files that the next one
    finds. An incomplete backup does not count for ``keep``, and stays if it is newer than the oldest kept one. The
    backups whose pieces a running backup uses stay. No piece is removed if a backup begins or ends during the prune.

    Args:
        now: Current time. A clock that is years ahead does not make a backup count as dead.
        died: Ids of backups that the operator reports as dead.

    Raises:
        CorruptionError: A manifest that stays cannot be read, so the files that it names are unknown.
    """
    if keep < 1:
        raise ConfigError("--keep must be at least 1.")
    marks = {path.split("/")[1] for path in store.sizes("running")}
    for unknown in sorted(set(died) - marks):
        raise NotFoundError(
            f"--unfinished {unknown}: no unfinished backup has this id. Unfinished backups: {', '.join(sorted(marks)) or 'none'}."
        )
    listed = list_backups(store)
    doomed = set(doomed_backups((one.backup for one in listed if not one.faults), keep))
    whole = [one.backup for one in listed if not one.faults and one.backup not in doomed]
    if not whole:
        raise NotFoundError("The store has no complete backup, so nothing was removed. Create one with `liftpy backup create`.")
    doomed |= {one.backup for one in listed if one.faults and one.backup < whole[0]}
    ids = [one.backup for one in listed]
    used = _running(store, now, ids, died)
    doomed -= set(used.values())
    if "?" in used.values():
        doomed = set()
    if not dry_run:
        for backup in sorted(doomed):
            store.remove_folder(f"backups/{backup}")
    # pieces before marks, marks before manifests: so whoever wrote a piece is seen as one of both
    sizes = store.sizes("pieces")
    others = {path: size for path, size in store.sizes("backups").items() if path.split("/")[1] not in ids}
    running = used if dry_run else _running(store, now, ids, died)
    ended = set(store.backup_ids()) - {one.backup for one in listed}
    kept = [store.manifest(one.backup) for one in listed if one.backup not in doomed]
    # who began may use what was just to go, who ended has written what no manifest that was read names
    meanwhile = ended | (set(running) - set(used))
    files: tuple[str, ...] = () if meanwhile or "?" in running.values() else unnamed_pieces(sizes, kept, running)
    if not meanwhile and "?" not in running.values():  # what a backup has left that died before its manifest
        files += tuple(path for path in sorted(others) if is_backup_id(owner := path.split("/")[1]) and owner not in running)
    sizes |= others
    if not dry_run:
        for path in files:
            store.remove(path)
        left = [(path, path.split("/")[1]) for path in store.sizes("running")]
        by = _judged_by(now, [*ids, *(backup for _, backup in left)])
        for path, backup in left:
            if backup in died or not _may_run(backup, by):
                store.remove(path)
    return Pruned(
        tuple(sorted(doomed)), files, sum(sizes[path] for path in files), tuple(sorted({*running, *ended})), len(listed)
    )


def _judged_by(now: datetime, ids: Iterable[str]) -> datetime:
    """Return the time by which a mark has died: ``now``, but no later than the newest of all backups and marks allows."""
    newest = max((backup_moment(backup) for backup in ids if is_backup_id(backup)), default=now)
    return min(now, newest + (RUNNING_AGE - NEWER_AGE))


def _may_run(backup: str, by: datetime) -> bool:
    """Return whether the backup may still be running."""
    return is_backup_id(backup) and by - backup_moment(backup) < RUNNING_AGE


def _running(store: Store, now: datetime, ids: Iterable[str], died: Collection[str]) -> dict[str, str]:
    """Return running backups -> the backup that they reuse ('': none, '?': unknown).

    ``ids``: complete backups. ``died``: backups that count as dead.
    """
    found = {}
    marks = [(path, path.split("/")[1]) for path in store.sizes("running")]
    by = _judged_by(now, [*ids, *(backup for _, backup in marks)])
    for path, backup in marks:
        if backup not in died and _may_run(backup, by):
            try:
                found[backup] = str(load_json(store.read(path))["since"])
            except (ValueError, KeyError, TypeError, StorageError):
                found[backup] = "?"
    return found
