"""A table that the archive writes to, as the pipelines see it.

A table is a folder that the driver and all executors have under one path. A table changes by commits that
are all or nothing, with its marks (``table_commit.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from liftpy.spark.pipelines.table_commit import Commit

FORMATS = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""Kind of table -> the package that writes it."""
EXTRAS = {"delta": "lake", "iceberg": "iceberg"}
"""Kind of table -> our extra that brings that package."""


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table.

    ``files``: absolute paths. ``record_count``: in them. ``marks``: existing ones of the requested marks.
    """

    version: int
    schema: pa.Schema
    files: tuple[str, ...]
    record_count: int
    marks: dict[str, int]


class Table(Protocol):
    """Interface of a table."""

    @property
    def root(self) -> Path:
        """Directory of the table."""

    def state(self, marks: Iterable[str] = ()) -> TableState | None:
        """Return the current state with the values of these marks, None without a table."""

    def commit(self, commit: Commit, schema: pa.Schema, *, replace: bool = False) -> int:
        """Add the files, or with ``replace`` replace all others. Return the table's new version.

        Raises FencedError if another writer has committed since the newest ``state``, so that the marks may have
        changed.
        """

    def forget_old_files(self) -> None:
        """Remove files that are in no version which readers may still read."""

    def only_added_to(self) -> bool:
        """Whether files were never taken away or merged, so that one on the disk that is not in the table never was."""
