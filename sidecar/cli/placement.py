"""Placement on the command line: its options, and the output of a dry run."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from liftpy.client.placement_plans import PlacementOptions, PlacementPlan, assignment_from_json, tally_rows
from liftpy.core.metadata.image import INSUFFICIENT_NODES
from liftpy.core.metadata.placement import MANUAL, POLICIES
from sidecar.cli.output import table

F = TypeVar("F", bound=Callable[..., Any])
MAX_FILE_BYTES = 1 << 20


def placement_options(function: F) -> F:
    """Add --placement, --assignment, --allow-offline and --dry-run; the command gets ``placement: PlacementOptions`` and
    ``dry_run``."""

    @functools.wraps(function)
    def command(*args: Any, policy: str | None, assignment: Path | None, allow_offline: bool, **kwargs: Any) -> Any:
        if policy is not None and assignment is not None:
            raise click.UsageError("--placement and --assignment cannot be combined. Remove one of them.")
        if allow_offline and assignment is None:
            raise click.UsageError(
                "--allow-offline needs --assignment. A placement policy never chooses a node that is not live."
            )
        given = () if assignment is None else assignment_from_json(_read(assignment))
        if assignment is not None and not given:
            raise click.BadParameter("The file assigns no partitions. Add at least one.", param_hint="--assignment")
        wish = PlacementOptions(policy=MANUAL if given else policy or "", assignment=given, allow_offline=allow_offline)
        return function(*args, placement=wish, **kwargs)

    for option in (
        click.option(
            "--dry-run", is_flag=True, help="Print the assignment, and the load of each node and rack. Change nothing."
        ),
        click.option("--allow-offline", is_flag=True, help="Allow nodes that are not live in --assignment."),
        click.option(
            "--assignment",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            default=None,
            metavar="FILE",
            help='JSON file with a manual assignment, preferred leader first: [{"id": 0, "replicas": ["n1", "n2"]}, ...].',
        ),
        click.option(
            "--placement",
            "policy",
            type=click.Choice(list(POLICIES)),
            default=None,
            help="Strategy that assigns replicas to nodes.",
        ),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise click.BadParameter(f"{path} has more than {MAX_FILE_BYTES} bytes. Use a smaller file.", param_hint="--assignment")
    return text


def show_plan(plan: PlacementPlan, stream: str, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        click.echo(json.dumps(plan_json(plan, stream)))
        return
    console = Console()
    if plan.waits:
        console.print(f"stream {stream} would wait, {INSUFFICIENT_NODES}: {plan.waits}", highlight=False)
        return
    for note in plan.notes:
        console.print(f"note: {note}", highlight=False)
    rows = [
        (str(plan.first_partition + number), replicas[0], " ".join(replicas)) for number, replicas in enumerate(plan.replicas)
    ]
    console.print(table(("partition", "leader", "replicas"), rows, folds=("replicas",), title=stream))
    console.print(table(("node", "leaders", "replicas"), tally_rows(plan.by_node()), title="nodes"))
    if plan.by_rack():
        console.print(table(("rack", "leaders", "replicas"), tally_rows(plan.by_rack()), title="racks"))
    console.print("nothing was done: this is a dry run", highlight=False)


def plan_json(plan: PlacementPlan, stream: str) -> dict[str, Any]:
    """A plan as ``--json`` prints it; ``partitions`` has the form of an assignment."""
    return {
        "stream": stream,
        "dry_run": True,
        "waits": plan.waits,
        "notes": list(plan.notes),
        "partitions": [
            {"id": plan.first_partition + number, "replicas": list(replicas)} for number, replicas in enumerate(plan.replicas)
        ],
        "nodes": {node: asdict(tally) for node, tally in plan.by_node().items()},
        "racks": {rack: asdict(tally) for rack, tally in plan.by_rack().items()},
    }
