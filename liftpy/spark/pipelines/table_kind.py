"""Finds the kind of a table in a directory, and its current content."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

from liftpy.errors import ConfigError, NotFoundError
from liftpy.spark.pipelines.delta import DeltaFolder
from liftpy.spark.pipelines.iceberg import CATALOG, IcebergFolder
from liftpy.spark.pipelines.tables import EXTRAS, FORMATS, Table, TableState

KINDS: dict[str, Callable[[Path], Table]] = {"delta": DeltaFolder, "iceberg": IcebergFolder}


def table_at(root: str | Path, kind: str = "") -> Table:
    """Return the table in ``root`` in its existing format, else ``kind``, else delta. Raises ConfigError."""
    folder = Path(root).expanduser().absolute()
    there = "delta" if (folder / "_delta_log").is_dir() else "iceberg" if (folder / CATALOG).exists() else ""
    if kind and kind not in FORMATS:
        raise ConfigError(f"Unknown table format {kind!r}. Use {' or '.join(FORMATS)}.")
    if there and kind and there != kind:
        raise ConfigError(f"Table {folder} has the format {there}, not {kind}. Use --format {there}, or another directory.")
    chosen = there or kind or "delta"
    if importlib.util.find_spec(FORMATS[chosen]) is None:
        raise ConfigError(
            f"Tables of the format {chosen} need the package {FORMATS[chosen]}. Install it with pip install "
            f"'liftpy[{EXTRAS[chosen]}]'."
        )
    return KINDS[chosen](folder)


def state_of(table: Table, marks: Iterable[str] = ()) -> TableState:
    """Return the state as ``Table.state``. Raise NotFoundError without a table."""
    found = table.state(marks)
    if found is None:
        raise NotFoundError(f"No table in {table.root}. Check that this is the directory of the archive.")
    return found
