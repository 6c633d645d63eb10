"""``liftpy status``: print the nodes, the metadata leader and the state of all replicas.

The metadata come from the metadata leader, and the positions from the nodes. If a node does not answer, its positions are shown as
``?`` (null in JSON). That is no failure.
"""

from __future__ import annotations

from typing import Any

import click

from liftpy.client import Client, ClusterState
from liftpy.core.metadata.controller.reassignment import movements
from liftpy.core.metadata.controller.streams import why_it_waits
from liftpy.core.metadata.image import INSUFFICIENT_NODES
from liftpy.core.observe.cluster_health import Reason, why_offline
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpCommand
from sidecar.cli.node_reports import NodeReports, ask_cluster_verdict, ask_nodes, unknown_data, unknown_streams
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.output import print_json, print_table
from sidecar.cli.reassignment import movement_json
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target


@click.command(cls=HelpCommand, example="liftpy status --stream orders")
@click.option("--stream", "only", type=STREAM, help="Show only this stream.  [default: all]")
@json_option
@connection_options
def status(only: str | None, as_json: bool, target: Target) -> None:
    """Show the state of the cluster with its problems, all nodes, the leader of the metadata group, and each partition.

    The state of a partition has its leader, epochs, replicas, ISR, high watermark (HW), newest offset and lag.
    """
    report = with_client(target, lambda client: gather(client, only), needs_majority=False)
    print_json(report) if as_json else _show(report)


async def gather(client: Client, only: str | None = None) -> dict[str, Any]:
    """Return the state of the cluster as a JSON object: verdict, nodes, partitions, moves and waiting streams."""
    state = await client.admin.describe_cluster()
    if only is not None:
        state.stream(only)
    reports = await ask_nodes(client, sorted(state.image.nodes))
    verdict = await ask_cluster_verdict(client.admin, sorted(state.image.nodes))
    unknown = {node_id: await unknown_streams(client, node_id) for node_id in sorted(reports)}
    return {
        "verdict": verdict.as_object(),
        "metadata_leader": state.metadata_leader,
        "index": state.image.index,
        "nodes": [
            {**_node(state, node_id, node_id in reports), "unknown_streams": unknown.get(node_id, [])}
            for node_id in sorted(state.image.nodes)
        ],
        "partitions": [
            _partition(stream, partition, reports)
            for stream in state.streams()
            if only in (None, stream.name)
            for partition in stream.partitions
        ],
        "moves": [movement_json(movement, reports) for movement in movements(state.image) if only in (None, movement.stream)],
        "waiting": [
            {"stream": stream.name, "uid": stream.uid, "partitions": stream.waiting, "why": why_it_waits(state.image, stream)}
            for stream in state.streams()
            if only in (None, stream.name) and stream.waiting
        ],
    }


def _node(state: ClusterState, node_id: str, answers: bool) -> dict[str, Any]:
    node = state.image.nodes[node_id]
    controller = next((c for c in state.controllers if c.node_id == node_id), None)
    return {
        "node_id": node_id,
        "fenced": node.fenced,
        "leaving": node.leaving,
        "replicas": state.image.replica_counts.get(node_id, 0),
        "answers": answers,
        "incarnation": node.incarnation,
        "rack": node.rack,
        "weight": node.weight,
        "version": node.version,
        "status_address": node.status_address,
        "leads": state.image.leader_counts.get(node_id, 0),
        "controller": controller is not None,
        "metadata_leader": node_id == state.metadata_leader,
    }


def _partition(stream: Any, partition: Any, reports: NodeReports) -> dict[str, Any]:
    replica_reports = {n: reports[n].get((stream.uid, partition.partition)) for n in partition.replicas if n in reports}
    newest = {n: p["newest_offset"] for n, p in replica_reports.items() if p is not None}
    leader = replica_reports.get(partition.leader) or {}
    top = newest.get(partition.leader)
    return {
        "stream": stream.name,
        "uid": stream.uid,
        "partition": partition.partition,
        "status": partition.status.name,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "epoch": partition.epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "incomplete": list(partition.incomplete),
        "high_watermark": leader.get("high_watermark"),
        "newest_offset": top,
        "log_start_offset": leader.get("log_start_offset"),
        "services": {n: p.get("services", []) for n, p in replica_reports.items() if p is not None},
        "gone_services": {n: p.get("gone_services", []) for n, p in replica_reports.items() if p is not None},
        "lag": {n: None if top is None or n not in newest else max(0, top - newest[n]) for n in partition.replicas},
    }


def _show(report: dict[str, Any]) -> None:
    click.echo(f"cluster: {report['verdict']['word']}")
    for one in report["verdict"]["reasons"]:
        line = Reason(**{**one, "events": tuple(one["events"])}).line
        click.echo(f"{'!' if one['stops'] else '-'} {line}")
    rows = []
    for n in report["nodes"]:
        state = "fenced" if n["fenced"] else "live" if n["answers"] else "silent"
        state += ", drained" if n["leaving"] else ""
        role = "leader" if n["metadata_leader"] else "member" if n["controller"] else ""
        rows.append((n["node_id"], state, str(n["incarnation"]), n["rack"], str(n["leads"]), role, n["version"]))
    columns = ("node", "state", "incarnation", "rack", "leads", "metadata", "version")
    print_table(columns, rows, folds=("rack", "version"), title="nodes")
    click.echo(f"metadata leader: {report['metadata_leader'] or 'none'}")
    for waits in report["waiting"]:
        click.echo(f"stream {waits['stream']}: {INSUFFICIENT_NODES}: {waits['why']}")
    for node in report["nodes"]:
        if node["unknown_streams"]:
            click.echo(unknown_data(node["node_id"], node["unknown_streams"]))
    if not report["partitions"] and report["waiting"]:
        return
    if not report["partitions"]:
        click.echo("no streams yet: liftpy stream create NAME --subject SUBJECT")
        return
    heads = ("partition", "status", "leader", "epochs", "replicas", "ISR", "HW", "newest", "lag")
    partitions = map(_partition_row, report["partitions"])
    print_table(heads, partitions, folds=("status", "replicas", "ISR", "lag"), title="partitions")
    _show_offline(report["partitions"])
    _show_moves(report["moves"])
    _show_services(report["partitions"])


def _partition_row(p: dict[str, Any]) -> tuple[str, ...]:
    lag = " ".join(f"{node}:{_number_text(records)}" for node, records in p["lag"].items() if node != p["leader"])
    return (
        f"{p['stream']}/{p['partition']}",
        p["status"],
        p["leader"] or "none",
        f"{p['leader_epoch']}/{p['epoch']}",
        " ".join(p["replicas"]),
        " ".join(p["isr"]),
        _number_text(p["high_watermark"]),
        _number_text(p["newest_offset"]),
        lag,
    )


def _show_offline(partitions: list[dict[str, Any]]) -> None:
    for p in partitions:
        if text := why_offline(p["stream"], p["partition"], p["status"], p["isr"], p.get("incomplete", ())):
            click.echo(text)


def _show_moves(moves: list[dict[str, Any]]) -> None:
    rows = [
        (
            f"{m['stream']}/{m['partition']}",
            m["phase"],
            m["out"],
            m["into"],
            " ".join(m["target"]),
            f"{m['left_bytes']:,}",
            m["why"],
        )
        for m in moves
    ]
    if rows:
        columns = ("partition", "phase", "from", "to", "target", "bytes left", "why")
        print_table(columns, rows, folds=("target", "why"), title="moves")


def _version(service: dict[str, Any]) -> str:
    """Return the active version of a service as text. If the version of its code differs, it is added in brackets."""
    active, code = service.get("active_version", 0), service.get("version", 0)
    return str(active or "") if active == code else f"{active} (code {code})"


def _show_services(partitions: list[dict[str, Any]]) -> None:
    columns = ("service", "partition", "node", "role", "version", "position", "lag", "outputs", "problem")
    rows = []
    for p in partitions:
        missing_services = p.get("gone_services", {})
        for node, services in p["services"].items():
            for s in (*services, *missing_services.get(node, ())):
                outputs = f"{s['emitted_end']}/{s['output_count']}" if "emitted_end" in s else ""
                where = f"{p['stream']}/{p['partition']}"
                rows.append(
                    (
                        s["service"],
                        where,
                        node,
                        s["role"],
                        _version(s),
                        str(s["position"]),
                        str(s["lag"]),
                        outputs,
                        s["problem"],
                    )
                )
    if rows:
        print_table(columns, rows, folds=("outputs", "problem"), title="services")


def _number_text(value: int | None) -> str:
    return "?" if value is None else str(value)
