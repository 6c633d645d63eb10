"""What nodes say of their partitions, for commands that look at many of them; one that does not answer leaves a gap."""

from __future__ import annotations

import asyncio
from typing import Any

from liftpy.client import Client
from liftpy.errors import OutcomeUnknownError, ProtocolError, UnavailableError

_NODE_TIMEOUT_S = 2.0

NodeReports = dict[str, dict[tuple[str, int], dict[str, Any]]]
"""Node id -> (stream uid, partition) -> what that node says of its replica; nodes that did not answer are absent."""


async def ask_nodes(client: Client, node_ids: list[str]) -> NodeReports:
    """What the nodes say of their partitions, all asked at once."""

    async def ask(node_id: str) -> dict[str, Any] | None:
        try:
            return await client.node_status(node_id, _NODE_TIMEOUT_S)
        except (UnavailableError, OutcomeUnknownError, ProtocolError):
            return None

    answers = await asyncio.gather(*map(ask, node_ids))
    return {
        node_id: {(p["uid"], p["partition"]): p for p in answer.get("partitions", [])}
        for node_id, answer in zip(node_ids, answers, strict=True)
        if answer is not None
    }
