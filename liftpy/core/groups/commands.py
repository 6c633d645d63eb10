"""Commands to the coordinator and its answers as bytes. Both sides validate them. Pure.

``decode_command`` checks names, the bounds of numbers, and that no partition is named twice. The ``GroupMachine`` checks
whether the command fits the current state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import crc32c
from google.protobuf.message import DecodeError, Message

from liftpy.core.base.ids import is_name, quote
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.errors import ProtocolError

_MAX_INT = (1 << 63) - 1
_ORDER = ("commit", "join", "beat", "leave", "reset", "delete", "settle", "take", "open")
_TOGETHER = ({"commit", "beat"}, {"commit", "leave"}, {"settle", "take"})
M = TypeVar("M", bound=Message)


class GroupCommandError(ProtocolError):
    """Raised for an invalid command, answer or query of a group. The text says what is allowed."""

    code = "GROUP_MALFORMED"


def partition_of(group: str, partitions: int) -> int:
    """Return the number of the partition, 0 to ``partitions`` - 1, to which members of ``group`` publish their commands.

    ``partitions``: number of partitions of the internal stream of commands.
    """
    return int(crc32c.crc32c(group.encode())) % partitions


def uid_order(uid: str) -> tuple[int, str]:
    """Return a sort key for stream uids. If a stream is deleted and created again, its new uid has a greater key."""
    number = uid.partition("-")[0]
    digits = number if 0 < len(number) <= 16 and all(digit in "0123456789abcdef" for digit in number) else ""
    return (int(digits, 16) if digits else -1, uid)


def encode_command(command: pb.GroupCommand) -> bytes:
    """Encode a command of a group as bytes. Raise GroupCommandError if the coordinator would reject it as malformed."""
    check_command(command)
    data = command.SerializeToString(deterministic=True)
    if len(data) > MAX_COMMAND_BYTES:
        raise GroupCommandError(
            f"The group command has {len(data)} bytes, at most {MAX_COMMAND_BYTES} are allowed. Commit fewer positions at once."
        )
    return data


def decode_command(data: bytes | memoryview) -> pb.GroupCommand:
    """Decode and validate a command of a group. Raises only GroupCommandError."""
    if len(data) > MAX_COMMAND_BYTES:
        raise GroupCommandError(
            f"The group command has {len(data)} bytes, at most {MAX_COMMAND_BYTES} are allowed. Send less at once."
        )
    command = _parse(data, pb.GroupCommand)
    check_command(command)
    return command


def decode_answer(data: bytes | memoryview) -> pb.GroupAnswer:
    """Decode an answer of the coordinator. Raises GroupCommandError."""
    return _parse(data, pb.GroupAnswer)


def decode_query(data: bytes | memoryview) -> pb.GroupQuery:
    """Decode and validate a ``GroupQuery``. Raises GroupCommandError."""
    query = _parse(data, pb.GroupQuery)
    for name in filter(None, (query.group, query.after)):
        _check_name(name, "group")
    _check_bounds("limit", query.limit, 0, MAX_LIST)
    return query


def decode_query_answer(data: bytes | memoryview) -> pb.GroupQueryAnswer:
    """Decode the answer to a ``GroupQuery``. Raises GroupCommandError."""
    return _parse(data, pb.GroupQueryAnswer)


def check_command(command: pb.GroupCommand) -> None:
    """Raise GroupCommandError if the command can never be valid, whatever the state of the group is."""
    _check_name(command.group, "group")
    parts = {name for name in _ORDER if command.HasField(name)}
    if len(parts) != 1 and parts not in _TOGETHER:
        raise GroupCommandError(
            f"Invalid group command: it combines {sorted(parts)}. Only one action, or "
            f"{' or '.join('+'.join(sorted(t)) for t in _TOGETHER)}, is allowed. Use several commands."
        )
    if command.HasField("commit"):
        _check_optional_name(command.commit.member, "member")
        _check_positions(command.commit.positions, 0)
    if command.HasField("join"):
        _check_join(command.join)
    if command.HasField("beat"):
        _check_beat(command.beat)
    if command.HasField("leave"):
        _check_name(command.leave.member, "member")
    if command.HasField("reset"):
        _check_positions(command.reset.positions, -1)
    if command.HasField("settle"):
        _check_settle(command.settle)
    if command.HasField("take"):
        _check_take(command.take)


def _parse(data: bytes | memoryview, expected: type[M]) -> M:
    try:
        return expected.FromString(bytes(data))
    except (DecodeError, ValueError) as error:
        raise GroupCommandError(
            f"Cannot decode the group command as {expected.__name__}: {error}. Check the version of the client."
        ) from None


def _check_join(join: pb.JoinGroup) -> None:
    _check_name(join.member, "member")
    _check_optional_name(join.instance, "instance")
    if len(join.client) > MAX_CLIENT_LENGTH or not join.client.isprintable():
        raise GroupCommandError(f"Invalid client name. Use at most {MAX_CLIENT_LENGTH} printable characters.")
    if join.sessionMs:
        _check_bounds("sessionMs", join.sessionMs, MIN_SESSION_MS, MAX_SESSION_MS)
    _check_streams(join.streams)


def _check_beat(beat: pb.BeatGroup) -> None:
    _check_name(beat.member, "member")
    _check_optional_name(beat.instance, "instance")
    _check_streams(beat.streams)
    if beat.streams and not beat.tellsStreams:
        raise GroupCommandError(
            "Invalid group command: it names streams, but the field tellsStreams is not set. Check the version of the client."
        )
    seen: set[tuple[str, str, int]] = set()
    for owned in beat.owned:
        _check_name(owned.stream, "stream")
        _check_name(owned.uid, "uid")
        if owned.generations and len(owned.generations) != len(owned.partitions):
            raise GroupCommandError(
                "Invalid group command: the numbers of generations and partitions differ. Check the version of the client."
            )
        for partition in owned.partitions:
            _check_once(seen, (owned.stream, owned.uid, partition), "owned")


def _check_streams(streams: Iterable[pb.KnownStream]) -> None:
    names: set[tuple[str, str, int]] = set()
    total = 0
    for stream in streams:
        _check_name(stream.name, "stream")
        _check_name(stream.uid, "uid")
        _check_bounds("partitions", stream.partitions, 1, MAX_PARTITIONS)
        _check_once(names, (stream.name, "", 0), "streams")
        total += stream.partitions
    if len(names) > MAX_STREAMS or total > MAX_PARTITIONS:
        raise GroupCommandError(
            f"A group member can read at most {MAX_STREAMS} streams with {MAX_PARTITIONS} partitions. Use several groups."
        )


def _check_positions(positions: Iterable[pb.GroupPosition], lowest: int) -> None:
    seen: set[tuple[str, str, int]] = set()
    for at in positions:
        _check_name(at.stream, "stream")
        _check_name(at.uid, "uid")
        _check_bounds("position", at.position, lowest, _MAX_INT)
        _check_bounds("leaderEpoch", at.leaderEpoch, 0, _MAX_INT)
        _check_bounds("partition", at.partition, 0, MAX_PARTITIONS - 1)
        _check_once(seen, (at.stream, at.uid, at.partition), "positions")
    if not 0 < len(seen) <= MAX_POSITIONS:
        raise GroupCommandError(
            f"A commit or a reset must have 1 to {MAX_POSITIONS} positions, not {len(seen)}. Divide it into several requests."
        )


def _check_settle(settle: pb.SettleRecords) -> None:
    _check_name(settle.member, "member")
    _check_bounds("settlements", len(settle.settlements), 1, MAX_SETTLEMENTS)
    count = 0
    for part in settle.settlements:
        _check_name(part.stream, "stream")
        _check_name(part.uid, "uid")
        _check_bounds("partition", part.partition, 0, MAX_PARTITIONS - 1)
        _check_bounds("delayMs", part.delayMs, 0, MAX_DELAY_MS)
        _check_bounds("kind", part.kind, pb.SETTLE_ACK, pb.SETTLE_RELEASE)
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


def _check_take(take: pb.TakeRecords) -> None:
    _check_name(take.member, "member")
    _check_name(take.stream, "stream")
    _check_name(take.uid, "uid")
    _check_bounds("partition", take.partition, 0, MAX_PARTITIONS - 1)
    _check_bounds("maxRecords", take.maxRecords, 1, MAX_TAKE)
    _check_bounds("begin", take.begin, 0, _MAX_INT)
    _check_bounds("logStart", take.logStart, 0, _MAX_INT)
    _check_bounds("logEnd", take.logEnd, 0, _MAX_INT)
    _check_bounds("keysFrom", take.keysFrom, 0, _MAX_INT)
    _check_bounds("keys", len(take.keys), 0, MAX_KEYS)
    _check_bounds("partitions", take.partitions, 0, MAX_PARTITIONS)
    if take.keys and not take.ordered:
        raise GroupCommandError(
            "Invalid group command: it has keys, but the field ordered is not set. Check the version of the client."
        )
    for name, value, low, high in (
        ("ackWaitMs", take.ackWaitMs, MIN_ACK_WAIT_MS, MAX_ACK_WAIT_MS),
        ("maxDeliveries", take.maxDeliveries, 1, MAX_MAX_DELIVERIES),
        ("maxAckPending", take.maxAckPending, 1, MAX_MAX_PENDING),
        ("maxMemberPending", take.maxMemberPending, 1, MAX_MAX_PENDING),
    ):
        if value:
            _check_bounds(name, value, low, high)


def _check_once(seen: set[tuple[str, str, int]], key: tuple[str, str, int], what: str) -> None:
    if key in seen:
        raise GroupCommandError(f"{what} names {key[0]}/{key[2]} twice. Name each partition once.")
    seen.add(key)
    if len(seen) > MAX_PARTITIONS:
        raise GroupCommandError(f"{what} names more than {MAX_PARTITIONS} partitions. Use several groups.")


def _check_name(name: str, what: str) -> None:
    if not is_name(name):
        raise GroupCommandError(f"Invalid {what} {quote(name)}. Use 1 to 64 of the characters A-Z a-z 0-9 _ -.")


def _check_optional_name(name: str, what: str) -> None:
    if name:
        _check_name(name, what)


def _check_bounds(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise GroupCommandError(f"{name} = {value} is outside {low}..{high}. Choose a value in this range.")


# Limits of commands, of groups and queues, and of the coordinator's state. The names of times end with their unit.


NS_PER_MS = 1_000_000

MAX_COMMAND_BYTES = 512 * 1024
MAX_STREAMS = 64
"""Maximum number of streams that one member reads."""
MAX_PARTITIONS = 4_000
"""Maximum number of partitions of all streams that one group reads."""
MAX_POSITIONS = 1_000
"""Maximum number of positions in one command."""
MAX_RANGES = 10_000
"""Maximum number of ranges in one settlement."""
MAX_SETTLEMENTS = 64
MAX_TAKE = 10_000
"""Maximum number of records that one take requests."""
MAX_GRANTED_RANGES = 500
"""Maximum number of record ranges that one take returns, so that the answer fits into one message."""
MAX_LOST_RANGES = 1_000
"""Maximum number of lost ranges that one answer names."""
MAX_CLIENT_LENGTH = 128
MAX_REASON_BYTES = 200
MAX_LIST = 1000
MAX_HOLDERS = 50
"""Maximum number of workers of one queue that the answer to an operator lists."""

MAX_GROUPS = 10_000
"""Maximum number of groups of one coordinator. A coordinator manages one partition of the groups stream."""
MAX_MEMBERS = 1000
"""Maximum number of members of one group."""
MAX_SUBSCRIPTIONS = 16_000
"""Maximum number of streams of all members of one group. Each change of a member assigns all of them again."""
MAX_QUEUES = 1000
"""Maximum number of partitions for which one group has a queue."""
MAX_QUEUE_RANGES = 20_000
"""Maximum number of ranges in the state of one queue. At the limit the queue delivers no new records until some are settled."""
MAX_KEYS = 10_000
"""Maximum number of new record keys that one take sends."""
MAX_HELD = 10_000
"""Maximum number of records of one queue that wait for an earlier record with their key.

At the limit the queue delivers no new records until some of them are free.
"""
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
"""Heartbeat interval in ms of a member that waits for partitions that another member must release first."""
FENCE_MS = 2_000
"""Time in ms from the end of a session on the member's clock until the coordinator ends it. It covers clock differences."""
MAX_CLOCK_STEP_MS = 1_000
"""Maximum time in ms that the coordinator's clock advances between two records.

No heartbeat can arrive while the coordinator is down, so this time must not end sessions.
"""

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
    """Return the interval at which a member sends heartbeats, in ms.

    It is a sixth of the session time ``session_ms``, and at most ``MAX_CLOCK_STEP_MS``.
    """
    return min(MAX_HEARTBEAT_MS, session_ms // 6)
