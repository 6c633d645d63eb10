"""Test that recorded entries still lead to the recorded digests (``tests/replay``)."""

from __future__ import annotations

import operator

import pytest

from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import BOTH, NEXT
from tests.replay.corpus import FOLDER, differences, digests_of, read_entries


@pytest.mark.parametrize("level", range(SUPPORTED_LEVELS.least, SUPPORTED_LEVELS.most + 1))
def test_recorded_entries_of_each_feature_level_give_the_recorded_digests(level: int) -> None:
    assert differences(level) == [], (
        "the same entries come to something else: that needs a new feature level (liftpy/core/metadata/features.py), and a branch on it"
    )


def test_recorded_entries_of_two_equal_feature_levels_differ_only_in_the_level_number() -> None:
    history = next(read_entries())[:100]
    now, later = (digests_of(history, level, BOTH) for level in (SUPPORTED_LEVELS.most, NEXT.level))
    assert now == digests_of(history, SUPPORTED_LEVELS.most)
    assert all(map(operator.ne, now, later)), "the image holds its level"


def test_recorded_entries_contain_every_kind_of_control_request() -> None:
    kinds = set[str]()
    for history in read_entries():
        for entry in history:
            request = pb.ControlRequest.FromString(entry)
            parts = [item.request for item in request.batch.requests] or [request]
            kinds |= {part.WhichOneof("request") or "" for part in parts}
    every = {field.name for field in pb.ControlRequest.DESCRIPTOR.oneofs_by_name["request"].fields}
    changes_nothing = {"describeCluster", "heartbeat", "reportService"}
    assert every - kinds == {"batch", "changeControllers", "setFeatureLevel"} | changes_nothing
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 500_000
