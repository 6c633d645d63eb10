"""What ``liftpy backup list --metrics-file`` writes for Prometheus's textfile collector: how old the newest whole backup is.

A file is replaced as a whole. Where the store can't be reached nothing is written: what stood there stays, and grows old.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from liftpy.errors import StorageError
from sidecar.backup.looking import Listed

NS_PER_S = 1_000_000_000
TABLE = {
    "backup_newest_timestamp_seconds": "When the newest whole backup was begun, in Unix time; 0: there is none.",
    "backup_newest_size_bytes": "Of all that it names.",
    "backup_whole": "Backups in the store that are whole, by names and sizes of their files.",
    "backup_damaged": "Those that are not.",
    "backup_looked_timestamp_seconds": "When the store was looked at.",
}
"""``liftpy_`` before each; label ``store``: its URL."""


def write_metrics(path: Path, url: str, found: Sequence[Listed], now_ns: int) -> None:
    """Of the store at ``url``, which holds ``found``, the oldest first. Raises StorageError."""
    whole = [one.manifest for one in found if one.manifest is not None and not one.faults]
    newest = whole[-1] if whole else None
    figures = {
        "backup_newest_timestamp_seconds": newest.created_ns / NS_PER_S if newest is not None else 0,
        "backup_newest_size_bytes": newest.size_bytes if newest is not None else 0,
        "backup_whole": len(whole),
        "backup_damaged": len(found) - len(whole),
        "backup_looked_timestamp_seconds": now_ns / NS_PER_S,
    }
    registry = CollectorRegistry()
    for name, text in TABLE.items():
        Gauge(f"liftpy_{name}", text, ["store"], registry=registry).labels(shown_store(url)).set(figures[name])
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise StorageError(f"--metrics-file {path}: {error.strerror or error}") from None


def shown_store(url: str) -> str:
    """``url`` without what may be a secret: user, password, and what stands behind '?'."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
