"""``liftpy log dump|verify|repair DIR``: inspect a partition directory offline."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from liftpy.config import StreamConfig
from liftpy.core.log.inspect import PartitionReport, headers, inspect
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import incomplete_quarantines, recover
from liftpy.core.log.segment import base_offsets
from liftpy.errors import ConfigError, DataDirectoryLockedError
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import json_option
from sidecar.cli.output import Progress, count_of, print_json, print_table
from sidecar.disk.data_folder import UNREPORTED_DAMAGE, DataDirectory
from sidecar.disk.files import DirectoryStorage

EXIT_DAMAGED = 1
"""The partition directory is damaged."""


@click.group(cls=HelpGroup, example="liftpy log verify DATA/streams/STREAM-UID/0")
def log() -> None:
    """Inspect, verify and repair the directory of a partition: DATA/streams/STREAM-UID/PARTITION.

    The commands work on files. They need neither NATS nor a running sidecar.
    """


folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


def _storage(folder: Path) -> DirectoryStorage:
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    if not base_offsets(names) and not incomplete_quarantines(names):
        raise ConfigError(f"{folder} is not a partition directory (no segment files). Give DATA/streams/STREAM-UID/PARTITION.")
    return DirectoryStorage(folder)


@log.command(example="liftpy log dump DATA/streams/STREAM-UID/0 --batches")
@folder_argument
@click.option("--batches", is_flag=True, help="Print every batch, not only the segments.")
@json_option
def dump(folder: Path, batches: bool, as_json: bool) -> None:
    """Print the content of a partition directory."""
    storage = _storage(folder)
    report = inspect(storage)
    if as_json:
        shown = _as_dict(report)
        if batches:
            shown["batches"] = [row for _, row in _batch_rows(storage, report)]
        print_json(shown)
        return
    _print_segments(report)
    click.echo(f"checkpoint: {_checkpoint_text(report)}")
    click.echo(f"leader epochs (epoch: first offset): {', '.join(f'{e}: {o}' for e, o in report.epochs) or 'none'}")
    if report.other_files:
        click.echo(f"other files: {', '.join(report.other_files)}")
    if batches:
        for name, row in _batch_rows(storage, report):
            click.echo(f"{name} " + " ".join(f"{k}={v}" for k, v in row.items()))
    for fault in report.faults:
        click.secho(fault, fg="red")


@log.command(example="liftpy log verify DATA/streams/STREAM-UID/0")
@folder_argument
@json_option
def verify(folder: Path, as_json: bool) -> int:
    """Read every byte of a partition directory and print the first damage. Exit code 0: no damage, 1: damage."""
    with Progress(str(folder), None, is_shown=not as_json) as progress:
        report = inspect(_storage(folder), partial(progress.step, str(folder), "segments"))
    if as_json:
        print_json(_as_dict(report))
    elif report.faults:
        click.echo(f"first damage: {report.faults[0]}")
        for fault in report.faults[1:]:
            click.echo(f"also: {fault}")
    else:
        records = sum(s.summary.record_count for s in report.segments)
        counts = f"{count_of(len(report.segments), 'segment')}, {count_of(records, 'record')}"
        click.echo(f"no damage: {counts}, log end offset {report.log_end_offset}")
    return EXIT_DAMAGED if report.faults else 0


@log.command(example="liftpy log repair DATA/streams/STREAM-UID/0")
@folder_argument
@json_option
def repair(folder: Path, as_json: bool) -> None:
    """Repair a partition directory: truncate a torn tail, quarantine damaged data, rebuild indexes and checkpoint.

    The sidecar must not run. It does the same repair when it starts, and then often only this replica leaves its ISR. After this
    command has found damage, all replicas of the node leave their ISRs until they are in sync again. So prefer to start the node.
    """
    storage = _storage(folder)
    with _alone(folder) as data:
        identity = data.load_identity() if data is not None else None

        def mark_damage() -> None:
            if data is not None:
                data.set_mark(UNREPORTED_DAMAGE)

        ends = data.load_log_ends() if data is not None else {}
        recovered = recover(
            storage,
            clean=identity is not None and identity.stopped_cleanly,
            clean_end_offset=ends.get("/".join(folder.absolute().parts[-2:]), 0),
            before_loss=mark_damage,
        )
        if recovered.report.must_leave_isr:
            mark_damage()
        opened, report = Log.open(storage, StreamConfig(), recovered=recovered)
        result: dict[str, Any] = {
            **asdict(report),
            "must_leave_isr": report.must_leave_isr,
            "log_end_offset": opened.log_end_offset,
        }
        opened.close()
        is_marked = data is not None and data.has_mark(UNREPORTED_DAMAGE)
    if as_json:
        print_json(result)
        return
    click.echo(f"truncated {count_of(report.cut_bytes, 'byte')} of a torn tail, rebuilt {report.rebuilt_indexes} indexes")
    for damage in report.damage:
        click.echo(f"quarantined {damage.name}: {damage.fault}; records are missing from offset {damage.first_offset} on")
    click.echo(f"the log ends before offset {opened.log_end_offset}")
    if is_marked:
        click.echo("at its next start, all replicas of this node leave their ISRs, because records are missing")


@contextmanager
def _alone(folder: Path) -> Iterator[DataDirectory | None]:
    """Hold the lock of the data directory that contains the partition directory ``folder``, and yield the data directory.

    Yield None if there is no such lock. Raise DataDirectoryLockedError while a sidecar uses the data directory, and
    StorageError if it belongs to another user.
    """
    path = folder.resolve().parent.parent.parent / "lock"
    if not path.exists():
        yield None
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = DataDirectory(path.parent, lock=descriptor)
        data.check_owner()  # the node could not open the files that another user creates
        yield data
    except BlockingIOError:
        raise DataDirectoryLockedError(f"A sidecar uses the data directory {path.parent}. Stop it first.") from None
    finally:
        os.close(descriptor)


def _as_dict(report: PartitionReport) -> dict[str, Any]:
    segments = [
        {
            "name": s.name,
            "file_size_bytes": s.file_size_bytes,
            "base_offset": s.summary.base_offset,
            "next_offset": s.summary.next_offset,
            "records": s.summary.record_count,
            "max_timestamp_ns": s.summary.max_timestamp_ns,
            "index": s.index,
            "fault": s.fault,
            "fault_position": s.fault_position if s.fault else None,
            "torn_tail": s.torn_tail,
        }
        for s in report.segments
    ]
    return {
        "segments": segments,
        "checkpoint": asdict(report.checkpoint) if report.checkpoint else None,
        "epochs": report.epochs,
        "log_end_offset": report.log_end_offset,
        "other_files": list(report.other_files),
        "faults": list(report.faults),
    }


def _print_segments(report: PartitionReport) -> None:
    rows = []
    for s in report.segments:
        newest = datetime.fromtimestamp(s.summary.max_timestamp_ns / 1e9, UTC).isoformat(timespec="milliseconds")
        offsets = f"{s.summary.base_offset}..{s.summary.next_offset - 1}" if s.summary.record_count else "empty"
        state = (("torn tail" if s.torn_tail else "damaged") + f" at {s.fault_position}") if s.fault else "intact"
        rows.append((s.name, str(s.file_size_bytes), str(s.summary.record_count), offsets, newest, s.index, state))
    print_table(
        ("segment", "bytes", "records", "offsets", "newest", "index", "state"), rows, folds=("newest", "state", "index")
    )


def _checkpoint_text(report: PartitionReport) -> str:
    if report.checkpoint is None:
        return "damaged" if report.checkpoint_found else "none"
    c = report.checkpoint
    return f"high watermark {c.high_watermark}, log start {c.log_start_offset}, leader epoch {c.persisted_epoch}"


def _batch_rows(storage: DirectoryStorage, report: PartitionReport) -> Iterator[tuple[str, dict[str, Any]]]:
    for segment in report.segments:
        for position, header in headers(storage, segment.summary.base_offset):
            yield (
                segment.name,
                {
                    "position": position,
                    "base_offset": header.base_offset,
                    "last_offset": header.last_offset,
                    "records": header.record_count,
                    "leader_epoch": header.leader_epoch,
                    "size_bytes": header.size_bytes,
                    "codec": header.codec.name.lower(),
                    "timestamp_ns": header.timestamp_ns,
                },
            )
