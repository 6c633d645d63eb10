"""What a replay reads: for each partition of its source a share, of a stream or of an archive's files. Pure.

One task takes one share, from its first record to its last, in the order of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError, NotFoundError
from liftpy.spark.pipelines.naming import FileName, parse_file
from liftpy.spark.planning import PartitionView, PlannedRange


@dataclass(frozen=True, slots=True)
class ReplayShare:
    """One partition's records, from ``planned.start_offset`` (inclusive) to ``planned.end_offset`` (exclusive). ``files``: of an
    archive, in the order of their offsets; none: they are read from the stream."""

    planned: PlannedRange
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive's table."""

    name: FileName
    path: str


def files_of(paths: Iterable[str], stream: str) -> dict[tuple[str, int], list[ArchiveFile]]:
    """(stream, partition) -> its files, in order. Raises ConfigError where files are not as an archive names them, NotFoundError where
    there are none of ``stream``."""
    found: dict[tuple[str, int], list[ArchiveFile]] = {}
    for path in paths:
        name = parse_file(path.rpartition("/")[2])
        if name is None:
            raise ConfigError(
                f"{path} is not one of an archive's files: the table was optimized or written to by others, and its records are in no "
                "order any more. Replay the stream, or write the table's DataFrame to it, sorted, under a writeId"
            )
        if name.stream == stream:
            found.setdefault((stream, name.partition), []).append(ArchiveFile(name, path))
    if not found:
        raise NotFoundError(f"the table has no records of the stream {stream}")
    return {key: sorted(own, key=lambda one: one.name.start_offset) for key, own in sorted(found.items())}


def views_of(files: Mapping[tuple[str, int], list[ArchiveFile]]) -> dict[tuple[str, int], PartitionView]:
    """What the table has, as a stream would say it, so that offsets mean the same."""
    return {
        key: PartitionView(
            stream=key[0],
            uid="",
            partition=key[1],
            replicas=(),
            leader="",
            leader_epoch=0,
            log_start_offset=own[0].name.start_offset,
            end_offset=own[-1].name.end_offset,
        )
        for key, own in files.items()
    }


def shares_of_files(planned: Iterable[PlannedRange], files: Mapping[tuple[str, int], list[ArchiveFile]]) -> list[ReplayShare]:
    """For each range the files that have some of it."""
    return [
        ReplayShare(
            one,
            tuple(
                file.path
                for file in files[one.stream, one.partition]
                if file.name.start_offset < one.end_offset and file.name.end_offset > one.start_offset
            ),
        )
        for one in planned
    ]


def pause_s(sent: int, rate: float, since_s: float) -> float:
    """How long to wait so that ``sent`` records in ``since_s`` seconds are no more than ``rate`` a second; 0: no rate."""
    return max(0.0, sent / rate - since_s) if rate else 0.0
