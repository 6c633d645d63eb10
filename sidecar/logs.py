"""What a node logs, and how: as text or JSON, each event by its name, a flood of one told and not retold.

Of one event and partition five lines a second are logged, twenty in a burst; how many were left out is said in a line of its own as
soon as one may be logged again, or a second later. Errors are never left out. The level can be changed for a time, and falls back by
itself.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from liftpy.ids import PartitionKey
from sidecar.log_events import EVENTS, KEY_CHARS

logger = logging.getLogger("liftpy.node")

LINES_PER_S = 5.0
BURST_LINES = 20.0
MOST_KEYS = 4096
"""Events and partitions that are told apart; beyond them those that were quiet longest are forgotten."""
_LATER_S = 1.0
_OTHER = "other"
LEVELS = ("debug", "info", "warning", "error")
_NOISY = ("nats", "pysyncobj", "asyncio")
_EPOCH_AT = {"replica.role_changed": 3}
"""Event -> which of its arguments is the LeaderEpoch."""


def event_of(record: logging.LogRecord) -> str:
    """Its name; what has none is called after its logger."""
    found = EVENTS.get((record.name, str(record.msg)[:KEY_CHARS]))
    return found or f"{record.name.removeprefix('liftpy.')}.{_OTHER}"


def partition_of(record: logging.LogRecord) -> PartitionKey | None:
    """The one that it is about."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else None
    return first if isinstance(first, PartitionKey) else None


class Suppression(logging.Filter):
    """Leaves lines out; ``say`` logs a record past the filter. ``clock``: monotonic, s. May be called on any thread."""

    def __init__(self, say: Callable[[logging.LogRecord], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, PartitionKey | None], tuple[float, float]] = {}
        """(event, partition) -> (lines that may still be logged, as of when)"""
        self._unsaid: dict[tuple[str, PartitionKey | None], tuple[int, logging.LogRecord]] = {}
        """How many were left out, and the last of them."""
        self.messages: Counter[str] = Counter()
        """Level -> lines that were logged."""
        self.left_out_count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged."""
        key = event_of(record), partition_of(record)
        with self._lock:
            takes = record.levelno >= logging.ERROR or self._takes(key)
            if takes:
                self.messages[record.levelname.lower()] += 1
            else:
                self.left_out_count += 1
                count, _ = self._unsaid.get(key, (0, record))
                self._unsaid[key] = count + 1, record
            told = self._unsaid.pop(key, None) if takes else None
        if told is not None:
            self._tell(*told)
        return takes

    def _takes(self, key: tuple[str, PartitionKey | None]) -> bool:
        now = self._clock()
        left, at = self._buckets.pop(key, (BURST_LINES, now))
        left = min(BURST_LINES, left + (now - at) * LINES_PER_S)
        self._buckets[key] = (left - 1, now) if left >= 1 else (left, now)
        if len(self._buckets) > MOST_KEYS:
            del self._buckets[next(iter(self._buckets))]
        return left >= 1

    def tell(self, *, all_of_it: bool = False) -> None:
        """Say what was left out and has been unsaid for a second; ``all_of_it``: the process ends."""
        if not self._unsaid:
            return
        now = self._clock()
        with self._lock:
            due = [key for key in self._unsaid if all_of_it or now - self._buckets.get(key, (0, 0))[1] >= _LATER_S]
            told = [self._unsaid.pop(key) for key in due]
        for count, record in told:
            self._tell(count, record)

    def _tell(self, count: int, last: logging.LogRecord) -> None:
        text = f"suppressed {count:,} lines like this one: {last.getMessage()}"
        made = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, text, None, None)
        made.__dict__.update(event=event_of(last), partition_key=partition_of(last), suppressed=count)
        self._say(made)


class JsonFormatter(logging.Formatter):
    """One object a line. ``facts``: of the node, in each."""

    def __init__(self, facts: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        """With the fields that docs/operating.md names."""
        event, key = (
            getattr(record, "event", "") or event_of(record),
            getattr(record, "partition_key", None) or partition_of(record),
        )
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
            "msg": record.getMessage(),
            **self._facts(),
        }
        if key is not None:
            line |= {"stream": key.stream, "partition": key.partition}
        if event in _EPOCH_AT and isinstance(record.args, tuple) and len(record.args) > _EPOCH_AT[event]:
            line["epoch"] = record.args[_EPOCH_AT[event]]
        if (suppressed := getattr(record, "suppressed", 0)) > 0:
            line["suppressed"] = suppressed
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class NodeLogs:
    """Of one process."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        """``node`` and ``incarnation``, as far as they are known."""
        self._handler: logging.Handler = logging.NullHandler()
        self.suppression = Suppression(lambda record: self._handler.emit(record))
        self._level = "info"
        self._until: Any = None

    def configure(self, level: str, form: str, node_id: str, stream: TextIO | None = None) -> None:
        """Log to ``stream`` (default: the standard error) from ``level`` on; ``form``: text or json."""
        self.facts, self._level = {"node": node_id}, level
        handler = self._handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(self._formatter(form))
        handler.addFilter(self.suppression)
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        for noisy in _NOISY:
            logging.getLogger(noisy).setLevel(logging.WARNING)

    def _formatter(self, form: str) -> logging.Formatter:
        text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
        return JsonFormatter(lambda: self.facts) if form == "json" else text

    def reconfigure(self, level: str, form: str) -> None:
        """From now on; a level that was asked for for a time stays until then."""
        self._level = level
        self._handler.setFormatter(self._formatter(form))
        if self._until is None:
            logging.getLogger().setLevel(level.upper())

    def change_level(self, level: str, for_s: float, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """Log from ``level`` on, for so long."""
        if self._until is not None:
            self._until.cancel()
        logging.getLogger().setLevel(level.upper())
        logger.warning("log level is %s for %g s", level, for_s)
        self._until = call_later(for_s, self._fall_back)

    def _fall_back(self) -> None:
        self._until = None
        logger.warning("log level is %s again", self._level)
        logging.getLogger().setLevel(self._level.upper())


LOGS = NodeLogs()
