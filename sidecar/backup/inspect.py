"""Lists, verifies and prunes the backups in a store. All functions block.

A backup writes a *mark* into the store when it begins, renews it every hour, and removes it at its end. So a mark shows an unfinished
backup.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from liftpy.core.backup.manifest import Manifest, backup_moment, is_backup_id
from liftpy.core.backup.pieces import (
    backups_to_delete,
    check_file,
    checked_batches,
    checked_state,
    left_out_streams,
    missing_files,
    replaces,
    unnamed_pieces,
)
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.strict_json import load_json
from liftpy.core.metadata.codec import decode_snapshot
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import (
    ConfigError,
    CorruptionError,
    IncompatibleVersionError,
    InvariantError,
    LiftError,
    NotFoundError,
    StorageError,
    UnknownFormatError,
)
from sidecar.backup.store import Store

UNREADABLE = (CorruptionError, UnknownFormatError, IncompatibleVersionError, InvariantError)
"""Errors of a manifest or of metadata that are damaged, or that a newer version has written. Another attempt gives the same error."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RUNNING_AGE = timedelta(days=1)
"""Age of its mark after which an unfinished backup may count as dead."""
NEWER_AGE = RUNNING_AGE / 2
"""Minimum time between the starts of an unfinished backup and the newest backup, before the unfinished one counts as dead.

The time of the newest backup is needed because the clock of this machine may be wrong.
"""


@dataclass(frozen=True, slots=True)
class BackupEntry:
    """One backup that has a manifest file in the store.

    Attributes:
        manifest: Manifest of the backup. None: the file cannot be read.
        faults: Problems of the manifest, of the metadata, and of file names and sizes. The records are not read.
        left_out: Names of the streams that the backup does not contain, because it was limited to others. (): it has all streams.
    """

    backup: str
    manifest: Manifest | None
    faults: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def selection(self) -> tuple[str, ...] | None:
        """Names of the streams that the backup was limited to. None: it has all streams of its cluster.

        Of an incomplete backup, the names of all streams that it should have. (): its manifest cannot be read.
        """
        if self.manifest is None:
            return ()
        return tuple(stream.name for stream in self.manifest.streams) if self.left_out or self.faults else None


@dataclass(slots=True)
class VerifyResult:
    """Result of reading a whole backup. Each of the ``faults`` names a file."""

    backup: str
    files: int = 0
    size_bytes: int = 0
    batches: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """Backups that were deleted, or would be deleted. ``waits_for``: running backups that still need some files."""

    backups: tuple[str, ...]
    files: tuple[str, ...]
    size_bytes: int
    waits_for: tuple[str, ...]
    backup_count_before: int
    """Number of backups in the store before the prune."""


def list_backups(store: Store) -> list[BackupEntry]:
    """Return all backups in ``store`` that have a manifest, oldest first. A file that cannot be read counts as a fault."""
    sizes = store.sizes("pieces") | store.sizes("backups")
    entries = []
    for backup in store.backup_ids():
        try:
            entries.append(_entry_of(store, backup, sizes))
        except StorageError as error:
            entries.append(BackupEntry(backup, None, (str(error),)))
    return entries


def _entry_of(store: Store, backup: str, sizes: Mapping[str, int]) -> BackupEntry:
    """Return the entry of one backup. ``sizes``: sizes of all files in the store, by path.

    Raises StorageError if a file cannot be read now. A damaged file is a fault of the entry.
    """
    try:
        manifest = store.manifest(backup)
    except UNREADABLE as error:
        return BackupEntry(backup, None, (str(error),))
    faults = tuple(missing_files(manifest, sizes))
    if faults:
        return BackupEntry(backup, manifest, faults)
    try:
        return BackupEntry(backup, manifest, (), left_out_streams(manifest, read_image(store, manifest).streams))
    except UNREADABLE as error:
        return BackupEntry(backup, manifest, (str(error),))


def newest_complete(entries: Sequence[BackupEntry]) -> BackupEntry | None:
    """Return the newest complete backup among ``entries``, which are in order. None: there is none.

    A backup that was limited to some streams counts only if no complete backup has all streams.
    """
    complete = [one for one in entries if not one.faults]
    return next(reversed([one for one in complete if not one.left_out] or complete), None)


def read_image(store: Store, manifest: Manifest) -> ClusterImage:
    """Read the metadata of a backup.

    Raises CorruptionError with the name of the file, and IncompatibleVersionError for a backup of a newer version.
    """
    data = store.read(manifest.image.path)
    check_file(manifest.image, data)
    try:
        image = decode_snapshot(data)
    except CorruptionError as error:
        raise CorruptionError(f"File {manifest.image.path} of the backup is damaged: {error}. Use another backup.") from None
    for stream in manifest.streams:
        known = image.streams.get(stream.name)
        if known is None or known.uid != stream.uid or len(known.partitions) != len(stream.partitions):
            raise CorruptionError(
                f"File {manifest.image.path} of the backup has another stream {stream.name} than the manifest. Use "
                "another backup."
            )
    return image


def verify_backup(store: Store, manifest: Manifest, tell: Callable[[str], None] = lambda path: None) -> VerifyResult:
    """Read every byte of a backup, check it, and return the faults.

    ``tell`` is called with the path of each file. The checks are digests, the CRC of each batch, the order of offsets and epochs, the
    chains of pieces, and the states of producers.
    """
    result = VerifyResult(manifest.backup, files=1, size_bytes=manifest.image.size_bytes)
    try:
        read_image(store, manifest)
    except LiftError as error:
        result.faults.append(str(error))
    for stream in manifest.streams:
        for partition in stream.partitions:
            if partition.state is not None:
                tell(partition.state.file.path)
                key = PartitionKey(stream.name, stream.uid, partition.partition)
                try:
                    checked_state(partition.state, store.read(partition.state.file.path), key)
                except LiftError as error:
                    result.faults.append(str(error))
                result.files += 1
                result.size_bytes += partition.state.file.size_bytes
            before, epoch = partition.before, 0
            for piece in partition.pieces:
                tell(piece.file.path)
                try:
                    result.batches += len(checked_batches(piece, store.read(piece.file.path), before, epoch))
                except StorageError as error:
                    result.faults.append(str(error))
                before, epoch = piece.chain, piece.last_epoch
                result.files += 1
                result.size_bytes += piece.file.size_bytes
    return result


def prune_backups(store: Store, keep: int, now: datetime, *, dry_run: bool = False, died: Collection[str] = ()) -> PruneResult:
    """Remove the backups that ``keep`` newer complete ones replace, and files that no manifest names.

    ``backups_to_delete`` says which backup replaces another of the same namespace. Manifests are removed first. So if a prune fails,
    the remaining backups are complete, and the next prune finds the other files. An incomplete backup does not count for ``keep``. It
    stays if it is newer than the oldest remaining one, or if no remaining one replaces it. Backups whose pieces a running backup uses
    stay. No piece is removed if a backup begins or ends during the prune.

    Args:
        store: Store of the backups.
        keep: Number of newer complete backups that replace a backup, at least 1.
        now: Current time. A clock that is years ahead does not make a backup count as dead.
        dry_run: True to remove nothing.
        died: Ids of backups that the operator reports as dead.

    Raises:
        CorruptionError: A manifest that stays cannot be read, so the files that it names are not known.
        StorageError: The manifest or the metadata of a backup cannot be read now, so it is not known which backups are complete.
    """
    if keep < 1:
        raise ConfigError("--keep must be at least 1.")
    marks = {path.split("/")[1] for path in store.sizes("running")}
    for unknown in sorted(set(died) - marks):
        raise NotFoundError(
            f"--unfinished {unknown}: no unfinished backup has this id. Unfinished backups: {', '.join(sorted(marks)) or 'none'}."
        )
    sizes = store.sizes("pieces") | store.sizes("backups")
    listed = [_entry_of(store, backup, sizes) for backup in store.backup_ids()]
    complete = [one for one in listed if not one.faults]
    if not complete:
        raise NotFoundError("The store has no complete backup, so nothing was removed. Create one with `liftpy backup create`.")
    namespaces = {one.manifest.namespace for one in listed if one.manifest is not None}
    doomed: set[str] = set()
    for namespace in namespaces:  # a backup of one cluster never replaces that of another one
        of_cluster = [one for one in listed if one.manifest is None or one.manifest.namespace == namespace]
        doomed |= _replaced_backups(of_cluster, keep, takes_unreadable=len(namespaces) == 1)
    ids = [one.backup for one in listed]
    used = _running_backups(store, now, ids, died)
    doomed -= set(used.values())
    if "?" in used.values():
        doomed = set()
    # before the first removal: no file may go while it is not known which files a backup that stays has
    remaining_manifests = [one.manifest or store.manifest(one.backup) for one in listed if one.backup not in doomed]
    if not dry_run:
        for backup in sorted(doomed):
            store.remove_folder(f"backups/{backup}")
    # list pieces before marks, and marks before manifests, so that the backup of each piece is found as one or the other
    sizes = store.sizes("pieces")
    others = {path: size for path, size in store.sizes("backups").items() if path.split("/")[1] not in ids}
    running = used if dry_run else _running_backups(store, now, ids, died)
    ended = set(store.backup_ids()) - {one.backup for one in listed}
    # a backup that began may use these pieces, and one that ended has written pieces that no known manifest names
    meanwhile = ended | (set(running) - set(used))
    files: tuple[str, ...] = () if meanwhile or "?" in running.values() else unnamed_pieces(sizes, remaining_manifests, running)
    if not meanwhile and "?" not in running.values():  # files of a backup that died before it wrote its manifest
        files += tuple(path for path in sorted(others) if is_backup_id(owner := path.split("/")[1]) and owner not in running)
    sizes |= others
    if not dry_run:
        for path in files:
            store.remove(path)
        left = [(path, path.split("/")[1]) for path in store.sizes("running")]
        may_run = _running_backups(store, now, ids, died)
        for path, backup in left:
            if backup not in may_run:
                store.remove(path)
    return PruneResult(
        tuple(sorted(doomed)), files, sum(sizes[path] for path in files), tuple(sorted({*running, *ended})), len(listed)
    )


def _replaced_backups(listed: Sequence[BackupEntry], keep: int, *, takes_unreadable: bool) -> set[str]:
    """Return the ids of the backups of one cluster that ``keep`` newer complete ones replace. ``listed``: backups of the cluster.

    ``takes_unreadable``: whether backups with an unreadable manifest count as backups of the cluster.
    """
    doomed = set(backups_to_delete({one.backup: one.selection for one in listed if not one.faults}, keep))
    remaining = [one for one in listed if not one.faults and one.backup not in doomed]
    return doomed | {
        one.backup
        for one in listed
        if one.faults
        and (takes_unreadable or one.manifest is not None)
        and remaining
        and one.backup < remaining[0].backup
        and any(replaces(other.selection, one.selection) for other in remaining)
    }


def _reference_time(now: datetime, ids: Iterable[str]) -> datetime:
    """Return the time from which the age of unfinished backups is measured. ``ids``: ids of all backups.

    It is ``now``, but at most half a day after the newest backup of the store. So a wrong clock makes no backup dead.
    """
    newest = max((backup_moment(backup) for backup in ids if is_backup_id(backup)), default=now)
    return min(now, newest + (RUNNING_AGE - NEWER_AGE))


def _running_backups(store: Store, now: datetime, ids: Iterable[str], died: Collection[str]) -> dict[str, str]:
    """Return the ids of running backups, each with the id of the earlier backup whose pieces it uses ('': none, '?': not known)."""
    base_backups = {}
    marks = [(path, path.split("/")[1]) for path in store.sizes("running")]
    by = _reference_time(now, [*ids, *(backup for _, backup in marks)])
    for path, backup in marks:
        if backup in died or not is_backup_id(backup):
            continue
        renewed, base = backup_moment(backup), "?"
        try:
            mark = load_json(store.read(path))
            base = str(mark["since"])
            renewed = max(renewed, EPOCH + timedelta(microseconds=mark.get("renewed_ns", 0) // 1000))
        except CorruptionError:  # it was removed a moment ago
            pass
        except StorageError:  # it may be new
            renewed = by
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            pass
        if by - renewed < RUNNING_AGE:
            base_backups[backup] = base
    return base_backups
