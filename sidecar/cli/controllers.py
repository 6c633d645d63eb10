"""``liftpy controllers``: the metadata group as its leader sees it; add, remove and replace its members, by its own log [M10]."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click
from rich.console import Console

from liftpy.client import Client, ClusterState
from liftpy.errors import UnavailableError
from liftpy.ids import check_name
from sidecar.cli.controllers_rescue import rescue
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.cli.tables import table
from sidecar.settings import Target

_POLL_S = 0.2

F = TypeVar("F", bound=Callable[..., Any])


@click.group(invoke_without_command=True)
@json_option
@connection_options
@click.pass_context
def controllers(context: click.Context, as_json: bool, target: Target) -> None:
    """Show the metadata group: leader, term, commit, applied, and how far each member is behind; or change who forms it.

    Options of a subcommand stand behind it.
    """
    if context.invoked_subcommand is None:
        _say(with_client(target, gather), as_json)


def _changing(function: F) -> F:
    """What the subcommands share."""
    timeout = click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(0, 86_400),
        default=60.0,
        show_default=True,
        help="Seconds to wait for the end of it. The change goes on by itself then; 0: don't wait.",
    )
    return timeout(json_option(connection_options(function)))


@controllers.command()
@click.argument("node_id", metavar="NODE")
@_changing
def add(node_id: str, timeout_s: float, as_json: bool, target: Target) -> None:
    """Make NODE, which runs, a controller. It is sent the log first, and counts as soon as it has caught up.

    Takes back the removal of a controller that has not gone yet.
    """
    _change(target, as_json, timeout_s, add=node_id)


@controllers.command()
@click.argument("node_id", metavar="NODE")
@_changing
def remove(node_id: str, timeout_s: float, as_json: bool, target: Target) -> None:
    """Make NODE a controller no more; it stays a node. Takes an addition back that has not come to its end."""
    _change(target, as_json, timeout_s, remove=node_id)


@controllers.command()
@click.argument("old_id", metavar="OLD")
@click.argument("new_id", metavar="NEW")
@_changing
def replace(old_id: str, new_id: str, timeout_s: float, as_json: bool, target: Target) -> None:
    """Put NEW, which runs, in the place of the controller OLD, which may be dead. NEW comes first, then OLD goes."""
    _change(target, as_json, timeout_s, add=new_id, remove=old_id)


def _change(target: Target, as_json: bool, timeout_s: float, *, add: str = "", remove: str = "") -> None:
    for node_id in filter(None, (add, remove)):
        check_name(node_id, "node")

    async def work(client: Client) -> dict[str, Any]:
        decided = await client.change_controllers(add=add, remove=remove)
        if not as_json:
            click.echo(decided, err=True)
        await _ended(client, timeout_s)
        return await gather(client)

    _say(with_client(target, work), as_json)


def _say(found: dict[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(found)) if as_json else _show(found)


async def _ended(client: Client, timeout_s: float) -> None:
    """Wait until no change is under way; raise UnavailableError where the time is over before."""
    deadline = time.monotonic() + timeout_s
    while timeout_s:
        state = await client.describe_cluster(linearizable=True)
        under_way = _under_way(state)
        if not under_way:
            return
        if time.monotonic() >= deadline:
            raise UnavailableError(f"not done yet: {under_way}. It goes on by itself; liftpy controllers shows how far it is")
        await asyncio.sleep(_POLL_S)


def _under_way(state: ClusterState) -> str:
    """What is being changed and what it waits for, for people; '' nothing is."""
    now = state.image.controllers
    if not (now.learner or now.leaving):
        return ""
    waits = {c.waits_for for c in state.controllers if c.waits_for}
    return "; ".join((now.said(), *(f"it waits: {what}" for what in sorted(waits))))


async def gather(client: Client) -> dict[str, Any]:
    """The group as one JSON object."""
    state = await client.describe_cluster()
    members = [asdict(controller) for controller in state.controllers]
    head = {"metadata_leader": state.metadata_leader, "index": state.image.index, "changed_at": state.image.controllers.index}
    return {**head, "under_way": _under_way(state), "controllers": members}


def _show(found: dict[str, Any]) -> None:
    rows = []
    for member in found["controllers"]:
        state = "leader" if member["leader"] else "connected" if member["connected"] else "silent"
        state += ", catches up" if member["learner"] else ", is to go" if member["leaving"] else ""
        applied = str(member["applied_index"]) if member["applied_index"] else "?"
        figures = (str(member["term"]), str(member["commit_index"]), applied, str(member["lag"]))
        rows.append((member["node_id"], state, *figures))
    Console().print(table(("controller", "state", "term", "commit", "applied", "lag"), rows))
    if not found["metadata_leader"]:
        click.echo("no metadata leader: at least half of the controllers can't be reached")
    if found["under_way"]:
        click.echo(found["under_way"])


controllers.add_command(rescue)
