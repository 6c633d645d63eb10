"""Which commands of groups are valid, written by hand, field by field. The fuzzer holds the check that the .proto declares against it.

The numbers are repeated here on purpose: a coordinator that takes other commands than the others of its cluster has another state.
"""

from __future__ import annotations

from collections.abc import Iterable

from liftpy.core.wire._pb import group_pb2 as pb
from tests.fuzz.meanings import is_name

_MAX_INT = 2**63 - 1
_ALONE = ({"commit"}, {"join"}, {"beat"}, {"leave"}, {"reset"}, {"delete"}, {"settle"}, {"take"}, {"open"})
_TOGETHER = (*_ALONE, {"commit", "beat"}, {"commit", "leave"}, {"settle", "take"})


def is_valid_command(command: pb.GroupCommand) -> bool:
    """Say whether a coordinator may look at the command at all."""
    return (
        is_name(command.group)
        and {field.name for field, _ in command.ListFields()} - {"group", "number"} in _TOGETHER
        and (
            not command.HasField("commit")
            or (_may_be_name(command.commit.member) and _are_positions(command.commit.positions, 0))
        )
        and (not command.HasField("join") or _is_join(command.join))
        and (not command.HasField("beat") or _is_beat(command.beat))
        and (not command.HasField("leave") or is_name(command.leave.member))
        and (not command.HasField("reset") or _are_positions(command.reset.positions, -1))
        and (not command.HasField("settle") or _is_settle(command.settle))
        and (not command.HasField("take") or _is_take(command.take))
    )


def is_valid_query(query: pb.GroupQuery) -> bool:
    """Say whether a coordinator answers the question."""
    return _may_be_name(query.group) and _may_be_name(query.after) and query.limit <= 1000


def _may_be_name(text: str) -> bool:
    return not text or is_name(text)


def _are_positions(positions: Iterable[pb.GroupPosition], lowest: int) -> bool:
    places = [(at.stream, at.uid, at.partition) for at in positions]
    return 1 <= len(places) <= 1000 and len(places) == len(set(places)) and all(
        is_name(at.stream) and is_name(at.uid) and lowest <= at.position and at.leaderEpoch <= _MAX_INT and at.partition < 4000
        for at in positions
    )  # fmt: skip


def _are_streams(streams: Iterable[pb.KnownStream]) -> bool:
    names = [stream.name for stream in streams]
    return (
        len(names) == len(set(names)) <= 64
        and sum(stream.partitions for stream in streams) <= 4000
        and all(is_name(s.name) and is_name(s.uid) and s.partitions >= 1 for s in streams)
    )


def _is_join(join: pb.JoinGroup) -> bool:
    return (
        is_name(join.member)
        and _may_be_name(join.instance)
        and len(join.client) <= 128
        and join.client.isprintable()
        and (join.sessionMs == 0 or 3000 <= join.sessionMs <= 3_600_000)
        and _are_streams(join.streams)
    )


def _is_beat(beat: pb.BeatGroup) -> bool:
    owned = [(part.stream, part.uid, number) for part in beat.owned for number in part.partitions]
    return (
        is_name(beat.member)
        and _may_be_name(beat.instance)
        and _are_streams(beat.streams)
        and (beat.tellsStreams or not beat.streams)
        and all(is_name(part.stream) and is_name(part.uid) for part in beat.owned)
        and all(not part.generations or len(part.generations) == len(part.partitions) for part in beat.owned)
        and len(owned) == len(set(owned)) <= 4000
    )


def _is_settle(settle: pb.SettleRecords) -> bool:
    for part in settle.settlements:
        edges = [edge for piece in part.ranges for edge in (piece.start, piece.end)]
        if not (
            is_name(part.stream)
            and is_name(part.uid)
            and part.partition < 4000
            and part.delayMs <= 24 * 3_600_000
            and 1 <= part.kind <= 5
            and len(part.reason.encode()) <= 200
            and edges == sorted(edges)
            and all(0 <= piece.start < piece.end for piece in part.ranges)
        ):
            return False
    count = sum(len(part.ranges) for part in settle.settlements)
    return is_name(settle.member) and 1 <= len(settle.settlements) <= 64 and count <= 10_000


def _is_take(take: pb.TakeRecords) -> bool:
    return (
        is_name(take.member)
        and is_name(take.stream)
        and is_name(take.uid)
        and take.partition < 4000
        and 1 <= take.maxRecords <= 10_000
        and min(take.begin, take.logStart, take.logEnd, take.keysFrom) >= 0
        and len(take.keys) <= 10_000
        and (take.ordered or not take.keys)
        and take.partitions <= 4000
        and (take.ackWaitMs == 0 or 100 <= take.ackWaitMs <= 12 * 3_600_000)
        and take.maxDeliveries <= 1_000_000
        and max(take.maxAckPending, take.maxMemberPending) <= 100_000
    )
