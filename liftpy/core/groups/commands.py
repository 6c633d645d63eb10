"""Commands to the coordinator and its answers as bytes. Both sides validate them. Pure.

``decode_command`` checks names and bounds, and that no partition occurs twice. The machine checks whether a command fits its state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import crc32c
from google.protobuf.message import DecodeError, Message

from liftpy.core.base.ids import is_name, shown
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.errors import ProtocolError

_MAX_INT = (1 << 63) - 1
_ORDER = ("commit", "join", "beat", "leave", "reset", "delete", "settle", "take", "open")
_TOGETHER = ({"commit", "beat"}, {"commit", "leave"}, {"settle", "take"})
M = TypeVar("M", bound=Message)


class GroupCommandError(ProtocolError):
    """Raised for an invalid command, answer or question of a group. The text says what is allowed."""

    code = "GROUP_MALFORMED"


def partition_of(group: str, partitions: int) -> int:
    """Return the partition of the internal stream that has the commands of ``group``."""
    return int(crc32c.crc32c(group.encode())) % partitions


def uid_order(uid: str) -> tuple[int, str]:
    """Return a sort key: the later of two uids of one stream name is greater."""
    number = uid.partition("-")[0]
    digits = number if 0 < len(number) <= 16 and all(digit in "0123456789abcdef" for digit in number) else ""
    return (int(digits, 16) if digits else -1, uid)


def encode_command(command: pb.GroupCommand) -> bytes:
    """Encode a command. Raise GroupCommandError if the coordinator would reject it as malformed."""
    check_command(command)
    data = command.SerializeToString(deterministic=True)
    if len(data) > MAX_COMMAND_BYTES:
        raise GroupCommandError(
            f"The group command has {len(data)} bytes, at most {MAX_COMMAND_BYTES} are allowed. Commit fewer positions at once."
        )
    return data


def decode_command(data: bytes | memoryview) -> pb.GroupCommand:
    """Decode and validate a command. Raises only GroupCommandError."""
    if len(data) > MAX_COMMAND_BYTES:
        raise GroupCommandError(
            f"The group command has {len(data)} bytes, at most {MAX_COMMAND_BYTES} are allowed. Send less at once."
        )
    command = _parsed(data, pb.GroupCommand)
    check_command(command)
    return command


def decode_answer(data: bytes | memoryview) -> pb.GroupAnswer:
    """Decode an answer of the coordinator. Raises GroupCommandError."""
    return _parsed(data, pb.GroupAnswer)


def decode_query(data: bytes | memoryview) -> pb.GroupQuery:
    """Return a question, checked. Raises GroupCommandError."""
    query = _parsed(data, pb.GroupQuery)
    for name in filter(None, (query.group, query.after)):
        _name(name, "group")
    _within("limit", query.limit, 0, MAX_LIST)
    return query


def decode_query_answer(data: bytes | memoryview) -> pb.GroupQueryAnswer:
    """Return the answer to a question. Raises GroupCommandError."""
    return _parsed(data, pb.GroupQueryAnswer)


def check_command(command: pb.GroupCommand) -> None:
    """Raise GroupCommandError if the command is invalid in any state."""
    _name(command.group, "group")
    parts = {name for name in _ORDER if command.HasField(name)}
    if len(parts) != 1 and parts not in _TOGETHER:
        raise GroupCommandError(
            f"Invalid group command: it combines {sorted(parts)}. Only one action, or "
            f"{' or '.join('+'.join(sorted(t)) for t in _TOGETHER)}, is allowed."
        )
    if command.HasField("commit"):
        _optional_name(command.commit.member, "member")
        _positions(command.commit.positions, 0)
    if command.HasField("join"):
        _join(command.join)
    if command.HasField("beat"):
        _beat(command.beat)
    if command.HasField("leave"):
        _name(command.leave.member, "member")
    if command.HasField("reset"):
        _positions(command.reset.positions, -1)
    if command.HasField("settle"):
        _settle(command.settle)
    if command.HasField("take"):
        _take(command.take)


def _parsed(data: bytes | memoryview, expected: type[M]) -> M:
    try:
        return expected.FromString(bytes(data))
    except (DecodeError, ValueError) as error:
        raise GroupCommandError(
            f"Cannot decode the group command as {expected.__name__}: {error}. Check the version of the client."
        ) from None


def _join(join: pb.JoinGroup) -> None:
    _name(join.member, "member")
    _optional_name(join.instance, "instance")
    if len(join.client) > MAX_CLIENT_LENGTH or not join.client.isprintable():
        raise GroupCommandError(f"Invalid client name. Use at most {MAX_CLIENT_LENGTH} printable characters.")
    if join.sessionMs:
        _within("sessionMs", join.sessionMs, MIN_SESSION_MS, MAX_SESSION_MS)
    _streams(join.streams)


def _beat(beat: pb.BeatGroup) -> None:
    _name(beat.member, "member")
    _optional_name(beat.instance, "instance")
    _streams(beat.streams)
    if beat.streams and not beat.tellsStreams:
        raise GroupCommandError("Invalid group command: streams without tellsStreams. Check the version of the client.")
    seen: set[tuple[str, str, int]] = set()
    for owned in beat.owned:
        _name(owned.stream, "stream")
        _name(owned.uid, "uid")
        if owned.generations and len(owned.generations) != len(owned.partitions):
            raise GroupCommandError(
                "Invalid group command: the numbers of generations and partitions differ. Check the version of the client."
            )
        for partition in owned.partitions:
            _once(seen, (owned.stream, owned.uid, partition), "owned")


def _streams(streams: Iterable[pb.KnownStream]) -> None:
    names: set[tuple[str, str, int]] = set()
    total = 0
    for stream in streams:
        _name(stream.name, "stream")
        _name(stream.uid, "uid")
        _within("partitions", stream.partitions, 1, MAX_PARTITIONS)
        _once(names, (stream.name, "", 0), "streams")
        total += stream.partitions
    if len(names) > MAX_STREAMS or total > MAX_PARTITIONS:
        raise GroupCommandError(
            f"A group member can read at most {MAX_STREAMS} streams with {MAX_PARTITIONS} partitions. Use several groups."
        )


def _positions(positions: Iterable[pb.GroupPosition], lowest: int) -> None:
    seen: set[tuple[str, str, int]] = set()
    for at in positions:
        _name(at.stream, "stream")
        _name(at.uid, "uid")
        _within("position", at.position, lowest, _MAX_INT)
        _within("leaderEpoch", at.leaderEpoch, 0, _MAX_INT)
        _within("partition", at.partition, 0, MAX_PARTITIONS - 1)
        _once(seen, (at.stream, at.uid, at.partition), "positions")
    if not 0 < len(seen) <= MAX_POSITIONS:
        raise GroupCommandError(
            f"A commit or a reset must have 1 to {MAX_POSITIONS} positions, not {len(seen)}. Divide it into several requests."
        )


def _settle(settle: pb.SettleRecords) -> None:
    _name(settle.member, "member")
    _within("settlements", len(settle.settlements), 1, MAX_SETTLEMENTS)
    count = 0
    for part in settle.settlements:
        _name(part.stream, "stream")
        _name(part.uid, "uid")
        _within("partition", part.partition, 0, MAX_PARTITIONS - 1)
        _within("delayMs", part.delayMs, 0, MAX_DELAY_MS)
        _within("kind", part.kind, pb.SETTLE_ACK, pb.SETTLE_RELEASE)
        if len(part.reason.encode()) > MAX_REASON_BYTES:
            raise GroupCommandError(f"The reason is too long. Use at most {MAX_REASON_BYTES} bytes.")
        count += len(part.ranges)
        if count > MAX_RANGES:
            raise GroupCommandError(f"A request can settle at most {MAX_RANGES} ranges. Divide it into several requests.")
        behind = 0
        for piece in part.ranges:
            if not behind <= piece.start < piece.end:
                raise GroupCommandError(
                    f"Invalid range {piece.start}..{piece.end}. Ranges must be ascending, and each must end after its start."
                )
            behind = piece.end


def _take(take: pb.TakeRecords) -> None:
    _name(take.member, "member")
    _name(take.stream, "stream")
    _name(take.uid, "uid")
    _within("partition", take.partition, 0, MAX_PARTITIONS - 1)
    _within("maxRecords", take.maxRecords, 1, MAX_TAKE)
    _within("begin", take.begin, 0, _MAX_INT)
    _within("logStart", take.logStart, 0, _MAX_INT)
    _within("logEnd", take.logEnd, 0, _MAX_INT)
    _within("keysFrom", take.keysFrom, 0, _MAX_INT)
    _within("keys", len(take.keys), 0, MAX_KEYS)
    _within("partitions", take.partitions, 0, MAX_PARTITIONS)
    if take.keys and not take.ordered:
        raise GroupCommandError("Invalid group command: keys need ordered. Check the version of the client.")
    for name, value, low, high in (
        ("ackWaitMs", take.ackWaitMs, MIN_ACK_WAIT_MS, MAX_ACK_WAIT_MS),
        ("maxDeliveries", take.maxDeliveries, 1, MAX_MAX_DELIVERIES),
        ("maxAckPending", take.maxAckPending, 1, MAX_MAX_PENDING),
        ("maxMemberPending", take.maxMemberPending, 1, MAX_MAX_PENDING),
    ):
        if value:
            _within(name, value, low, high)


def _once(seen: set[tuple[str, str, int]], key: tuple[str, str, int], what: str) -> None:
    if key in seen:
        raise GroupCommandError(f"{what} names {key[0]}/{key[2]} twice. Name each partition once.")
    seen.add(key)
    if len(seen) > MAX_PARTITIONS:
        raise GroupCommandError(f"{what} names more than {MAX_PARTITIONS} partitions. Use several groups.")


def _name(name: str, what: str) -> None:
    if not is_name(name):
        raise GroupCommandError(f"Invalid {what} {shown(name)}. Use 1 to 64 of the characters A-Z a-z 0-9 _ -.")


def _optional_name(name: str, what: str) -> None:
    if name:
        _name(name, what)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise GroupCommandError(f"{name} = {value} is outside {low}..{high}. Choose a value in this range.")


# Limits of groups and queues: commands, groups, and the state of the coordinator. Times are ns or ms, as named.


NS_PER_MS = 1_000_000

MAX_COMMAND_BYTES = 512 * 1024
MAX_STREAMS = 64
"""Maximum number of streams that one member reads."""
MAX_PARTITIONS = 4_000
"""Most partitions that the streams of one group may have in all."""
MAX_POSITIONS = 1_000
"""Most positions in one command."""
MAX_RANGES = 10_000
"""Most ranges in one settlement."""
MAX_SETTLEMENTS = 64
MAX_TAKE = 10_000
"""Most records of one take."""
MAX_GRANTED_RANGES = 500
"""Maximum number of record ranges that one take returns, so that the answer fits into one message."""
MAX_LOST_RANGES = 1_000
"""Maximum number of lost ranges that one answer names."""
MAX_CLIENT_LENGTH = 128
MAX_REASON_BYTES = 200
MAX_LIST = 1000
MAX_HOLDERS = 50
"""Workers of one queue that an operator is shown."""

MAX_GROUPS = 10_000
"""Most groups of one coordinator. It has one partition of the stream of groups."""
MAX_MEMBERS = 1000
"""Most members of one group."""
MAX_SUBSCRIPTIONS = 16_000
"""Maximum number of streams of all members of one group. Each change of a member assigns all of them again."""
MAX_QUEUES = 1000
"""Maximum number of partitions for which one group has a queue."""
MAX_QUEUE_RANGES = 20_000
"""Maximum number of ranges in the state of one queue. Beyond it no new records are given until some are settled."""
MAX_KEYS = 10_000
"""Maximum number of new record keys that one take sends."""
MAX_HELD = 10_000
"""Records of one queue that wait for an earlier one of their key: beyond them nothing new is given, until some are free."""
MAX_STATE_BYTES = 64 * 1024 * 1024
"""Limit of the coordinator's state, as ``machine`` estimates it. Beyond it the coordinator accepts nothing new."""

SESSION_MS = 10_000
MIN_SESSION_MS = 3_000
MAX_SESSION_MS = 3_600_000
MAX_HEARTBEAT_MS = 1_000
FEW_MEMBERS = 32
QUICK_HEARTBEAT_MS = 500
"""Heartbeat interval in a group with at most ``FEW_MEMBERS`` members, in ms. They learn a new assignment sooner."""
WAITING_HEARTBEAT_MS = 200
"""Heartbeat interval of a member that waits until another member gives partitions up."""
FENCE_MS = 2_000
"""Time between the end of a session for the member and for the coordinator, in ms. It covers differences between clocks."""
MAX_CLOCK_STEP_MS = 1_000
"""Maximum time that passes between two records, in ms. While the coordinator was away, no heartbeat could arrive."""

ACK_WAIT_MS = 30_000
MIN_ACK_WAIT_MS = 100
MAX_ACK_WAIT_MS = 12 * 3_600_000
MAX_DELAY_MS = 24 * 3_600_000
MAX_DELIVERIES = 5
MAX_MAX_DELIVERIES = 1_000_000
MAX_ACK_PENDING = 20_000
MAX_MEMBER_PENDING = 10_000
MAX_MAX_PENDING = 100_000


def heartbeat_ms(session_ms: int) -> int:
    """Return the heartbeat interval of a member: at most a sixth of the session and ``MAX_CLOCK_STEP_MS``."""
    return min(MAX_HEARTBEAT_MS, session_ms // 6)
