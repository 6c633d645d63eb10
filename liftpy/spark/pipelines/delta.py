"""Delta tables by the package ``deltalake``, which needs no jars. Marks are Delta's application transactions.

If two commits set the same mark, delta-rs rejects the later one. This fences concurrent archives.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from liftpy.errors import FencedError, StorageError
from liftpy.spark.pipelines.tables import ArchivedRange, Commit, TableFile, TableState

_ADDING = ("WRITE", "CREATE TABLE")
_US_PER_MS = 1000


class DeltaFolder:
    """A Delta table in a directory. ``_seen``: its version at the newest ``state``, which commits are based on."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: Any = None

    @property
    def root(self) -> Path:
        """Directory of the table."""
        return self._root

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        """Return the current state with the values of these marks, None without a table."""
        from deltalake import DeltaTable

        with _told(self._root):
            if not DeltaTable.is_deltatable(str(self._root)):
                self._seen = None
                return None
            table = self._seen = DeltaTable(str(self._root))
            found = {mark: table.transaction_version(mark) for mark in marks}
            files = tuple(os.fspath(Path(uri.removeprefix("file://"))) for uri in table.file_uris())
            return TableState(
                table.version(),
                pa.schema(table.schema().to_arrow()),
                tuple(sorted(files)),
                table.count() if files else 0,
                {mark: value for mark, value in found.items() if value is not None},
            )

    def commit(self, commit: Commit, schema: pa.Schema, *, replace: bool = False) -> int:
        """Add the files, or replace all others. Raise FencedError after a concurrent commit."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

        adds = [_add_action(one) for one in commit.files]
        properties = CommitProperties(
            app_transactions=[Transaction(mark, value) for mark, value in sorted(commit.marks.items())]
        )
        delta_schema = Schema.from_arrow(schema)
        with _told(self._root):
            if self._seen is None:
                if DeltaTable.is_deltatable(str(self._root)):
                    raise FencedError(
                        f"Another process created table {self._root} at the same time. Only one archive may write to a table: "
                        "stop the other one."
                    )
                create_table_with_add_actions(str(self._root), delta_schema, adds, mode="error", commit_properties=properties)
            else:
                mode = "overwrite" if replace else "append"
                try:
                    self._seen.create_write_transaction(adds, mode, delta_schema, commit_properties=properties)
                except CommitFailedError as error:
                    raise FencedError(
                        f"Another archive writes to table {self._root}: {error}. Only one archive may write to a table: stop "
                        "the other one."
                    ) from error
            self._seen = DeltaTable(str(self._root))
            return int(self._seen.version())

    def forget_old_files(self) -> None:
        """Remove files that no version in the table's retention (default a week) uses."""
        from deltalake import DeltaTable

        with _told(self._root):
            DeltaTable(str(self._root)).vacuum(dry_run=False, full=True)

    def only_added_to(self) -> bool:
        """Return whether files were never taken away or merged."""
        from deltalake import DeltaTable

        with _told(self._root):
            return all(_adds(one) for one in DeltaTable(str(self._root)).history())


@contextmanager
def _told(root: Path) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise StorageError(
            f"Cannot read or write Delta table {root}: {error}. Check the path, its permissions and the disk."
        ) from error


def _adds(commit: dict[str, Any]) -> bool:
    replaces = (commit.get("operationParameters") or {}).get("mode") == "Overwrite"
    return commit.get("operation") in _ADDING and not replaces


def _add_action(file: TableFile) -> Any:
    from deltalake.transaction import AddAction

    stats = {"numRecords": file.record_count} if file.range is None else stats_of(file.range)
    return AddAction(file.path, file.size_bytes, {}, int(time.time() * 1000), True, json.dumps(stats))


def stats_of(one: ArchivedRange) -> dict[str, Any]:
    """Return file statistics for Delta's readers. Wider bounds are allowed, narrower ones are not."""
    least: dict[str, Any] = {"stream": one.stream, "partition": one.partition, "offset": one.start_offset}
    most: dict[str, Any] = {"stream": one.stream, "partition": one.partition, "offset": one.end_offset - 1}
    if one.newest_us:
        least["timestamp"] = _text(one.oldest_us // _US_PER_MS)
        most["timestamp"] = _text(-(-one.newest_us // _US_PER_MS))
    return {"numRecords": one.record_count, "minValues": least, "maxValues": most, "nullCount": {}}


def _text(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
