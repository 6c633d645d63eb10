"""Backup store: a directory, or a bucket that ``pyarrow.fs`` supports. All methods block, so use them in threads.

A path is below the root and consists of checked names (``liftpy.core.backup.manifest``). A file written by ``put`` is
complete or absent. A file written by ``open_for_writing`` may be incomplete after a failure. So a file counts only if a manifest
names it.

The module also limits the rate in bytes per second, over all copies that run at the same time.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from liftpy.core.backup.manifest import Manifest, decode_manifest, encode_manifest, is_backup_id, manifest_path
from liftpy.errors import ConfigError, CorruptionError, LiftError, NotFoundError, StorageError
from sidecar.disk.files import sync_folder
from sidecar.runtime.tasks import start_attended

_ATOMIC = ("s3", "gcs", "abfs")
"""Kinds of stores in which a file appears only when it is closed."""
_PART = ".part"
_FULL = (
    "The store has no free space, or no free inodes (df, df -i). Remove old backups (liftpy backup prune) or make it larger, "
    "then run the command again."
)
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL.replace("free inodes (df, df -i)", "quota for this user"),
    errno.EROFS: "The store is mounted read-only. Mount it writable, then run the command again.",
    errno.EACCES: "Check the permissions of the store.",
}
"""Error number -> what to do about it. Other errors have a general text."""
DEFAULT_BYTES_PER_S = 50 * 1024 * 1024
"""Default of ``backup_bytes_per_s``, the rate at which a backup reads from the cluster."""


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise CorruptionError(f"{what} is missing in the backup store. The backup is damaged: use another one.") from None
    except (OSError, pa.ArrowException) as error:
        number = error.errno if isinstance(error, OSError) else None
        advice = _ADVICE.get(number or 0, "Check the URL, the network and the credentials.")
        raise StorageError(f"Cannot access {what} in the backup store: {str(error).removesuffix('.')}. {advice}") from error


def shown_store(url: str) -> str:
    """Return the URL of a store without secrets, for outputs: user, password and the query are removed."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL, but it may have a password
        return f"{url.partition('://')[0]}://..."
    if not parts.scheme or not parts.netloc:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Store:
    """Files of a backup store, by path. Methods raise StorageError, and CorruptionError for a missing file."""

    def __init__(self, filesystem: Any, root: str, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self._fs = filesystem
        self._is_stopping = is_stopping
        self._root = root.rstrip("/")
        self._is_local = isinstance(filesystem, fs.LocalFileSystem)

    @classmethod
    def at(cls, url: str, is_stopping: Callable[[], bool] = lambda: False) -> Store:
        """Return the store at a URL (s3://, gs://, abfs://, file://) or path. Raises ConfigError, also if the URL is empty.

        ``is_stopping``: if it returns True, the store uses no further file and raises StorageError.
        """
        if not url:  # an unset variable of a script must not select the working directory
            raise ConfigError("The URL of the backup store is empty. Give a directory, or a URL such as s3://bucket/liftpy.")
        if "://" not in url:
            try:
                return cls(fs.LocalFileSystem(), str(Path(url).expanduser().absolute()), is_stopping)
            except RuntimeError:
                raise ConfigError(f"Cannot open the backup store {url}: no such user. Give the whole path.") from None
        try:
            filesystem, root = fs.FileSystem.from_uri(url)
        except (OSError, ValueError, pa.ArrowException) as error:
            shown = shown_store(url)
            why = str(error).replace(url, shown).removesuffix(".")
            raise ConfigError(f"Cannot open the backup store {shown}: {why}. Check the URL and its credentials.") from None
        return cls(filesystem, root, is_stopping)

    def sizes(self, folder: str) -> dict[str, int]:
        selector = fs.FileSelector(f"{self._root}/{folder}", recursive=True, allow_not_found=True)
        with _storage_errors(folder):
            file_infos = self._fs.get_file_info(selector)
        start = len(self._root) + 1
        return {info.path[start:]: info.size for info in file_infos if info.type is fs.FileType.File}

    def read(self, path: str) -> bytes:
        with _storage_errors(path), self._fs.open_input_stream(self._full_path(path), compression=None) as stream:
            return bytes(stream.read())

    @contextmanager
    def open_for_writing(self, path: str) -> Iterator[Any]:
        """Open a new file and yield it, to write to it. The file is durable when the context ends."""
        whole = self._full_path(path)
        with _storage_errors(path):
            try:
                if self._is_local:
                    Path(whole).parent.mkdir(parents=True, exist_ok=True)
                opened = self._fs.open_output_stream(whole, compression=None)
            except FileNotFoundError as error:  # a missing file here is a wrong URL, and not a lost file
                raise StorageError(f"Cannot write to the backup store {self._root}: {error}. Check the URL.") from error
            with opened as stream:
                yield stream
            if self._is_local:
                self._sync(Path(whole))

    def put(self, path: str, data: bytes) -> None:
        """Write a small file atomically."""
        part = path if self._fs.type_name in _ATOMIC else path + _PART
        try:
            with self.open_for_writing(part) as stream:
                stream.write(data)
        except StorageError:
            with suppress(StorageError):
                self.remove(part)
            raise
        if part != path:
            with _storage_errors(path):
                self._fs.move(self._full_path(part), self._full_path(path))
                if self._is_local:
                    sync_folder(Path(self._full_path(path)).parent)

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        with _storage_errors(path), suppress(FileNotFoundError):
            self._fs.delete_file(self._full_path(path))

    def remove_folder(self, path: str) -> None:
        with _storage_errors(path), suppress(FileNotFoundError):
            self._fs.delete_dir(self._full_path(path))

    def _full_path(self, path: str) -> str:
        if self._is_stopping():
            raise StorageError(f"The command was stopped before it used {path} in the backup store.")
        return f"{self._root}/{path}"

    def _sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        folder = path.parent
        while len(str(folder)) >= len(self._root) and folder != folder.parent:
            sync_folder(folder)
            folder = folder.parent

    # ---- backups ---------------------------------------------------------------------------------------------------------
    def backup_ids(self) -> list[str]:
        """Return the ids of all backups with a manifest, oldest first."""
        paths = self.sizes("backups")
        return sorted(name for path in paths if is_backup_id(name := path.split("/")[1]) and path == manifest_path(name))

    def manifest(self, backup: str) -> Manifest:
        """Return the manifest of the backup with the id ``backup``.

        Raises CorruptionError with the name of the file, or UnknownFormatError.
        """
        path = manifest_path(backup)
        try:
            manifest = decode_manifest(self.read(path))
        except LiftError as error:
            raise type(error)(f"Cannot read {path}: {error}") from None
        if manifest.backup != backup:
            raise CorruptionError(f"File {path} belongs to backup {manifest.backup}. The store is damaged: use another backup.")
        return manifest

    def newest(self, backup: str = "") -> Manifest:
        """Return the manifest of the backup with the id ``backup``. '': of the newest backup. Raises NotFoundError."""
        ids = self.backup_ids()
        if backup and backup not in ids:
            raise NotFoundError(f"Backup {backup} does not exist. Newest backups: {', '.join(ids[-10:]) or 'none'}.")
        if not ids:
            raise NotFoundError("The store has no backups. Create one with `liftpy backup create URL`, or check the URL.")
        return self.manifest(backup or ids[-1])

    def put_manifest(self, manifest: Manifest) -> None:
        self.put(manifest_path(manifest.backup), encode_manifest(manifest))


async def in_thread(work: Callable[..., object], *arguments: object) -> None:
    """Run ``work(*arguments)``, which writes files, in a thread, and wait for its end.

    If the caller is canceled, it waits for the thread, so that nothing is written after the clean-up.
    """
    working = start_attended(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(working)
    finally:
        if not working.done():
            await asyncio.wait([working])


class BackupRateLimit:
    """Rate limit of a backup. ``bytes_per_s`` 0: no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    async def spent(self, size_bytes: int) -> None:
        """Wait after ``size_bytes`` bytes were copied, so that the rate stays within the limit."""
        if not self._bytes_per_s:
            return
        now_s = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
        await asyncio.sleep(self._free_s - now_s)
