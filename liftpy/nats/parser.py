r"""Strict parser of the NATS protocol. It never mistakes the bytes of a publisher for protocol lines [A12].

A nats-server writes ``MSG <subject> <sid> [reply] <size>`` and ``HMSG <subject> <sid> [reply] <header size> <size>`` with
one space between the fields. It forwards every other byte of a subject or reply: ``shop.a\x0b7`` is one token. nats-py ends
a field at any white space, so a publisher could shift the fields and choose the subscription. nats-py also stops reading
permanently at a subject or header block that it cannot decode. This parser splits at single spaces. It checks the number of
fields, the digits of the sizes, and that the subscription matches the subject. It counts and skips invalid messages. Only
if the end of a frame is unknown, it raises an UnreadableDataError, and nats-py reconnects.

A PONG that arrives after its caller has given up is only counted. Every message or command shows that the server is alive.
If much data waits to be read, a PONG is late although the connection is healthy.

Only ``liftpy/nats`` and ``sidecar/transport`` use private parts of nats-py.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.errors import Error, ProtocolError
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, Parser

from liftpy.errors import ConfigError

logger = logging.getLogger("liftpy.nats")

LONGEST_LINE_BYTES = 64 * 1024
READ_BYTES = 1024 * 1024
LARGEST_MESSAGE_BYTES = 256 * 1024 * 1024
"""Maximum size of headers and payload. A server's ``max_payload`` is at most 64 MiB."""
SIZE_DIGITS = 9
"""Maximum number of digits of a size, as in nats-server."""
_REMEMBERED_SUBJECTS = 1024
"""Maximum number of subjects of a wildcard subscription whose match is cached."""
_REMEMBERED_BYTES = 256
"""Maximum length of a subject whose match is cached, in bytes."""

_PLAIN = re.compile(rb"MSG ([^ \r\n]+) (\d{1,9}) (?:([^ \r\n]+) )?(\d{1,9})\r\n").match
"""Pattern of a message line without headers, as a nats-server writes it. Thousands of acks match it. Other lines are split."""
_DENIAL = re.compile(
    rb"-ERR '?permissions violation for (publish|subscription) (?:to|with reply of) \"([^\"]*)\"", re.IGNORECASE
)
Denied = Callable[[bool, str], None]
"""Called with (True for a publish, False for a subscription, its subject).

For a denied answer, the subject is the reply subject.
"""


class UnreadableDataError(ProtocolError):
    """Bytes of a NATS server that are no messages. nats-py reconnects. The text of ``ProtocolError`` itself says nothing else."""

    def __str__(self) -> str:
        return str(self.args[0])


_WILDCARDS = {b"*": rb"[^.]+", b">": rb"[^.]+(?:\.[^.]+)*"}

Fields = tuple[bytes, bytes, bytes, int]
"""(subject, sid, reply or b"", size of the header block in bytes)."""


class Pattern:
    """The subject of a subscription, with or without wildcards. ``known``: subjects that were found to match it."""

    __slots__ = ("_matched_by", "known")

    def __init__(self, pattern: str) -> None:
        tokens = pattern.encode().split(b".")
        if _WILDCARDS.keys().isdisjoint(tokens):
            self._matched_by = None  # a literal subject needs no pattern. A node has thousands of them
            self.known: set[bytes] | tuple[bytes] = (pattern.encode(),)
        else:
            parts = [_WILDCARDS.get(token, re.escape(token)) for token in tokens]
            self._matched_by = re.compile(rb"\.".join(parts)).fullmatch
            self.known = set()

    def matches(self, subject: bytes) -> bool:
        known = self.known
        if self._matched_by is None or isinstance(known, tuple):
            return subject in known
        if self._matched_by(subject) is None:
            return False
        if len(subject) <= _REMEMBERED_BYTES:
            if len(known) >= _REMEMBERED_SUBJECTS:
                known.clear()
            known.add(subject)
        return True


def size_of(digits: bytes) -> int:
    """Return the number that ``digits`` of a protocol line mean, in bytes. -1: they are invalid."""
    if not digits.isdigit() or len(digits) > SIZE_DIGITS:
        return -1
    size_bytes = int(digits)
    return size_bytes if size_bytes <= LARGEST_MESSAGE_BYTES else -1


def message_fields(fields: list[bytes]) -> Fields | None:
    """Return subject, subscription id, reply subject and header size of a MSG or HMSG line. None: the line is invalid."""
    sizes = {b"MSG": 1, b"HMSG": 2}.get(fields[0], 0)
    if not sizes or len(fields) not in (3 + sizes, 4 + sizes) or b"" in fields:
        return None
    total = size_of(fields[-1])
    header = size_of(fields[-2]) if sizes == 2 else 0
    if total < 0 or not 0 <= header <= total:
        return None
    return fields[1], fields[2], fields[3] if len(fields) == 4 + sizes else b"", header


class StrictParser(Parser):
    """Replaces ``nats.protocol.parser.Parser`` in a connection. It passes valid messages to nats-py's subscriptions.

    ``errors``: kind -> number of skipped messages. ``check_subjects``: True to check that a message matches its subscription.
    It is False on a shared connection, because JetStream delivers under subjects without a subscription.
    """

    takes_plain = True
    """True if messages without headers go to nats-py at once. False if a subclass inspects each message first."""

    def __init__(self, connection: Any, errors: Counter[str] | None = None, *, check_subjects: bool = True) -> None:
        self._rest = Parser(connection)
        """Parser of nats-py, for all lines that are no messages."""
        self.errors: Counter[str] = Counter() if errors is None else errors
        self._connection = connection
        self._check_subjects = check_subjects
        self._chunks: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        """Size of an incomplete message in bytes, so that its parts are joined only once. 0: not known."""
        self._resets = 0
        self._patterns: dict[bytes, Pattern] = {}
        self.denials: list[Denied] = []
        """Called when the server denies a publish or subscription. nats-py's own text changes the case of the subject."""

    def reset(self) -> None:
        """Drop incomplete data, because nats-py begins another connection."""
        self._resets += 1
        self._chunks = []
        self._held_bytes = self._needed_bytes = 0
        self._rest.reset()

    def expect(self, sid: int, subject: str) -> None:
        """Accept messages for the subscription ``sid`` only if their subject matches ``subject``."""
        self._patterns[b"%d" % sid] = Pattern(subject)

    def forget(self, sid: int) -> None:
        self._patterns.pop(b"%d" % sid, None)

    def feed(self, data: bytes) -> bool:
        """Process received ``data`` as far as no await is needed. Return False if ``parse`` must be called for the rest."""
        self._chunks.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            return True
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._needed_bytes = 0
        position = self._messages(buffer, 0)
        if position >= len(buffer):
            self._chunks, self._held_bytes = [], 0
            return True
        rest = buffer[position:] if position else buffer
        self._chunks, self._held_bytes = [rest], len(rest)
        return bool(self._needed_bytes) or (len(rest) <= LONGEST_LINE_BYTES and b"\r\n" not in rest)

    async def parse(self, data: bytes = b"") -> None:
        """Process ``data`` and all kept data, up to the last complete message or command.

        Raises only nats-py's errors and OSError.
        """
        if data:  # otherwise the data that ``feed`` has joined would be copied
            self._chunks.append(bytes(data))
            self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            return
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._held_bytes = self._needed_bytes = 0
        position, resets = 0, self._resets
        while position < len(buffer):
            position = self._messages(buffer, position)
            plain = _PLAIN(buffer, position) if self.takes_plain else None
            end = plain.end() + int(plain[4]) + 2 if plain is not None else len(buffer) + 1
            if plain is not None and end <= len(buffer) and not self._needed_bytes:
                await self._deliver(plain[1], plain[2], plain[3] or b"", buffer[plain.end() : end - 2])
            else:
                end = await self._other(buffer, position)
            if self._resets != resets:
                return  # the rest belongs to a closed connection
            if end == position:
                break
            position = end
        rest = buffer[position:] if position else buffer
        if rest:
            self._chunks = [rest]
            self._held_bytes = len(rest)

    def _messages(self, buffer: bytes, position: int) -> int:
        """Process messages from ``position`` of ``buffer`` on. Return the position of the first line that needs ``parse``.

        Subclasses override it with a faster parser.
        """
        return position

    async def _other(self, buffer: bytes, position: int) -> int:
        """Process one message or command at ``position`` of ``buffer``. Return the position after it.

        If it is not complete yet, return ``position``.
        """
        if self._needed_bytes or position >= len(buffer):
            return position
        eol = buffer.find(b"\r\n", position)
        if eol < 0:
            if len(buffer) - position > LONGEST_LINE_BYTES:
                raise UnreadableDataError(
                    f"The NATS server sent a protocol line of more than {LONGEST_LINE_BYTES} bytes. Check that the URL is "
                    "a NATS server."
                )
            return position
        start = eol + 2
        if buffer[position] not in b"HM":
            await self._command(buffer[position:start])
            return start
        line = buffer[position:eol].split(b" ")
        total = size_of(line[-1])
        if total < 0 or line[0] not in (b"MSG", b"HMSG"):
            raise UnreadableDataError(
                f"The NATS server sent an unknown protocol line: {buffer[position : min(eol, position + 80)]!r}. "
                "Check that the URL is a NATS server."
            )
        end = start + total + 2
        if end > len(buffer):
            self._needed_bytes = end - position
            return position
        await self._message(line, buffer[start : end - 2])
        return end

    def _is_late_pong(self, line: bytes) -> bool:
        """Return whether ``line`` is a PONG for a PING whose caller no longer waits. nats-py would close the connection."""
        pongs = getattr(self._connection, "_pongs", None)
        if line != b"PONG\r\n" or not pongs or not pongs[0].done():
            return False
        pongs.pop(0)
        self._connection._pongs_received += 1
        self._connection._pings_outstanding = 0
        self.errors["late_pong"] += 1
        return True

    async def _command(self, line: bytes) -> None:
        if self._is_late_pong(line):
            return
        if line.startswith(b"-ERR") and (denial := _DENIAL.match(line)):
            for callback in list(self.denials):
                callback(denial[1].lower() == b"publish", denial[2].decode(errors="replace"))
        try:
            await self._rest.parse(line)
        except (OSError, Error):
            raise
        except Exception as error:  # an INFO that is no JSON, or an -ERR without a text
            raise UnreadableDataError(
                f"Cannot decode the NATS protocol line {line[:80]!r}: {error!r}. Check the version of the NATS server."
            ) from error

    async def _message(self, line: list[bytes], content: bytes) -> None:
        """Pass one message to its subscription. An invalid message is counted and skipped."""
        fields = message_fields(line)
        if fields is None or size_of(fields[1]) < 0:
            self.errors["malformed"] += 1
            return
        subject, sid, reply, header = fields
        await self._deliver(subject, sid, reply, content[header:], content[:header])

    async def _deliver(self, subject: bytes, sid: bytes, reply: bytes, payload: bytes, headers: bytes = b"") -> None:
        number = int(sid)
        subscription = self._connection._subs.get(number)
        if subscription is None:
            return  # the message was in flight when the subscription ended
        if self._check_subjects and not self._belongs(sid, subscription.subject, subject):
            self.errors["foreign_subject"] += 1
            return
        try:
            await self._connection._process_msg(number, subject, reply, payload, headers)
        except Exception:  # not UTF-8, or an invalid header block. Only this message is affected
            self.errors["undecodable"] += 1

    def _belongs(self, sid: bytes, wanted: str, subject: bytes) -> bool:
        pattern = self._patterns.get(sid)
        if pattern is None:
            for old_sid in [known for known in self._patterns if int(known) not in self._connection._subs]:
                del self._patterns[old_sid]
            pattern = self._patterns[sid] = Pattern(wanted)
        return subject in pattern.known or pattern.matches(subject)


def make_strict(connection: Client) -> Counter[str]:
    """Replace the parser of ``connection``, another nats-py connection. Return its counters of skipped messages.

    The new parser takes over incomplete data.
    """
    before = getattr(connection, "_ps", None)
    if isinstance(before, StrictParser):
        return before.errors
    if not isinstance(before, Parser) or not hasattr(connection, "_process_msg"):
        raise ConfigError("This version of nats-py is not supported. Install nats-py>=2.12,<3.")
    parser = StrictParser(connection, check_subjects=False)
    half = bytes(before.buf)
    if before.state == AWAITING_MSG_PAYLOAD:
        half = _unfinished_line(before) + half
    before.reset()
    parser._chunks, parser._held_bytes = ([half] if half else []), len(half)
    connection._ps = parser
    return parser.errors


def watch_denials(connection: Client, callback: Denied) -> Callable[[], None]:
    """Call ``callback`` each time the server denies a publish or subscription. Return a function that stops these calls."""
    parser = getattr(connection, "_ps", None)
    if not isinstance(parser, StrictParser):
        return lambda: None
    parser.denials.append(callback)
    return lambda: parser.denials.remove(callback)


def _unfinished_line(parser: Any) -> bytes:
    """Return the protocol line of the message that nats-py's parser has read only in part.

    The strict parser needs it to continue with this message.
    """
    fields = parser.msg_arg
    line = [b"HMSG" if parser.header_needed else b"MSG", fields["subject"], b"%d" % fields["sid"]]
    line += [fields["reply"]] if fields["reply"] else []
    line += [b"%d" % parser.header_needed] if parser.header_needed else []
    return b" ".join([*line, b"%d" % parser.needed]) + b"\r\n"
