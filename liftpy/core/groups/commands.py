"""Commands to the coordinator and its answers as bytes, and the limits of groups. Both sides validate commands. Pure.

``decode_command`` checks names, the bounds of numbers, and that no partition is named twice. The ``GroupMachine``
checks whether the command fits the current state.

The limits are those of commands, of groups and queues, and of the coordinator's state. ``group.proto`` has the limits
of single fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import crc32c
from google.protobuf.message import DecodeError, Message

from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.field_bounds import bounds_of, checker, max_text_of
from liftpy.errors import ProtocolError

_MAX_INT = (1 << 63) - 1
_ORDER = ("commit", "join", "beat", "leave", "reset", "delete", "settle", "take", "open")
_TOGETHER = ({"commit", "beat"}, {"commit", "leave"}, {"settle", "take"})
M = TypeVar("M", bound=Message)

NS_PER_MS = 1_000_000

MAX_COMMAND_BYTES = 512 * 1024
MAX_STREAMS = bounds_of(pb.JoinGroup, "streams").high
"""Maximum number of streams that one member reads."""
MAX_PARTITIONS = bounds_of(pb.KnownStream, "partitions").high
"""Maximum number of partitions of all streams that one group reads."""
MAX_POSITIONS = bounds_of(pb.CommitPositions, "positions").high
"""Maximum number of positions in one command."""
MAX_RANGES = 10_000
"""Maximum number of ranges in one settlement."""
MAX_SETTLEMENTS = bounds_of(pb.SettleRecords, "settlements").high
MAX_TAKE = bounds_of(pb.TakeRecords, "maxRecords").high
"""Maximum number of records that one take requests."""
MAX_GRANTED_RANGES = 500
"""Maximum number of record ranges that one take returns, so that the answer fits into one message."""
MAX_LOST_RANGES = 1_000
"""Maximum number of lost ranges that one answer names. With more, the last range of a settlement includes all later records."""
MAX_CLIENT_LENGTH = max_text_of(pb.JoinGroup, "client")
MAX_REASON_BYTES = max_text_of(pb.Settlement, "reason")
MAX_LIST = bounds_of(pb.GroupQuery, "limit").high
MAX_HOLDERS = 50
"""Maximum number of workers of one partition of a queue that the answer to an operator lists."""
MAX_HOLDERS_OF_ANSWER = 2_000
"""Maximum number of workers in the answer to an operator. With more than 40 partitions, each lists fewer of them, at least one."""
MAX_QUERY_ANSWER_BYTES = 900 * 1024
"""Size of the answer to an operator above which it omits the streams that the members read. It must fit into one message."""

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
MAX_SETTLED_RANGES = 20_000
"""Maximum number of ranges in the states of queues that one command may change.

A settlement above the limit changes nothing, unless it is the first of its command. The answer names its records as lost.
"""
MAX_KEYS = bounds_of(pb.TakeRecords, "keys").high
"""Maximum number of new record keys that one take sends."""
MAX_BLOCKED_RECORDS = 10_000
"""Maximum number of records of one queue that wait for an earlier record with their key.

At the limit the queue delivers no new records until some of them are free.
"""
MAX_STATE_BYTES = 64 * 1024 * 1024
"""Limit of the coordinator's state, as ``machine`` estimates it. Beyond it the coordinator accepts nothing new."""

SESSION_MS = 10_000
MIN_SESSION_MS, MAX_SESSION_MS = bounds_of(pb.JoinGroup, "sessionMs")
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
MIN_ACK_WAIT_MS, MAX_ACK_WAIT_MS = bounds_of(pb.TakeRecords, "ackWaitMs")
MAX_DELAY_MS = bounds_of(pb.Settlement, "delayMs").high
MAX_DELIVERIES = 5
MAX_MAX_DELIVERIES = bounds_of(pb.TakeRecords, "maxDeliveries").high
MAX_ACK_PENDING = 20_000
MAX_MEMBER_PENDING = 10_000
MAX_MAX_PENDING = bounds_of(pb.TakeRecords, "maxAckPending").high


class GroupCommandError(ProtocolError):
    """Raised for an invalid command, answer or query of a group. The text says what is allowed."""

    code = "GROUP_MALFORMED"


_check_command = checker(pb.GroupCommand, GroupCommandError)
_check_query = checker(pb.GroupQuery, GroupCommandError)


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
    _check_query(query)
    return query


def decode_query_answer(data: bytes | memoryview) -> pb.GroupQueryAnswer:
    """Decode the answer to a ``GroupQuery``. Raises GroupCommandError."""
    return _parse(data, pb.GroupQueryAnswer)


def check_command(command: pb.GroupCommand) -> None:
    """Raise GroupCommandError if the command can never be valid, whatever the state of the group is.

    The bounds of the fields are in ``group.proto``. The rules that need several fields are here.
    """
    has = command.HasField
    parts = [name for name in _ORDER if has(name)]
    if len(parts) != 1 and set(parts) not in _TOGETHER:
        raise GroupCommandError(
            f"Invalid group command: it combines {sorted(parts)}. Only one action, or "
            f"{' or '.join('+'.join(sorted(t)) for t in _TOGETHER)}, is allowed. Use several commands."
        )
    _check_command(command)
    for name in parts:
        if name in _RULES:
            _RULES[name](getattr(command, name))


def _parse(data: bytes | memoryview, expected: type[M]) -> M:
    try:
        return expected.FromString(bytes(data))
    except (DecodeError, ValueError) as error:
        raise GroupCommandError(
            f"Cannot decode the group command as {expected.__name__}: {error}. Check the version of the client."
        ) from None


def _check_beat(beat: pb.BeatGroup) -> None:
    _check_streams(beat.streams)
    if beat.streams and not beat.tellsStreams:
        raise GroupCommandError(
            "Invalid group command: it names streams, but the field tellsStreams is not set. Check the version of the client."
        )
    seen: set[tuple[str, str, int]] = set()
    for owned in beat.owned:
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
        _check_once(names, (stream.name, "", 0), "streams")
        total += stream.partitions
    if total > MAX_PARTITIONS:
        raise GroupCommandError(
            f"A group member can read at most {MAX_STREAMS} streams with {MAX_PARTITIONS} partitions. Use several groups."
        )


def _check_commit(commit: pb.CommitPositions) -> None:
    for at in commit.positions:
        if at.position < 0:
            raise GroupCommandError(f"position = {at.position} is outside 0..{_MAX_INT}. Choose a value in this range.")
    _check_positions(commit)


def _check_positions(part: pb.CommitPositions | pb.ResetPositions) -> None:
    seen: set[tuple[str, str, int]] = set()
    for at in part.positions:
        _check_once(seen, (at.stream, at.uid, at.partition), "positions")


def _check_settle(settle: pb.SettleRecords) -> None:
    count = 0
    for part in settle.settlements:
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
    if take.keys and not take.ordered:
        raise GroupCommandError(
            "Invalid group command: it has keys, but the field ordered is not set. Check the version of the client."
        )


def _check_once(seen: set[tuple[str, str, int]], key: tuple[str, str, int], what: str) -> None:
    if key in seen:
        raise GroupCommandError(f"{what} names {key[0]}/{key[2]} twice. Name each partition once.")
    seen.add(key)
    if len(seen) > MAX_PARTITIONS:
        raise GroupCommandError(f"{what} names more than {MAX_PARTITIONS} partitions. Use several groups.")


_RULES: dict[str, Callable[[Any], None]] = {
    "commit": _check_commit,
    "join": lambda join: _check_streams(join.streams),
    "beat": _check_beat,
    "reset": _check_positions,
    "settle": _check_settle,
    "take": _check_take,
}
"""Part of a command -> check of the rules that need several of its fields."""


def heartbeat_ms(session_ms: int) -> int:
    """Return the interval at which a member sends heartbeats, in ms.

    It is a sixth of the session time ``session_ms``, and at most ``MAX_CLOCK_STEP_MS``.
    """
    return min(MAX_HEARTBEAT_MS, session_ms // 6)
