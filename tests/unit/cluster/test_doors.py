"""The table of who may ask for what is whole: a kind of request that is in no row is refused, and none is in two."""

from __future__ import annotations

import pytest

from liftpy.cluster.batches import BATCHED
from liftpy.cluster.doors import ASKER, BY_NOBODY_ELSE, OPERATORS, READS, Door, refusal
from liftpy.wire._pb import cluster_pb2 as pb

KINDS = {field.name for field in pb.ControlRequest.DESCRIPTOR.oneofs_by_name["request"].fields}


def test_every_kind_of_request_is_in_one_row() -> None:
    rows = [*READS, *OPERATORS, *ASKER, *BY_NOBODY_ELSE, "batch", "barrier"]
    assert sorted(rows) == sorted(KINDS)


def test_who_asks_is_a_field_of_the_request() -> None:
    for kind, name in ASKER.items():
        assert name in pb.ControlRequest.DESCRIPTOR.fields_by_name[kind].message_type.fields_by_name, kind


@pytest.mark.parametrize("kind", sorted(KINDS - READS))
@pytest.mark.parametrize("door", list(Door))
def test_nobody_speaks_for_somebody_else(door: Door, kind: str) -> None:
    request = pb.ControlRequest()
    getattr(request, kind).SetInParent()
    if kind in ASKER:
        setattr(getattr(request, kind), ASKER[kind], "n1")
    allowed = {
        Door.INFO: frozenset[str](),
        Door.ADMIN: OPERATORS,
        Door.NODE: frozenset({*ASKER, "batch", "barrier"}),
    }[door]
    assert (refusal(door, "n1", request) == "") is (kind in allowed)
    if kind in ASKER:
        assert refusal(door, "n2", request)
    if kind in BATCHED:
        assert (refusal(door, "n1", pb.ControlRequest(batch={"requests": [{"request": request}]})) == "") is (
            kind in ASKER and door is Door.NODE
        )
