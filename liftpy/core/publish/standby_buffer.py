"""``StandbyBuffer``: the messages that a standby follower received, in blocks, limited in bytes and age. Pure.

Messages that arrive together form one block and are not parsed. While the log grows, the oldest blocks are dropped
first, because their leader has had them for the longest time. While the log does not grow, the newest messages are
dropped, so that the buffer has no gap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from liftpy.core.publish.message_decoder import RawMessage

MESSAGE_BYTES = 240
"""What a message costs in memory besides its payload, headers and reply (measured)."""


class Block(NamedTuple):
    """Messages that arrived together. ``heard_ns``: monotonic arrival time."""

    heard_ns: int
    messages: list[RawMessage]
    size_bytes: int


@dataclass(slots=True)
class NodeHeard:
    """Memory of all standby buffers of a node, in bytes, and its limit."""

    bound_bytes: int
    size_bytes: int = 0


@dataclass(slots=True)
class StandbyBuffer:
    """Standby buffer of one partition. ``bound_bytes``: memory limit. ``age_ns``: maximum age."""

    node: NodeHeard
    bound_bytes: int
    age_ns: int
    blocks: deque[Block] = field(default_factory=deque)
    held_out: list[Block] | None = None
    """What is being sorted; it does not count for the bounds, so that there is room for what comes meanwhile."""
    size_bytes: int = 0
    pushed_out: int = 0
    """Messages that made room for later ones, while the log went on; ever."""

    def add(self, messages: list[RawMessage], now_ns: int, grown_ns: int) -> bool:
        """Add messages. ``grown_ns``: last time that the log grew. Return False if there is no room."""
        size_bytes = sum(len(payload) + len(headers) + len(reply) for _, reply, payload, headers in messages)
        size_bytes += MESSAGE_BYTES * len(messages)
        self.expire(now_ns)
        while self._lacks(size_bytes) and self.blocks and self.blocks[0].heard_ns <= grown_ns:
            self.pushed_out += len(self.blocks[0].messages)
            self._drop_first()
        if self._lacks(size_bytes):
            return False
        self.blocks.append(Block(now_ns, messages, size_bytes))
        self.size_bytes += size_bytes
        self.node.size_bytes += size_bytes
        return True

    def _lacks(self, size_bytes: int) -> bool:
        return self.size_bytes + size_bytes > self.bound_bytes or self.node.size_bytes + size_bytes > self.node.bound_bytes

    def _drop_first(self) -> None:
        block = self.blocks.popleft()
        self.size_bytes -= block.size_bytes
        self.node.size_bytes -= block.size_bytes

    def expire(self, now_ns: int) -> None:
        """Remove messages that are older than ``age_ns``."""
        while self.blocks and self.blocks[0].heard_ns < now_ns - self.age_ns:
            self._drop_first()

    def hold_out(self, now_ns: int) -> list[Block]:
        """Return all blocks in order for inspection. Call ``put_back`` or ``clear`` afterwards."""
        self.expire(now_ns)
        blocks = list(self.blocks)
        self._empty()
        self.held_out = blocks
        return blocks

    def put_back(self) -> None:
        """Keep the blocks that ``hold_out`` returned."""
        for block in reversed(self.held_out or ()):
            self.blocks.appendleft(block)
            self.size_bytes += block.size_bytes
            self.node.size_bytes += block.size_bytes
        self.held_out = None

    def clear(self) -> None:
        """Drop all messages, including those from ``hold_out``."""
        self.held_out = None
        self._empty()

    def _empty(self) -> None:
        while self.blocks:
            self._drop_first()
