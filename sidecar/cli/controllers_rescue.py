"""``liftpy controllers rescue``: begin a metadata group again that has lost its majority for good; offline."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
from rich.console import Console

from liftpy.errors import ConfigError
from sidecar.cli.options import json_option
from sidecar.cli.tables import table
from sidecar.settings import DEFAULT_NAMESPACE


@click.command()
@click.option(
    "--data", "folders", multiple=True, required=True, metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Data folder of a controller that is left, and does not run; all of them, one --data each.",
)  # fmt: skip
@click.option(
    "--as", "voters", default="", metavar="IDS", help="The controllers from now on, comma separated.  [default: only look]"
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=None, metavar="DIR", help="For other machines' nodes."
)
@click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NS", help="The cluster's namespace.")
@click.option("--yes", "typed", default="", metavar="NAME", help="The namespace once more, in place of typing it.")
@json_option
def rescue(folders: tuple[Path, ...], voters: str, out: Path | None, namespace: str, typed: str, as_json: bool) -> None:
    """Begin the metadata group again from what one controller has, when a majority of them is lost FOR GOOD.

    What was decided behind the end of that log is lost. Stop every controller first, and never start one of the old group again with
    its old folder. No node may run this where a majority can still be had. docs/runbooks/controllers-lost.md.
    """
    from sidecar.raft.rescue import locked, newest, read_survivor  # late: brings PySyncObj
    from sidecar.raft.rescue import rescue as write_rescued

    with locked(list(folders)) as held:
        survivors = [read_survivor(folder, namespace) for folder in held if (folder.raft / "journal").is_file()]
        if not survivors:
            raise ConfigError("none of these folders holds a journal of the metadata group")
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
            shown = [(str(r["node"]), str(r["term"]), str(r["index"]), str(r["digest"]), _said(r)) for r in rows]
            Console().print(table(("controller", "term", "index", "digest", ""), shown))
        written: dict[str, Path] = {}
        if voters:
            if not typed:
                click.echo("What was decided behind the end of that log is lost for good.", err=True)
                typed = click.prompt("Type the cluster's namespace to go on", err=True)
            if typed != name:
                raise ConfigError(f"{typed!r} is not the name of this cluster: nothing was changed")
            written = write_rescued(chosen, held, tuple(voters.split(",")), out, time.time_ns())
    if as_json:
        click.echo(json.dumps({"survivors": rows, "written": {node: str(path) for node, path in written.items()}}))
        return
    for node, path in written.items():
        click.echo(f"{node}: {path}" + ("" if path.parent in folders else f" (put it into the data folder of {node})"))
    if written:
        click.echo("Start these nodes, then the others. Every ISR is that of the log that was taken: look at liftpy status.")


def _said(row: dict[str, object]) -> str:
    if row["taken"]:
        return "taken"
    return f"other entries from {row['parts_from']} on" if row["parts_from"] else "is the beginning of that"
