"""``liftpy settings``: show the settings of a node with their sources, reload them, change settings of the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import click

from liftpy.client import Client
from liftpy.config import MAX_SESSION_MS, MIN_LEASE_MS, MIN_SESSION_MS, NS_PER_S, DefaultQuota, SessionTimes
from liftpy.errors import ConfigError, UnavailableError
from sidecar.cli.completion import node_argument
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import Duration, Size, connection_options, json_option
from sidecar.cli.output import print_json, print_table
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target

_CHECK_INTERVAL_S = 0.2
_SETTLES_WITHIN_S = 30.0


@click.group(cls=HelpGroup, example="liftpy settings show n1 --diff")
def settings() -> None:
    """Show or reload the settings of a node, and show or set the default quota and session times of the cluster."""


@settings.command(example="liftpy settings show n1 --diff")
@node_argument
@click.option("--diff", is_flag=True, help="Show only settings that differ from their default or that wait for a restart.")
@json_option
@connection_options
def show(node_id: str, diff: bool, as_json: bool, target: Target) -> None:
    """Show the settings of NODE: value, source, default, and whether a reload can change it. Secrets are not shown."""
    found = with_client(target, lambda client: client.admin.node_settings(node_id))
    rows = [row for row in found if not diff or "read" in row or row["value"] != row["default"]]
    if as_json:
        print_json({"node": node_id, "settings": rows})
        return
    columns = ("setting", "value", "source", "default", "applied by")
    cells = [(row["name"], _value(row), row["source"], _text(row["default"]), row["applies"]) for row in rows]
    print_table(columns, cells, folds=("value", "default"))


@settings.command(example="liftpy settings reload n1")
@node_argument
@json_option
@connection_options
def reload(node_id: str, as_json: bool, target: Target) -> None:
    """Reload the settings of NODE without a restart. If one setting is invalid, nothing changes. Needs operator permissions."""
    result = with_client(target, lambda client: client.admin.reload_settings(node_id))
    if "error" in result:
        raise ConfigError(
            f"The settings of {node_id} were not reloaded: {str(result['error']).rstrip('.')}. The earlier settings stay active. "
            "Correct the settings of this node and reload again."
        )
    if as_json:
        print_json({"node": node_id, **result})
        return
    if result["applied"]:
        click.echo(f"{node_id}: applied now: {', '.join(result['applied'])}")
    elif not result["wait"]:
        click.echo(f"{node_id}: no setting has changed")
    if result["wait"]:
        click.echo(f"{node_id}: applied at the next restart: {', '.join(result['wait'])}")


@settings.command(name="default-quota", example="liftpy settings default-quota --quota-records 10000")
@click.option("--quota-records", "records_per_s", type=click.IntRange(0), help="Maximum records per second. 0 means no limit.")
@click.option(
    "--quota-bytes", "bytes_per_s", type=Size(), help="Maximum bytes per second, of payload and headers. 0 means no limit."
)
@click.option(
    "--quota-by-token",
    "by_token",
    type=click.IntRange(0),
    help=(
        "Apply the quota separately to each value of this subject token, counted from 1. 0 means one quota for all subjects."
    ),
)
@click.option("--none", "is_none", is_flag=True, help="Remove the default quota.")
@json_option
@connection_options
def default_quota(
    records_per_s: int | None, bytes_per_s: int | None, by_token: int | None, is_none: bool, as_json: bool, target: Target
) -> None:
    """Show or set the default quota. It applies to every stream without its own quota.

    Leaders apply a new quota at once. Options that you omit keep their values. The quota does not apply to streams created with
    --quota-exempt and to internal streams. Setting the quota needs operator permissions.
    """
    rates = {"records_per_s": records_per_s, "bytes_per_s": bytes_per_s, "by_token": by_token}
    wanted = {name: value for name, value in rates.items() if value is not None}
    if is_none and wanted:
        raise click.UsageError("--none cannot be combined with other options. Remove it, or remove the others.")

    async def work(client: Client) -> DefaultQuota:
        if is_none:
            return await client.admin.set_default_quota(records_per_s=0, bytes_per_s=0, by_token=0)
        return await (client.admin.set_default_quota(**wanted) if wanted else client.admin.default_quota())

    quota = with_client(target, work)
    print_json(asdict(quota)) if as_json else click.echo(f"default quota: {quota.words}")


@settings.command(name="node-session", example="liftpy settings node-session --session 10s --lease 8s")
@click.option(
    "--session",
    "session_s",
    type=Duration(),
    help="Time without heartbeats after which a node is fenced. Its partitions then get other leaders.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Duration(),
    help="Time for which a leader may serve without contact to the metadata group. Must be shorter than --session.",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until all nodes use the new times.")
@json_option
@connection_options
def node_session(session_s: float | None, lease_s: float | None, wait: bool, as_json: bool, target: Target) -> None:
    """Show or set the session time and the lease time of all nodes. They override the settings of the nodes.

    The command waits until no session or lease with the old times is valid. Setting the times needs operator permissions.
    """
    for flag, value_s, least_ms in (("--session", session_s, MIN_SESSION_MS), ("--lease", lease_s, MIN_LEASE_MS)):
        if value_s is not None and not least_ms / 1000 <= value_s <= MAX_SESSION_MS / 1000:
            raise ConfigError(
                f"{flag} = {value_s:g}s is outside {least_ms}ms..{MAX_SESSION_MS // 1000}s. Choose a value in this range."
            )
    sets = session_s is not None or lease_s is not None

    async def work(client: Client) -> SessionTimes | None:
        if not sets:
            return await client.admin.session_times()
        times = await client.admin.set_session_times(session_s=session_s, lease_s=lease_s)
        return await _wait_until_settled(client, times) if wait else times

    times = with_client(target, work)
    if as_json:
        print_json(None if times is None else {**asdict(times), "settled": times.is_settled})
    else:
        click.echo("each node uses its own settings, because the cluster is new" if times is None else times.words)


async def _wait_until_settled(client: Client, times: SessionTimes) -> SessionTimes:
    """Wait until no session and no lease with earlier ``times`` is valid, and return the times of the cluster.

    Raises UnavailableError if it takes longer than two changes of the metadata leader.
    """
    deadline = asyncio.get_running_loop().time() + 3 * times.longest_session_ns / NS_PER_S + _SETTLES_WITHIN_S
    while not times.is_settled:
        if asyncio.get_running_loop().time() > deadline:
            raise UnavailableError(
                f"The new times are set, but not yet in use everywhere: {times.words}. "
                "The change continues. Do not repeat the command. Check it with: liftpy settings node-session"
            )
        await asyncio.sleep(_CHECK_INTERVAL_S)
        times = await client.admin.session_times() or times
    return times


def _value(row: dict[str, Any]) -> str:
    text = _text(row["value"])
    return f"{text} (from the next start: {_text(row['read'])})" if "read" in row else text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
