"""Test the codec that is derived from a dataclass and a protobuf message."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.message_codec import MessageCodec


@dataclass(frozen=True)
class _Report:
    node: str
    number: int
    reason: str = ""


@dataclass(frozen=True)
class _Short:
    node: str


@pytest.mark.parametrize(("kind", "field"), [(_Report, "reason"), (_Short, "number")])
def test_message_codec_of_a_class_and_a_protobuf_message_with_different_fields_raises_type_error(
    kind: type, field: str
) -> None:
    with pytest.raises(TypeError, match=field):
        MessageCodec(kind, pb.PurgedBy)


def test_message_codec_does_not_encode_an_excluded_field() -> None:
    codec = MessageCodec(_Short, pb.PurgedBy, wire_only=("number",))
    assert codec.from_pb(pb.PurgedBy(node="n1", number=7)) == _Short("n1")
    assert codec.to_pb(_Short("n1")) == pb.PurgedBy(node="n1")
