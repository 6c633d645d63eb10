"""What ``liftpy consume --output FILE`` writes: Parquet, Arrow or lines of JSON, by the file's suffix; and the bar beside it.

The file gets its name when it is whole, or when Ctrl-C ends a reading that follows; until then it is ``FILE.part``. What is there
already is never overwritten.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import click

from liftpy.client import BatchSlice
from liftpy.errors import ConfigError
from liftpy.wire.batch import Record


class Write(Protocol):
    """Adds the records of a slice to a file."""

    def __call__(self, piece: BatchSlice, *, newest_first: bool) -> None:
        """Its last record first where ``newest_first``."""


@contextmanager
def _arrow(file: Path) -> Iterator[Write]:
    import pyarrow as pa

    from liftpy.log.arrow import SCHEMA

    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        yield lambda piece, newest_first: writer.write_batch(_table_of(piece, newest_first))


@contextmanager
def _parquet(file: Path) -> Iterator[Write]:
    import pyarrow.parquet as pq

    from liftpy.log.arrow import SCHEMA

    with pq.ParquetWriter(file, SCHEMA) as writer:
        yield lambda piece, newest_first: writer.write_batch(_table_of(piece, newest_first))


@contextmanager
def _lines(file: Path) -> Iterator[Write]:
    with file.open("w", encoding="utf-8") as out:

        def write(piece: BatchSlice, *, newest_first: bool) -> None:
            records = reversed(list(piece.records())) if newest_first else piece.records()
            out.writelines(json.dumps(record_json(record)) + "\n" for record in records)

        yield write


def _table_of(piece: BatchSlice, newest_first: bool) -> Any:
    import numpy as np

    found = piece.to_arrow()
    return found.take(np.arange(found.num_rows)[::-1].copy()) if newest_first else found


_BY_SUFFIX: dict[str, Callable[[Path], Any]] = {".parquet": _parquet, ".arrow": _arrow, ".jsonl": _lines}


def suffixes() -> str:
    """For people."""
    return ", ".join(_BY_SUFFIX)


@contextmanager
def output_to(file: Path) -> Iterator[Write]:
    """What writes to ``file``, which must not be there. Raises ConfigError for another suffix, or where it can't be written."""
    kind = _BY_SUFFIX.get(file.suffix)
    if kind is None:
        raise ConfigError(f"--output {file}: its suffix says what is written: {suffixes()}")
    with _named_when_whole(file, kind) as write:
        yield write


@contextmanager
def lines_to(file: Path) -> Iterator[Callable[[Iterable[bytes]], None]]:
    """What adds lines to a new file, which has them when it returns. Raises as ``output_to``."""
    with _named_when_whole(file, lambda part: part.open("wb", buffering=0)) as out:
        yield lambda lines: _write_all(out, b"".join(lines))


def _write_all(out: Any, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[out.write(left) :]


@contextmanager
def _named_when_whole(file: Path, kind: Callable[[Path], Any]) -> Iterator[Any]:
    if file.exists():
        raise ConfigError(f"--output {file}: it is there already; remove it, or name another")
    part = file.with_name(f"{file.name}.part")
    try:
        try:
            with kind(part) as write:
                yield write
        except asyncio.CancelledError:  # Ctrl-C: what has come is what was wanted
            part.rename(file)
            raise
        part.rename(file)
    except OSError as error:
        raise ConfigError(f"--output {file}: {error.strerror or error}") from None


class Bar:
    """How far it is, on a terminal: offsets up to ``end_offset`` (exclusive), or a count where there is no end."""

    def __init__(self, what: str, end_offset: int | None) -> None:
        self.records = 0
        self._end_offset = end_offset
        self._what = what
        self._progress: Any = None
        self._first: int | None = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._task = self._progress.add_task(self._what, total=None)
            self._progress.start()
        return self

    def at(self, next_offset: int, record_count: int) -> None:
        """So far: everything below ``next_offset``; ``record_count`` more records."""
        self.records += record_count
        if self._progress is None:
            return
        self._first = next_offset - record_count if self._first is None else self._first
        total = None if self._end_offset is None else self._end_offset - self._first
        self._progress.update(self._task, completed=next_offset - self._first, total=total)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
        if kind is asyncio.CancelledError:
            click.echo(f"{self.records} records in {self._what}", err=True)


def record_json(record: Record) -> dict[str, Any]:
    """A record as JSON: text where the bytes are UTF-8, else base64 under a name with ``_base64``."""
    found: dict[str, Any] = {"offset": record.offset, "timestamp_ns": record.timestamp_ns}
    found.update(_text_or_base64("value", record.value))
    if record.key is not None:
        found.update(_text_or_base64("key", record.key))
    if record.headers:
        found["headers"] = [{**_name_or_base64("name", n), **_text_or_base64("value", v)} for n, v in record.headers]
    if record.subject:
        found.update(_name_or_base64("subject", record.subject))
    return found


def _name_or_base64(name: str, text: str) -> dict[str, str | None]:
    """Of a subject, or the name of a header: bytes that are not UTF-8 are surrogates in the client."""
    return _text_or_base64(name, text.encode("utf-8", "surrogateescape"))


def _text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: bytes(content).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
