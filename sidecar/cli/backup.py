"""``liftpy backup``: take backups, list, verify and prune them; restore one; drill. docs/backup.md."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from liftpy.backup.manifest import Manifest
from liftpy.client import Client
from sidecar.backup.looking import Listed, list_backups, prune_backups, verify_backup
from sidecar.backup.pace import DEFAULT_BYTES_PER_S
from sidecar.backup.store import Store
from sidecar.backup.taking import TakenBackup, TakeOptions, take_backup
from sidecar.cli.backup_metrics import write_metrics
from sidecar.cli.backup_restore import cursors_, drill_, restore
from sidecar.cli.backup_spans import said_of, trace_options, traced
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.cli.tables import table
from sidecar.settings import Target

EXIT_DAMAGED = 1
"""A backup is not whole, holds what was not written, or the newest is older than asked for."""
_MIB = 1024 * 1024
_NS_PER_S = 1_000_000_000

url_argument = click.argument("url", metavar="URL")


@click.group()
def backup() -> None:
    """Take backups of a running cluster, list, verify and prune them, restore one, try that out.

    URL: a folder, or what pyarrow knows by file://, s3://, gs://, abfs://.
    """


@backup.command()
@url_argument
@click.option("--stream", "streams", multiple=True, metavar="NAME", help="This stream; may be repeated.  [default: all]")
@click.option(
    "--since", default="last", show_default=True, metavar="ID", help="Whose pieces are used again; 'none': all is copied."
)
@click.option("--bytes-per-s", default=DEFAULT_BYTES_PER_S, show_default=True, type=click.IntRange(0), help="Bound; 0: none.")
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
    """Copy all that is committed now, the streams' settings, and what groups and cursors have committed."""
    store = Store.at(url)
    options = TakeOptions(
        namespace=target.namespace,
        streams=streams,
        since={"last": None, "none": ""}.get(since, since),
        bytes_per_s=bytes_per_s,
    )

    with traced("backup", target, trace, trace_endpoint) as spans:

        async def work(client: Client) -> TakenBackup:
            return await take_backup(client, store, options, step=spans.step)

        taken = with_client(target, work)
        spans.attributes = said_of(taken.manifest) | {"liftpy.written_bytes": taken.written_bytes}
    if as_json:
        shown = _shown(taken.manifest) | {"written_bytes": taken.written_bytes, "took_s": round(taken.took_s, 3)}
        click.echo(json.dumps(shown))
    else:
        click.echo(
            f"{taken.manifest.backup}: {_contents(taken.manifest)}; {taken.written_bytes / _MIB:.1f} MiB written, "
            f"{taken.kept_bytes / _MIB:.1f} MiB of earlier backups used, {taken.took_s:.1f} s"
        )


@backup.command("list")
@url_argument
@click.option(
    "--max-age", "max_age_h", default=None, type=click.FloatRange(0), metavar="H", help="Hours that the newest may be old."
)
@click.option(
    "--metrics-file",
    default=None,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write for Prometheus's textfile collector how old the newest is: a name that ends with .prom, in its folder.",
)
@json_option
def list_(url: str, max_age_h: float | None, metrics_file: Path | None, as_json: bool) -> int:
    """Show the backups, the newest last. Exit code 1 where there is none, or the newest is not whole, or older than --max-age."""
    found = list_backups(Store.at(url))
    if metrics_file is not None:
        write_metrics(metrics_file, url, found, time.time_ns())
    if as_json:
        rows = [
            {**({} if one.manifest is None else _shown(one.manifest)), "backup": one.backup, "faults": one.faults}
            for one in found
        ]
        click.echo(json.dumps(rows))
    else:
        Console().print(table(("backup", "age", "streams", "MiB", "state"), [_row(one) for one in found]))
    newest = found[-1] if found else None
    if newest is None or newest.faults or newest.manifest is None:
        return EXIT_DAMAGED
    old_h = (time.time_ns() - newest.manifest.created_ns) / _NS_PER_S / 3600
    return EXIT_DAMAGED if max_age_h is not None and old_h > max_age_h else 0


def _row(one: Listed) -> tuple[str, ...]:
    if one.manifest is None:
        return one.backup, "", "", "", f"damaged: {one.faults[0]}"
    state = f"not whole: {one.faults[0]}" if one.faults else "whole"
    manifest = one.manifest
    return one.backup, _age(manifest), str(len(manifest.streams)), f"{manifest.size_bytes / _MIB:.1f}", state


def _age(manifest: Manifest) -> str:
    minutes = max(0, time.time_ns() - manifest.created_ns) // (60 * _NS_PER_S)
    return f"{minutes // 60} h {minutes % 60:02} min"


def _contents(manifest: Manifest) -> str:
    partitions = sum(len(stream.partitions) for stream in manifest.streams)
    return f"{len(manifest.streams)} streams, {partitions} partitions, {len(manifest.cursors)} groups and cursors"


def _shown(manifest: Manifest) -> dict[str, object]:
    return {
        "backup": manifest.backup,
        "created_ns": manifest.created_ns,
        "age_s": round((time.time_ns() - manifest.created_ns) / _NS_PER_S, 1),
        "since": manifest.since,
        "level": manifest.level,
        "size_bytes": manifest.size_bytes,
        "files": len(manifest.files),
        "streams": {s.name: {str(p.partition): [p.start, p.high_watermark] for p in s.partitions} for s in manifest.streams},
        "cursors": [cursor.name for cursor in manifest.cursors],
    }


@backup.command()
@url_argument
@click.argument("backup_id", metavar="[ID]", default="")
@json_option
def verify(url: str, backup_id: str, as_json: bool) -> int:
    """Read every byte of a backup (default: the newest), and name each file that is not as it was written. Exit code 1 if there is
    one."""
    store = Store.at(url)
    found = verify_backup(store, store.newest(backup_id))
    if as_json:
        shown = {"backup": found.backup, "files": found.files, "size_bytes": found.size_bytes, "faults": found.faults}
        click.echo(json.dumps(shown))
    else:
        said = [f"{found.backup}: {found.files} files, {found.batches} batches, {found.size_bytes / _MIB:.1f} MiB read"]
        click.echo("\n".join([*said, *(found.faults or ["all is as it was written"])]))
    return EXIT_DAMAGED if found.faults else 0


@backup.command()
@url_argument
@click.option("--keep", required=True, type=click.IntRange(1), help="So many whole backups, the newest.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option(
    "--died", multiple=True, metavar="ID", help="Remove what this backup has left: its process has ended. May be repeated."
)
@json_option
def prune(url: str, keep: int, dry_run: bool, died: tuple[str, ...], as_json: bool) -> None:
    """Remove older backups, and files that no backup names any more. Which are older their order says, no clock. What a backup has
    written that died goes when it is a day old and another one has begun half a day after it."""
    done = prune_backups(Store.at(url), keep, datetime.now(UTC), dry_run=dry_run, died=died)
    if as_json:
        shown = {
            "backups": done.backups,
            "of_backups": done.of_backups,
            "files": len(done.files),
            "size_bytes": done.size_bytes,
            "waits_for": done.waits_for,
        }
        click.echo(json.dumps(shown))
        return
    verb = "would go" if dry_run else "are gone"
    click.echo(
        f"{len(done.backups)} of {done.of_backups} backups and {len(done.files)} pieces ({done.size_bytes / _MIB:.1f} MiB) {verb}"
    )
    for running in done.waits_for:
        click.echo(f"{running} is being made, or has died, and no backup has begun half a day after it: what it may use stays")
        click.echo(f"if you know that its process has ended: liftpy backup prune URL --keep {keep} --died {running}")


backup.add_command(restore)
backup.add_command(drill_)
backup.add_command(cursors_)
