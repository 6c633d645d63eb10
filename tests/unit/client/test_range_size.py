"""Test the checks of an answer about the size of a range."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.client.progress import RangeFacts, facts_of
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ProtocolError


def head(**fields: Any) -> client_pb2.ReadResponse:
    return client_pb2.ReadResponse(node="n1", **fields)


def test_range_size_answer_decode_returns_the_encoded_fields() -> None:
    told = head(rangeBytes=900, borders=[20, 30], borderPositions=[100, 200], beforeEpoch=1, endEpoch=4)
    assert facts_of(told, 10, 40) == RangeFacts(10, 40, 900, (20, 30), (100, 200), 1, 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"borders": [10], "borderPositions": [100]},
        {"borders": [40], "borderPositions": [100]},
        {"borders": [30, 20], "borderPositions": [100, 200]},
        {"borders": [20, 30], "borderPositions": [200, 100]},
        {"borders": [20], "borderPositions": [900]},
        {"borders": [20, 30], "borderPositions": [100]},
        {"beforeEpoch": 5, "endEpoch": 4},
    ],
)
def test_range_size_answer_with_impossible_offsets_is_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="the node"):
        facts_of(head(rangeBytes=900, **fields), 10, 40)
