"""``liftpy settings``: what holds on a node and where it comes from; have a node read them again; what holds for the whole cluster."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from liftpy.client import Client
from liftpy.config import NS_PER_S, DefaultQuota, SessionTimes
from liftpy.core.base.ids import check_name
from liftpy.errors import ConfigError, UnavailableError
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.output import table
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target

_LOOK_S = 0.2
_SETTLES_WITHIN_S = 30.0


@click.group()
def settings() -> None:
    """Show a node's settings, and have it read them again while it runs; say the cluster's default quota and session times."""


@settings.command()
@click.argument("node_id", metavar="NODE")
@click.option("--diff", is_flag=True, help="Only what differs from its default, or waits for a restart.")
@json_option
@connection_options
def show(node_id: str, diff: bool, as_json: bool, target: Target) -> None:
    """Show NODE's settings: value, where it comes from, default, and whether a running node takes over another one. No secrets."""
    check_name(node_id, "node")

    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.node_settings(node_id)

    rows = [row for row in with_client(target, work) if not diff or "read" in row or row["value"] != row["default"]]
    if as_json:
        click.echo(json.dumps({"node": node_id, "settings": rows}))
        return
    columns = ("setting", "value", "source", "default", "changes")
    cells = [(row["name"], escape(_value(row)), row["source"], escape(_text(row["default"])), row["applies"]) for row in rows]
    Console().print(table(columns, cells, folds=("value", "default")))


@settings.command()
@click.argument("node_id", metavar="NODE")
@json_option
@connection_options
def reload(node_id: str, as_json: bool, target: Target) -> None:
    """Have NODE read its settings again; one that is wrong, and nothing changes. Needs the rights of an operator."""
    check_name(node_id, "node")

    async def work(client: Client) -> dict[str, Any]:
        return await client.reload_settings(node_id)

    said = with_client(target, work)
    if "error" in said:
        raise ConfigError(f"{node_id}: nothing is changed: {said['error']}")
    if as_json:
        click.echo(json.dumps({"node": node_id, **said}))
        return
    click.echo(f"{node_id}: live now: {', '.join(said['applied']) or 'nothing new'}")
    if said["wait"]:
        click.echo(f"{node_id}: wait for a restart: {', '.join(said['wait'])}")


@settings.command(name="default-quota")
@click.option("--records", "records_per_s", type=click.IntRange(0), help="So many records a second; 0: no bound.")
@click.option("--bytes", "bytes_per_s", type=click.IntRange(0), help="The same in bytes, of payload and headers.")
@click.option("--by-token", type=click.IntRange(0), help="For each value of this token of the subject; 0: for all together.")
@click.option("--none", "is_none", is_flag=True, help="End it.")
@json_option
@connection_options
def default_quota(
    records_per_s: int | None, bytes_per_s: int | None, by_token: int | None, is_none: bool, as_json: bool, target: Target
) -> None:
    """Show the quota of every stream that has none of its own, or set it: leaders take it at once. What is not named stays as it is.
    Not held to it are streams made with --quota-exempt, and the cluster's own. Setting it needs the rights of an operator."""
    given = {"records_per_s": records_per_s, "bytes_per_s": bytes_per_s, "by_token": by_token}
    wanted = {name: value for name, value in given.items() if value is not None}
    if is_none and wanted:
        raise click.UsageError("--none ends the default quota: name nothing beside it")

    async def work(client: Client) -> DefaultQuota:
        if is_none:
            return await client.set_default_quota(records_per_s=0, bytes_per_s=0, by_token=0)
        return await (client.set_default_quota(**wanted) if wanted else client.default_quota())

    quota = with_client(target, work)
    click.echo(json.dumps(asdict(quota)) if as_json else f"default quota: {quota.words}")


@settings.command()
@click.option(
    "--session-s", type=float, help="A node that is not heard for so long is fenced, and what it leads gets other leaders."
)
@click.option(
    "--lease-s", type=float, help="For so long a leader that hears nothing of the metadata group may answer; less than that."
)
@click.option("--no-wait", is_flag=True, help="Don't wait until the change is settled.")
@json_option
@connection_options
def session(session_s: float | None, lease_s: float | None, no_wait: bool, as_json: bool, target: Target) -> None:
    """Show the session and the lease of all nodes, or set them: they hold at once, whatever the nodes' own settings say. Ends when the
    change is settled: when nothing that was granted before it can still count. Setting needs the rights of an operator."""
    sets = session_s is not None or lease_s is not None

    async def work(client: Client) -> SessionTimes | None:
        if not sets:
            return await client.session_times()
        times = await client.set_session_times(session_s=session_s, lease_s=lease_s)
        return times if no_wait else await _settled(client, times)

    times = with_client(target, work)
    if as_json:
        click.echo(json.dumps(None if times is None else {**asdict(times), "settled": times.is_settled}))
    else:
        click.echo("as each node's own settings say: the cluster is new" if times is None else times.words)


async def _settled(client: Client, times: SessionTimes) -> SessionTimes:
    """Wait for it. Raises UnavailableError where it takes longer than two changes of the metadata leader would."""
    deadline = asyncio.get_running_loop().time() + 3 * times.longest_session_ns / NS_PER_S + _SETTLES_WITHIN_S
    while not times.is_settled:
        if asyncio.get_running_loop().time() > deadline:
            raise UnavailableError(f"it holds, but is not settled yet: {times.words}")
        await asyncio.sleep(_LOOK_S)
        times = await client.session_times() or times
    return times


def _value(row: dict[str, Any]) -> str:
    text = _text(row["value"])
    return f"{text} (from the next start: {_text(row['read'])})" if "read" in row else text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
