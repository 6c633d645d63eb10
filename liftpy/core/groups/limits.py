"""Limits of groups and queues: commands, groups, and the state of the coordinator. Pure. Times are ns or ms, as named."""

from __future__ import annotations

NS_PER_MS = 1_000_000

MAX_COMMAND_BYTES = 512 * 1024
MAX_STREAMS = 64
"""That one member reads."""
MAX_PARTITIONS = 4_000
"""Of all streams of one group."""
MAX_POSITIONS = 1_000
"""In one command."""
MAX_RANGES = 10_000
"""In one settlement."""
MAX_SETTLEMENTS = 64
MAX_TAKE = 10_000
"""Records of one take."""
MAX_GRANTED_RANGES = 500
"""Of one take: an answer fits into one message."""
MAX_LOST_RANGES = 1_000
"""That one answer names."""
MAX_CLIENT_LENGTH = 128
MAX_REASON_BYTES = 200
MAX_LIST = 1000
MAX_HOLDERS = 50
"""Workers of one queue that an operator is shown."""

MAX_GROUPS = 10_000
"""Of one coordinator, which has one partition of the stream of groups."""
MAX_MEMBERS = 1000
"""Of one group."""
MAX_SUBSCRIPTIONS = 16_000
"""Streams of all members of one group: each change of a member divides all of them anew."""
MAX_QUEUES = 1000
"""Partitions of which one group has a queue."""
MAX_QUEUE_RANGES = 20_000
"""In which the state of one queue is kept: beyond it nothing new is given, until what is out or returned has been settled."""
MAX_KEYS = 10_000
"""Of new records, that one take tells."""
MAX_HELD = 10_000
"""Records of one queue that wait for an earlier one of their key: beyond them nothing new is given, until some are free."""
MAX_STATE_BYTES = 64 * 1024 * 1024
"""Of the coordinator's state, as estimated by ``machine``: beyond it nothing new is taken in."""

SESSION_MS = 10_000
MIN_SESSION_MS = 3_000
MAX_SESSION_MS = 3_600_000
MAX_HEARTBEAT_MS = 1_000
FEW_MEMBERS = 32
QUICK_HEARTBEAT_MS = 500
"""Of a group of so few members: what is to move is heard of sooner, and there are not many commands all the same."""
WAITING_HEARTBEAT_MS = 200
"""Of a member that waits for others to give something up."""
FENCE_MS = 2_000
"""A session ends for the coordinator so long after it has ended for the member: clocks of leaders are set, and are not in step."""
MAX_CLOCK_STEP_MS = 1_000
"""Between two records at most so much time has passed: when the coordinator was away, nobody could be heard."""

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
