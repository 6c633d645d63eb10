"""``liftpy backup``: create, list, verify and prune backups, restore a backup, and run a drill. docs/backup.md describes them.

``liftpy backup list --metrics-file`` writes the age of the newest complete backup for the textfile collector of Prometheus. The
command replaces the file atomically. If the store is unreachable, the old file remains, and the age in it grows.

``liftpy backup create``, ``restore`` and ``drill`` can record spans: one for the command, and one below it for each step. The
thread and limits are those of a node. At the end, the command waits for the thread for at most one second.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from liftpy.client import Client
from liftpy.client.positions import parse_until, timestamp_ns
from liftpy.config import NS_PER_S
from liftpy.core.backup.manifest import Manifest
from liftpy.core.backup.pieces import left_out_streams
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.observe.trace_context import SPANS_PER_S, Attributes, SpanBudget
from liftpy.core.observe.tracing import StepSpans
from liftpy.errors import ConfigError, LiftError, NotFoundError, StorageError
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.drill import drill
from sidecar.backup.inspect import BackupEntry, list_backups, newest_complete, prune_backups, read_image, verify_backup
from sidecar.backup.restore import (
    NOTHING_WIDE,
    Restore,
    RestoredSetting,
    RestoredStream,
    RestoreOptions,
    RestoreResult,
    StreamRestore,
    cluster_wide_of,
    set_cursors,
)
from sidecar.backup.staging import RestorePoint
from sidecar.backup.store import DEFAULT_BYTES_PER_S, Store, shown_store
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import Duration, Size, connection_options, json_option
from sidecar.cli.output import Progress, count_of, print_json, print_table
from sidecar.cli.session import run_cancellable, with_client
from sidecar.runtime.settings import Target
from sidecar.tracing.node_tracing import check_exporter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

TABLE = {
    "backup_newest_timestamp_seconds": "Start time of the newest complete backup, in Unix seconds. 0: there is none.",
    "backup_newest_size_bytes": "Size of the newest complete backup, in bytes.",
    "backup_valid": "Number of complete backups in the store, by names and sizes of their files.",
    "backup_damaged": "Number of incomplete or damaged backups in the store.",
    "backup_checked_timestamp_seconds": "Time of the last check of the store, in Unix seconds.",
}
"""Metrics. Each name begins with ``liftpy_``. Label ``store``: URL of the store."""


def write_metrics(path: Path, url: str, entries: Sequence[BackupEntry], now_ns: int) -> None:
    """Write the metrics of a backup store to the file ``path``. Raises StorageError."""
    complete = newest_complete(entries)
    newest = complete.manifest if complete is not None else None
    valid_count = sum(not one.faults for one in entries)
    figures = {
        "backup_newest_timestamp_seconds": newest.created_ns / NS_PER_S if newest is not None else 0,
        "backup_newest_size_bytes": newest.size_bytes if newest is not None else 0,
        "backup_valid": valid_count,
        "backup_damaged": len(entries) - valid_count,
        "backup_checked_timestamp_seconds": now_ns / NS_PER_S,
    }
    registry = CollectorRegistry()
    for name, text in TABLE.items():
        Gauge(f"liftpy_{name}", text, ["store"], registry=registry).labels(shown_store(url)).set(figures[name])
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise StorageError(f"Cannot write --metrics-file {path}: {error.strerror or error}. Check the directory.") from None


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def trace_options(command: F) -> F:
    """Add the options --trace and --trace-endpoint to a command. A node has the same options."""
    command = click.option(
        "--trace-endpoint", default="", envvar="LIFTPY_TRACE_ENDPOINT", metavar="URL",
        help="URL of the OpenTelemetry collector.  [default: OTEL_EXPORTER_OTLP_ENDPOINT]",
    )(command)  # fmt: skip
    return click.option(
        "--trace", type=click.Choice(["off", "otlp"]), default="off", show_default=True, envvar="LIFTPY_TRACE",
        help="Send one span for the command and one for each step to an OpenTelemetry collector (otlp).",
    )(command)  # fmt: skip


def span_attributes(manifest: Manifest) -> Attributes:
    """Return the id, the numbers of streams and partitions, and the size of a backup, as attributes of a span."""
    return {
        "liftpy.backup": manifest.backup,
        "liftpy.streams": len(manifest.streams),
        "liftpy.partitions": sum(len(stream.partitions) for stream in manifest.streams),
        "liftpy.bytes": manifest.size_bytes,
    }


@contextmanager
def trace_steps(
    name: str, target: Target, trace: str, endpoint: str, exporter: Callable[[], SpanExporter] | None = None
) -> Iterator[StepSpans]:
    """Record one span for the block and one span for each of its steps. Yield the object that records the steps.

    ``name``: name of the span. ``trace``: ``off`` or ``otlp``. ``endpoint``: URL of the collector. ``exporter``: makes another
    exporter, for tests. Raises ConfigError if spans cannot be exported.
    """
    spans = StepSpans(name, time.time_ns)
    if trace == "off":
        yield spans
        return
    check_exporter(f"--trace {trace}", endpoint)
    from sidecar.tracing.exporting import SpanThread, otlp_exporter

    span_exporter = exporter() if exporter is not None else otlp_exporter(endpoint)
    thread = SpanThread(span_exporter, f"{name}-{os.getpid()}", target.namespace, SpanBudget(SPANS_PER_S))
    error_text = ""
    try:
        yield spans
    except BaseException as error:
        error_text = (str(error) if isinstance(error, LiftError) else "") or type(error).__name__
        raise
    finally:
        thread.add(spans.end_all(error_text))
        thread.close()


def _read_metadata(store: Store, backup: str) -> tuple[Manifest, ClusterImage]:
    manifest = store.newest(backup)
    return manifest, read_image(store, manifest)


_TO_RESTORE = "--role operator --role reader --role member"
"""Permissions of the commands that restore streams and positions."""
EXIT_PARTLY = 4
"""All streams are restored, but something that belongs to them is not. The output names it."""
EXIT_REMAINS = 4
"""The drill has shown that the backup is valid, but at least one of its copies could not be deleted. The output names it."""
scratch_option = click.option(
    "--scratch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory for temporary files. Needs room for one copy of everything that is restored.  [default: the system's]",
)
node_config_option = click.option(
    "--config",
    "node_config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help=(
        "Settings file of a node. The restore helper connects with these settings, because it needs the "
        "permissions of a node.  [default: the connection options]"
    ),
)
backup_option = click.option("--backup", "backup_id", default="", metavar="ID", help="Id of the backup.  [default: the newest]")


@click.group(cls=HelpGroup, example="liftpy backup create /backups/liftpy")
def backup() -> None:
    """Create, list, verify, prune, restore and test backups of a running cluster.

    URL is a directory, or a pyarrow file system URL: file://, s3://, gs:// or abfs://.
    """


@backup.command(example="liftpy backup restore s3://backups/liftpy --stream orders --into orders-restored")
@click.argument("url")
@backup_option
@click.option("--all", "everything", is_flag=True, help="Restore all streams under their old names.")
@click.option(
    "--stream", "name", default="", metavar="NAME", help="Name of the stream in the backup.  [default: the name in --into]"
)
@click.option("--into", default="", metavar="NAME", help="Name of the restored stream.")
@click.option(
    "--subject",
    default="",
    metavar="SUBJECT",
    help="NATS subject of the restored stream.  [default: the subject in the backup]",
)
@click.option(
    "--until",
    "until_text",
    metavar="TIME|OFFSET",
    help="Restore records up to this offset (inclusive) or before this time (exclusive).",
)
@click.option(
    "--replicas",
    default=0,
    type=click.IntRange(0),
    help="Number of replicas of each partition.  [default: the number in the backup]",
)
@click.option(
    "--no-retention",
    "has_no_retention",
    is_flag=True,
    help=(
        "Restore the streams without their retention age, bytes and records, so that the cluster does not delete old records. The "
        "command prints how to set them again."
    ),
)
@scratch_option
@node_config_option
@trace_options
@json_option
@connection_options
def restore(
    url: str, backup_id: str, everything: bool, name: str, into: str, subject: str, until_text: str | None, replicas: int,
    has_no_retention: bool, scratch: Path | None, node_config: Path | None, as_json: bool, trace: str, trace_endpoint: str,
    target: Target,
) -> int:  # fmt: skip
    """Restore streams from a backup. Offsets, timestamps and payloads stay equal.

    A restored stream has a new uid. The command never overwrites an existing stream. With --all, it rejects a partial backup (create
    --stream) unless --backup names it.

    Consumer groups and cursors resume at their stored positions if their stream has its old name again. With --all, an empty cluster
    also gets the default quota and the session times of the backup. A restored stream accepts publishes as soon as all its replicas
    are in sync. The retention of the streams continues: the cluster deletes records that are too old, unless you use --no-retention.

    Exit code 4: the streams are restored, but a group position, a cursor or a cluster setting could not be set. The command prints
    each of them, with the command that sets it.
    """
    if everything == bool(into) or (everything and (name or subject)):
        raise ConfigError("Missing option: --all, or --into NAME (with --stream, --subject).")
    manifest, image = use_store(url, partial(_read_metadata, backup=backup_id))
    left_out = left_out_streams(manifest, image.streams) if everything and not backup_id else ()
    if left_out:
        raise ConfigError(
            f"Backup {manifest.backup} is partial: it lacks {', '.join(left_out)}. To restore all streams, choose a complete backup "
            f"(--backup, `liftpy backup list`). To restore only its streams, use --backup {manifest.backup}."
        )
    names = [stream.name for stream in manifest.streams] if everything else [name or into]
    stream_restores = [_plan_stream_restore(image, manifest, one, into or one, subject, replicas) for one in names]
    until = until_of(until_text)
    warnings = [
        *_early_ends(manifest, names, until),
        *([] if has_no_retention else _expired_streams(manifest, stream_restores)),
    ]
    for line in warnings:
        click.echo(f"Warning: {line}", err=True)
    settings_again = [f"To set its retention again: {_retention_command(one)}" for one in stream_restores if _retention_of(one)]
    if has_no_retention:
        stream_restores = [replace(one, config=replace(one.config, **_NO_RETENTION)) for one in stream_restores]
    options = RestoreOptions(
        target=target,
        until=until,
        scratch=scratch,
        node_config=node_config,
        wide=cluster_wide_of(image) if everything else NOTHING_WIDE,
    )

    store = use_store(url, lambda _: Store.at(url))
    progress = Progress("restore", None, is_shown=not as_json)
    with trace_steps("restore", target, trace, trace_endpoint) as spans, progress:
        spans.attributes = span_attributes(manifest) | {"liftpy.streams": len(stream_restores)}
        done = with_client(
            target,
            lambda client: Restore(client, store, manifest, stream_restores, options, spans.step, progress.step).run(),
            permissions=_TO_RESTORE,
        )
    for line in settings_again if has_no_retention else ():
        click.echo(line, err=True)
    if as_json:
        print_json(_backup_restore_shown(manifest, done))
        return 0 if done.is_whole else EXIT_PARTLY
    _print_streams(done.streams)
    _print_states_left_out(done.states_left_out())
    _print_cursors(done.cursors)
    if any(done.cursors.values()):
        click.echo("To set the missing positions later: liftpy backup cursors URL", err=True)
    _print_settings(done.settings)
    click.echo(f"{manifest.backup}: readable after {done.served_s:.1f} s, done after {done.took_s:.1f} s")
    return 0 if done.is_whole else EXIT_PARTLY


def _print_streams(streams: Sequence[RestoredStream]) -> None:
    """Print the offsets of each restored stream, and what differs from the request or the backup."""
    for one in streams:
        ends = ", ".join(f"{log.start}..{log.end - 1}" if log.end > log.start else "empty" for log in one.logs)
        click.echo(
            f"{one.wish.into}: uid {one.uid}, " + (f"offsets {ends}" if ends else "no records, because it had no partitions")
        )
        for number, log in enumerate(one.logs):
            if log.requested_end is not None:
                click.echo(
                    f"{one.wish.into}/{number} ends at offset {log.end - 1} instead of {log.requested_end - 1} (--until), because the "
                    "stream is compacted, and the backup lacks the records that the records in between replaced",
                    err=True,
                )
        if one.plan and one.wish.config.min_isr > len(one.plan[0]):
            count = len(one.plan[0])
            click.echo(
                f"{one.wish.into}: min_isr {one.wish.config.min_isr} counts as {count}: a partition has {count_of(count, 'replica')}",
                err=True,
            )
        if one.unmet_policy:
            click.echo(
                f"{one.wish.into}: the default policy placed the replicas, because that of the stream does not fit: {one.unmet_policy}",
                err=True,
            )


def _print_states_left_out(reasons: Mapping[str, str]) -> None:
    for partition, why in reasons.items():
        click.echo(
            f"{partition}: the backup lacks the producers and message ids of records that were deleted before it: {why}. Before you "
            "start such a producer, make sure that it does not send these records again.",
            err=True,
        )


def _plan_stream_restore(
    image: ClusterImage, manifest: Manifest, name: str, into: str, subject: str, replicas: int
) -> StreamRestore:
    if name not in image.streams or name not in {stream.name for stream in manifest.streams}:
        raise NotFoundError(f"Backup {manifest.backup} has no stream {name!r}. `liftpy backup list --json` shows the streams.")
    was = image.streams[name]
    return StreamRestore(
        name=name,
        into=into,
        subject=subject or was.subject,
        config=was.config,
        replicas=replicas or was.replica_count,
        placement=was.placement,
        waiting=was.waiting,
    )


def until_of(text: str | None) -> RestorePoint:
    """Return the end of a restore. ``text``: an offset or a time from the command line, None: no end. Raises ConfigError."""
    point = parse_until(text, datetime.now(UTC), "--until")
    if point is None:
        return RestorePoint()
    if isinstance(point, int):
        return RestorePoint(offset=point)
    if isinstance(point, datetime):
        return RestorePoint(time_ns=timestamp_ns(point))
    raise ConfigError(
        f"Invalid value for --until: {point}. Use the last offset to restore, or a time such as 2026-01-31T12:00:00Z."
    )


def _early_ends(manifest: Manifest, names: Sequence[str], until: RestorePoint) -> Iterator[str]:
    """Yield a text for each part of the backup that ends before ``until``. ``names``: streams to restore."""
    if until.time_ns is not None and until.time_ns > manifest.created_ns:
        taken = datetime.fromtimestamp(manifest.created_ns // NS_PER_S, UTC)
        yield (
            f"backup {manifest.backup} was taken at {taken:%Y-%m-%dT%H:%M:%SZ}, before the time of --until. It lacks the records "
            "that were published later."
        )
    for stream in manifest.streams if until.offset is not None else ():
        for copy in stream.partitions if stream.name in names else ():
            if until.offset is not None and until.offset > copy.high_watermark:
                last = f"ends at offset {copy.high_watermark}" if copy.high_watermark >= copy.start else "has no records"
                yield f"{stream.name}/{copy.partition} {last} in backup {manifest.backup}, below --until {until.offset}."


_NO_RETENTION: Mapping[str, Any] = {"retention_age_s": 0.0, "retention_bytes": 0, "retention_records": 0}
"""Settings of a stream without retention."""


def _retention_of(one: StreamRestore) -> dict[str, str]:
    """Return the retention of a stream, as text by option of ``liftpy stream alter``. {}: the stream has no retention."""
    config = one.config
    values = {
        "--retention-age": Duration.text(config.retention_age_s) if config.retention_age_s else "",
        "--retention-bytes": Size.text(config.retention_bytes) if config.retention_bytes else "",
        "--retention-records": str(config.retention_records) if config.retention_records else "",
    }
    return {option: text for option, text in values.items() if text}


def _retention_command(one: StreamRestore) -> str:
    """Return the command line that sets the retention of a restored stream as it is in the backup."""
    return " ".join(["liftpy stream alter", one.into, *(f"{option} {text}" for option, text in _retention_of(one).items())])


def _expired_streams(manifest: Manifest, stream_restores: Sequence[StreamRestore]) -> Iterator[str]:
    """Yield a text for each stream whose retention deletes all records of the backup."""
    age_s = (time.time_ns() - manifest.created_ns) / NS_PER_S
    for one in stream_restores:
        if 0 < one.config.retention_age_s < age_s:
            yield (
                f"all records of stream {one.name} in backup {manifest.backup} are older than its retention age "
                f"({Duration.text(one.config.retention_age_s)}). The cluster deletes them after the restore. To keep them, use "
                "--no-retention."
            )


def _print_cursors(error_texts: Mapping[str, str]) -> None:
    for cursor, why in error_texts.items():
        click.echo(
            f"{cursor}: " + (f"its positions could not be set: {why}" if why else "continues at its position"), err=bool(why)
        )


def _print_settings(settings: Sequence[RestoredSetting]) -> None:
    for one in settings:
        if one.why:
            click.echo(f"{one.name} ({one.words}) could not be set: {one.why}", err=True)
            click.echo(f"To set the {one.name} later: {one.command}", err=True)
        else:
            click.echo(f"{one.name}: {one.words}")


@backup.command("cursors", example="liftpy backup cursors /backups/liftpy")
@click.argument("url")
@backup_option
@json_option
@connection_options
def cursors_(url: str, backup_id: str, as_json: bool, target: Target) -> int:
    """Set groups and cursors to the positions stored in the backup.

    Use this command if `restore` could not set a position because the group had members. Warning: it also moves back groups that have
    made progress since the restore. It sets no position in a stream that was deleted and created again, because this stream has no
    record of the backup. Exit code 1: at least one position could not be set.
    """
    manifest = use_store(url, lambda store: store.newest(backup_id))

    async def work(client: Client) -> dict[str, str]:
        there = (await client.admin.describe_cluster(linearizable=True)).image.streams
        uids = {stream.name: there[stream.name].uid for stream in manifest.streams if stream.name in there}
        return await set_cursors(client, manifest, uids)

    error_texts = with_client(target, work, permissions=_TO_RESTORE)
    if as_json:
        print_json(error_texts)
    elif error_texts:
        _print_cursors(error_texts)
    else:
        click.echo("The backup has no positions for streams of this cluster.")
    return 1 if any(error_texts.values()) else 0


def _backup_restore_shown(manifest: Manifest, done: RestoreResult) -> dict[str, object]:
    streams = {
        one.wish.into: {
            "uid": one.uid,
            "from": one.wish.name,
            "offsets": [[log.start, log.end - 1] for log in one.logs],
            "records": sum(log.records for log in one.logs),
            "unmet_policy": one.unmet_policy,
        }
        for one in done.streams
    }
    return {
        "backup": manifest.backup,
        "streams": streams,
        "states_left_out": done.states_left_out(),
        "cursors": done.cursors,
        "settings": {one.name.replace(" ", "_"): one.json_value for one in done.settings},
        "readable_s": round(done.served_s, 3),
        "took_s": round(done.took_s, 3),
    }


@backup.command("drill", example="liftpy backup drill /backups/liftpy")
@click.argument("url")
@backup_option
@scratch_option
@node_config_option
@trace_options
@json_option
@connection_options
def drill_(
    url: str, backup_id: str, scratch: Path | None, node_config: Path | None, as_json: bool, trace: str, trace_endpoint: str,
    target: Target,
) -> int:  # fmt: skip
    """Test a backup: restore it under temporary names, compare every replica with the backup, and delete the copies.

    The command prints how long the restore took. The temporary streams are read-only, and their names start with drill-.

    Exit code 4: the backup is valid, but a copy could not be deleted. The command prints the command that deletes it.
    """
    manifest = use_store(url, lambda store: store.newest(backup_id))
    store = use_store(url, lambda _: Store.at(url))
    options = RestoreOptions(target=target, scratch=scratch, node_config=node_config)

    progress = Progress("drill", None, is_shown=not as_json)
    with trace_steps("drill", target, trace, trace_endpoint) as spans, progress:
        spans.attributes = span_attributes(manifest)
        done = with_client(
            target,
            lambda client: drill(client, store, manifest, options, spans.step, progress.step),
            permissions=_TO_RESTORE,
        )
    if as_json:
        fields = {name: getattr(done, name) for name in ("backup", "streams", "partitions", "records", "size_bytes")}
        times = {name: round(getattr(done, name), 3) for name in ("served_s", "rto_s", "compared_s", "rpo_s")}
        print_json(fields | times | {"states_left_out": dict(done.states_left_out), "left": list(done.left)})
        return EXIT_REMAINS if done.left else 0
    what = f"{done.streams} streams, {done.records} records, {done.size_bytes / _MIB:.1f} MiB"
    click.echo(f"{done.backup}: {what} are the same on every replica as in the backup")
    _print_states_left_out(done.states_left_out)
    click.echo(f"RTO {done.rto_s:.1f} s (readable after {done.served_s:.1f} s); compared in {done.compared_s:.1f} s")
    click.echo(f"RPO now {done.rpo_s / 3600:.1f} h")
    for command in done.left:
        click.echo(f"A copy could not be deleted. To delete it: {command}", err=True)
    return EXIT_REMAINS if done.left else 0


def use_store(url: str, work: Callable[[Store], T]) -> T:
    """Run ``work`` with the store at ``url`` in a thread, and return its result.

    So a signal ends the command also while the store does not answer. The main thread could not handle it.
    """
    stopped = threading.Event()

    async def run() -> T:
        try:
            return await asyncio.to_thread(lambda: work(Store.at(url, stopped.is_set)))
        except asyncio.CancelledError:
            stopped.set()
            raise

    return run_cancellable(run())


EXIT_DAMAGED = 1
"""A backup is incomplete or damaged, or the newest one is too old, or its age is not known."""
CLOCK_TOLERANCE_S = 300.0
"""Difference between two clocks up to which a backup with a time in the future counts as new, in seconds."""
_MIB = 1024 * 1024


@backup.command(example="liftpy backup create /backups/liftpy --stream orders")
@click.argument("url")
@click.option(
    "--stream",
    "streams",
    type=STREAM,
    multiple=True,
    metavar="NAME",
    help="Back up only this stream. May be repeated.  [default: all]",
)
@click.option(
    "--base",
    "since",
    default="last",
    show_default=True,
    metavar="ID",
    help="Id of the backup whose files are reused: last (the newest) or an id. 'none' copies everything.",
)
@click.option(
    "--bytes-per-s",
    default=Size.text(DEFAULT_BYTES_PER_S),
    show_default=True,
    type=Size(),
    help="Maximum copy rate per second, in bytes or with a unit. 0 means no limit.",
)
@trace_options
@json_option
@connection_options
def create(
    url: str,
    streams: tuple[str, ...],
    since: str,
    bytes_per_s: int,
    as_json: bool,
    trace: str,
    trace_endpoint: str,
    target: Target,
) -> None:
    """Back up all committed records, the settings of the streams, and the positions of groups and cursors."""
    store = use_store(url, lambda _: Store.at(url))
    options = BackupOptions(
        namespace=target.namespace,
        streams=streams,
        since={"last": None, "none": ""}.get(since, since),
        bytes_per_s=bytes_per_s,
    )

    with trace_steps("backup", target, trace, trace_endpoint) as spans, Progress("backup", None) as progress:
        copied = partial(progress.step, "backup", "partitions")
        result = with_client(
            target,
            lambda client: take_backup(client, store, options, step=spans.step, copied=copied),
            permissions="--role reader --service groups",
        )
        spans.attributes = span_attributes(result.manifest) | {"liftpy.written_bytes": result.written_bytes}
    if as_json:
        shown = _manifest_as_json(result.manifest) | {"written_bytes": result.written_bytes, "took_s": round(result.took_s, 3)}
        print_json(shown | {"deleted": list(result.deleted)})
    else:
        click.echo(
            f"{result.manifest.backup}: {_contents(result.manifest)}; {result.written_bytes / _MIB:.1f} MiB written, "
            f"{result.reused_bytes / _MIB:.1f} MiB of earlier backups used, {result.took_s:.1f} s"
        )
        if result.deleted:
            click.echo(f"not in the backup, because they were deleted while it ran: {', '.join(result.deleted)}")


class MaxAge(Duration):
    """Type of the option --max-age: a duration with its unit. A number without unit is rejected, because it once meant hours."""

    units: ClassVar[Mapping[str, float]] = {unit: factor for unit, factor in Duration.units.items() if unit}
    example = "26h or 2d"
    units_text = "DURATION: a number with ms, s, m, h or d, such as 26h or 2d. The unit is required."


@backup.command("list", example="liftpy backup list /backups/liftpy --max-age 26h")
@click.argument("url")
@click.option(
    "--max-age",
    "max_age_s",
    type=MaxAge(),
    help=(
        "Maximum age of the newest complete backup, such as 26h. An older one gives exit code 1, and so does one whose time is more "
        "than 5 min in the future."
    ),
)
@click.option(
    "--metrics-file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=(
        "Write the age of the newest backup to this file, for the textfile collector of Prometheus. The name "
        "must end with .prom."
    ),
)
@json_option
def list_(url: str, max_age_s: float | None, metrics_file: Path | None, as_json: bool) -> int:
    """List the backups, the newest last. Exit code 1: there is no backup, or the newest one is incomplete or older than --max-age.

    A backup of some streams (create --stream) is partial. It counts for --max-age and for the metrics only if the store has no complete
    backup of all streams.
    """
    if metrics_file is not None and metrics_file.suffix != ".prom":  # the file is replaced, which would also replace a device
        raise ConfigError(f"Invalid value for --metrics-file: {metrics_file}. The name must end with .prom.")
    entries = use_store(url, list_backups)
    if metrics_file is not None:
        write_metrics(metrics_file, url, entries, time.time_ns())
    if as_json:
        rows = [
            {
                **({} if one.manifest is None else _manifest_as_json(one.manifest)),
                "backup": one.backup,
                "left_out": one.left_out,
                "faults": one.faults,
            }
            for one in entries
        ]
        print_json(rows)
    else:
        print_table(("backup", "age", "streams", "MiB", "state"), [_row(one) for one in entries])
    if not entries:
        missing = "://" not in url and not Path(url).expanduser().is_dir()
        click.echo(f"No backups in {shown_store(url)}" + (" (the directory does not exist)." if missing else "."), err=True)
    newest = newest_complete(entries)
    if newest is None or newest.manifest is None or entries[-1].faults:
        return EXIT_DAMAGED
    age_s = (time.time_ns() - newest.manifest.created_ns) / NS_PER_S
    if max_age_s is None:
        return 0
    if age_s < -CLOCK_TOLERANCE_S:
        click.echo(
            f"The age of {newest.backup} is not known, because its time is in the future. Check the clocks of this machine and of "
            "the one that takes the backups, then take a backup.",
            err=True,
        )
        return EXIT_DAMAGED
    return EXIT_DAMAGED if age_s > max_age_s else 0


def _row(one: BackupEntry) -> tuple[str, ...]:
    if one.manifest is None:
        return one.backup, "", "", "", f"damaged: {one.faults[0]}"
    state = f"incomplete: {one.faults[0]}" if one.faults else "complete"
    if one.left_out:
        state = f"partial: without {', '.join(one.left_out[:3])}{', ...' * (len(one.left_out) > 3)}"
    manifest = one.manifest
    return one.backup, _age(manifest), str(len(manifest.streams)), f"{manifest.size_bytes / _MIB:.1f}", state


def _age(manifest: Manifest) -> str:
    age_ns = time.time_ns() - manifest.created_ns
    minutes = abs(age_ns) // (60 * NS_PER_S)
    return f"{'in ' * (age_ns < 0 and minutes > 0)}{minutes // 60} h {minutes % 60:02} min"


def _contents(manifest: Manifest) -> str:
    partitions = sum(len(stream.partitions) for stream in manifest.streams)
    counts = (count_of(len(manifest.streams), "stream"), count_of(partitions, "partition"))
    return f"{', '.join(counts)}, groups and cursors: {len(manifest.cursors)}"


def _manifest_as_json(manifest: Manifest) -> dict[str, object]:
    return {
        "backup": manifest.backup,
        "created_ns": manifest.created_ns,
        "age_s": round((time.time_ns() - manifest.created_ns) / NS_PER_S, 1),
        "since": manifest.since,
        "level": manifest.level,
        "size_bytes": manifest.size_bytes,
        "files": len(manifest.files),
        "streams": {s.name: {str(p.partition): [p.start, p.high_watermark] for p in s.partitions} for s in manifest.streams},
        "cursors": [cursor.name for cursor in manifest.cursors],
    }


@backup.command(example="liftpy backup verify /backups/liftpy")
@click.argument("url")
@backup_option
@json_option
def verify(url: str, backup_id: str, as_json: bool) -> int:
    """Read every byte of a backup and print each damaged file. Exit code 1: at least one file is damaged."""
    manifest = use_store(url, lambda store: store.newest(backup_id))
    copies = [copy for stream in manifest.streams for copy in stream.partitions]
    total = sum(len(copy.pieces) + (copy.state is not None) for copy in copies)
    with Progress(manifest.backup, total, unit="files") as progress:
        result = use_store(
            url, lambda store: verify_backup(store, manifest, lambda _: progress.at(progress.count + 1, progress.count + 1))
        )
    if as_json:
        shown = {"backup": result.backup, "files": result.files, "size_bytes": result.size_bytes, "faults": result.faults}
        print_json(shown)
    else:
        lines = [f"{result.backup}: {result.files} files, {result.batches} batches, {result.size_bytes / _MIB:.1f} MiB read"]
        click.echo("\n".join([*lines, *(result.faults or ["all files are unchanged"])]))
    return EXIT_DAMAGED if result.faults else 0


@backup.command(example="liftpy backup prune /backups/liftpy --keep 7 --dry-run")
@click.argument("url")
@click.option(
    "--keep",
    required=True,
    type=click.IntRange(1),
    help="Number of complete backups of all streams to keep. The command keeps the newest ones.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and change nothing.")
@click.option(
    "--unfinished",
    "died",
    multiple=True,
    metavar="ID",
    help=("Remove the files of this unfinished backup. Use it only if the process of that backup has ended. May be repeated."),
)
@json_option
def prune(url: str, keep: int, dry_run: bool, died: tuple[str, ...], as_json: bool) -> None:
    """Remove old backups, and files that no backup uses.

    A backup of some streams (create --stream) replaces only backups that have no other streams. So it never counts for --keep in the
    place of a backup of all streams. A backup of all streams replaces any other. Backups of different namespaces never replace each
    other.

    The command orders backups by id, not by clock time. A running backup renews its mark in the store every hour. The command removes
    the files of an unfinished backup when its mark is older than one day and another backup started at least half a day after the mark.
    """
    done = use_store(url, lambda store: prune_backups(store, keep, datetime.now(UTC), dry_run=dry_run, died=died))
    if as_json:
        shown = {
            "backups": done.backups,
            "of_backups": done.backup_count_before,
            "files": len(done.files),
            "size_bytes": done.size_bytes,
            "waits_for": done.waits_for,
        }
        print_json(shown)
        return
    verb = "would be removed" if dry_run else "are removed"
    click.echo(
        f"{len(done.backups)} of {count_of(done.backup_count_before, 'backup')} and {count_of(len(done.files), 'file')} "
        f"({done.size_bytes / _MIB:.1f} MiB) {verb}"
    )
    for running in done.waits_for:
        click.echo(f"{running} is not complete, and no newer backup has begun within half a day. The command keeps its files")
        click.echo(f"If its process has ended: liftpy backup prune URL --keep {keep} --unfinished {running}")
