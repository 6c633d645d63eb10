"""Test the check of a message that is derived from the bounds in its .proto file."""

from __future__ import annotations

import pytest

from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.field_bounds import bounds_of, checker, max_text_of
from liftpy.errors import ProtocolError

_check_join = checker(pb.JoinGroup, ProtocolError)
STREAM = pb.KnownStream(name="orders", uid="00a-1", partitions=1)


@pytest.mark.parametrize(
    ("join", "text"),
    [
        (pb.JoinGroup(member="a b"), "member"),
        (pb.JoinGroup(member="m", client="\n"), "client"),
        (pb.JoinGroup(member="m", sessionMs=2999), "sessionMs = 2999 is outside 3000..3600000"),
        (pb.JoinGroup(member="m", streams=[pb.KnownStream(name="orders", uid="u")]), "partitions = 0"),
        (pb.JoinGroup(member="m", streams=[pb.KnownStream(name="", uid="u", partitions=1)]), "stream ''"),
        (pb.JoinGroup(member="m", streams=[STREAM] * 65), "65 streams"),
    ],
)
def test_checker_rejects_a_message_with_a_field_out_of_its_bounds_at_any_depth(join: pb.JoinGroup, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        _check_join(join)


def test_checker_accepts_bounds_defaults_and_messages_without_bounds() -> None:
    _check_join(pb.JoinGroup(member="m", sessionMs=3000, streams=[STREAM] * 64))
    _check_join(pb.JoinGroup(member="m", instance="", sessionMs=0))
    checker(pb.GroupAnswer, ProtocolError)(pb.GroupAnswer(code=pb.GROUP_OK, waitMs=2**32 - 1))


def test_bounds_of_a_field_without_bounds_raises_type_error() -> None:
    assert bounds_of(pb.TakeRecords, "ackWaitMs") == (100, 12 * 3_600_000)
    assert bounds_of(pb.GroupPosition, "position") == (-1, 2**63 - 1)
    assert max_text_of(pb.Settlement, "reason") == 200
    with pytest.raises(TypeError, match="number"):
        bounds_of(pb.GroupCommand, "number")
    with pytest.raises(TypeError, match="detail"):
        max_text_of(pb.GroupAnswer, "detail")
