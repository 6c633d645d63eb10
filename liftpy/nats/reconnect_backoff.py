"""``ReconnectBackoff``: the pause before a connect to NATS servers that let a client in and then close the connection.

A server does this at a limit (subscriptions or connections of an account), or when a user has lost its authorization. Without a
pause, each connection would reconnect several times a second for as long as the cause lasts. A server that is down or restarts does
not count. So a pause never delays the reconnect after an ordinary loss.
"""

from __future__ import annotations

import random

SHORT_S = 2.0
"""Lifetime in seconds below which a connection counts as closed at once."""
FREE_CLOSES = 3
"""Number of consecutive closes without a pause."""
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0


class ReconnectBackoff:
    """Counts the consecutive connections of one client that servers have closed at once. All times are in seconds."""

    __slots__ = ("_connected_s", "closes")

    def __init__(self) -> None:
        self.closes = 0
        """Number of consecutive connections that a server rejected in the handshake or closed within ``SHORT_S``."""
        self._connected_s: float | None = None
        """Monotonic time when the current connection was made. None: there is none."""

    def note_connected(self, now_s: float) -> None:
        self._connected_s = now_s

    def note_rejected(self) -> None:
        """Note that a server has answered and then ended the handshake."""
        self.closes += 1

    def note_lost(self, now_s: float) -> None:
        """Note the end of the current connection. A second call for the same connection has no effect."""
        connected_s, self._connected_s = self._connected_s, None
        if connected_s is not None:
            self.closes = self.closes + 1 if now_s - connected_s < SHORT_S else 0

    def reset(self) -> None:
        """Forget all closes, because this client has changed something, for example its credentials."""
        self.closes, self._connected_s = 0, None

    def pause_s(self) -> float:
        """Return the pause before the next connect: from ``FIRST_PAUSE_S`` to ``MAX_PAUSE_S``, less up to a half at random."""
        doublings = self.closes - FREE_CLOSES - 1
        if doublings < 0:
            return 0.0
        return min(FIRST_PAUSE_S * 2.0 ** min(doublings, 16), MAX_PAUSE_S) * random.uniform(0.5, 1.0)
