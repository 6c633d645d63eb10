"""Table formats Delta and Iceberg. ``table_at`` finds the table in a directory.

Both formats need no jars and no server. A transaction changes the files and the marks of a table together. Marks are
named values (``tables.py``). The table rejects a transaction if another process has committed since the newest
``state``. That fences concurrent archives.

Delta tables use the package ``deltalake``. Marks are Delta's application transactions. If two commits set the same
mark, delta-rs rejects the later one.

Iceberg tables use ``pyiceberg``. The catalog is an SQLite file in the directory of the table. Marks are properties of
the table, and the transaction that adds the files sets them. The catalog accepts a transaction only on the snapshot
that it was based on. pyiceberg's own retry is off, because it would use a newer snapshot with marks that may be wrong.
A transaction that replaces the content adds two snapshots: one without the old files, and one with the new ones.
Readers see the second.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from liftpy.errors import ConfigError, FencedError, NotFoundError, StorageError
from liftpy.spark.pipelines.tables import (
    DATA,
    EXTRAS,
    FORMATS,
    ArchivedRange,
    Table,
    TableCommit,
    TableFile,
    TableState,
)

CATALOG = "_catalog.sqlite"
NAME = ("liftpy", "archive")
KEPT_S = 7 * 24 * 3600.0
"""Time for which replaced content of an Iceberg table can still be read, in seconds, as in Delta tables."""
_MARK = "liftpy.mark."
_NO_RETRY = {"commit.retry.num-retries": "0"}
_ADDING = ("WRITE", "CREATE TABLE")
_US_PER_MS = 1000


def table_at(root: str | Path, kind: str = "") -> Table:
    """Return the table in the directory ``root``.

    Args:
        root: Directory of the table.
        kind: ``delta`` or ``iceberg``. Default '': the format of the existing table, or delta.

    Raises:
        ConfigError: The table has another format, or the package for the format is not installed.
    """
    folder = Path(root).expanduser().absolute()
    if wrong := sorted({"%", "?"} & set(str(folder))):  # the table formats take them for a part of a URL
        raise ConfigError(
            f"The table directory {folder} contains {wrong[0]}, which tables do not support. Use another directory."
        )
    there = "delta" if (folder / "_delta_log").is_dir() else "iceberg" if (folder / CATALOG).exists() else ""
    if kind and kind not in FORMATS:
        raise ConfigError(f"Unknown table format {kind!r}. Use {' or '.join(FORMATS)}.")
    if there and kind and there != kind:
        raise ConfigError(
            f"Table {folder} has the format {there}, not {kind}. Use --table-format {there}, or another directory."
        )
    chosen = there or kind or "delta"
    if importlib.util.find_spec(FORMATS[chosen]) is None:
        raise ConfigError(
            f"Tables of the format {chosen} need the package {FORMATS[chosen]}. Install it with pip install "
            f"'liftpy[{EXTRAS[chosen]}]'."
        )
    return KINDS[chosen](folder)


def state_of(table: Table, marks: Iterable[str] = ()) -> TableState:
    """Return the state of the table and its ``marks``. Raise NotFoundError if the table does not exist."""
    state = table.state(marks)
    if state is None:
        raise NotFoundError(f"No table in {table.root}. Check that this is the directory of the archive.")
    return state


class DeltaDirectory(Table):
    """A Delta table in a directory."""

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        from deltalake import DeltaTable

        with _delta_errors(self.root):
            if not DeltaTable.is_deltatable(str(self.root)):
                self._seen = None
                return None
            table = self._seen = DeltaTable(str(self.root))
            versions = {mark: table.transaction_version(mark) for mark in marks}
            files = tuple(os.fspath(Path(unquote(uri.removeprefix("file://")))) for uri in table.file_uris())
            return TableState(
                table.version(),
                pa.schema(table.schema().to_arrow()),
                tuple(sorted(files)),
                table.count() if files else 0,
                {mark: value for mark, value in versions.items() if value is not None},
            )

    def commit(self, commit: TableCommit, schema: pa.Schema, *, replace: bool = False) -> int:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

        adds = [_add_action(one) for one in commit.files]
        properties = CommitProperties(
            app_transactions=[Transaction(mark, value) for mark, value in sorted(commit.marks.items())]
        )
        delta_schema = Schema.from_arrow(schema)
        with _delta_errors(self.root):
            if self._seen is None:
                if DeltaTable.is_deltatable(str(self.root)):
                    raise FencedError(
                        f"Another process created table {self.root} at the same time. Only one archive may write to a table: "
                        "stop the other one."
                    )
                create_table_with_add_actions(str(self.root), delta_schema, adds, mode="error", commit_properties=properties)
            else:
                mode = "overwrite" if replace else "append"
                try:
                    self._seen.create_write_transaction(adds, mode, delta_schema, commit_properties=properties)
                except CommitFailedError as error:
                    raise FencedError(
                        f"Another archive writes to table {self.root}: {error}. Only one archive may write to a table: stop "
                        "the other one."
                    ) from error
            self._seen = DeltaTable(str(self.root))
            return int(self._seen.version())

    def forget_old_files(self) -> None:
        """Delete files that no version of the table within its retention time (default one week) uses."""
        from deltalake import DeltaTable

        with _delta_errors(self.root):
            DeltaTable(str(self.root)).vacuum(dry_run=False, full=True)

    def only_added_to(self) -> bool:
        from deltalake import DeltaTable

        with _delta_errors(self.root):
            return all(_adds(one) for one in DeltaTable(str(self.root)).history())


@contextmanager
def _delta_errors(root: Path) -> Iterator[None]:
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
    """Return the statistics of a data file for readers of the Delta table.

    The bounds of columns may be wider than the values, but never narrower.
    """
    least: dict[str, Any] = {"stream": one.stream, "partition": one.partition, "offset": one.start_offset}
    most: dict[str, Any] = {"stream": one.stream, "partition": one.partition, "offset": one.end_offset - 1}
    if one.newest_us:
        least["timestamp"] = _text(one.oldest_us // _US_PER_MS)
        most["timestamp"] = _text(-(-one.newest_us // _US_PER_MS))
    return {"numRecords": one.record_count, "minValues": least, "maxValues": most, "nullCount": {}}


def _text(ms: int) -> str:
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


class IcebergDirectory(Table):
    """An Iceberg table in a directory."""

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("liftpy", uri=f"sqlite:///{self.root / CATALOG}", warehouse=self.root.as_uri())

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        from pyiceberg.exceptions import NoSuchTableError

        self._seen = None
        if not (self.root / CATALOG).exists():
            return None
        with _iceberg_errors(self.root):
            try:
                table = self._seen = self._catalog().load_table(NAME)
            except NoSuchTableError:  # the process that created the catalog failed before it created the table
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

    def commit(self, commit: TableCommit, schema: pa.Schema, *, replace: bool = False) -> int:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.expressions import AlwaysTrue

        marks = {_MARK + mark: str(value) for mark, value in commit.marks.items()}
        with _iceberg_errors(self.root):
            try:
                with self._table(schema) as change:
                    change.set_properties({**marks, **_NO_RETRY})
                    emptied = replace and self._seen is not None and bool(_files(self._seen))
                    if emptied:
                        change.delete(AlwaysTrue())
                    if commit.files:
                        change.add_files([str(self.root / one.path) for one in commit.files], check_duplicate_files=False)
                    elif not emptied:  # the next transaction needs a new snapshot
                        change.update_snapshot().fast_append().commit()
                self._seen = self._catalog().load_table(NAME)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise FencedError(
                    f"Another archive writes to table {self.root}: {error}. Only one archive may write to a table: stop "
                    "the other one."
                ) from error
            return int(self._seen.metadata.last_sequence_number)

    def _table(self, schema: pa.Schema) -> Any:
        """Begin a transaction on the version of the table that ``state`` has returned. Create the table if it does not exist."""
        if self._seen is not None:
            return self._seen.transaction()
        self.root.mkdir(parents=True, exist_ok=True)
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAME[0])
        return catalog.create_table_transaction(NAME, schema, self.root.as_uri(), properties=_NO_RETRY)

    def forget_old_files(self) -> None:
        """Delete files that no version of the table from the last ``KEPT_S`` seconds uses."""
        before_s = time.time() - KEPT_S
        with _iceberg_errors(self.root):
            table = self._catalog().load_table(NAME)
            table.maintenance.expire_snapshots().older_than(datetime.fromtimestamp(before_s, UTC)).commit()
            used_names = {Path(file).name for one in table.metadata.snapshots for file in _files(table, one.snapshot_id)}
            for file in (self.root / DATA).rglob("*.parquet"):
                if file.name not in used_names and file.stat().st_mtime < before_s:
                    file.unlink()

    def only_added_to(self) -> bool:
        with _iceberg_errors(self.root):
            snapshots = self._catalog().load_table(NAME).metadata.snapshots
            appends = [one.summary is not None and one.summary.operation.value == "append" for one in snapshots]
            return all(appends) and (not snapshots or snapshots[0].parent_snapshot_id is None)


def _files(table: Any, snapshot: int | None = None) -> dict[str, int]:
    tasks = [task.file for task in table.scan(snapshot_id=snapshot).plan_files()]
    return {one.file_path.removeprefix("file://"): one.record_count for one in tasks}


@contextmanager
def _iceberg_errors(root: Path) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (CommitFailedException, TableAlreadyExistsError, FencedError):
        raise
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise StorageError(
            f"Cannot read or write Iceberg table {root}: {error}. Check the path, its permissions and the disk."
        ) from error


KINDS: dict[str, Callable[[Path], Table]] = {"delta": DeltaDirectory, "iceberg": IcebergDirectory}
