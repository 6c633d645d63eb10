"""Replies of a service to the sender of a command, and the answers to repeated commands. Pure.

Goal: the sender of a command gets the result from the service itself, when the result cannot change anymore. A command
that is sent again without an answer has no second effect and gets the same answer. Constraint: the node that answers
may fail before, between and after. No node knows which answers have arrived.

Algorithm: a reply is a function of the log, as outputs are, but it is not kept forever. The service on every node
computes it and keeps the newest ones (``ReplyBuffer``). Only the LEADER sends it, when the record is committed and all
outputs up to its own are written. A new LEADER sends all replies that it has kept. A second answer goes to an inbox
without a subscriber. For older replies, the repeated command with its message id (``Nats-Msg-Id``) is looked up in
``AnswerTable``: a bounded table (message id -> answer) that is part of the state and of every snapshot. ``on_record``
does not get that command.

The table has only commands with a reply, and forgets the oldest beyond its limits. A command that is repeated later
than that is applied again.

Worked example: record 17 is the command c1. The LEADER fails before it answers. The client sends c1 again as record 30.
The new LEADER has answered 17 from its buffer when it was promoted, and answers 30 from the table: the same bytes, one
effect.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from liftpy.core.services.effects import damaged_snapshot
from liftpy.core.wire.batch import Record

MESSAGE_ID = "Nats-Msg-Id"
MAX_ID_BYTES = 256
"""Maximum length of a message id, in bytes. The service ignores a longer one."""
MAX_ANSWERS = 10_000
MAX_ANSWERS_BYTES = 4 * 1024 * 1024
"""Maximum size of the answer table, in bytes. Each snapshot contains the table."""
MAX_REPLIES = 4096
MAX_REPLIES_BYTES = 8 * 1024 * 1024
PASSED_OVER = "PASSED_OVER"
_MAX_AGE_NS = 60 * 1_000_000_000
"""Age of a reply by the log time, in nanoseconds, above which no client waits for it anymore."""
_OVERHEAD_BYTES = 64
_ENTRY = struct.Struct("<QHI")


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of a service to the sender of a command.

    Attributes:
        to: Inbox of the sender of the command. None: no reply is sent.
        offset: Offset of the command.
        value: Bytes of the reply.
        error: Error code. '': the service has replied.
        output_count: Number of outputs that must be written before the reply is sent.
    """

    offset: int
    to: str | None
    value: bytes
    error: str = ""
    output_count: int = 0
    at_ns: int = 0
    leader_epoch: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.value) + len(self.to or "") + _OVERHEAD_BYTES


class ReplyBuffer:
    """The newest replies that this node may have to send, limited in number and size."""

    def __init__(self, max_replies: int = MAX_REPLIES, max_bytes: int = MAX_REPLIES_BYTES) -> None:
        self._max_replies = max_replies
        self._max_bytes = max_bytes
        self._stored_replies: deque[Reply] = deque()
        self._kept_bytes = 0
        self._sent = (0, -1)
        """(LeaderEpoch, offset) of the last record whose reply this node sent. (0, -1): none."""
        self.on_answer_added: Callable[[], None] | None = None
        """Called for each stored reply, in the thread that adds it. None: no callback."""

    def __len__(self) -> int:
        return len(self._stored_replies)

    def restart(self) -> None:
        """Remove all replies, because the service starts again from a snapshot and makes them a second time.

        Replies that this node has sent are not stored again.
        """
        self._stored_replies.clear()
        self._kept_bytes = 0

    def add(self, reply: Reply) -> None:
        """Store a reply that this node may have to send. Above the limits, the oldest replies are dropped.

        A reply without a receiver, or one that this node has sent, is not stored.
        """
        if reply.to is None or (reply.leader_epoch, reply.offset) <= self._sent:
            return
        self._stored_replies.append(reply)
        self._kept_bytes += reply.size_bytes
        if self.on_answer_added is not None:
            self.on_answer_added()
        oldest_ns = reply.at_ns - _MAX_AGE_NS
        while len(self._stored_replies) > 1 and (
            len(self._stored_replies) > self._max_replies
            or self._kept_bytes > self._max_bytes
            or self._stored_replies[0].at_ns < oldest_ns
        ):
            self._drop_first()

    def next(self, emitted_end: int | None) -> Reply | None:
        """Return the oldest reply that the LEADER may send, because the outputs of its record are written. None: there is none.

        ``emitted_end``: number of written outputs. None: the service has no outputs.
        """
        if not self._stored_replies or (emitted_end is not None and self._stored_replies[0].output_count > emitted_end):
            return None
        return self._stored_replies[0]

    def record_sent(self, reply: Reply) -> None:
        """Remove a reply that this node has sent, and remember its offset so that it is not sent twice."""
        self._sent = max(self._sent, (reply.leader_epoch, reply.offset))
        if self._stored_replies and self._stored_replies[0] is reply:
            self._drop_first()

    def _drop_first(self) -> None:
        self._kept_bytes -= self._stored_replies.popleft().size_bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a command, with the command's message id and the offset of its record."""

    offset: int
    message_id: str
    value: bytes

    @property
    def size_bytes(self) -> int:
        return _ENTRY.size + len(self.message_id.encode()) + len(self.value)


class AnswerTable:
    """Answers to commands by message id, as part of a service's state. A repeated command gets the stored answer.

    Only the newest answers are kept.
    """

    def __init__(
        self, answers: Iterable[Answer] = (), max_answers: int = MAX_ANSWERS, max_bytes: int = MAX_ANSWERS_BYTES
    ) -> None:
        self._by_id: dict[str, Answer] = {}
        self._size_bytes = 0
        self._max_answers = max_answers
        self._max_bytes = max_bytes
        for answer in answers:
            self.add(answer)

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, message_id: str) -> Answer | None:
        return self._by_id.get(message_id)

    def add(self, answer: Answer) -> None:
        """Store the answer to a new command. Above the limits, the oldest answers are dropped."""
        self._by_id[answer.message_id] = answer
        self._size_bytes += answer.size_bytes
        while len(self._by_id) > self._max_answers or self._size_bytes > self._max_bytes:
            self._size_bytes -= self._by_id.pop(next(iter(self._by_id))).size_bytes

    def encode(self) -> bytes:
        """Return the table as bytes for a snapshot.

        Format: u64 offset, u16 id size, u32 value size, id, value for each answer.
        """
        parts: list[bytes] = []
        for answer in self._by_id.values():
            name = answer.message_id.encode()
            parts += (_ENTRY.pack(answer.offset, len(name), len(answer.value)), name, answer.value)
        return b"".join(parts)


def decode_answers(data: bytes) -> AnswerTable:
    """Decode the result of ``AnswerTable.encode``. Raises CorruptionError if it is invalid."""
    answers_by_offset: list[Answer] = []
    place = 0
    try:
        while place < len(data):
            offset, id_size, value_size = _ENTRY.unpack_from(data, place)
            place += _ENTRY.size
            name, value = data[place : place + id_size], data[place + id_size : place + id_size + value_size]
            place += id_size + value_size
            answers_by_offset.append(Answer(offset, name.decode(), value))
    except (struct.error, UnicodeDecodeError):
        raise damaged_snapshot("its stored replies cannot be decoded") from None
    answers = AnswerTable(answers_by_offset)
    if place != len(data) or answers.encode() != data:
        raise damaged_snapshot("its stored replies do not match their counts")
    return answers


def message_id_of(record: Record) -> str:
    """Return the message id of a command. '': it has none."""
    for name, value in record.headers:
        if name == MESSAGE_ID and len(value) <= MAX_ID_BYTES:
            try:
                return value.decode()
            except UnicodeDecodeError:
                return ""
    return ""
