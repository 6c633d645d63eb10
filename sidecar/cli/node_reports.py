"""Reports of nodes for commands: summaries, partitions, health, and data of unknown streams. A node without an answer leaves a gap.

A supervisor may start ``liftpy health`` every few seconds. So this module loads a ``Client`` only for ``--probe``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import nats
import nats.errors

from liftpy.client.admin_requests import NodeRequests, connect_for_requests
from liftpy.core.base.ids import PROBE_STREAM as PROBE
from liftpy.core.base.strict_json import load_json
from liftpy.core.observe.cluster_health import VERDICTS, ClusterVerdict, Reason, check_cluster, reason, verdict_of
from liftpy.errors import (
    LiftError,
    NatsUnreachableError,
    NotAllowedError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from sidecar.runtime.settings import Target

if TYPE_CHECKING:
    from liftpy.client import Client
    from liftpy.core.observe.node_summary import NodeSummary

_NODE_TIMEOUT_S = 2.0
_HEALTH_TIMEOUT_S = 3.0
_LIVE_PROBLEMS = ("fenced", "silent", "no-majority")
"""Problems that ``liftpy health --live`` checks."""
_PROBE_SUBJECT = "liftpy-probe"
_MOST_NAMED = 5
"""Maximum number of directories of unknown streams in one line."""

NodeReports = dict[str, dict[tuple[str, int], dict[str, Any]]]
"""Node id -> (stream uid, partition) -> the node's report about its replica. Nodes without an answer are absent."""


async def answer_of(asking: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the answer of a node to a request. None: the node does not answer, rejects the request, or its answer is not usable."""
    try:
        answer = await asking
    except (UnavailableError, OutcomeUnknownError, ProtocolError):
        return None
    return None if "error" in answer else answer


async def ask_summaries(
    nodes: NodeRequests, node_ids: list[str], timeout_s: float = _NODE_TIMEOUT_S
) -> dict[str, NodeSummary | None]:
    """Ask all nodes at once for their summaries. None: the node does not answer within ``timeout_s`` seconds."""

    async def ask(node_id: str) -> NodeSummary | None:
        try:
            return await nodes.node_glance(node_id, timeout_s)
        except LiftError:
            return None

    return dict(zip(node_ids, await asyncio.gather(*map(ask, node_ids)), strict=True))


async def ask_cluster_verdict(nodes: NodeRequests, node_ids: list[str]) -> ClusterVerdict:
    """Ask all nodes for their summaries, and return the verdict on the health of the cluster."""
    return check_cluster(await ask_summaries(nodes, node_ids))


async def ask_nodes(client: Client, node_ids: list[str]) -> NodeReports:
    """Ask all nodes at once for the state of their partitions. Nodes that do not answer are missing in the result."""

    answers = await asyncio.gather(*(answer_of(client.admin.node_status(node, _NODE_TIMEOUT_S)) for node in node_ids))
    return {
        node_id: {(p["uid"], p["partition"]): p for p in answer.get("partitions", [])}
        for node_id, answer in zip(node_ids, answers, strict=True)
        if answer is not None
    }


async def unknown_streams(client: Client, node_id: str) -> list[str]:
    """Return the directories on a node that belong to streams that the cluster does not know. Empty: none, or no answer."""
    names = (await answer_of(client.admin.node_health(node_id, _NODE_TIMEOUT_S)) or {}).get("unknown_streams", [])
    return [str(name) for name in names] if isinstance(names, list) else []


def unknown_data(node_id: str, directories: list[str]) -> str:
    """Return a text for the operator: the unknown ``directories`` on the node, and the command that removes them."""
    named, more = directories[:_MOST_NAMED], len(directories) - _MOST_NAMED
    rest = f" and {more} more" if more > 0 else ""
    text = f"{node_id} keeps data of streams that the cluster does not know: {', '.join(named)}{rest}"
    return f"{text}: liftpy node remove-data {node_id}"


# ---- health ----------------------------------------------------------------------------------------------------------


def check_health(target: Target, level: str, node_id: str | None, probe: bool) -> dict[str, Any]:
    """Check a node or the whole cluster over NATS, as ``liftpy health`` does.

    Args:
        target: The cluster.
        level: ``live``, ``ready`` or ``synced``.
        node_id: Node to check. None: the cluster.
        probe: True to also publish and read a record.

    Returns:
        ``healthy``, ``silent`` (True without an answer), ``checks`` (one text line for each check) and ``verdict`` of the cluster.

    Raises:
        NotFoundError: The cluster has no node ``node_id``.
    """
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
    who: dict[str, Any] = {"credentials": target.credentials, "name": "liftpy-cli", "timeout_s": _HEALTH_TIMEOUT_S}
    async with connect_for_requests(target.nats, target.namespace, **who) as cluster:
        return await (_of_node(cluster, level, node_id) if node_id is not None else _of_cluster(cluster, target, level, probe))


async def _of_node(cluster: NodeRequests, level: str, node_id: str) -> dict[str, Any]:
    document = await fetch_health(cluster, node_id)
    if document is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                await cluster.check_node(node_id)
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
    """Return the result of all checks of the cluster. If the metadata group has no majority, each node still answers for itself."""
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
        verdict = await ask_cluster_verdict(cluster, names)
        return _result([*lines, *map(_reason_line, verdict.reasons)], silent=True, verdict=verdict)
    lines.append(f"[+] metadata group: committed a barrier in {(time.monotonic() - began) * 1000:.1f} ms")
    for name in state.image.live_nodes():
        lines += _node_lines(name, await fetch_health(cluster, name), level)
    verdict = await ask_cluster_verdict(cluster, sorted(state.image.nodes))
    lines += [_reason_line(one) for one in verdict.reasons if level != "live" or one.word in _LIVE_PROBLEMS]
    if probe:
        lines += await _probe_stream(target)
    return _result(lines, silent=False, verdict=verdict)


def _reason_line(one: Reason) -> str:
    return f"[{'-' if VERDICTS[one.word].makes_unhealthy else '!'}] {one.line}"


async def fetch_health(client: NodeRequests, node_id: str) -> dict[str, Any] | None:
    """Return the health that a node reports. None: the node does not answer, or its answer is not usable."""
    document = await answer_of(client.node_health(node_id, _HEALTH_TIMEOUT_S))
    return document if document is not None and "health" in document and "checks" in document else None


async def publish_probe(target: Target, value: bytes) -> int:
    """Publish ``value`` as any NATS client does, and return its offset. Raises NotAllowedError, UnavailableError."""
    errors: list[str] = []

    async def note_error(error: Exception) -> None:
        errors.append(str(error))

    options = {**target.credentials.nats_options(), "error_cb": note_error}
    try:
        connection = await nats.connect(list(target.nats), connect_timeout=_HEALTH_TIMEOUT_S, **options)
        try:
            answer = load_json((await connection.request(_PROBE_SUBJECT, value, timeout=_HEALTH_TIMEOUT_S)).data)
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
        target.nats, target.namespace, credentials=target.credentials, name="liftpy-cli", timeout_s=_HEALTH_TIMEOUT_S
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
