"""``liftpy node may-stop``: whether others would miss a node, for whoever restarts them one after another."""

from __future__ import annotations

import json

import click

from liftpy.cluster.may_stop import why_not
from liftpy.ids import check_name
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target


@click.command(name="may-stop")
@click.argument("node_id", metavar="NODE")
@json_option
@connection_options
def may_stop(node_id: str, as_json: bool, target: Target) -> int:
    """Say whether NODE can be stopped without a partition falling below min.isr, or the metadata group losing its majority: exit code 0
    if so, else 1 with the reasons."""
    check_name(node_id, "node")
    state = with_client(target, lambda client: client.describe_cluster(linearizable=True))
    voters = {member.node_id: member.connected for member in state.controllers if not member.learner}
    reasons = why_not(state.image, node_id, voters)
    if as_json:
        click.echo(json.dumps({"node": node_id, "may_stop": not reasons, "reasons": reasons}))
    else:
        click.echo("\n".join(reasons) or f"{node_id} may stop")
    return 1 if reasons else 0
