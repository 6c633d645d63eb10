"""``liftpy rebalance``: move replicas or leaderships so that each node has its share of replicas, bytes or leaderships."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from liftpy.client import Client
from liftpy.client.admin import ReplicaMove
from liftpy.core.base.partition import MoveReason, PartitionState, PartitionStatus
from liftpy.core.metadata.controller.reassignment import movements
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.placement.facts import Replicas, facts_of
from liftpy.core.metadata.placement.rebalance import Key, plan_leaderships, plan_moves, plan_sizes
from liftpy.errors import NotFoundError
from sidecar.cli.help import HelpCommand
from sidecar.cli.node_reports import NodeReports, ask_nodes
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.output import count_of, print_json, print_table
from sidecar.cli.reassignment import follow, move_timeout_option, wait_option
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target

_SHOWN = 1000
"""Maximum number of moves in the printed table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePlan:
    """Moves that a rebalance would request, and the load of the nodes before and after them."""

    by: str
    unit: str
    """Unit of the amounts that nodes hold."""
    moves: Sequence[Mapping[str, Any]]
    """Moves as shown by ``--json``."""
    targets: Mapping[Key, Replicas]
    fewest: int
    """Minimum number of moves, transfers, or bytes that move."""
    moved: int
    before: Mapping[str, int]
    after: Mapping[str, int]
    stuck: Sequence[Key] = field(default=())


@click.command(cls=HelpCommand, example="liftpy rebalance --by bytes --dry-run")
@click.option("--dry-run", is_flag=True, help="Print the moves, and change nothing.")
@click.option(
    "--by",
    type=click.Choice(["replicas", "bytes", "leaders"]),
    default="replicas",
    show_default=True,
    help="Distribute replicas, bytes, or leaders evenly by node weight. Leaders copy no data.",
)
@click.option("--without", multiple=True, metavar="NODE", help="With --dry-run: plan as if NODE were drained. May be repeated.")
@click.option("--cancel", is_flag=True, help="Cancel moves of an earlier rebalance that have not started.")
@wait_option
@move_timeout_option
@json_option
@connection_options
def rebalance(
    dry_run: bool,
    by: str,
    without: tuple[str, ...],
    cancel: bool,
    wait: bool,
    timeout_s: float,
    as_json: bool,
    target: Target,
) -> int:
    """Move replicas so that every node holds its share.

    The cluster continues the moves if you stop this command or if a node fails. Exit code 1: at least one move was rejected,
    replaced or canceled.
    """
    if without and not dry_run:
        raise click.UsageError("--without needs --dry-run. To move everything away from a node, use liftpy node drain NODE.")
    if cancel and dry_run:
        raise click.UsageError("--cancel and --dry-run cannot be combined. Remove one of them.")

    async def work(client: Client) -> int:
        image = (await client.admin.describe_cluster(linearizable=True)).image
        if cancel:
            return await _cancel(client, image, as_json)
        unknown = sorted(set(without) - set(image.nodes))
        if unknown:
            known = ", ".join(sorted(image.nodes)) or "none"
            raise NotFoundError(f"Node {', '.join(unknown)} does not exist. Nodes: {known}.")
        reports = await ask_nodes(client, sorted(image.nodes)) if by == "bytes" else {}
        plan = plan_of(image, by, without, reports)
        if not as_json:
            _show(plan, dry_run)
        refused = [] if dry_run else await _do(client, image, plan, wait, timeout_s, as_json)
        replaced = await _replaced_moves(client, image, plan, refused) if wait and plan.targets and not dry_run else []
        exit_code = 1 if refused or replaced else 0
        if as_json:
            print_json(_json(plan, dry_run) | {"refused": refused, "replaced": replaced})
            return exit_code
        for line in refused:
            click.echo(f"not moved: {line}", err=True)
        for partition in replaced:
            click.echo(f"not moved: another request replaced or canceled the move of {partition}", err=True)
        if plan.targets and not dry_run:
            click.echo(
                ("all other moves are complete" if refused or replaced else "all moves are complete")
                if wait
                else "The moves continue. liftpy status shows the progress, and liftpy rebalance --cancel cancels them"
            )
        return exit_code

    return with_client(target, work)


def plan_of(image: ClusterImage, by: str, leaving: Sequence[str], reports: NodeReports) -> RebalancePlan:
    """Return the moves of a rebalance. Moves that are in progress count as done."""
    facts = facts_of(image)
    if by == "leaders":
        return _by_leaders(image)
    replica_sets = {
        (stream.name, p.partition): p.target or p.replicas for stream in image.streams.values() for p in stream.partitions
    }
    if by == "bytes":
        sizes = dict(_sizes(image, reports))
        sized = plan_sizes(facts, replica_sets, sizes)
        return RebalancePlan(
            by=by,
            unit="bytes",
            moves=[asdict(move) | {"bytes": sizes[move.stream, move.partition]} for move in sized.moves],
            targets=sized.targets,
            fewest=sized.fewest_bytes,
            moved=sized.moved_bytes,
            before=_held_bytes(facts_ids(image), replica_sets, sizes),
            after=sized.held_bytes,
        )
    plan = plan_moves(facts, replica_sets, leaving)
    return RebalancePlan(
        by=by,
        unit="replicas",
        moves=[asdict(move) for move in plan.moves],
        targets=plan.targets(replica_sets),
        fewest=plan.fewest,
        moved=len(plan.moves),
        before=_held_bytes(facts_ids(image), replica_sets, dict.fromkeys(replica_sets, 1)),
        after=plan.held,
        stuck=plan.stuck,
    )


def facts_ids(image: ClusterImage) -> list[str]:
    """Return the ids of all nodes, in the order that plans use."""
    return [node.node_id for node in facts_of(image)]


def _by_leaders(image: ClusterImage) -> RebalancePlan:
    """Return the plan that balances leaderships. Only in-sync replicas may become leader.

    Partitions that move or have no leader keep their state.
    """
    replica_sets = {
        (stream.name, p.partition): _leader_first(p)
        for stream in image.streams.values()
        for p in stream.partitions
        if p.status is PartitionStatus.ONLINE and not p.target and not p.joining
    }
    plan = plan_leaderships(facts_of(image), replica_sets)
    first = {(t.stream, t.partition): t.into for t in plan.transfers}
    return RebalancePlan(
        by="leaders",
        unit="leaderships",
        moves=[asdict(transfer) for transfer in plan.transfers],
        targets={key: _first(image, key, node_id) for key, node_id in first.items()},
        fewest=plan.fewest,
        moved=len(plan.transfers),
        before={node_id: sum(replicas[0] == node_id for replicas in replica_sets.values()) for node_id in facts_ids(image)},
        after=plan.led,
    )


def _leader_first(partition: PartitionState) -> Replicas:
    leader = partition.leader_to_elect or partition.leader
    return (leader, *(n for n in partition.isr if n != leader and n not in partition.incomplete))


def _first(image: ClusterImage, key: Key, node_id: str) -> Replicas:
    replicas = image.streams[key[0]].partitions[key[1]].replicas
    return (node_id, *(other for other in replicas if other != node_id))


def _sizes(image: ClusterImage, reports: NodeReports) -> Iterator[tuple[Key, int]]:
    """Yield (partition, size in bytes of its log on the leader). If the leader reports none, it is the size of the largest replica."""
    for stream in image.streams.values():
        for p in stream.partitions:
            replica_reports = {n: reports.get(n, {}).get((stream.uid, p.partition)) for n in p.replicas}
            sizes = {n: int(report.get("log_bytes", 0)) for n, report in replica_reports.items() if report is not None}
            if sizes:
                yield (stream.name, p.partition), sizes.get(p.leader, max(sizes.values()))


def _held_bytes(nodes: Sequence[str], replica_sets: Mapping[Key, Replicas], sizes: Mapping[Key, int]) -> dict[str, int]:
    on = dict.fromkeys(nodes, 0)
    for key, replicas in replica_sets.items():
        for node_id in replicas:
            on[node_id] = on.get(node_id, 0) + sizes.get(key, 0)
    return on


async def _do(client: Client, image: ClusterImage, plan: RebalancePlan, wait: bool, timeout_s: float, quiet: bool) -> list[str]:
    """Request all moves of ``plan`` at once. With ``wait``, wait until they are done. Return one text for each rejected move."""
    moves = [
        ReplicaMove(
            stream=key[0], uid=image.streams[key[0]].uid, partition=key[1], replicas=target, reason=MoveReason.REBALANCED
        )
        for key, target in sorted(plan.targets.items())
    ]
    refused = await client.admin.reassign_all(moves)
    if wait and moves:
        keys = {(move.uid, move.partition) for move in moves}
        await follow(client, lambda movement: (movement.uid, movement.partition) in keys, timeout_s, quiet=quiet)
    return refused


async def _replaced_moves(client: Client, before: ClusterImage, plan: RebalancePlan, refused: Sequence[str]) -> list[str]:
    """Return the partitions ("stream/partition") whose move was accepted, but was then replaced or canceled by another request."""
    image = (await client.admin.describe_cluster(linearizable=True)).image
    refused_places = {text.partition(":")[0] for text in refused}
    replaced = []
    for (stream, number), target in sorted(plan.targets.items()):
        place = image.find(stream, before.streams[stream].uid, number)
        if place is None or f"{stream}/{number}" in refused_places:
            continue
        is_done = place[1].leader == target[0] if plan.by == "leaders" else set(place[1].replicas) == set(target)
        if not is_done:
            replaced.append(f"{stream}/{number}")
    return replaced


async def _cancel(client: Client, image: ClusterImage, as_json: bool) -> int:
    """Cancel the moves of earlier rebalances. Return the exit code."""
    ours = (MoveReason.REBALANCED.words, MoveReason.LEADERSHIPS.words)
    of_ours = [movement for movement in movements(image) if movement.why in ours]
    moves = [ReplicaMove(stream=m.stream, uid=m.uid, partition=m.partition) for m in of_ours]
    refused = await client.admin.reassign_all(moves)
    canceled, exit_code = len(moves) - len(refused), 1 if refused else 0
    if as_json:
        print_json({"cancelled": canceled, "refused": refused})
        return exit_code
    are = "is" if canceled == 1 else "are"
    for line in refused:
        click.echo(f"not canceled: {line}", err=True)
    click.echo(f"{count_of(canceled, 'move')} {are} canceled. Moves whose log is already copied are completed")
    return exit_code


def _json(plan: RebalancePlan, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "by": plan.by,
        "moves": list(plan.moves),
        "fewest": plan.fewest,
        "moved": plan.moved,
        "stuck": [list(key) for key in plan.stuck],
        "before": dict(plan.before),
        "held": dict(plan.after),
    }


def _show(plan: RebalancePlan, dry_run: bool) -> None:
    if plan.moves:
        leads = [("yes" if move.get("leads") else "",) if plan.by != "leaders" else () for move in plan.moves]
        heads = ("partition", "from", "to", *(("leads",) if plan.by != "leaders" else ()))
        rows = [
            (f"{m['stream']}/{m['partition']}", m["out"], m["into"], *more) for m, more in zip(plan.moves, leads, strict=True)
        ]
        print_table(heads, rows[:_SHOWN], folds=("partition",), title="moves")
        if len(rows) > _SHOWN:
            click.echo(f"and {len(rows) - _SHOWN} more, shown by --json")
    node_rows = [(node, f"{plan.before.get(node, 0):,}", f"{count:,}") for node, count in plan.after.items()]
    print_table(("node", plan.unit, "then"), node_rows, title="nodes")
    for stream, partition in plan.stuck:
        click.echo(f"{stream}/{partition} does not move: no other node can take it")
    what = (
        f"{plan.moved:,} bytes in {count_of(len(plan.moves), 'move')}"
        if plan.by == "bytes"
        else count_of(len(plan.moves), "move")
    )
    summary = f"{what} (minimum: {plan.fewest:,})." if plan.moves else "No moves needed."
    click.echo(summary + (" Dry run: nothing changed." if dry_run else ""))
