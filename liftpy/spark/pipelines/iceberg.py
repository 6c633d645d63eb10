"""Iceberg tables with ``pyiceberg``, without a server: the catalog is an SQLite file in the table's directory.

Marks are properties of the table, set in the transaction that adds the files. Each transaction adds a snapshot, and is
accepted only on the snapshot on which it was decided. That fences concurrent archives. pyiceberg's own retry is off,
because it would use a newer snapshot with marks that may be wrong. A replacement of the content is a transaction of two
snapshots: one without the old files, and one with the new ones. Readers see the second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from liftpy.errors import FencedError, StorageError
from liftpy.spark.pipelines.tables import DATA, Commit, TableState

CATALOG = "_catalog.sqlite"
NAME = ("liftpy", "archive")
"""Name of the table in its catalog."""
_MARK = "liftpy.mark."
KEPT_S = 7 * 24 * 3600.0
"""Time for which replaced content can still be read, in seconds, as in Delta tables."""
_NO_RETRY = {"commit.retry.num-retries": "0"}


class IcebergFolder:
    """An Iceberg table in a directory. ``_seen``: its version at the newest ``state``, which commits are based on."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: Any = None

    @property
    def root(self) -> Path:
        """Directory of the table."""
        return self._root

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("liftpy", uri=f"sqlite:///{self._root / CATALOG}", warehouse=self._root.as_uri())

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        """Return the current state with the values of these marks, None without a table."""
        from pyiceberg.exceptions import NoSuchTableError

        self._seen = None
        if not (self._root / CATALOG).exists():
            return None
        with _told(self._root):
            try:
                table = self._seen = self._catalog().load_table(NAME)
            except NoSuchTableError:  # who made the catalog died
                return None
            files = _files(table)
            known = {mark: table.properties.get(_MARK + mark) for mark in marks}
            return TableState(
                table.metadata.last_sequence_number,
                table.schema().as_arrow(),
                tuple(sorted(files)),
                sum(files.values()),
                {mark: int(value) for mark, value in known.items() if value is not None},
            )

    def commit(self, commit: Commit, schema: pa.Schema, *, replace: bool = False) -> int:
        """Add the files, or replace all others. Raise FencedError after a concurrent commit."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.expressions import AlwaysTrue

        marks = {_MARK + mark: str(value) for mark, value in commit.marks.items()}
        with _told(self._root):
            try:
                with self._table(schema) as change:
                    change.set_properties({**marks, **_NO_RETRY})
                    emptied = replace and self._seen is not None and bool(_files(self._seen))
                    if emptied:
                        change.delete(AlwaysTrue())
                    if commit.files:
                        change.add_files([str(self._root / one.path) for one in commit.files], check_duplicate_files=False)
                    elif not emptied:  # a snapshot all the same: the next transaction goes by it
                        change.update_snapshot().fast_append().commit()
                self._seen = self._catalog().load_table(NAME)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise FencedError(
                    f"Another archive writes to table {self._root}: {error}. Only one archive may write to a table: stop "
                    "the other one."
                ) from error
            return int(self._seen.metadata.last_sequence_number)

    def _table(self, schema: pa.Schema) -> Any:
        """Return a transaction on the seen version of the table, or create the table."""
        if self._seen is not None:
            return self._seen.transaction()
        self._root.mkdir(parents=True, exist_ok=True)
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAME[0])
        return catalog.create_table_transaction(NAME, schema, self._root.as_uri(), properties=_NO_RETRY)

    def forget_old_files(self) -> None:
        """Remove files that no version of the last KEPT_S uses."""
        before_s = time.time() - KEPT_S
        with _told(self._root):
            table = self._catalog().load_table(NAME)
            table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(before_s, UTC)).commit()
            kept = {file for one in table.metadata.snapshots for file in _files(table, one.snapshot_id)}
            for file in (self._root / DATA).rglob("*.parquet"):
                if str(file) not in kept and file.stat().st_mtime < before_s:
                    file.unlink()

    def only_added_to(self) -> bool:
        """Return whether files were only added and never replaced, by its snapshots."""
        with _told(self._root):
            snapshots = self._catalog().load_table(NAME).metadata.snapshots
            kept = [one.summary is not None and one.summary.operation.value == "append" for one in snapshots]
            return all(kept) and (not snapshots or snapshots[0].parent_snapshot_id is None)


def _files(table: Any, snapshot: int | None = None) -> dict[str, int]:
    """Return absolute path -> number of records of the files of a snapshot. None: the newest snapshot."""
    found = [task.file for task in table.scan(snapshot_id=snapshot).plan_files()]
    return {one.file_path.removeprefix("file://"): one.record_count for one in found}


@contextmanager
def _told(root: Path) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (CommitFailedException, TableAlreadyExistsError, FencedError):
        raise
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise StorageError(f"Cannot read or write Iceberg table {root}: {error}") from error
