"""Test windows of operations, pages, leases and sessions, and the process in a data directory."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.core.metadata.describe import MAX_PAGE_BYTES, page_bytes
from liftpy.core.metadata.idempotency_cache import MAX_STEP_NS, IdempotencyCache, Operation
from liftpy.core.metadata.image import NodeImage
from liftpy.core.metadata.node_identity import MAX_EARLIER_NONCES, DirectoryIdentity, ProcessRelation, compare_processes
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each


def test_idempotency_cache_is_bounded_and_keeps_operations_after_clock_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.core.metadata.idempotency_cache.MAX_SIZE_BYTES", 5000)
    window = IdempotencyCache()
    for number in range(40):
        window = window.with_operation(Operation(number.to_bytes(16, "big"), number, b"x" * 100))
        assert window.size_bytes == sum(len(o.response) + 400 for o in window) <= 5500
        assert window.get(number.to_bytes(16, "big")) is not None
    before = len(window)
    window = window.with_operation(Operation(b"y" * 16, 10**18, b""))
    assert len(window) >= before - 1, "a clock that leapt"
    assert next(reversed(list(window))).age_ns <= 40 + MAX_STEP_NS


@pytest.mark.parametrize(
    ("asked", "payload", "size"),
    [(0, 1 << 20, 128 << 10), (1 << 30, 1 << 21, MAX_PAGE_BYTES), (1 << 30, 100_000, 50_000), (1, 1 << 20, 512)],
)
def test_describe_pages_fit_into_a_nats_message(asked: int, payload: int, size: int) -> None:
    assert page_bytes(asked, payload) == size


def test_registration_after_many_unregistered_starts_counts_as_a_later_process_of_the_directory() -> None:
    starts = DirectoryIdentity("f").next(100).after_registration()
    for nonce in range(101, 101 + 3 * MAX_EARLIER_NONCES):
        starts = starts.next(nonce)
        assert len(starts.earlier) <= MAX_EARLIER_NONCES
        request = pb.RegisterNode()
        starts.write_to(request)
        known = NodeImage(node_id="a", incarnation=1, folder_id="f", start=1, nonce=100)
        assert compare_processes(known, request) is ProcessRelation.FOLLOWS, nonce


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
