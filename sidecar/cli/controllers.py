"""``liftpy controllers``: the metadata group as its leader sees it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from liftpy.client import Client
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.cli.tables import table
from sidecar.settings import Target


@click.command()
@json_option
@connection_options
def controllers(as_json: bool, target: Target) -> None:
    """Show the metadata group: leader, term, commit, applied, and how far each member is behind."""
    found = with_client(target, gather)
    click.echo(json.dumps(found)) if as_json else _show(found)


async def gather(client: Client) -> dict[str, Any]:
    """The group as one JSON object."""
    state = await client.describe_cluster()
    members = [asdict(controller) for controller in state.controllers]
    return {"metadata_leader": state.metadata_leader, "index": state.image.index, "controllers": members}


def _show(found: dict[str, Any]) -> None:
    rows = []
    for member in found["controllers"]:
        state = "leader" if member["leader"] else "connected" if member["connected"] else "silent"
        applied = str(member["applied_index"]) if member["applied_index"] else "?"
        figures = (str(member["term"]), str(member["commit_index"]), applied, str(member["lag"]))
        rows.append((member["node_id"], state, *figures))
    Console().print(table(("controller", "state", "term", "commit", "applied", "lag"), rows))
    if not found["metadata_leader"]:
        click.echo("no metadata leader: at least half of the controllers can't be reached")
