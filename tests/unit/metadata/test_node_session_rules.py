"""Test the idempotency cache, and the process in a data directory."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.core.metadata.idempotency import MAX_STEP_NS, IdempotencyCache, Operation
from liftpy.core.metadata.image import NodeImage
from liftpy.core.metadata.node_identity import ProcessRelation, compare_processes
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each


def test_idempotency_cache_is_bounded_and_keeps_operations_after_clock_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.core.metadata.idempotency.MAX_SIZE_BYTES", 5000)
    window = IdempotencyCache()
    for number in range(40):
        window = window.with_operation(Operation(number.to_bytes(16, "big"), number, b"x" * 100))
        assert window.size_bytes == sum(len(o.response) + 400 for o in window) <= 5500
        assert window.get(number.to_bytes(16, "big")) is not None
    before = len(window)
    window = window.with_operation(Operation(b"y" * 16, 10**18, b""))
    assert len(window) >= before - 1, "a clock that leapt"
    assert next(reversed(list(window))).age_ns <= 40 + MAX_STEP_NS


@each(
    ("request_", "how"),
    [
        ({"start": 6, "nonce": 60, "earlierNonces": [40, 50]}, ProcessRelation.FOLLOWS),
        ({"start": 5, "nonce": 50}, ProcessRelation.SAME),
        ({"start": 4, "nonce": 40}, ProcessRelation.OUTDATED),
        ({"start": 4, "nonce": 41}, ProcessRelation.OLDER_COPY),
        ({"start": 6, "nonce": 60, "earlierNonces": [40]}, ProcessRelation.OLDER_COPY),
        ({"start": 5, "nonce": 51}, ProcessRelation.OLDER_COPY),
        ({"start": 6, "nonce": 60, "earlierNonces": [50], "folderId": "g"}, ProcessRelation.OLDER_COPY),
        ({"folderId": ""}, ProcessRelation.FOLLOWS),
    ],
)
def test_registration_is_classified_by_directory_start_count_and_nonce(request_: dict[str, Any], how: ProcessRelation) -> None:
    known = NodeImage(node_id="a", incarnation=3, folder_id="f", start=5, nonce=50, earlier_nonces=(30, 40))
    assert compare_processes(known, pb.RegisterNode(**({"nodeId": "a", "folderId": "f"} | request_))) is how
