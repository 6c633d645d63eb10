"""``liftpy health`` over NATS: of a node, or of the whole cluster. A probe may be started every few seconds: a Client, with numpy and
uvloop, is loaded for ``--probe`` alone."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click
import nats
import nats.errors

from liftpy.client.admin_requests import NodeRequests, asking
from liftpy.core.base.ids import PROBE_STREAM as PROBE
from liftpy.core.base.strict_json import load_json
from liftpy.core.observe.cluster_health import why_offline
from liftpy.errors import LiftError, NotFoundError, OutcomeUnknownError, ProtocolError, UnavailableError
from sidecar.cli.health import PORT, levels, show
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.partition_reports import unknown_data
from sidecar.runtime.settings import Target

if TYPE_CHECKING:
    from liftpy.client import Client
    from liftpy.core.metadata.image import ClusterImage

_TIMEOUT_S = 3.0
_MOST_NAMED = 5
"""Maximum number of partitions to name."""
_PROBE_SUBJECT = "liftpy-probe"


@click.command(cls=HelpCommand, example="liftpy health --cluster\nliftpy health --port 8222 --live")
@levels
@PORT
@click.option("--node", "node_id", default=None, metavar="NODE", help="Check this node, over NATS.")
@click.option("--cluster", is_flag=True, help="Check each node, and check that the metadata group can commit. (default)")
@click.option(
    "--probe", is_flag=True, help=f"Publish a record to stream {PROBE}, read it back, and print the time of each step."
)
@json_option
@connection_options
def health(
    level: str | None, port: None, node_id: str | None, cluster: bool, probe: bool, as_json: bool, target: Target
) -> int:
    """Check the health of a node or of the cluster. Exit code 0: healthy, 1: not healthy, 3: no answer.

    A cluster is healthy if all of these are true:

    \b
    - The metadata group commits.
    - No node is fenced, silent or below the feature level.
    - No partition waits for an operator because it may lose records.
    - No replicated service has ended or is blocked (not checked with --live).

    After a network partition, the side with the majority reports 1 (the other nodes are fenced). The other side reports 3.
    """
    if node_id is not None and cluster:
        raise click.UsageError("--node and --cluster cannot be combined. Remove one of them.")
    return show(_by_nats(target, level or "ready", node_id, probe), as_json)


def _by_nats(target: Target, level: str, node_id: str | None, probe: bool) -> dict[str, Any]:
    try:
        return asyncio.run(_found(target, level, node_id, probe))
    except (UnavailableError, OutcomeUnknownError) as error:
        return {"healthy": False, "silent": True, "checks": [f"[-] nobody answered: {error}"]}


async def _found(target: Target, level: str, node_id: str | None, probe: bool) -> dict[str, Any]:
    who: dict[str, Any] = {"credentials": target.credentials, "name": "liftpy-cli", "timeout_s": _TIMEOUT_S}
    async with asking(target.nats, target.namespace, **who) as cluster:
        return await _asked(cluster, target, level, node_id, probe)


async def _asked(cluster: NodeRequests, target: Target, level: str, node_id: str | None, probe: bool) -> dict[str, Any]:
    lines: list[str] = []
    nodes = [node_id] if node_id is not None else []
    if node_id is None:
        began = time.monotonic()
        state = await cluster.describe_cluster(linearizable=True)
        lines.append(f"[+] metadata group: committed a barrier in {(time.monotonic() - began) * 1000:.1f} ms")
        nodes = state.image.live_nodes()
        fenced = sorted(set(state.image.nodes) - set(nodes))
        lines += [f"[-] {name}: fenced" for name in fenced]
        if level != "live":
            lines += _suspect(state.image)
    silent = 0
    for name in nodes:
        said = await said_by(cluster, name)
        silent += said is None
        if said is None:
            lines.append(f"[-] {name}: does not answer")
            continue
        why = "; ".join(f"{check}: {reason}" for check, reason in said["checks"].items() if reason)
        lines.append(f"[+] {name}: {level}" if said["health"][level] else f"[-] {name}: not {level}: {why}")
        if unknown := said.get("unknown_streams"):
            lines.append(f"[+] {unknown_data(name, unknown)}")
        if node_id is None and level != "live":
            lines += await _services(cluster, name)
    if probe:
        lines += await _probed(target)
    well = not any(line.startswith("[-]") for line in lines)
    return {"healthy": well, "silent": node_id is not None and silent > 0, "checks": lines}


def _suspect(image: ClusterImage) -> list[str]:
    """Return lines for partitions that wait for an operator, because their last in-sync replicas may have lost records [C10]."""
    found = (
        why_offline(stream.name, one.partition, one.status.name, one.isr, one.incomplete)
        for stream in image.streams.values()
        for one in stream.partitions
    )
    texts = [text for text in found if text]
    more = [f"[-] {len(texts) - _MOST_NAMED} more partitions wait for an operator: liftpy status"]
    return [f"[-] {text}" for text in texts[:_MOST_NAMED]] + (more if len(texts) > _MOST_NAMED else [])


async def _services(client: NodeRequests, node_id: str) -> list[str]:
    """Return a line for ended services of the node, and one for blocked ones. [] if all run."""
    try:
        glance = await client.node_glance(node_id, _TIMEOUT_S)
    except (UnavailableError, OutcomeUnknownError, ProtocolError):
        return []  # it has just said how it is
    lines = []
    if glance is not None and glance.services_ended:
        why = "; ".join(glance.ended_services) or str(glance.services_ended)
        lines.append(f"[-] {node_id}: services have ended: {why}")
    if glance is not None and glance.services_blocked:
        lines.append(
            f"[-] {node_id}: {glance.services_blocked} services stand at a record that they cannot apply: liftpy status"
        )
    return lines


async def said_by(client: NodeRequests, node_id: str) -> dict[str, Any] | None:
    """Return the health of the node, None without an answer."""
    try:
        found = await client.node_health(node_id, _TIMEOUT_S)
        return found if "health" in found and "checks" in found else None
    except (UnavailableError, OutcomeUnknownError, ProtocolError):
        return None


async def _published(target: Target, value: bytes) -> int:
    """Publish as any NATS client does, and return the record's offset. Raises LiftError."""
    try:
        connection = await nats.connect(list(target.nats), connect_timeout=_TIMEOUT_S, **target.credentials.nats_options())
        try:
            answer = load_json((await connection.request(_PROBE_SUBJECT, value, timeout=_TIMEOUT_S)).data)
        finally:
            await connection.close()
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
        raise UnavailableError(f"The probe got no ack: {error!r}. Check that a leader is up: `liftpy status`.") from None
    if answer.get("error"):
        raise UnavailableError(f"The probe was rejected: {answer['error'].get('description')}. Check `liftpy status`.")
    return int(answer["seq"]) - 1


async def _probed(target: Target) -> list[str]:
    """Return a record there and back, with the time of each step."""
    from liftpy.client import connect

    async with await connect(
        target.nats, target.namespace, credentials=target.credentials, name="liftpy-cli", timeout_s=_TIMEOUT_S
    ) as client:
        return await _there_and_back(client, target)


async def _there_and_back(client: Client, target: Target) -> list[str]:
    lines: list[str] = []
    began = time.monotonic()
    try:
        try:
            await client.stream(PROBE)
        except NotFoundError:
            client.admin.allow_internal()
            nodes = (await client.admin.describe_cluster()).image.live_nodes()
            await client.create_stream(PROBE, _PROBE_SUBJECT, replicas=min(3, len(nodes)))
            lines.append(f"[+] probe: stream made in {(time.monotonic() - began) * 1000:.1f} ms")
        began, mark = time.monotonic(), f"{time.time_ns()}".encode()
        offset = await _published(target, mark)
        lines.append(f"[+] probe: published and committed in {(time.monotonic() - began) * 1000:.1f} ms")
        began = time.monotonic()
        async for record in client.consume(PROBE, start=offset, until="end"):
            if record.value == mark:
                lines.append(f"[+] probe: read back in {(time.monotonic() - began) * 1000:.1f} ms")
                return lines
        lines.append("[-] probe: what was acknowledged is not there")
    except LiftError as error:
        lines.append(f"[-] probe: {error.code}: {error}")
    return lines
