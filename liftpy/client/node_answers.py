"""What nodes answer of themselves: one JSON object."""

from __future__ import annotations

from typing import Any

from liftpy.errors import ProtocolError
from liftpy.strict_json import load_json


def object_of(node_id: str, answer: bytes) -> dict[str, Any]:
    """The object in ``answer``, which came from ``node_id``. Raises ProtocolError."""
    try:
        said = load_json(answer)
    except ValueError as error:
        raise ProtocolError(f"{node_id} answered its status in a form that is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ProtocolError(f"{node_id} answered its status in a form that is not a JSON object")
    return said
