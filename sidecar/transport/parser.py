"""A strict and fast parser of the NATS protocol. It parses whole reads, and passes messages to callbacks synchronously.

nats-py needs 6-10 us per message. This parser needs a search, a split and a slice, and even less if the protocol line
equals the previous one. Other commands go to nats-py. Invalid data is counted and dropped [A12].
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from liftpy.core.publish.ports import PublishRejector, can_be_rejected_unread
from liftpy.core.wire.envelope import MAGIC
from liftpy.core.wire.subjects import MAX_REPLY_BYTES
from liftpy.nats.parser import LARGEST_MESSAGE_BYTES, SIZE_DIGITS, StrictParser, message_fields, size_of

Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""Called on the loop with (subject, reply or b"", payload, NATS header block or b""). It must not raise or block."""

_SIZES: dict[bytes, int] = {}
"""Text of a size with at most ``_CACHED_DIGITS`` digits -> number, for sizes that arrived. A lookup is cheaper than ``int``."""
_CACHED_DIGITS = 4
_MESSAGE_WITH_REPLY = re.compile(
    rb"(H?MSG [^ \r\n]+ [^ \r\n]+) ([^ \r\n]{1,%d})(?: ([0-9]{1,%d}))? ([0-9]{1,%d})\r\n(?!%b)"
    % (MAX_REPLY_BYTES, SIZE_DIGITS, SIZE_DIGITS, re.escape(MAGIC))
).match
"""Protocol line of a message with a reply subject, if no envelope follows.

Groups: text before the reply subject, the reply subject, size of the headers, total size.
"""


class SinkParser(StrictParser):
    """Parser that passes messages to sinks (callbacks).

    ``sinks``: id of a subscription -> its sink. ``expect`` sets the subject that a subscription may get (default: any).
    """

    takes_plain = False
    pauses = False
    """True if the parser checks after each message, or run of equal lines, whether it must stop."""

    def __init__(self, connection: Any, sinks: dict[bytes, Sink], errors: Counter[str] | None = None) -> None:
        super().__init__(connection, errors)
        self._sinks = sinks

    def _messages(self, buffer: bytes, position: int) -> int:
        """Pass messages from ``position`` of ``buffer`` on to their sinks.

        Return the position of the first data that is not such a message.
        """
        size, sinks, patterns, stats = len(buffer), self._sinks, self._patterns, self._connection.stats
        count, size_bytes, pauses = 0, 0, self.pauses
        while position < size:
            eol = buffer.find(b"\r\n", position)
            if eol < 0:
                break
            line = buffer[position:eol].split(b" ")
            if line[0] == b"MSG":
                parts, with_headers = len(line), False
            elif line[0] == b"HMSG":
                parts, with_headers = len(line) - 1, True
            else:
                break
            if parts == 4:
                reply = b""
            elif parts != 5 or not (reply := line[3]):
                break
            subject, sid = line[1], line[2]
            sink = sinks.get(sid)
            if sink is None:
                break
            pattern = patterns.get(sid)
            if pattern is None:
                if not subject:
                    break
            elif subject not in pattern.known and not pattern.matches(subject):
                break
            digits = line[-1]
            total = _SIZES.get(digits, -1)
            if total < 0:
                if not digits.isdigit() or len(digits) > SIZE_DIGITS:
                    break
                total = int(digits)
                if len(digits) <= _CACHED_DIGITS:
                    _SIZES[digits] = total
            start = eol + 2
            if pauses and count and (with_headers or not buffer.startswith(MAGIC, start)):
                break
            end = start + total
            if end + 2 > size:
                if total > LARGEST_MESSAGE_BYTES:
                    break
                self._needed_bytes = end + 2 - position
                break
            try:
                if with_headers:
                    header = _SIZES.get(line[-2], -1)
                    if header < 0:
                        header = size_of(line[-2])
                        if header >= 0 and len(line[-2]) <= _CACHED_DIGITS:
                            _SIZES[line[-2]] = header
                    if not 0 <= header <= total:
                        break
                    sink(subject, reply, buffer[start + header : end], buffer[start : start + header])
                else:
                    sink(subject, reply, buffer[start:end], b"")
            except Exception as error:  # it is a bug and affects only this message. The next ones are processed [A6]
                self._connection.sink_failed(subject, error)
            count += 1
            size_bytes += total
            if not with_headers and buffer.startswith(same := buffer[position:start], end + 2):
                repeats = self._repeats(buffer, end + 2, same, (sid, subject, reply), total)
                count += repeats
                size_bytes += repeats * total
                end += repeats * (len(same) + total + 2)
            position = end + 2
        stats["in_msgs"] += count
        stats["in_bytes"] += size_bytes
        return position

    def _repeats(self, buffer: bytes, position: int, line: bytes, fields: tuple[bytes, bytes, bytes], total: int) -> int:
        """Pass the next messages with the same protocol ``line`` to their sink. Return their number.

        ``position``: place of the first such line. ``fields``: id of the subscription, subject and reply subject. ``total``:
        size of header block and payload.
        """
        sid, subject, reply = fields
        sinks, sink = self._sinks, self._sinks.get(sid)
        count, size, start = 0, len(line), position + len(line)
        last = len(buffer) - total - 2
        while sink is not None and start <= last and buffer.startswith(line, start - size) and sinks.get(sid) is sink:
            try:
                sink(subject, reply, buffer[start : start + total], b"")
            except Exception as error:  # as in _messages
                self._connection.sink_failed(subject, error)
            count += 1
            start += total + 2 + size
        return count

    async def _message(self, line: list[bytes], content: bytes) -> None:
        fields = message_fields(line)
        # only the subject can be invalid, otherwise _messages has processed it
        if fields is not None and fields[1] in self._sinks:
            self.errors["foreign_subject"] += 1
            return
        await super()._message(line, content)


class IngestParser(SinkParser):
    """Parser of the ingest connection. It can drop or reject whole messages at a fraction of the cost of processing them.

    Messages without reply subject can be dropped, messages with one can be rejected (``PublishRejector``). A message that may
    request an ack in its envelope is never dropped.

    Attributes:
        lost: Number of lost connections whose bytes are not parsed yet. Protocol commands in these bytes are ignored.
        drops_unread: True while messages without reply subject are dropped.
        received: Number of all received messages.
        dropped_unread: Number of dropped messages.
        refused: Number of messages that were rejected unread.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lost = 0
        self.drops_unread = False
        self.received = 0
        self.dropped_unread = 0
        self.refused = 0
        self._drop_callbacks: dict[bytes, Callable[[int], None]] = {}
        self._rejectors: dict[bytes, PublishRejector] = {}

    def set_rejector(self, sid: int, rejector: PublishRejector) -> None:
        """Let ``rejector`` reject messages of the subscription ``sid`` without decoding them, when it decides to."""
        self._rejectors[b"%d" % sid] = rejector

    def on_dropped(self, sid: int, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the number of messages of the subscription ``sid`` each time some are dropped unread."""
        self._drop_callbacks[b"%d" % sid] = callback

    def forget(self, sid: int) -> None:
        super().forget(sid)
        self._drop_callbacks.pop(b"%d" % sid, None)
        self._rejectors.pop(b"%d" % sid, None)

    async def _command(self, line: bytes) -> None:
        if not self.lost:
            await super()._command(line)

    def _messages(self, buffer: bytes, position: int) -> int:
        stats = self._connection.stats
        before = stats["in_msgs"]
        take, passed = self._drop_without_reply if self.drops_unread else super()._messages, -1
        while position != passed:
            if self._rejectors:
                position = self._reject_unread(buffer, position)
            passed, position = position, take(buffer, position)
            if not self.pauses:
                break
        self.received += stats["in_msgs"] - before
        return position

    def _drop_without_reply(self, buffer: bytes, position: int) -> int:
        """Drop messages without reply subject from ``position`` on. Return the position of the first data that must be processed."""
        size = len(buffer)
        while position < size:
            eol = buffer.find(b"\r\n", position)
            if eol < 0:
                break
            line = buffer[position : eol + 2]
            fields = message_fields(line[:-2].split(b" "))
            if fields is None or fields[2] or not self._is_subscribed(fields[0], fields[1]):
                break
            total = int(line[:-2].rpartition(b" ")[2])
            length, payload = len(line) + total + 2, len(line) + fields[3]
            count = 0
            while position + length <= size and buffer.startswith(line, position):
                if buffer.startswith(MAGIC, position + payload):
                    break
                position += length
                count += 1
            if count:
                self._count(fields[1], count, total)
            elif position + length > size:
                self._needed_bytes = length
                break
            else:
                break
        return position

    def _reject_unread(self, buffer: bytes, position: int) -> int:
        """Reject messages with a reply subject from ``position`` on, if their ``PublishRejector`` decides to.

        Return the position of the first data that must be processed.
        """
        while (first := _MESSAGE_WITH_REPLY(buffer, position)) is not None:
            _, subject, sid = first[1].split(b" ")
            rejector = self._rejectors.get(sid)
            if rejector is None or not self._is_subscribed(subject, sid) or not rejector.rejects_now():
                break
            replies, size_bytes, position = _rejectable_run(buffer, position, first[1], rejector.is_new)
            if not replies:
                break
            try:
                rejector.reject_unread(replies)
            except Exception as error:  # it is a bug. The next messages are processed [A6]
                self._connection.sink_failed(subject, error)
            self.refused += len(replies)
            self._connection.stats["in_msgs"] += len(replies)
            self._connection.stats["in_bytes"] += size_bytes
        return position

    def _is_subscribed(self, subject: bytes, sid: bytes) -> bool:
        """Return whether the connection has the subscription ``sid``, and ``subject`` matches it."""
        pattern = self._patterns.get(sid)
        return sid in self._sinks and (pattern is None or subject in pattern.known or pattern.matches(subject))

    def _count(self, sid: bytes, count: int, size_bytes: int) -> None:
        stats = self._connection.stats
        stats["in_msgs"] += count
        stats["in_bytes"] += count * size_bytes
        self.dropped_unread += count
        callback = self._drop_callbacks.get(sid)
        if callback is not None:
            callback(count)

    async def _message(self, line: list[bytes], content: bytes) -> None:
        self.received += 1
        fields = message_fields(line)
        if self.drops_unread and fields is not None and self._is_subscribed(fields[0], fields[1]):
            subject, sid, reply, header = fields
            try:
                self._sinks[sid](subject, reply, content[header:], content[:header])
            except Exception as error:  # process it as usual
                self._connection.sink_failed(subject, error)
            return
        await super()._message(line, content)


def _rejectable_run(buffer: bytes, position: int, head: bytes, is_new: Callable[[bytes], bool]) -> tuple[list[bytes], int, int]:
    """Find consecutive messages of one subscription that can be rejected unread, from ``position`` on.

    Return (their reply subjects, bytes of their payloads, position after them).

    Args:
        buffer: Received bytes.
        position: Position of the first message.
        head: Command, subject and subscription id that all protocol lines must have.
        is_new: Returns whether a message id is not known yet.
    """
    size, first, replies = len(buffer), position, list[bytes]()
    lines_bytes = 0
    while (match := _MESSAGE_WITH_REPLY(buffer, position)) is not None:
        other, reply, headers, digits = match.groups()
        start = match.end()
        end = start + int(digits) + 2
        if other != head or end > size:
            break
        if headers or other.startswith(b"H"):
            payload = start + int(headers or 0)
            if not headers or not start < payload < end - 1 or not other.startswith(b"H"):
                break
            if buffer.startswith(MAGIC, payload) or not can_be_rejected_unread(buffer[start:payload], is_new):
                break
        lines_bytes += start - position + 2
        replies.append(reply)
        position = end
    return replies, position - first - lines_bytes, position
