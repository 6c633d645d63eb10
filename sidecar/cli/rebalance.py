"""``liftpy rebalance``: which replicas would have to move so that the nodes hold their shares."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console

from liftpy.client import Client, ClusterState
from liftpy.cluster.decisions.placing import facts_of
from liftpy.cluster.placement.moves import MovePlan, plan_moves
from liftpy.errors import NotFoundError
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.cli.tables import table
from sidecar.settings import Target


@click.command()
@click.option("--dry-run", is_flag=True, required=True, help="Show the moves. (This version moves no replicas.)")
@click.option("--leaving", multiple=True, metavar="NODE", help="As if this node were to leave; may be given several times.")
@json_option
@connection_options
def rebalance(dry_run: bool, leaving: tuple[str, ...], as_json: bool, target: Target) -> None:
    """Show which replicas would move so that every node holds its share, and how few it could be."""

    async def work(client: Client) -> ClusterState:
        return await client.describe_cluster()

    image = with_client(target, work).image
    unknown = sorted(set(leaving) - set(image.nodes))
    if unknown:
        raise NotFoundError(f"there is no node {', '.join(unknown)}; there are: {', '.join(sorted(image.nodes)) or 'none'}")
    held = {(stream.name, p.partition): p.replicas for stream in image.streams.values() for p in stream.partitions}
    plan = plan_moves(facts_of(image), held, leaving)
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, **asdict(plan)}))
        return
    _show(plan, {node: image.replica_counts.get(node, 0) for node in plan.held})


def _show(plan: MovePlan, before: dict[str, int]) -> None:
    console = Console()
    if plan.moves:
        rows = [(f"{m.stream}/{m.partition}", m.out, m.into, "yes" if m.leads else "") for m in plan.moves]
        console.print(table(("partition", "from", "to", "leads"), rows, folds=("partition",), title="moves"))
    held = [(node, str(before[node]), str(count)) for node, count in plan.held.items()]
    console.print(table(("node", "replicas", "then"), held, title="nodes"))
    for stream, partition in plan.stuck:
        console.print(f"{stream}/{partition} stays where it is: no other node may take it", highlight=False)
    console.print(f"{len(plan.moves)} moves, {plan.fewest} at the least; nothing was done", highlight=False)
