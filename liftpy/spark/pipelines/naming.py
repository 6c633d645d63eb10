"""Names of archived files, and marks in a table. Pure.

The name of a file contains the stream, the partition, the first offset (inclusive), the end (exclusive), and a tag of the
uid and the columns. A range that is written again therefore has the same name. An existing file with that name is
complete.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from liftpy.core.base.ids import check_name, is_internal
from liftpy.errors import ConfigError

DATA = "data"
"""The folder in a table's folder that holds the files, one folder for each stream and partition."""
_FILE = re.compile(r"([A-Za-z0-9_-]{1,64})-(\d{1,10})-(\d{20})-(\d{20})-([0-9a-f]{12})\.parquet")
_TEMPORARY = re.compile(r"\.(.+\.parquet)\.[0-9a-f]{32}\.tmp")
_TAG_DIGITS = 12


class FileName(NamedTuple):
    """``start_offset`` inclusive, ``end_offset`` exclusive. ``tag``: of uid and columns."""

    stream: str
    partition: int
    start_offset: int
    end_offset: int
    tag: str

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.stream}-{self.partition}-{self.start_offset:020d}-{self.end_offset:020d}-{self.tag}.parquet"

    @property
    def path(self) -> str:
        """Path below the table's directory."""
        return f"{DATA}/{self.stream}/{self.partition}/{self.name}"


def tag_of(uid: str, columns: Iterable[str]) -> str:
    """Return a tag of everything else that determines the content of a file."""
    return hashlib.sha256("\0".join((uid, *columns)).encode()).hexdigest()[:_TAG_DIGITS]


def parse_file(name: str) -> FileName | None:
    """The reverse of ``FileName.name``; None for any other file."""
    found = _FILE.fullmatch(name)
    if found is None:
        return None
    start, end = int(found[3]), int(found[4])
    return FileName(found[1], int(found[2]), start, end, found[5]) if start < end else None


def temporary(name: str, attempt: str) -> str:
    """Return the name of a file while it is written. ``attempt``: 32 unique hex digits."""
    return f".{name}.{attempt}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether ``temporary`` made this name."""
    found = _TEMPORARY.fullmatch(name)
    return found is not None and parse_file(found[1]) is not None


def check_archived(stream: str) -> str:
    """Return ``stream`` if it may be archived, else raise InvalidNameError or ConfigError."""
    if is_internal(check_name(stream, "stream")):
        raise ConfigError(f"Stream {stream!r} is an internal stream. Internal streams cannot be archived: choose another one.")
    return stream


def batch_mark(query_id: str) -> str:
    """Mark -> the last micro-batch of that query which is in the table."""
    return query_id


def end_mark(stream: str, partition: int) -> str:
    """Mark -> the offset up to which (exclusive) the table has that partition."""
    return f"liftpy/{stream}/{partition}"


def uid_mark(stream: str, uid: str) -> str:
    """Return the mark that ties the records of a stream to this uid."""
    return f"liftpy/{stream}/uid/{uid}"
