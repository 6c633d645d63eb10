"""Test the limits of every field of a control request, maps included."""

from __future__ import annotations

from liftpy.core.metadata.request_limits import MAX_LIST_LENGTH, MAX_TEXT_BYTES, fit
from liftpy.core.wire._pb import cluster_pb2 as pb


def change(incarnations: dict[str, int]) -> pb.ControlRequest:
    request = pb.ControlRequest()
    field = next(
        field
        for field in request.DESCRIPTOR.fields
        if field.message_type and "incarnations" in field.message_type.fields_by_name
    )
    asked = getattr(request, field.name)
    asked.SetInParent()
    for node, incarnation in incarnations.items():
        asked.incarnations[node] = incarnation
    return request


def test_control_request_with_a_too_large_map_field_is_rejected() -> None:
    assert fit(change({"n1": 3, "n2": 7}), 100) == ""
    assert "longer than" in fit(change({"n1": 3, "x" * (MAX_TEXT_BYTES + 1): 1}), 2000)
    assert "items" in fit(change({f"n{number}": 1 for number in range(MAX_LIST_LENGTH + 1)}), 2000)
