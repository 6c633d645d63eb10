"""Test the idempotency cache, and the process in a data directory."""

from __future__ import annotations

from typing import Any

from liftpy.core.metadata.image import NodeImage
from liftpy.core.metadata.node_identity import ProcessRelation, compare_processes
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each


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
