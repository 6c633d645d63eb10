"""What nodes are asked, and answer of themselves: one JSON object."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from liftpy.errors import ProtocolError
from liftpy.strict_json import load_json
from liftpy.wire import envelope
from liftpy.wire.envelope import MessageType

RELOAD = b'{"reload": true}'
"""Have a node read its settings again."""
SETTINGS = b'{"settings": true}'
"""Have it say them."""


def object_of(node_id: str, answer: bytes) -> dict[str, Any]:
    """The object in ``answer``, which came from ``node_id``. Raises ProtocolError."""
    try:
        said = load_json(answer)
    except ValueError as error:
        raise ProtocolError(f"{node_id} answered its status in a form that is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"{node_id} answered its status in a form that is not a JSON object")
    return said


async def whole_status(ask: Callable[[bytes], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """A node's report with all its partitions, which it gives page by page: ``ask`` has it answer a question and may raise."""
    status = page = await ask(envelope.encode(MessageType.STATUS_REQUEST, b""))
    while page.get("more") and page["partitions"]:
        last = page["partitions"][-1]
        page = await ask(json.dumps({"after": [last["stream"], last["partition"]]}).encode())
        status["partitions"] += page["partitions"]
        status["more"] = page.get("more", False)
    return status
