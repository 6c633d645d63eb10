"""Finds files of failed attempts that may be removed. Readers of the table do not see them.

There are two kinds:

- A temporary file that is older than the age. Its writer has ended. If the writer still runs, its task fails and runs again.
- A complete file that is not in the table, although the table has its range. It was written with other range borders.

A complete file beyond the end of the table stays: the micro-batch that wrote it runs again and uses it. If files were removed
from a table (by optimize or delete), old versions still name them. Then complete files are left to the table's own vacuum.

The age of a file is the difference to the newest file of the table, so a wrong clock of this machine removes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from liftpy.errors import StorageError
from liftpy.spark.pipelines.naming import DATA, end_mark, is_temporary, parse_file
from liftpy.spark.pipelines.tables import Table

DEFAULT_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file in a table's data directory. ``age_s``: time since its last write."""

    path: str
    age_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files of failed attempts.

    ``files``: removable. ``size_bytes``: of them. ``left``: complete files outside the table, which stay.
    """

    files: tuple[str, ...] = ()
    size_bytes: int = 0
    left: int = 0


def orphans_among(
    found: Iterable[DataFile], in_table: frozenset[str], marks: Mapping[str, int], age_s: float, *, only_added_to: bool
) -> Orphans:
    """Return the removable files. ``in_table``: paths of the table. ``marks``: ends of its partitions."""
    gone: list[DataFile] = []
    left = 0
    for one in found:
        name = one.path.rpartition("/")[2]
        if is_temporary(name):
            gone += [one] if one.age_s >= age_s else []
            continue
        file = parse_file(name)
        if file is None or one.path in in_table:
            continue
        passed = file.end_offset <= marks.get(end_mark(file.stream, file.partition), 0)
        if passed and only_added_to and one.age_s >= age_s:
            gone.append(one)
        else:
            left += 1
    return Orphans(tuple(one.path for one in gone), sum(one.size_bytes for one in gone), left)


def find_orphans(table: Table, age_s: float = DEFAULT_AGE_S) -> Orphans:
    """Return the removable files of a table. Files are listed before the table is read, so that a new file is not removed."""
    found = list(_listed(table.root / DATA))
    marks = {end_mark(file.stream, file.partition) for one in found if (file := parse_file(Path(one.path).name))}
    state = table.state(marks)
    if state is None:
        return orphans_among(found, frozenset(), {}, age_s, only_added_to=False)
    return orphans_among(found, frozenset(state.files), state.marks, age_s, only_added_to=table.only_added_to())


def remove_orphans(orphans: Orphans) -> None:
    """Take them away; one that is gone already is no error."""
    for path in orphans.files:
        try:
            Path(path).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"Cannot remove file {path} of a failed attempt: {error}. Check its permissions, or remove it yourself."
            ) from error


def _listed(folder: Path) -> Iterable[DataFile]:
    found = []
    for path in folder.glob("*/*/*"):
        try:
            found.append((str(path), path.stat()))
        except FileNotFoundError:
            continue
    by_s = min(time.time(), max((stat.st_mtime for _, stat in found), default=0.0))
    return [DataFile(path, by_s - stat.st_mtime, stat.st_size) for path, stat in found]
