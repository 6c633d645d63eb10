"""Iceberg tables by the package ``pyiceberg``, without a server: the catalog is a file of SQLite in the table's folder.

Marks are properties of the table, set in the transaction that adds the files. Each transaction adds a snapshot, and is taken only where
the snapshot before is the one that it was decided on: that fences archives off each other. pyiceberg would try again by itself, on a
newer snapshot and with marks that may not hold any more: it is told not to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from liftpy.errors import ConfigError, FencedError, StorageError
from liftpy.spark.pipelines.committing import Commit
from liftpy.spark.pipelines.tables import TableState

CATALOG = "_catalog.sqlite"
NAME = ("liftpy", "archive")
"""Of the table in its catalog."""
_MARK = "liftpy.mark."
_NO_RETRY = {"commit.retry.num-retries": "0"}


class IcebergFolder:
    """An Iceberg table in a folder. ``_seen``: as it was at the newest ``state``, on which commits are decided."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: Any = None

    @property
    def root(self) -> Path:
        """Its folder."""
        return self._root

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog("liftpy", uri=f"sqlite:///{self._root / CATALOG}", warehouse=self._root.as_uri())

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        """What it holds now, with the values of these marks; None: there is no table yet."""
        from pyiceberg.exceptions import NoSuchTableError

        self._seen = None
        if not (self._root / CATALOG).exists():
            return None
        with _told(self._root):
            try:
                table = self._seen = self._catalog().load_table(NAME)
            except NoSuchTableError:  # who made the catalog died
                return None
            files = [task.file for task in table.scan().plan_files()]
            known = {mark: table.properties.get(_MARK + mark) for mark in marks}
            return TableState(
                table.metadata.last_sequence_number,
                table.schema().as_arrow(),
                tuple(sorted(one.file_path.removeprefix("file://") for one in files)),
                sum(one.record_count for one in files),
                {mark: int(value) for mark, value in known.items() if value is not None},
            )

    def commit(self, commit: Commit, schema: pa.Schema, *, replace: bool = False) -> int:
        """Add the files; FencedError where somebody else committed meanwhile, ConfigError for ``replace``."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        if replace:
            raise ConfigError(f"{self._root} is an Iceberg table; what replaces its content is written to Delta tables only")
        marks = {_MARK + mark: str(value) for mark, value in commit.marks.items()}
        with _told(self._root):
            try:
                with self._table(schema) as change:
                    change.set_properties({**marks, **_NO_RETRY})
                    if commit.files:
                        change.add_files([str(self._root / one.path) for one in commit.files], check_duplicate_files=False)
                    else:  # a snapshot all the same: the next transaction goes by it
                        change.update_snapshot().fast_append().commit()
                self._seen = self._catalog().load_table(NAME)
            except (CommitFailedException, TableAlreadyExistsError) as error:
                raise FencedError(f"another archive writes to the table {self._root}: {error}") from error
            return int(self._seen.metadata.last_sequence_number)

    def _table(self, schema: pa.Schema) -> Any:
        """A transaction on the table as it was seen, or one that makes it."""
        if self._seen is not None:
            return self._seen.transaction()
        self._root.mkdir(parents=True, exist_ok=True)
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAME[0])
        return catalog.create_table_transaction(NAME, schema, self._root.as_uri(), properties=_NO_RETRY)

    def forget_old_files(self) -> None:
        """Nothing is: an archive's files stay."""

    def only_added_to(self) -> bool:
        """Whether files were never taken away or merged, as far as its snapshots tell."""
        with _told(self._root):
            snapshots = self._catalog().load_table(NAME).metadata.snapshots
            kept = [one.summary is not None and one.summary.operation.value == "append" for one in snapshots]
            return all(kept) and (not snapshots or snapshots[0].parent_snapshot_id is None)


@contextmanager
def _told(root: Path) -> Iterator[None]:
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (CommitFailedException, TableAlreadyExistsError, ConfigError, FencedError):
        raise
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise StorageError(f"the Iceberg table {root}: {error}") from error
