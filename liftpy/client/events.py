"""What happens while a partition is read, told to an application that counts or logs it: answers, failures, changes of replica."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum

from liftpy.dataclass import dataclass

logger = logging.getLogger("liftpy.client")
_SAY_EVERY_S = 1.0


class EventKind(Enum):
    """Of a ``ReadEvent``."""

    ANSWERED = "answered"
    """Records came, ``records`` of them in ``size_bytes`` as sent, ``took_s`` after they were asked for."""
    FAILED = "failed"
    """A question led to an error, ``detail``; it is asked again, perhaps elsewhere, unless that is what the reading then raises."""
    SILENT = "silent"
    """Nobody has answered in time: others are asked as well."""
    MOVED = "moved"
    """Another replica answers than before: ``node``; ``detail`` is the one before."""
    RECONNECTED = "reconnected"
    """The connection to NATS was renewed while an answer was waited for; it is asked for again."""


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """One of them. ``node``: who answered, or was asked; empty: any."""

    kind: EventKind
    stream: str
    partition: int
    node: str = ""
    records: int = 0
    size_bytes: int = 0
    took_s: float = 0.0
    detail: str = ""


OnEvent = Callable[[ReadEvent], None]
"""Called in the event loop, once for an answer or a try and never for a record: it must not block. What it raises is logged, at most
once a second, and harms no reading."""


class Teller:
    """Calls ``on_event``; None: nobody wants to know."""

    def __init__(self, on_event: OnEvent | None, stream: str, partition: int) -> None:
        self._on_event = on_event
        self._stream = stream
        self._partition = partition
        self._say_at = 0.0
        self._node = ""

    def tell(
        self, kind: EventKind, node: str = "", *, records: int = 0, size_bytes: int = 0, took_s: float = 0.0, detail: str = ""
    ) -> None:
        """Tell of one."""
        if self._on_event is None:
            return
        event = ReadEvent(kind, self._stream, self._partition, node, records, size_bytes, took_s, detail)
        try:
            self._on_event(event)
        except Exception as error:
            now = time.monotonic()
            if now >= self._say_at:
                self._say_at = now + _SAY_EVERY_S
                logger.error("on_event has failed at %s: %r", event, error, exc_info=error)

    def answered(self, node: str, records: int, size_bytes: int, took_s: float) -> None:
        """Tell of an answer that was believed, and of a change of who gives them; one without records is the end of a long poll, and
        not told."""
        if self._on_event is None:
            return
        before, self._node = self._node, node
        if before and before != node:
            self.tell(EventKind.MOVED, node, detail=before)
        if records:
            self.tell(EventKind.ANSWERED, node, records=records, size_bytes=size_bytes, took_s=took_s)
