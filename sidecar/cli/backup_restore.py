"""``liftpy backup restore`` and ``drill``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from liftpy.backup.manifest import Manifest
from liftpy.client import Client
from liftpy.client.positions import parse_until, timestamp_ns
from liftpy.cluster.image import ClusterImage
from liftpy.errors import ConfigError, NotFoundError
from sidecar.backup.cluster_wide import NOTHING_WIDE, RestoredSetting, cluster_wide_of
from sidecar.backup.cursors import set_cursors
from sidecar.backup.drill import Drilled, drill
from sidecar.backup.looking import read_image
from sidecar.backup.restoring import Restore, Restored, RestoreOptions, RestoreWish
from sidecar.backup.staging import Until
from sidecar.backup.store import Store
from sidecar.cli.backup_spans import said_of, trace_options, traced
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target

EXIT_PARTLY = 4
"""All streams are restored, and something that goes with them is not: it is named."""
_MIB = 1024 * 1024
scratch_option = click.option(
    "--scratch", type=click.Path(exists=True, file_okay=False, path_type=Path), default=None, metavar="DIR",
    help="Where there is room for one copy of all that is restored.  [default: the system's]",
)  # fmt: skip
node_config_option = click.option(
    "--node-config", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None, metavar="FILE",
    help="A node's settings file, for the helper: it needs the rights of a node.  [default: the options of this command]",
)  # fmt: skip
backup_option = click.option("--backup", "backup_id", default="", metavar="ID", help="Which one.  [default: the newest]")


@click.command()
@click.argument("url", metavar="URL")
@backup_option
@click.option("--all", "everything", is_flag=True, help="All streams, under their names.")
@click.option("--stream", "name", default="", metavar="NAME", help="This stream.  [default: the one that --into names]")
@click.option("--into", default="", metavar="NAME", help="Its name from now on.")
@click.option("--subject", default="", metavar="SUBJECT", help="What it is attached to.  [default: as it was]")
@click.option(
    "--until", "until_text", default=None, metavar="TIME|OFFSET", help="The last offset wanted; or before what has this time."
)
@click.option("--replicas", default=0, type=click.IntRange(0), help="How many.  [default: as it had]")
@scratch_option
@node_config_option
@trace_options
@json_option
@connection_options
def restore(
    url: str, backup_id: str, everything: bool, name: str, into: str, subject: str, until_text: str | None, replicas: int,
    scratch: Path | None, node_config: Path | None, as_json: bool, trace: str, trace_endpoint: str, target: Target,
) -> int:  # fmt: skip
    """Bring streams back under a new uid: the same offsets, time stamps, bytes. Nothing that is there is overwritten.

    Groups and cursors of streams that have their name again go on where they were; with --all an empty cluster gets the default quota,
    and the session times that somebody had set, too. Streams take publishes once all replicas are in sync. Exit code 4: the streams
    are restored, and a position of a group or cursor, or a setting of the cluster, could not be set; it is named, with the command
    that sets it.
    """
    if everything == bool(into) or (everything and (name or subject)):
        raise ConfigError("give --all, or --into NAME (with --stream, --subject)")
    store = Store.at(url)
    manifest = store.newest(backup_id)
    image = read_image(store, manifest)
    names = [stream.name for stream in manifest.streams] if everything else [name or into]
    wishes = [_wish(image, manifest, one, into or one, subject, replicas) for one in names]
    options = RestoreOptions(
        target=target,
        until=until_of(until_text),
        scratch=scratch,
        node_config=node_config,
        wide=cluster_wide_of(image) if everything else NOTHING_WIDE,
    )

    with traced("restore", target, trace, trace_endpoint) as spans:
        spans.attributes = said_of(manifest) | {"liftpy.streams": len(wishes)}

        async def work(client: Client) -> Restored:
            return await Restore(client, store, manifest, wishes, options, spans.step).run()

        done = with_client(target, work)
    if as_json:
        click.echo(json.dumps(_shown(manifest, done)))
        return 0 if done.is_whole else EXIT_PARTLY
    for one in done.streams:
        ends = ", ".join(f"{log.start}..{log.end - 1}" if log.end > log.start else "empty" for log in one.logs)
        click.echo(f"{one.wish.into}: uid {one.uid}, offsets {ends}")
        for number, log in enumerate(one.logs):
            if log.state_left_out:
                click.echo(
                    f"{one.wish.into}/{number}: producers and message ids of records that retention has dropped are not known: "
                    f"{log.state_left_out}. Before you start such a producer, have it begin behind what is stored",
                    err=True,
                )
            if log.asked_end is not None:
                click.echo(
                    f"{one.wish.into}/{number}: ends at offset {log.end - 1}, not at {log.asked_end - 1} as --until says: the stream "
                    "is compacted, and the backup no longer has what the records between superseded",
                    err=True,
                )
    _say_cursors(done.cursors)
    if any(done.cursors.values()):
        click.echo("set them later: liftpy backup cursors URL", err=True)
    _say_settings(done.settings)
    click.echo(f"{manifest.backup}: readable after {done.served_s:.1f} s, done after {done.took_s:.1f} s")
    return 0 if done.is_whole else EXIT_PARTLY


def _wish(image: ClusterImage, manifest: Manifest, name: str, into: str, subject: str, replicas: int) -> RestoreWish:
    if name not in image.streams or name not in {stream.name for stream in manifest.streams}:
        raise NotFoundError(f"backup {manifest.backup} has no stream {name!r}")
    was = image.streams[name]
    return RestoreWish(
        name=name, into=into, subject=subject or was.subject, config=was.config, replicas=replicas or was.replica_count
    )


def until_of(text: str | None) -> Until:
    """From a command line: an offset, or a time. Raises ConfigError."""
    found = parse_until(text, datetime.now(UTC), "--until")
    if found is None:
        return Until()
    if isinstance(found, int):
        return Until(offset=found)
    if isinstance(found, datetime):
        return Until(time_ns=timestamp_ns(found))
    raise ConfigError(f"--until {found}: give an offset (the last one wanted), or a time")


def _say_cursors(said: Mapping[str, str]) -> None:
    for cursor, why in said.items():
        click.echo(f"{cursor}: " + (f"its positions could not be set: {why}" if why else "goes on where it was"), err=bool(why))


def _say_settings(said: Sequence[RestoredSetting]) -> None:
    for one in said:
        if one.why:
            click.echo(f"{one.name} ({one.words}) could not be set: {one.why}", err=True)
            click.echo(f"set it later: {one.command}", err=True)
        else:
            click.echo(f"{one.name}: {one.words}")


@click.command("cursors")
@click.argument("url", metavar="URL")
@backup_option
@json_option
@connection_options
def cursors_(url: str, backup_id: str, as_json: bool, target: Target) -> int:
    """Set what groups and cursors had committed, of all streams of the backup that are there under their names: what a restore does
    at its end, and a group that had members then has missed. It also sets back who has gone on since. Exit code 1 if one could not
    be set."""
    manifest = Store.at(url).newest(backup_id)

    async def work(client: Client) -> dict[str, str]:
        there = (await client.describe_cluster(linearizable=True)).image.streams
        uids = {stream.name: there[stream.name].uid for stream in manifest.streams if stream.name in there}
        return await set_cursors(client, manifest, uids)

    said = with_client(target, work)
    if as_json:
        click.echo(json.dumps(said))
    else:
        _say_cursors(said)
    return 1 if any(said.values()) else 0


def _shown(manifest: Manifest, done: Restored) -> dict[str, object]:
    streams = {
        one.wish.into: {
            "uid": one.uid,
            "from": one.wish.name,
            "offsets": [[log.start, log.end - 1] for log in one.logs],
            "records": sum(log.records for log in one.logs),
        }
        for one in done.streams
    }
    return {
        "backup": manifest.backup,
        "streams": streams,
        "cursors": done.cursors,
        "settings": {one.name.replace(" ", "_"): one.shown for one in done.settings},
        "readable_s": round(done.served_s, 3),
        "took_s": round(done.took_s, 3),
    }


@click.command("drill")
@click.argument("url", metavar="URL")
@backup_option
@scratch_option
@node_config_option
@trace_options
@json_option
@connection_options
def drill_(
    url: str, backup_id: str, scratch: Path | None, node_config: Path | None, as_json: bool, trace: str, trace_endpoint: str,
    target: Target,
) -> None:  # fmt: skip
    """Restore everything under names of its own, compare every replica with the backup, delete it; say how long it took.

    The streams of a drill are read-only, named drill-..., and gone at the end.
    """
    store = Store.at(url)
    manifest = store.newest(backup_id)
    options = RestoreOptions(target=target, scratch=scratch, node_config=node_config)

    with traced("drill", target, trace, trace_endpoint) as spans:
        spans.attributes = said_of(manifest)

        async def work(client: Client) -> Drilled:
            return await drill(client, store, manifest, options, spans.step)

        done = with_client(target, work)
    if as_json:
        said = {name: getattr(done, name) for name in ("backup", "streams", "partitions", "records", "size_bytes")}
        times = {name: round(getattr(done, name), 3) for name in ("served_s", "rto_s", "compared_s", "rpo_s")}
        click.echo(json.dumps(said | times))
        return
    what = f"{done.streams} streams, {done.records} records, {done.size_bytes / _MIB:.1f} MiB"
    click.echo(f"{done.backup}: {what} are on every replica as they are in the backup")
    click.echo(f"RTO {done.rto_s:.1f} s (readable after {done.served_s:.1f} s); compared in {done.compared_s:.1f} s")
    click.echo(f"RPO now {done.rpo_s / 3600:.1f} h")
