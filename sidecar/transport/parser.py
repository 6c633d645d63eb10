"""A strict and fast parser of the NATS protocol: whole reads at once, messages to callbacks, synchronously.

nats-py needs 6-10 us per message. Here a message costs a search, a split and a slice, and even less if its line equals
the one before. Other commands go to nats-py. Malformed data is counted and dropped [A12].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from liftpy.core.wire.envelope import MAGIC
from liftpy.nats.parser import LARGEST_MESSAGE_BYTES, SIZE_DIGITS, StrictParser, message_fields, size_of

Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""(subject, reply or b"", payload, raw NATS header block or b""); called on the loop, must not raise and not block."""

_SIZES = {b"%d" % size_bytes: size_bytes for size_bytes in range(4096)}
"""A look-up is cheaper than ``int``, and as strict as ``size_of``."""


class SinkParser(StrictParser):
    """``sinks`` maps the subscription's id to its sink; ``expect`` says which subjects a sink is given (without it: all)."""

    takes_plain = False
    pauses = False
    """Whether it looks up after each message, or run of equal lines: what comes next may not be for a sink. An envelope always is."""

    def __init__(self, connection: Any, sinks: dict[bytes, Sink], errors: Counter[str] | None = None) -> None:
        super().__init__(connection, errors)
        self._sinks = sinks

    def _messages(self, buffer: bytes, position: int) -> int:
        """Feed the sinks from ``position`` on; return the position of the first thing that is not a message for a sink."""
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
                    if not 0 <= header <= total:
                        break
                    sink(subject, reply, buffer[start + header : end], buffer[start : start + header])
                else:
                    sink(subject, reply, buffer[start:end], b"")
            except Exception as error:  # a bug, but of one message: what comes after it is read all the same [A6]
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
        """Parse following messages with the same protocol line. Return their number."""
        sid, subject, reply = fields
        sinks, sink = self._sinks, self._sinks.get(sid)
        count, size, start = 0, len(line), position + len(line)
        last = len(buffer) - total - 2
        while sink is not None and start <= last and buffer.startswith(line, start - size) and sinks.get(sid) is sink:
            try:
                sink(subject, reply, buffer[start : start + total], b"")
            except Exception as error:  # as above
                self._connection.sink_failed(subject, error)
            count += 1
            start += total + 2 + size
        return count

    async def _message(self, line: list[bytes], content: bytes) -> None:
        fields = message_fields(line)
        if fields is not None and fields[1] in self._sinks:  # all but its subject fits: it would not have come here
            self.errors["messages under a foreign subject"] += 1
            return
        await super()._message(line, content)
