"""Reports of nodes for commands: summaries, partitions, and data of unknown streams. A node without an answer leaves a gap.

``liftpy health`` imports this module, so it imports no ``Client``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from liftpy.core.observe.cluster_health import ClusterVerdict, judge
from liftpy.errors import LiftError, OutcomeUnknownError, ProtocolError, UnavailableError

if TYPE_CHECKING:
    from liftpy.client import Client
    from liftpy.client.admin_requests import NodeRequests
    from liftpy.core.observe.node_summary import NodeSummary

_NODE_TIMEOUT_S = 2.0
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


async def judge_cluster(nodes: NodeRequests, node_ids: list[str]) -> ClusterVerdict:
    """Ask all nodes at once for their summaries, and return the verdict on the health of the cluster."""

    async def ask(node_id: str) -> NodeSummary | None:
        try:
            return await nodes.node_glance(node_id, _NODE_TIMEOUT_S)
        except LiftError:
            return None

    return judge(dict(zip(node_ids, await asyncio.gather(*map(ask, node_ids)), strict=True)))


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
