"""``liftpy health``: check a node or the whole cluster over NATS, or the node on this machine over its status port.

A supervisor may start the command every few seconds. So only ``--probe`` loads a ``Client`` with numpy and uvloop. With
``--status-port``, ``main.py`` runs the command of ``health_port.py``, which does not load NATS.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click
import nats
import nats.errors

from liftpy.client.admin_requests import NodeRequests, connect_for_requests
from liftpy.core.base.ids import PROBE_STREAM as PROBE
from liftpy.core.base.strict_json import load_json
from liftpy.core.observe.cluster_health import ClusterVerdict, verdict_of
from liftpy.core.observe.verdicts import VERDICTS, Reason, reason
from liftpy.errors import (
    LiftError,
    NatsUnreachableError,
    NotAllowedError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from sidecar.cli.health_port import by_port, levels, show, status_port_option
from sidecar.cli.help import HelpCommand
from sidecar.cli.node_reports import answer_of, judge_cluster, unknown_data
from sidecar.cli.options import connection_options, json_option
from sidecar.runtime.settings import Target

if TYPE_CHECKING:
    from liftpy.client import Client

_TIMEOUT_S = 3.0
_LIVE_PROBLEMS = ("fenced", "silent", "no-majority")
"""Problems that ``--live`` checks."""
_PROBE_SUBJECT = "liftpy-probe"


@click.command(cls=HelpCommand, example="liftpy health --cluster\nliftpy health --status-port 8222 --live")
@levels
@status_port_option
@click.option("--node", "node_id", metavar="NODE", help="Check this node, over NATS.")
@click.option("--cluster", is_flag=True, help="Check each node, and check that the metadata group can commit. (default)")
@click.option(
    "--probe", is_flag=True, help=f"Publish a record to stream {PROBE}, read it back, and print the time of each step."
)
@json_option
@connection_options
def health(
    level: str | None, port: int | None, node_id: str | None, cluster: bool, probe: bool, as_json: bool, target: Target
) -> int:
    """Check the health of a node or of the cluster. Exit code 0: healthy, 1: not healthy, 3: no answer.

    A cluster is healthy if all of these are true:

    \b
    - The metadata group commits.
    - Each node passes its own check.
    - The verdict of the cluster names no problem that an operator must solve. A line with [!] is a problem that ends by itself.

    After a network partition, the side with the majority reports 1 (the other nodes are fenced). The other side reports 3.
    """
    if node_id is not None and cluster:
        raise click.UsageError("--node and --cluster cannot be combined. Remove one of them.")
    if port is not None:
        return show(by_port(port, level or "ready"), as_json)
    return show(_by_nats(target, level or "ready", node_id, probe), as_json)


def _by_nats(target: Target, level: str, node_id: str | None, probe: bool) -> dict[str, Any]:
    try:
        return asyncio.run(_collect_health(target, level, node_id, probe))
    except NatsUnreachableError as error:
        lost = reason("nats-lost", who="This command", why=f": {error}")
        return _result([f"[-] {lost.line}"], silent=True, verdict=verdict_of([lost]))
    except (UnavailableError, OutcomeUnknownError) as error:
        return _result([f"[-] no answer: {error}"], silent=True)


def _result(lines: list[str], *, silent: bool, verdict: ClusterVerdict | None = None) -> dict[str, Any]:
    result = {"healthy": not any(line.startswith("[-]") for line in lines), "silent": silent, "checks": lines}
    return result if verdict is None else {**result, "verdict": verdict.as_object()}


async def _collect_health(target: Target, level: str, node_id: str | None, probe: bool) -> dict[str, Any]:
    who: dict[str, Any] = {"credentials": target.credentials, "name": "liftpy-cli", "timeout_s": _TIMEOUT_S}
    async with connect_for_requests(target.nats, target.namespace, **who) as cluster:
        return await (_of_node(cluster, level, node_id) if node_id is not None else _of_cluster(cluster, target, level, probe))


async def _of_node(cluster: NodeRequests, level: str, node_id: str) -> dict[str, Any]:
    document = await fetch_health(cluster, node_id)
    return _result(_node_lines(node_id, document, level), silent=document is None)


def _node_lines(name: str, document: dict[str, Any] | None, level: str) -> list[str]:
    if document is None:
        return [f"[-] {name}: does not answer"]
    why = "; ".join(f"{check}: {text}" for check, text in document["checks"].items() if text)
    lines = [f"[+] {name}: {level}" if document["health"][level] else f"[-] {name}: not {level}: {why}"]
    if unknown := document.get("unknown_streams"):
        lines.append(f"[+] {unknown_data(name, unknown)}")
    return lines


async def _of_cluster(cluster: NodeRequests, target: Target, level: str, probe: bool) -> dict[str, Any]:
    """Return the result of all checks of the cluster, and its verdict.

    ``level``: ``live``, ``ready`` or ``synced``. ``probe``: True to also publish and read a record. If the metadata group has no
    majority, each node still answers for itself.
    """
    lines: list[str] = []
    began = time.monotonic()
    try:
        state = await cluster.describe_cluster(linearizable=True)
    except (UnavailableError, OutcomeUnknownError) as error:
        lines.append(f"[-] metadata group: {error}")
        try:
            names = await cluster.node_ids()
        except (UnavailableError, OutcomeUnknownError):
            return _result(lines, silent=True)
        verdict = await judge_cluster(cluster, names)
        return _result([*lines, *map(_reason_line, verdict.reasons)], silent=True, verdict=verdict)
    lines.append(f"[+] metadata group: committed a barrier in {(time.monotonic() - began) * 1000:.1f} ms")
    for name in state.image.live_nodes():
        lines += _node_lines(name, await fetch_health(cluster, name), level)
    verdict = await judge_cluster(cluster, sorted(state.image.nodes))
    lines += [_reason_line(one) for one in verdict.reasons if level != "live" or one.word in _LIVE_PROBLEMS]
    if probe:
        lines += await _probe_stream(target)
    return _result(lines, silent=False, verdict=verdict)


def _reason_line(one: Reason) -> str:
    return f"[{'-' if VERDICTS[one.word].makes_unhealthy else '!'}] {one.line}"


async def fetch_health(client: NodeRequests, node_id: str) -> dict[str, Any] | None:
    """Return the health that a node reports. None: the node does not answer, or its answer is not usable."""
    document = await answer_of(client.node_health(node_id, _TIMEOUT_S))
    return document if document is not None and "health" in document and "checks" in document else None


async def publish_probe(target: Target, value: bytes) -> int:
    """Publish ``value`` as any NATS client does, and return its offset. Raises NotAllowedError, UnavailableError."""
    errors: list[str] = []

    async def note_error(error: Exception) -> None:
        errors.append(str(error))

    options = {**target.credentials.nats_options(), "error_cb": note_error}
    try:
        connection = await nats.connect(list(target.nats), connect_timeout=_TIMEOUT_S, **options)
        try:
            answer = load_json((await connection.request(_PROBE_SUBJECT, value, timeout=_TIMEOUT_S)).data)
        finally:
            await connection.close()
    except (nats.errors.Error, OSError, TimeoutError, ValueError) as error:
        if denied := next((one for one in errors if "permissions violation" in one), None):
            raise NotAllowedError(
                f"NATS rejected the probe: {denied}. Give this user the permission to publish on {_PROBE_SUBJECT}."
            ) from None
        raise UnavailableError(f"The probe got no ack: {error!r}. Check that a leader is up: `liftpy status`.") from None
    if answer.get("error"):
        raise UnavailableError(f"The probe was rejected: {answer['error'].get('description')}. Check `liftpy status`.")
    return int(answer["seq"]) - 1


async def _probe_stream(target: Target) -> list[str]:
    from liftpy.client import connect

    async with await connect(
        target.nats, target.namespace, credentials=target.credentials, name="liftpy-cli", timeout_s=_TIMEOUT_S
    ) as client:
        return await _check_round_trip(client, target)


async def _check_round_trip(client: Client, target: Target) -> list[str]:
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
        offset = await publish_probe(target, mark)
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
