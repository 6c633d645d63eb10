"""A raw tap: how many answers each request got, as the wire shows it; an Ack of a run is one to each of its requests."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import nats

from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import MAGIC
from liftpy.errors import ProtocolError
from tests.ack_runs import answered_by

_PATIENCE_S = 30.0


def _record_count(data: bytes) -> int:
    """Of an Ack; no batches are published here, and other answers are no Acks."""
    with suppress(ProtocolError):
        return frames.decode(data, client_pb2.Ack).recordCount if data.startswith(MAGIC) else 0
    return 0


class Tap:
    """Hears what is published on ``subject`` with a reply, and all that goes to inboxes. Use as ``async with``."""

    def __init__(self, url: str, subject: str) -> None:
        self._url = url
        self._subject = subject
        self._asked: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self.lines = 0
        """Answers, as messages."""
        self.longest_s = 0.0
        """That a request waited for its first answer."""

    async def __aenter__(self) -> Tap:
        self._connection = await nats.connect(self._url)
        for subject, into in ((self._subject, self._wait_for_server), ("_INBOX.>", self._answer)):
            await self._connection.subscribe(subject, cb=into, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self._connection.flush()
        return self

    async def _wait_for_server(self, message: Any) -> None:
        if message.reply.startswith("_INBOX.") and not message.reply.endswith(".$FI"):
            self._asked[message.reply] += 1
            self._since.setdefault(message.reply, time.monotonic())

    @property
    def requests(self) -> int:
        """That were heard."""
        return sum(self._asked.values())

    async def _answer(self, message: Any) -> None:
        self.lines += message.subject in self._asked
        for reply in answered_by(message.subject.encode(), _record_count(message.data)):
            self._answers[reply.decode()] += 1
            asked = self._since.pop(reply.decode(), None)
            if asked is not None:
                self.longest_s = max(self.longest_s, time.monotonic() - asked)

    async def wrong(self) -> str:
        """'' when every request has exactly one answer; else an example, after some patience for those that have none yet."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while any(self._answers[reply] < count for reply, count in self._asked.items()):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        for reply, count in self._asked.items():
            if self._answers[reply] != count:
                return f"{self._answers[reply]} answers to {count} requests on {reply}"
        return "" if self._asked else "nobody asked anything"

    def twice(self) -> int:
        """Requests that got more answers than one."""
        return sum(self._answers[reply] > count for reply, count in self._asked.items())

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
