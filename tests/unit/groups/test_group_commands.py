"""Test the bytes of group commands, and the rejection of malformed commands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftpy.core.groups import commands
from liftpy.core.groups.commands import (
    GroupCommandError,
    decode_answer,
    decode_command,
    decode_query,
    decode_query_answer,
    encode_command,
    partition_of,
    uid_order,
)
from liftpy.core.wire._pb import group_pb2 as pb
from tests.each import each

STREAM = pb.KnownStream(name="orders", uid="00000a-1", partitions=4)
AT = pb.GroupPosition(stream="orders", uid="00000a-1", partition=3, position=17, leaderEpoch=2, generation=5)
OWNED = pb.GrantedPartitions(stream="orders", uid="00000a-1", partitions=[0, 2], generations=[1, 4])
ACK = pb.Settlement(kind=pb.SETTLE_ACK, stream="orders", uid="00000a-1", ranges=[pb.RecordRange(start=0, end=10, lease=1)])
TAKE = pb.TakeRecords(member="m1", stream="orders", uid="00000a-1", maxRecords=100, logEnd=1000)
ALL = [
    pb.GroupCommand(group="g", join=pb.JoinGroup(member="m1", instance="i", client="host:1", streams=[STREAM])),
    pb.GroupCommand(group="g", number=7, beat=pb.BeatGroup(member="m1", generation=3, owned=[OWNED])),
    pb.GroupCommand(
        group="g",
        beat=pb.BeatGroup(member="m1", tellsStreams=True, streams=[STREAM]),
        commit=pb.CommitPositions(member="m1", positions=[AT]),
    ),
    pb.GroupCommand(group="g", leave=pb.LeaveGroup(member="m1"), commit=pb.CommitPositions(member="m1", positions=[AT])),
    pb.GroupCommand(group="g", commit=pb.CommitPositions(positions=[AT])),
    pb.GroupCommand(
        group="g", reset=pb.ResetPositions(positions=[pb.GroupPosition(stream="s", uid="u", partition=0, position=-1)])
    ),
    pb.GroupCommand(group="g", delete=pb.DeleteGroup()),
    pb.GroupCommand(group="g", settle=pb.SettleRecords(member="m1", settlements=[ACK]), take=TAKE),
]


@each("command", ALL)
def test_group_commands_decode_to_equal_commands(command: pb.GroupCommand) -> None:
    assert decode_command(encode_command(command)) == command


def _changed(command: pb.GroupCommand, change: Callable[[pb.GroupCommand], object]) -> pb.GroupCommand:
    copy = pb.GroupCommand()
    copy.CopyFrom(command)
    change(copy)
    return copy


REFUSED: list[tuple[int, str, Callable[[pb.GroupCommand], object]]] = [
    (0, "group ''. Use", lambda c: setattr(c, "group", "")),
    (0, "group 'a b'. Use", lambda c: setattr(c, "group", "a b")),
    (0, "member", lambda c: setattr(c.join, "member", "")),
    (0, "instance", lambda c: setattr(c.join, "instance", "a.b")),
    (0, "client", lambda c: setattr(c.join, "client", "a\nb")),
    (0, "client", lambda c: setattr(c.join, "client", "a" * 129)),
    (0, "sessionMs = 2999", lambda c: setattr(c.join, "sessionMs", 2999)),
    (0, "sessionMs = 3600001", lambda c: setattr(c.join, "sessionMs", 3_600_001)),
    (0, "partitions = 0", lambda c: setattr(c.join.streams[0], "partitions", 0)),
    (0, "twice", lambda c: c.join.streams.append(STREAM)),
    (0, "65 streams", lambda c: c.join.streams.extend(pb.KnownStream(name=f"s{n}", uid="u", partitions=1) for n in range(64))),
    (0, "4000 partitions", lambda c: c.join.streams.append(pb.KnownStream(name="x", uid="u", partitions=3997))),
    (0, "one action", lambda c: c.leave.SetInParent()),
    (0, "one action", lambda c: c.ClearField("join")),
    (1, "tellsStreams", lambda c: c.beat.streams.append(STREAM)),
    (1, "twice", lambda c: c.beat.owned.append(OWNED)),
    (1, "generations", lambda c: c.beat.owned[0].generations.append(1)),
    (1, "bytes, at most", lambda c: c.beat.owned.extend(
        pb.GrantedPartitions(stream=f"{n:064}", uid="u" * 64, partitions=[0]) for n in range(3900)
    )),
    (3, "position = -1", lambda c: setattr(c.commit.positions[0], "position", -1)),
    (3, "uid", lambda c: setattr(c.commit.positions[0], "uid", "../x")),
    (3, "twice", lambda c: c.commit.positions.append(AT)),
    (4, "0 positions", lambda c: c.commit.ClearField("positions")),
    (4, "partition = 4000", lambda c: setattr(c.commit.positions[0], "partition", 4000)),
    (5, "position = -2", lambda c: setattr(c.reset.positions[0], "position", -2)),
    (7, "kind = 0", lambda c: setattr(c.settle.settlements[0], "kind", 0)),
    (7, "Invalid range", lambda c: setattr(c.settle.settlements[0].ranges[0], "end", 0)),
    (7, "Invalid range", lambda c: c.settle.settlements[0].ranges.append(pb.RecordRange(start=9, end=11))),
    (7, "delayMs", lambda c: setattr(c.settle.settlements[0], "delayMs", commands.MAX_DELAY_MS + 1)),
    (7, "reason", lambda c: setattr(c.settle.settlements[0], "reason", "é" * 101)),
    (7, "0 settlements", lambda c: c.settle.ClearField("settlements")),
    (7, "10000 ranges", lambda c: c.settle.settlements[0].ranges.extend([pb.RecordRange(start=0, end=1)] * 10_000)),
    (7, "maxRecords = 0", lambda c: setattr(c.take, "maxRecords", 0)),
    (7, "ackWaitMs = 99", lambda c: setattr(c.take, "ackWaitMs", 99)),
    (7, "maxDeliveries", lambda c: setattr(c.take, "maxDeliveries", commands.MAX_MAX_DELIVERIES + 1)),
    (7, "logEnd = -1", lambda c: setattr(c.take, "logEnd", -1)),
]  # fmt: skip


@each(("number", "text", "change"), REFUSED)
def test_group_command_that_is_malformed_is_rejected_by_client_and_coordinator(
    number: int, text: str, change: Callable[[pb.GroupCommand], object]
) -> None:
    command = _changed(ALL[number], change)
    for door in (lambda: encode_command(command), lambda: decode_command(command.SerializeToString())):
        with pytest.raises(GroupCommandError) as refused:
            door()
        assert text in str(refused.value)


def test_group_command_decoding_of_invalid_bytes_raises_group_command_error() -> None:
    for door in (decode_command, decode_answer, decode_query, decode_query_answer):
        with pytest.raises(GroupCommandError):
            door(b"\xff\xff\xff")
    with pytest.raises(GroupCommandError, match="limit"):
        decode_query(pb.GroupQuery(limit=1001).SerializeToString())


def test_group_partition_number_of_a_group_name_never_changes() -> None:
    """Clients of all versions send the commands of a group to one partition."""
    assert [partition_of(name, count) for name, count in (("billing", 1), ("billing", 4), ("billing", 7), ("g", 16))] == [
        0,
        0,
        4,
        8,
    ]


def test_group_stream_uid_of_a_later_stream_has_a_greater_order() -> None:
    assert uid_order("00000a-2") < uid_order("00000b-1") < uid_order("fffffff-1") < uid_order("10000000-1")
    assert uid_order("xyz") < uid_order("xyzz") < uid_order("0-1")


def test_group_heartbeat_interval_is_a_sixth_of_the_session_and_at_most_a_second() -> None:
    assert [commands.heartbeat_ms(session_ms) for session_ms in (3000, 6000, 60_000)] == [500, 1000, 1000]
