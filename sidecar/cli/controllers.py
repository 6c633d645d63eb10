"""``liftpy controllers``: show the metadata group, and add, remove or replace its members through its own log [M10].

``liftpy controllers force-recover`` rebuilds a metadata group that has permanently lost its majority. It works offline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from liftpy.client import Client, ClusterState
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.errors import ConfigError, StaleRequestError, UnavailableError
from sidecar.cli.completion import NODE_ID, node_argument
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import connection_options, json_option, timeout_option
from sidecar.cli.output import print_json, print_table
from sidecar.cli.session import with_client
from sidecar.runtime.settings import DEFAULT_NAMESPACE, Target


@click.group(invoke_without_command=True, cls=HelpGroup, example="liftpy controllers")
@json_option
@connection_options
@click.pass_context
def controllers(context: click.Context, as_json: bool, target: Target) -> None:
    """Show the metadata group: leader, term, commit index, applied index, and the lag of each member. Subcommands change the members.

    Write the options of a subcommand after its name.
    """
    if context.invoked_subcommand is None:
        _print_result(with_client(target, gather), as_json)


@controllers.command(
    name="force-recover",
    example=(
        "liftpy controllers force-recover --data /var/lib/liftpy --new-controllers n1,n4,n5 --output rescued --namespace liftpy"
    ),
)
@click.option(
    "--data", "folders", multiple=True, required=True, metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of a surviving controller. Its sidecar must not run. Repeat the option for every survivor.",
)  # fmt: skip
@click.option(
    "--new-controllers",
    "voters",
    default="",
    metavar="IDS",
    help="Ids of the new controllers, separated by commas. They must be nodes of the cluster.  [default: only inspect]",
)
@click.option(
    "--output",
    "out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory for the files that the other new controllers need.",
)
@click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NS", help="Namespace of the cluster.")
@click.option("--confirm", "typed", default="", metavar="NAMESPACE", help="Confirm with the namespace, instead of typing it.")
@json_option
def force_recover(folders: tuple[Path, ...], voters: str, out: Path | None, namespace: str, typed: str, as_json: bool) -> None:
    """Rebuild the metadata group from one surviving controller.

    Use this command only if a majority of the controllers is lost permanently. Decisions that the survivor did not store are lost.

    First stop every controller. Never start a controller of the old group with its old data directory again. Read
    docs/runbooks/controllers-lost.md before you start.
    """
    from sidecar.quorum.rescue import lock_directories, newest, read_survivor, rescue  # late: brings PySyncObj

    with lock_directories(list(folders)) as locked_folders:
        survivors = [read_survivor(folder) for folder in locked_folders if (folder.raft / "journal").is_file()]
        if not survivors:
            raise ConfigError(
                "None of the --data directories contains a journal of the metadata group. Give the data directory of "
                "a former controller."
            )
        chosen = newest(survivors)
        name = chosen.image.rules.namespace if chosen.image.rules is not None else namespace
        rows = [
            {
                "node": one.node_id, "data": str(one.data), "term": one.term, "index": one.index, "digest": one.digest,
                "taken": one is chosen, "parts_from": one.parts_from(chosen),
            }
            for one in survivors
        ]  # fmt: skip
        if not as_json:
            shown = [(str(r["node"]), str(r["term"]), str(r["index"]), str(r["digest"]), _row_text(r)) for r in rows]
            print_table(("controller", "term", "index", "digest", ""), shown)
        written: dict[str, Path] = {}
        if voters:
            if not typed:
                click.echo("Metadata changes after the end of the selected log are LOST permanently.", err=True)
                typed = click.prompt("Type the namespace of the cluster to continue", err=True)
            if typed != name:
                raise ConfigError(f"{typed!r} is not the namespace of this cluster. Nothing was changed.")
            written = rescue(chosen, locked_folders, tuple(voters.split(",")), out, time.time_ns())
    if as_json:
        print_json({"survivors": rows, "written": {node: str(path) for node, path in written.items()}})
        return
    for node, path in written.items():
        click.echo(f"{node}: {path}" + ("" if path.parent in folders else f" (copy it into the data directory of {node})"))
    if written:
        click.echo("Start these nodes, then the others. Then check every ISR with `liftpy status`.")


def _row_text(row: dict[str, object]) -> str:
    if row["taken"]:
        return "taken"
    return f"other entries from {row['parts_from']} on" if row["parts_from"] else "is a prefix of that log"


_POLL_S = 0.2

F = TypeVar("F", bound=Callable[..., Any])


def _add_change_options(function: F) -> F:
    text = "Maximum time to wait. After that the change continues in the background."
    timeout = timeout_option("60s", text, high=86_400)
    wait = click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the change is complete.")
    return wait(timeout(json_option(connection_options(function))))


@controllers.command(example="liftpy controllers add n4")
@node_argument
@_add_change_options
def add(node_id: str, wait: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Make the running node NODE a controller. NODE first receives the log, and gets its vote when it has caught up.

    The command also cancels a removal of NODE that is not complete.
    """
    _change(target, as_json, timeout_s if wait else None, add=node_id)


@controllers.command(example="liftpy controllers remove n1")
@node_argument
@_add_change_options
def remove(node_id: str, wait: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Remove NODE from the controllers. It remains a node.

    The command also cancels an addition of NODE that is not complete.
    """
    _change(target, as_json, timeout_s if wait else None, remove=node_id)


@controllers.command(example="liftpy controllers replace n1 n4")
@click.argument("old_id", metavar="OLD", type=NODE_ID)
@click.argument("new_id", metavar="NEW", type=NODE_ID)
@_add_change_options
def replace(old_id: str, new_id: str, wait: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Replace controller OLD, which may be down, with the running node NEW. The cluster first adds NEW and then removes OLD.

    In a group of 7 controllers, it removes OLD as soon as NEW has caught up, and then adds NEW.
    """
    _change(target, as_json, timeout_s if wait else None, add=new_id, remove=old_id)


def _change(target: Target, as_json: bool, timeout_s: float | None, *, add: str = "", remove: str = "") -> None:
    async def work(client: Client) -> dict[str, Any]:
        decided = await client.admin.change_controllers(add=add, remove=remove)
        if not as_json:
            click.echo(_announcement(decided, add, remove), err=True)
        if timeout_s is not None:
            voters = (await _wait_until_ended(client, timeout_s)).voters
            if voters and (add not in (*voters, "") or remove in voters):
                raise StaleRequestError(
                    f"The controllers are {', '.join(voters)}, because another request has undone this change. Check "
                    "`liftpy controllers`."
                )
        return await gather(client)

    _print_result(with_client(target, work), as_json)


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    print_json(result) if as_json else _show(result)


async def _wait_until_ended(client: Client, timeout_s: float) -> ControllerList:
    """Wait until no change of the controllers is in progress, and return the list of controllers."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = await client.admin.describe_cluster(linearizable=True)
        under_way = _under_way(state)
        if not under_way:
            return state.image.controllers
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"The change is not complete yet: {under_way}. It continues in the background: `liftpy controllers` "
                "shows the progress."
            )
        await asyncio.sleep(_POLL_S)


def _under_way(state: ClusterState) -> str:
    """Return the change of the controllers that is in progress and what it waits for, as text. '': there is no change."""
    now = state.image.controllers
    if not _text_of(now):
        return ""
    waits = {c.waits_for for c in state.controllers if c.waits_for}
    return "; ".join((_text_of(now), *(f"the change waits: {what}" for what in sorted(waits))))


def _announcement(decided: str, add: str, remove: str) -> str:
    """Return the change that has begun as text. ``decided``: answer of the metadata group, which is shown if nothing changes."""
    if not decided.startswith(_CONTROLLERS_ARE):
        return decided
    if add and remove:
        return f"{add} replaces the controller {remove}"
    return f"{add} becomes a controller when it has caught up" if add else f"{remove} is being removed from the controllers"


_CONTROLLERS_ARE = "the controllers are"


def _text_of(controllers: ControllerList) -> str:
    """Return the change of the controllers that is in progress as text. '': there is no change."""
    if not (controllers.learner or controllers.leaving):
        return ""
    parts = [f"{_CONTROLLERS_ARE} {', '.join(controllers.voters)}"]
    parts += [f"{controllers.learner} becomes a controller when it has caught up"] if controllers.learner else []
    parts += [f"{controllers.leaving} is being removed"] if controllers.leaving else []
    return "; ".join(parts)


async def gather(client: Client) -> dict[str, Any]:
    """Return the members and the state of the metadata group as a JSON object."""
    state = await client.admin.describe_cluster()
    members = [asdict(controller) for controller in state.controllers]
    head = {"metadata_leader": state.metadata_leader, "index": state.image.index, "changed_at": state.image.controllers.index}
    return {**head, "under_way": _under_way(state), "controllers": members}


def _show(result: dict[str, Any]) -> None:
    rows = []
    for member in result["controllers"]:
        state = "leader" if member["leader"] else "connected" if member["connected"] else "silent"
        state += ", catching up" if member["learner"] else ", leaving" if member["leaving"] else ""
        applied = str(member["applied_index"]) if member["applied_index"] else "?"
        figures = (str(member["term"]), str(member["commit_index"]), applied, str(member["lag"]))
        rows.append((member["node_id"], state, *figures))
    print_table(("controller", "state", "term", "commit", "applied", "lag"), rows)
    if not result["metadata_leader"]:
        click.echo("no metadata leader: at least half of the controllers cannot be reached")
    if result["under_way"]:
        click.echo(result["under_way"])
