"""``liftpy spark``: archive, replay, compact, audit and stats.

``archive``, ``replay`` and ``compact`` run as Spark jobs. ``audit`` and ``stats`` read in this process, or with ``--master`` in
the executors of Spark. ``SparkTarget`` and the functions before the commands say where Spark runs and how its tasks reach the cluster.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftpy.errors import ConfigError
from liftpy.spark.offsets import EARLIEST, LATEST, parse_spec
from liftpy.spark.options import CREDENTIALS, Access, Selection, access_of
from liftpy.spark.pipelines.archive import COMPRESSIONS, DEFAULT_AGE_S, DEFAULT_BATCH_RECORDS, Archived, ArchivePlan, outlook
from liftpy.spark.pipelines.archive import archive as archive_streams
from liftpy.spark.pipelines.audit import audit as audit_replicas
from liftpy.spark.pipelines.audit_findings import AuditReport
from liftpy.spark.pipelines.compact import CompactPlan, next_step
from liftpy.spark.pipelines.compact import compact as compact_stream
from liftpy.spark.pipelines.parallel import DEFAULT_TASKS, MAX_TASKS, watch_in_thread
from liftpy.spark.pipelines.replay import ReplayPlan, ShareDone, shares_to_replay
from liftpy.spark.pipelines.replay import replay as replay_records
from liftpy.spark.pipelines.stats import StatsReport, plot_problem, save_plot
from liftpy.spark.pipelines.stats import stats as measure_streams
from liftpy.spark.pipelines.tables import FORMATS, table_at
from liftpy.spark.session import is_local, local_session
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpGroup
from sidecar.cli.main import EXIT_UNAVAILABLE, SIGNALED, signal_handlers, stop_signals
from sidecar.cli.options import (
    Duration,
    OutputFile,
    connection_and_internal_options,
    connection_options,
    json_option,
    timeout_option,
)
from sidecar.cli.output import Progress, print_json, print_table
from sidecar.runtime.settings import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])
_TASKS_EVERY_S = 0.5
"""Time between two checks of the running tasks, in seconds."""
EXIT_DIFFERENT = 1
"""Replicas do not hold the same."""
EVERY_STREAM = ".*"
_RATE_COLUMNS = ("partition", "records", "MB", "records/s", "peak/s", "missing", "longest pause s")
_VALUE_COLUMNS = ("partition", "keys", "subjects", "value p50", "value p99", "largest value")


@click.group(cls=HelpGroup, example="liftpy spark archive orders --table /data/orders --once")
def spark() -> None:
    """Archive, replay, compact, audit and measure streams with Spark, on this machine or on a cluster (--master)."""


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """Spark master and Spark settings of a command."""

    master: str
    settings: dict[str, str]

    @contextmanager
    def open_session(self, name: str, *, is_shown: bool) -> Iterator[SparkSession]:
        """Open a Spark session, and stop it at the end of the block. ``is_shown``: True to show the tasks of the running stages."""
        session = local_session(name, self.master, fast_start=False, settings=self.settings)
        try:
            with _task_progress(name, session) if is_shown else nullcontext():
                yield session
        finally:
            session.stop()


@contextmanager
def _task_progress(what: str, session: SparkSession) -> Iterator[None]:

    def watch(stopped: threading.Event) -> None:
        tracker = session.sparkContext.statusTracker()
        with Progress(what, None, unit="tasks") as progress:
            while not stopped.wait(_TASKS_EVERY_S):
                try:
                    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                except Exception:  # Spark has stopped, which the command reports
                    return
                running = [stage for stage in stages if stage is not None]
                done = sum(stage.numCompletedTasks for stage in running)
                progress.step(what, "tasks", done, sum(stage.numTasks for stage in running))

    with watch_in_thread(watch, "liftpy-tasks"):
        yield


@contextmanager
def ends_by_signal() -> Iterator[None]:
    """Let the first SIGTERM or SIGHUP end this block with SystemExit, so that its code stops the queries and Spark.

    Later signals have no effect, because a closed terminal sends SIGHUP twice. The second one would end the cleanup.
    """
    signals: list[int] = []

    def end(number: int, _: object) -> None:
        signals.append(number)
        if len(signals) == 1:
            sys.exit(SIGNALED + number)

    with signal_handlers(stop_signals(), end):
        yield


def _add_spark_options(function: F, master: Callable[[Any], Any], *, is_optional: bool) -> F:
    """Add the option ``master`` and --conf to a command. The command gets ``place``, None without a master."""

    @functools.wraps(function)
    def command(*args: Any, master: str, conf: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(one.partition("=")[::2] for one in conf)
        if lacking := [name for name, value in settings.items() if not name or not value]:
            raise click.UsageError(f"Invalid value for --conf: {lacking[0]}. Use NAME=VALUE.")
        if not master and not is_optional:
            raise click.UsageError("Invalid value for --master: it is empty. Use local[N] or spark://HOST:PORT.")
        if settings and not master:
            raise click.UsageError("--conf is a setting of Spark, so it needs --master.")
        return function(*args, place=SparkTarget(master, settings) if master else None, **kwargs)

    command = click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting. May be repeated.")(command)
    return master(command)  # type: ignore[no-any-return]


def spark_options(function: F) -> F:
    """Add the options --master and --conf to a command. The command gets ``place: SparkTarget``."""
    text = "Spark master: local[N] (this machine, N cores) or a cluster such as spark://host:7077."
    master = click.option("--master", default="local[*]", show_default=True, help=text)
    return _add_spark_options(function, master, is_optional=False)


@contextmanager
def source_options(target: Target, place: SparkTarget) -> Iterator[dict[str, str]]:
    """Yield options of the format ``liftpy`` that reach ``target``.

    A password or token is in a private file of this user during the context, because a Spark plan must contain no secret.
    Raises ConfigError if tasks run on other machines, which do not have that file.
    """
    known = target.credentials
    options = {"nats": ",".join(target.nats), "namespace": target.namespace}
    options |= {option: value for name, option in CREDENTIALS.items() if (value := getattr(known, name, ""))}
    secrets = {"nats.passwordFile": known.password, "nats.tokenFile": known.token}
    secrets = {option: secret for option, secret in secrets.items() if secret}
    if secrets and not is_local(place.master):
        raise ConfigError(
            "A password or token is not available to tasks on other machines. Use --creds or --nkey with a file "
            "that exists there."
        )
    with tempfile.TemporaryDirectory(prefix="liftpy-secret-") as folder:  # readable by this user alone
        for option, secret in secrets.items():
            file = Path(folder) / option
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as writer:
                writer.write(secret)
            options[option] = str(file)
        yield options


def _range_options(options: dict[str, str], start: str, end: str = "", *, accept_loss: bool) -> dict[str, str]:
    """Return ``options`` of the format ``liftpy`` with those of a range of records. '': the default of the format."""
    values = {"startingOffsets": start, "endingOffsets": end, "failOnDataLoss": "false" if accept_loss else ""}
    return options | {name: value for name, value in values.items() if value}


def optional_spark_options(function: F) -> F:
    """Add the options --master and --conf to a command. The command gets ``place: SparkTarget``, None without --master."""

    text = "Read in the executors of this Spark master, local[N] or spark://host:7077.  [default: read here, without Spark]"
    master = click.option("--master", default="", metavar="MASTER", help=text)
    return _add_spark_options(function, master, is_optional=True)


tasks_option = click.option(
    "--tasks",
    type=click.IntRange(1, MAX_TASKS),
    default=DEFAULT_TASKS,
    show_default=True,
    help="Number of partition ranges to read in parallel, without --master.",
)
table_format_option = click.option(
    "--table-format", "kind", type=click.Choice(list(FORMATS)), help="Format of a new table.  [default: delta]"
)


@contextmanager
def open_target(target: Target, place: SparkTarget | None, name: str) -> Iterator[tuple[Access, SparkSession | None]]:
    """Yield (access to the cluster ``target``, Spark session or None). The session stops at the end of the block."""
    running = nullcontext() if place is None else place.open_session(name, is_shown=False)
    with source_options(target, place or SparkTarget("local", {})) as options, running as session:
        yield access_of(options), session


# ---- archive ---------------------------------------------------------------------------------------------------------


@spark.command(
    short_help="Archive streams into a Delta or Iceberg table, each record exactly once.",
    example="liftpy spark archive orders --table /data/orders --once",
)
@click.argument("streams", type=STREAM, nargs=-1, required=True)
@click.option("--table", required=True, help="Directory of the table. The driver and all executors need the same path.")
@table_format_option
@click.option(
    "--once", is_flag=True, help="Archive the records that are committed now, then exit. Without it, continue until Ctrl-C."
)
@click.option(
    "--checkpoint",
    default="",
    metavar="DIR",
    help="Checkpoint directory of the query.  [default: _checkpoint in the table directory]",
)
@click.option(
    "--columns",
    default="",
    help=(
        "Columns of the source to archive, separated by commas. They must include stream, partition and offset.  [default: all]"
    ),
)
@click.option(
    "--from", "start", default="", help="Start of a new archive, as startingOffsets of the source.  [default: earliest]"
)
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="zstd",
    show_default=True,
    help="Compression of the Parquet files.",
)
@click.option(
    "--trigger-interval", "every_s", type=Duration(), default="10s", show_default=True, help="Time between two commits."
)
@click.option(
    "--batch-records",
    type=click.IntRange(1),
    default=DEFAULT_BATCH_RECORDS,
    show_default=True,
    help="Maximum number of records in one commit.",
)
@click.option(
    "--orphan-age",
    "orphan_age_s",
    type=Duration(),
    default=Duration.text(DEFAULT_AGE_S),
    show_default=True,
    help="Age after which the start removes files of failed attempts.",
)
@click.option("--accept-loss", is_flag=True, help="Continue if retention deleted records that were not archived.")
@click.option("--dry-run", is_flag=True, help="Print the next position and the number of records that wait. Write nothing.")
@json_option
@spark_options
@connection_options
def archive(
    streams: tuple[str, ...], table: str, kind: str | None, once: bool, checkpoint: str, columns: str, start: str, compression: str,
    every_s: float, batch_records: int, orphan_age_s: float, accept_loss: bool, dry_run: bool, as_json: bool,
    place: SparkTarget, target: Target,
) -> None:  # fmt: skip
    """Archive STREAMS into a table, each record exactly once. After a failure, run the command again: it resumes.

    Every reader of Delta (or Iceberg) can read the table. liftpy.spark.pipelines.archive.whole returns the
    table and the live stream as one DataFrame.
    """
    with ends_by_signal(), source_options(target, place) as options:
        plan = ArchivePlan(
            streams=streams, table=table, kind=kind or "", checkpoint=checkpoint, columns=columns, compression=compression,
            every_s=every_s, batch_records=batch_records, orphan_age_s=orphan_age_s,
            source=_range_options(options, start, accept_loss=accept_loss),
        )  # fmt: skip
        if dry_run:
            _show_archive_plan(plan, as_json=as_json)
            return
        with place.open_session("liftpy spark archive", is_shown=not as_json) as session:
            began_s = time.monotonic()
            records = archive_streams(session, plan, once=once, tell=lambda done: _show_archived_batch(done, as_json=as_json))
            _show_archived(records, time.monotonic() - began_s, as_json=as_json)


def _show_archived_batch(done: Archived, *, as_json: bool) -> None:
    if as_json:
        ends = {f"{stream}/{partition}": end for (stream, partition), end in sorted(done.ends.items())}
        fields = {"batch": done.batch, "repeated": done.repeated, "files": done.files, "records": done.record_count}
        print_json({**fields, "bytes": done.size_bytes, "seconds": round(done.took_s, 3), "ends": ends})
        return
    what = "in the table before" if done.repeated else f"version {done.version}"
    rate = done.record_count / max(done.took_s, 1e-3)
    size = f"{done.size_bytes / 1e6:.1f} MB in {done.files} files"
    click.echo(f"batch {done.batch}: {done.record_count:,} records, {size}, {done.took_s:.1f} s ({rate:,.0f}/s), {what}")


def _show_archived(records: int, took_s: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"archived": records, "seconds": round(took_s, 3)})
    else:
        click.echo(f"{records:,} records archived in {took_s:.1f} s")


def _show_archive_plan(plan: ArchivePlan, *, as_json: bool) -> None:
    prospect = outlook(plan)
    starts = {f"{stream}/{partition}": offset for (stream, partition), offset in sorted(prospect.starts.items())}
    if as_json:
        orphans = {"files": list(prospect.orphans.files), "bytes": prospect.orphans.size_bytes, "left": prospect.orphans.left}
        print_json({"resumed": prospect.resumed, "starts": starts, "waiting": prospect.waiting, "orphans": orphans})
        return
    click.echo("resumes from its checkpoint" if prospect.resumed else "starts a new query")
    for name, offset in starts.items():
        click.echo(f"  {name} from offset {offset}")
    click.echo(f"{prospect.waiting:,} records wait")
    orphans_now, left = prospect.orphans, prospect.orphans.left
    click.echo(
        f"{len(orphans_now.files)} files of failed attempts ({orphans_now.size_bytes / 1e6:.1f} MB) would be removed; {left} are left"
    )


# ---- replay ----------------------------------------------------------------------------------------------------------


@spark.command(
    short_help="Write the records of a stream or an archive to another stream, each once.",
    example="liftpy spark replay orders orders-copy --name copy-1 --table /data/orders",
)
@click.argument("stream", type=STREAM)
@click.argument("target_stream", metavar="TARGET", type=STREAM)
@click.option("--name", required=True, help="Name of this replay. A second run with the same name writes no record twice.")
@click.option("--table", default="", help="Read the archive in this directory.  [default: read the stream]")
@click.option("--from", "start", default="", help="Start position, as startingOffsets of the source.  [default: earliest]")
@click.option("--until", "end", default="", help="End position, as endingOffsets of the source.  [default: latest]")
@click.option("--partitioner", "partitions", type=click.Choice(["keep", "key"]), default="keep", show_default=True,
              help="Partition of a written record: keep (the same number) or key (from the key).")  # fmt: skip
@click.option(
    "--records-per-s",
    "rate",
    type=click.FloatRange(0),
    default=0.0,
    help="Maximum number of records per second.  [default: no limit]",
)
@click.option("--accept-loss", is_flag=True, help="Continue if retention deleted records. Replay the others.")
@click.option("--dry-run", is_flag=True, help="Print what would be replayed, and write nothing.")
@json_option
@spark_options
@connection_options
def replay(
    stream: str, target_stream: str, name: str, table: str, start: str, end: str, partitions: str, rate: float, accept_loss: bool,
    dry_run: bool, as_json: bool, place: SparkTarget, target: Target,
) -> None:  # fmt: skip
    """Write the records of STREAM, or of its archive in --table, to the stream TARGET. Each record is written once, in order.

    The command writes keys, values and headers. Offsets, times and subjects are new. After a failure, run the command again with the
    same --name: it resumes.
    """
    with ends_by_signal(), source_options(target, place) as options:
        plan = ReplayPlan(
            stream=stream, target=target_stream, name=name, table=table, keep_partitions=partitions == "keep", rate=rate,
            source=_range_options(options, start, end, accept_loss=accept_loss),
        )  # fmt: skip
        if dry_run:
            _show_replay_plan(plan, as_json=as_json)
            return
        with place.open_session("liftpy spark replay", is_shown=not as_json) as session:
            began_s = time.monotonic()
            done = replay_records(
                session, plan, lambda grown: click.echo(f"{target_stream} has grown by {grown:,} records", err=True)
            )
            _show_replayed(done, time.monotonic() - began_s, as_json=as_json)


def _show_replay_plan(plan: ReplayPlan, *, as_json: bool) -> None:
    shares = [share.planned for share in shares_to_replay(plan)]
    total = sum(planned.record_count for planned in shares)
    if as_json:
        ranges = {f"{one.stream}/{one.partition}": [one.start_offset, one.end_offset] for one in shares}
        print_json({"target": plan.target, "ranges": ranges, "records": total})
        return
    for planned in shares:
        click.echo(f"{planned}: {planned.record_count:,} records")
    click.echo(
        f"{total:,} records would be written to {plan.target}, without those that the replay {plan.name!r} has written before"
    )


def _show_replayed(done: list[ShareDone], took_s: float, *, as_json: bool) -> None:
    records, known = sum(one.records for one in done), sum(one.known for one in done)
    if as_json:
        shares = [
            {
                "partition": one.partition,
                "from": one.start_offset,
                "to": one.end_offset,
                "records": one.records,
                "known": one.known,
            }
            for one in done
        ]
        print_json({"records": records, "known": known, "seconds": round(took_s, 3), "shares": shares})
        return
    for one in done:
        click.echo(
            f"{one.stream}/{one.partition} [{one.start_offset}, {one.end_offset}): {one.records:,}, {one.known:,} there before"
        )
    click.echo(f"{records - known:,} records written in {took_s:.1f} s, {known:,} were there before")


# ---- compact ---------------------------------------------------------------------------------------------------------


@spark.command(
    short_help="Write the latest record of each key to a table.",
    example="liftpy spark compact orders --output /data/orders-latest",
)
@click.argument("stream", type=STREAM)
@click.option("--output", required=True, help="Directory of the table with the latest record of each key.")
@click.option(
    "--table",
    default="",
    help=("Read archived records from the archive in this directory.  [default: read everything from the stream]"),
)
@table_format_option
@click.option("--rebuild", is_flag=True, help="Read everything again, not only new records since the last run.")
@click.option("--dry-run", is_flag=True, help="Print the number of new records, and write nothing.")
@json_option
@spark_options
@connection_options
def compact(
    stream: str, output: str, table: str, kind: str | None, rebuild: bool, dry_run: bool, as_json: bool, place: SparkTarget,
    target: Target,
) -> None:  # fmt: skip
    """Write the latest record of each key of STREAM to a table. A tombstone deletes its key.

    Each run reads the new records and replaces the content of the table atomically.
    """
    with ends_by_signal(), source_options(target, place) as options:
        plan = CompactPlan(stream=stream, output=output, kind=kind or "", table=table, anew=rebuild, source=options)
        if dry_run:
            step = next_step(plan, table_at(output, plan.kind))
            starts = {f"{name}/{partition}": offset for (name, partition), offset in sorted(step.starts.items())}
            known = 0 if step.before is None else step.before.record_count
            if as_json:
                print_json({"starts": starts, "waiting": step.waiting, "keys": known})
            else:
                click.echo(f"{step.waiting:,} records are new, from {starts}; the table has {known:,} keys")
            return
        with place.open_session("liftpy spark compact", is_shown=not as_json) as session:
            began_s = time.monotonic()
            done = compact_stream(session, plan, lambda step: click.echo(f"{step.waiting:,} records are new", err=True))
            fields = {"read": done.read, "keys": done.keys, "bytes": done.size_bytes, "version": done.version}
            took_s = time.monotonic() - began_s
            if as_json:
                print_json({**fields, "seconds": round(took_s, 3)})
            else:
                what = "nothing was new" if done.version < 0 else f"version {done.version}, {done.size_bytes / 1e6:.1f} MB"
                click.echo(f"{done.keys:,} keys of {done.read:,} new records in {took_s:.1f} s, {what}")


# ---- audit -----------------------------------------------------------------------------------------------------------


@spark.command(
    short_help="Compare the records of all replicas, and print the first difference.",
    example="liftpy spark audit orders",
)
@click.argument("streams", type=STREAM, nargs=-1)
@timeout_option("10s", "Time without an answer after which a replica counts as unavailable.")
@tasks_option
@json_option
@optional_spark_options
@connection_and_internal_options
def audit(
    streams: tuple[str, ...], timeout_s: float, tasks: int, as_json: bool, place: SparkTarget | None, target: Target
) -> int:
    """Compare the committed records of all replicas of STREAMS, and print the first difference. Without STREAMS, compare all streams.

    Exit code 0: the replicas are equal, 1: they differ or one is damaged, 3: at least one partition had nothing to compare.
    """
    wanted = Selection(tuple(sorted(set(streams)))) if streams else Selection(pattern=EVERY_STREAM)
    with open_target(target, place, "liftpy audit") as (access, session), Progress("audit", None) as progress:
        tell = functools.partial(progress.step, "audit", "ranges")
        report = audit_replicas(
            access, wanted, spark=session, patience_s=timeout_s, tasks=tasks, internal=target.internal, tell=tell
        )
    if as_json:
        print_json(report.to_json())
    else:
        _show_audit(report)
    if report.first is not None:
        return EXIT_DIFFERENT
    return 0 if report.is_proven else EXIT_UNAVAILABLE


def _show_audit(report: AuditReport) -> None:
    rows = [
        (
            f"{one.stream}/{one.partition}",
            f"{one.start_offset}..{one.end_offset}",
            node + ("*" if node == one.leader else ""),
            replica.state,
            str(replica.records),
            str(replica.size_bytes),
            ", ".join(f"{epoch}: {offset}" for epoch, offset in replica.epochs),
        )
        for one in report.partitions
        for node, replica in one.replicas.items()
    ]
    print_table(
        ("partition", "offsets", "replica", "state", "records", "bytes", "epochs (from)"), rows, folds=("epochs (from)",)
    )
    for one in report.partitions:
        for node, replica in one.replicas.items():
            if replica.state != "compared":
                click.echo(f"{one.stream}/{one.partition}: {node} is {replica.state}: {replica.detail}")
        if one.dropped:
            text = "later ones supersede them" if one.dropped_checked else "it is unknown whether later ones supersede them"
            click.echo(f"{one.stream}/{one.partition}: {one.dropped} records were dropped on some replicas only: {text}")
    if report.first is not None:
        click.echo(f"first difference: {report.first}")
        for finding in report.findings[1:]:
            click.echo(f"also: {finding}")
    elif not report.partitions:
        click.echo("There are no streams.")
    elif report.is_proven:
        click.echo("replicas agree")
    else:
        alone = ", ".join(f"{one.stream}/{one.partition}" for one in report.partitions if not one.is_proven)
        click.echo(f"no difference was found, but fewer than two replicas of {alone} could be compared")


# ---- stats -----------------------------------------------------------------------------------------------------------


@spark.command(
    short_help="Show rates, sizes, gaps, keys and subjects of streams over time.",
    example="liftpy spark stats orders --from -1h --bucket 1m --plot orders.png",
)
@click.argument("streams", type=STREAM, nargs=-1, required=True)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    help="Start position: earliest, -1h, -1000, or JSON with one position for each partition.",
)
@click.option(
    "--until",
    default="latest",
    show_default=True,
    help="End position (exclusive): latest, -10m, -1000, or JSON with one position for each partition.",
)
@click.option("--bucket", "every_s", type=Duration(0.001), help="Width of a time bucket.  [default: at most 60 buckets]")
@click.option("--plot", type=OutputFile(), help="Write a chart to this PNG file.")
@timeout_option("30s", "Maximum time without an answer.")
@tasks_option
@json_option
@optional_spark_options
@connection_options
def stats(
    streams: tuple[str, ...], start: str, until: str, every_s: float | None, plot: Path | None, timeout_s: float, tasks: int,
    as_json: bool, place: SparkTarget | None, target: Target,
) -> None:  # fmt: skip
    """Show rates, sizes, gaps, and distinct keys and subjects of STREAMS over time, for each partition and in total."""
    if plot is not None and (problem := plot_problem()):
        raise ConfigError(problem)
    now_ns = round(datetime.now(UTC).timestamp() * 1e9)
    starting = parse_spec(start, "--from", words=("earliest", "latest"), specials=(EARLIEST, LATEST)).as_of(now_ns)
    ending = parse_spec(until, "--until", words=("latest",), specials=(LATEST,)).as_of(now_ns)
    with open_target(target, place, "liftpy stats") as (access, session), Progress("stats", None) as progress:
        tell = functools.partial(progress.step, "stats", "ranges")
        report = measure_streams(
            access, Selection(tuple(sorted(set(streams)))), starting=starting, ending=ending,
            every_s=every_s or 0.0, spark=session, patience_s=timeout_s, tasks=tasks, tell=tell,
        )  # fmt: skip
    if plot is not None:
        save_plot(report, plot)
    if as_json:
        print_json(report.to_json())
    else:
        _show_stats(report)


def _show_stats(report: StatsReport) -> None:
    summaries = [one.summary() for one in report.partitions]
    print_table(_RATE_COLUMNS, [_rate_row(row) for row in summaries])
    print_table(_VALUE_COLUMNS, [_value_row(row) for row in summaries])
    for whole in report.streams():
        series = [
            (
                datetime.fromtimestamp(row["start_ns"] / 1e9, UTC).isoformat(sep=" ", timespec="milliseconds")[:23],
                str(row["records"]),
                f"{row['records_s']:.1f}",
                f"{row['bytes_s'] / 1e6:.3f}",
                str(row["keys"]),
                str(row["subjects"]),
            )
            for row in whole.series()
        ]
        title = f"{whole.stream}, every {report.width_s:g} s"
        print_table(("from (UTC)", "records", "records/s", "MB/s", "keys", "subjects"), series, title=title)
    for loss in report.losses:
        click.echo(loss)


def _rate_row(row: dict[str, Any]) -> tuple[str, ...]:
    pause = f"{row['longest_pause_s']:g}" + (f" at {row['longest_pause_before']}" if row["longest_pause_before"] >= 0 else "")
    return (
        f"{row['stream']}/{row['partition']}",
        str(row["records"]),
        f"{(row['key_bytes'] + row['value_bytes']) / 1e6:.3f}",
        f"{row['records_s']:.1f}",
        f"{row['peak_records_s']:.1f}",
        str(row["missing_offsets"]),
        pause,
    )


def _value_row(row: dict[str, Any]) -> tuple[str, ...]:
    names = ("keys", "subjects", "value_p50", "value_p99", "value_largest")
    return (f"{row['stream']}/{row['partition']}", *(str(row[name]) for name in names))
