"""``liftpy node``: drain and remove nodes, and set their weight and rack. ``liftpy log-level``: the log level of a node.

A node joins the cluster when it starts. Only an operator removes it. ``drain`` moves its leaderships and then its replicas to other
nodes. ``can-stop`` says for a rolling restart whether the node may stop now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import click

from liftpy.client import Client
from liftpy.core.metadata.controller.nodes import still_a_controller, why_still_controller
from liftpy.core.metadata.controller.reassignment import Movement, offline_partitions_of
from liftpy.core.metadata.describe import reasons_to_keep_running
from liftpy.core.metadata.image import ClusterImage, NodeImage
from liftpy.core.metadata.placement.facts import facts_of
from liftpy.errors import ConfigError, NotFoundError, StaleRequestError
from sidecar.cli.completion import node_argument
from sidecar.cli.help import HelpCommand, HelpGroup
from sidecar.cli.options import Duration, ask_consent, connection_options, json_option, timeout_option, yes_option
from sidecar.cli.output import count_of, print_json
from sidecar.cli.reassignment import follow, move_timeout_option
from sidecar.cli.session import with_client
from sidecar.runtime.logs import LEVELS
from sidecar.runtime.settings import Target

_POLL_S = 0.1
AUTO = "auto"
_MAX_LEVEL_S = 86_400.0


@click.group(cls=HelpGroup, example="liftpy node drain n3 --wait")
def node() -> None:
    """Drain a node, check whether it may stop, remove it, or set its weight and rack."""


@node.command(example="liftpy node drain n3 --wait")
@node_argument
@click.option("--wait/--no-wait", default=False, show_default=True, help="Show the progress until NODE holds no replicas.")
@click.option("--cancel", is_flag=True, help="Cancel the drain. Replicas that have already moved do not return.")
@move_timeout_option
@json_option
@connection_options
def drain(node_id: str, wait: bool, cancel: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Move all replicas and leaderships away from NODE, one replica at a time.

    NODE receives no new replicas. Leaderships move first. The cluster continues the work if you stop this command. If NODE is down,
    the cluster replaces its replicas at once, without the delay replacement_grace_s.
    """
    if cancel and wait:
        raise click.UsageError("--cancel and --wait cannot be combined. Remove one of them.")

    async def work(client: Client) -> dict[str, Any]:
        await client.admin.set_node(node_id, leaving=not cancel)
        image = (await client.admin.describe_cluster()).image
        if not as_json and not cancel:
            click.echo(f"draining {node_id}: {count_of(image.replica_counts.get(node_id, 0), 'replica')} to move")
            for line in [] if wait else _reasons_that_replicas_stay(image, node_id):
                click.echo(line, err=True)
        if wait:

            def concerns(movement: Movement) -> bool:
                return node_id in movement.replicas and node_id not in movement.target

            await follow(
                client,
                concerns,
                timeout_s,
                quiet=as_json,
                is_done=lambda now: not (now.replica_counts.get(node_id) and _is_leaving(now, node_id)),
                stays=lambda now: _reasons_that_replicas_stay(now, node_id),
            )
            image = (await client.admin.describe_cluster(linearizable=True)).image
            if (replica_count := image.replica_counts.get(node_id, 0)) and not _is_leaving(image, node_id):
                raise StaleRequestError(
                    f"Another request canceled the drain of {node_id}, which holds {replica_count} replicas. To drain it: "
                    f"liftpy node drain {node_id}"
                )
        return {"node": node_id, "leaving": not cancel, "replicas": image.replica_counts.get(node_id, 0)}

    result = with_client(target, work)
    if as_json:
        print_json(result)
    elif cancel:
        click.echo(f"{node_id} receives replicas again. It holds {count_of(result['replicas'], 'replica')}")
    elif wait:
        click.echo(f"{node_id} holds no replicas. Stop it, then run liftpy node remove {node_id}")
    else:
        click.echo(f"liftpy status shows the progress. liftpy node drain {node_id} --cancel cancels it")


def _is_leaving(image: ClusterImage, node_id: str) -> bool:
    return node_id in image.nodes and image.nodes[node_id].leaving


def _reasons_that_replicas_stay(image: ClusterImage, node_id: str) -> list[str]:
    """Return texts that say why some replicas cannot move away from the node now, such as too few other nodes or no leader."""
    others = sum(node.takes and node.weight > 0 for node in facts_of(image))
    names = sorted({stream.name for stream, p in image.partitions_of(node_id) if len(p.replicas) > others})
    reasons = []
    if names:
        reasons.append(
            f"{_some(names)}: more replicas than the {others} other nodes that may take them. They stay until there are more nodes"
        )
    return reasons + reasons_that_replicas_are_offline(image, node_id)


def reasons_that_replicas_are_offline(image: ClusterImage, node_id: str) -> list[str]:
    """Return texts about offline partitions that have a replica on the node, and what the operator can do about each.

    The list is empty if there are no such partitions.
    """
    offline = [f"{stream.name}/{p.partition}" for stream, p in offline_partitions_of(image, node_id)]
    if not offline:
        return []
    return [
        f"{_some(offline)}: offline, because no live node has all committed records. The replicas stay until {node_id}, or another "
        "node with these records, starts again. To give up the missing records, use liftpy partition elect --unclean or delete the "
        "stream"
    ]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@node.command(name="can-stop", example="liftpy node can-stop n3")
@node_argument
@json_option
@connection_options
def can_stop(node_id: str, as_json: bool, target: Target) -> int:
    """Check whether NODE can stop without risk. Exit code 0: yes, 1: no, with the reasons.

    The answer is no if a partition would fall below min_isr, or if the metadata group would lose its majority.
    """
    state = with_client(target, lambda client: client.admin.describe_cluster(linearizable=True))
    voters = {member.node_id: member.connected for member in state.controllers if not member.learner}
    reasons = reasons_to_keep_running(state.image, node_id, voters)
    if as_json:
        print_json({"node": node_id, "can_stop": not reasons, "reasons": reasons})
    else:
        click.echo("\n".join(reasons) or f"{node_id} can stop")
    return 1 if reasons else 0


@node.command(example="liftpy node remove n3")
@node_argument
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@timeout_option("5s", "Maximum time for NODE to stop.", low=0)
@json_option
@connection_options
def remove(node_id: str, dry_run: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Remove NODE from the cluster. NODE must be stopped, hold no replica, and be no controller.

    The data directory is not deleted. If the node starts again, it registers again.
    """
    with_client(target, lambda client: _remove_node(client, node_id, dry_run, timeout_s))
    if as_json:
        print_json({"node": node_id, "removed": not dry_run, "dry_run": dry_run, "controller": False})
        return
    click.echo(f"{node_id} would be removed" if dry_run else f"{node_id} is removed")


@node.command(name="remove-data", example="liftpy node remove-data n3 orders-00000c-1a21ed6eb59")
@node_argument
@click.argument("directories", metavar="[DIRECTORY]...", nargs=-1)
@yes_option
@json_option
@connection_options
def remove_data(node_id: str, directories: tuple[str, ...], yes: bool, as_json: bool, target: Target) -> None:
    """Remove directories of streams that the cluster does not know from NODE, which must run. Without DIRECTORY, list them.

    A node keeps the data of a stream that was deleted while the node was down. A stream may also be missing because the metadata group
    was restored from a backup. Then remove a directory only if the stream is not needed."""

    async def work(client: Client) -> dict[str, Any]:
        if not directories:
            await client.admin.check_node(node_id)
            answer = await client.admin.node_health(node_id)
            return {"node": node_id, "unknown": answer.get("unknown_streams", []), "removed": []}
        result = await client.admin.remove_data(node_id, list(directories))
        if "error" in result:
            raise ConfigError(f"{node_id}: {result['error']}")
        return {"node": node_id, **result}

    if directories:
        ask_consent(yes, f"remove {', '.join(directories)} from node {node_id} permanently?")
    result = with_client(target, work)
    if as_json:
        print_json(result)
    elif directories:
        click.echo(f"{node_id}: {', '.join(result['removed'])} removed, {result['bytes']:,} bytes")
    else:
        click.echo("\n".join(result["unknown"]) or f"{node_id} has no data of streams that the cluster does not know")


@node.command(name="set-weight", example="liftpy node set-weight n3 2.0")
@node_argument
@click.argument("weight", metavar="WEIGHT|auto")
@json_option
@connection_options
def set_weight(node_id: str, weight: str, as_json: bool, target: Target) -> None:
    """Set the weight of NODE, its share of partitions. 'auto' uses the weight from the node's settings after its next start."""
    _set_fact(target, node_id, "weight", None if weight == AUTO else _number(weight), as_json)


@node.command(name="set-rack", example="liftpy node set-rack n3 zone-b")
@node_argument
@click.argument("rack", metavar="RACK|auto")
@json_option
@connection_options
def set_rack(node_id: str, rack: str, as_json: bool, target: Target) -> None:
    """Set the rack of NODE. '' removes the rack. 'auto' uses the rack from the node's settings after its next start."""
    _set_fact(target, node_id, "rack", None if rack == AUTO else rack, as_json)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r}. Use a number, or {AUTO}.", param_hint="WEIGHT") from None


def _set_fact(target: Target, node_id: str, name: str, value: str | float | None, as_json: bool) -> None:
    """Set the weight or the rack of a node, and print both. ``value`` None: the value from the node's settings."""

    def work(client: Client) -> Coroutine[Any, Any, NodeImage]:
        if value is None:
            return client.admin.reset_node(node_id, **{name: True})
        return client.admin.set_node(node_id, **{name: value})  # type: ignore[arg-type]

    node = with_client(target, work)
    facts = {
        "node": node.node_id,
        "weight": node.weight,
        "weight_by_hand": node.weight_by_hand,
        "rack": node.rack,
        "rack_by_hand": node.rack_by_hand,
    }
    if as_json:
        print_json(facts)
        return
    by_hand = {True: " (by hand)", False: ""}
    click.echo(
        f"{node.node_id}: weight {node.weight:g}{by_hand[node.weight_by_hand]}, rack {node.rack or 'none'}{by_hand[node.rack_by_hand]}"
    )


async def _remove_node(client: Client, node_id: str, dry_run: bool, timeout_s: float) -> None:
    """Remove a node from the cluster, or with ``dry_run`` only check it.

    While the node is live, the call waits for its end, at most ``timeout_s`` seconds. Raises ConfigError if the node cannot be
    removed, and NotFoundError.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        state = await client.admin.describe_cluster()
        if any(node_id == member.node_id for member in state.controllers):
            raise ConfigError(still_a_controller(node_id))
        wrong = why_still_controller(state.image, node_id)
        known = state.image.nodes.get(node_id)
        if known is None:
            raise NotFoundError(wrong)
        if wrong and (known.fenced or time.monotonic() >= deadline):
            raise ConfigError("; ".join((wrong, *reasons_that_replicas_are_offline(state.image, node_id))))
        if not wrong and dry_run:
            return
        if not wrong:
            try:
                await client.admin.remove_node(node_id)
            except ConfigError:
                if time.monotonic() >= deadline:
                    raise
            else:
                return
        await asyncio.sleep(_POLL_S)


@click.command(name="log-level", cls=HelpCommand, example="liftpy log-level n1 debug --duration 10m")
@node_argument
@click.argument("level", type=click.Choice(LEVELS))
@click.option(
    "--duration",
    "duration_s",
    type=Duration(0.001, _MAX_LEVEL_S),
    default="5m",
    show_default=True,
    help="Time until the level returns to the setting, 1ms to 1d.",
)
@json_option
@connection_options
def log_level(node_id: str, level: str, duration_s: float, as_json: bool, target: Target) -> None:
    """Set the log level of NODE for a limited time. Needs operator permissions."""
    result = with_client(target, lambda client: client.admin.node_log_level(node_id, level, duration_s), needs_majority=False)
    if "error" in result:
        raise ConfigError(str(result["error"]))
    if as_json:
        print_json({"node": node_id, **result})
    else:
        click.echo(f"{node_id} logs at level {level} for {Duration.text(duration_s)}")
