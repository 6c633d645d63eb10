"""What NATS does not let this node do: said at once and once, not found out as a time-out.

While a node starts, a refusal in its own namespace ends the start: without that right nothing would ever come of it. Later, and for
the subjects of streams, it is an error in the log: rights may be given back without a restart.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from liftpy.errors import NotAllowedError

logger = logging.getLogger("liftpy.bus")

_MAX_SAID = 64
"""Subjects that are named in the log; those beyond are only counted."""


class RightsWatch:
    """``denied`` is for ``watch_denials``; call ``started`` when the node is up. ``fatal``: ends the start."""

    def __init__(self, namespace: str, fatal: Callable[[Exception], None], counters: Counter[str]) -> None:
        self._namespace = namespace
        self._fatal = fatal
        self._counters = counters
        self._is_starting = True
        self._said: set[tuple[bool, str]] = set()

    def started(self) -> None:
        """From now on a refusal ends nothing."""
        self._is_starting = False

    def denied(self, is_publish: bool, subject: str) -> None:
        """NATS does not let this node publish, or else subscribe, on ``subject``."""
        self._counters["refused by NATS's rights"] += 1
        error = NotAllowedError(
            f"NATS does not let this node {'publish' if is_publish else 'subscribe'} on {subject}: give its user the rights that "
            f"`liftpy rights --role node --namespace {self._namespace}` prints"
        )
        if self._is_starting and subject.startswith(f"{self._namespace}."):
            self._is_starting = False
            self._fatal(error)
        elif len(self._said) < _MAX_SAID and (is_publish, subject) not in self._said:
            self._said.add((is_publish, subject))
            logger.error("%s", error)
