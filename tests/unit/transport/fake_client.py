"""A client of nats-py that keeps what its parser finds."""

from __future__ import annotations

from collections import Counter

from nats.aio.subscription import Subscription


class FakeClient:
    """Fake client with the methods that the parser of nats-py calls."""

    def __init__(self) -> None:
        self.stats = {"in_msgs": 0, "in_bytes": 0}
        self.calls: Counter[str] = Counter()
        self._subs = {7: Subscription(self, 7, "a.*")}
        self.failed: list[bytes] = []

    def sink_failed(self, subject: bytes, error: Exception) -> None:
        self.failed.append(subject)

    async def _process_ping(self) -> None:
        self.calls["ping"] += 1
