"""``Quota``: limits the records and bytes per second of one partition, with token buckets. Pure.

One bucket counts records and one counts bytes. Each is filled at the rate, and holds at most the amount of ``BURST_S``
seconds. A publish is accepted while neither bucket is empty, and may make it negative. So a message that is larger than
the bucket is accepted too, and the average rate is still limited. A rejection contains the time to wait. The times
differ, so that publishers retry one after the other. With ``by_token`` each value of that subject token has its own
buckets, at most ``MAX_BUCKETS``. The quota of a stream is divided equally among its partitions.

Example: 1,000 records per second, so the bucket holds 250. A publisher sends 400 records at once. The leader accepts
250. The rejections say to retry the 251st record after 1 ms, and the last one after 150 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import numpy as np

from liftpy.config import StreamConfig
from liftpy.core.base.rate_limits import TokenBucket, touch_entry

BURST_S = 0.25
MAX_BUCKETS = 10_000
MAX_WAIT_MS = 30_000
"""Maximum retry delay in a rejection, in ms."""
_MAX_TOKEN_LENGTH = 32
"""Maximum length of a token, in characters. For a longer token, the quota uses its digest."""
_MS = 1000
_ROUNDING = 1e-6

Messages = Sequence[tuple[bytes, bytes, bytes, bytes]]
"""(subject, reply, payload, header block) of each message."""
_Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
_Indices = np.ndarray[tuple[int], np.dtype[np.intp]]


_Kind = Literal[0, 1]
"""Limited amount of a bucket. 0: records, 1: bytes."""
_Limit = tuple[_Kind, TokenBucket]


class Quota:
    """Quota of one partition. ``rates``: records and bytes per second. 0: no limit.

    ``by_token``: number of the subject token whose values have their own buckets. 0: all messages share one pair of buckets.
    """

    def __init__(self, rates: tuple[float, float], by_token: int = 0) -> None:
        self.terms = rates, by_token
        self._rates = rates
        self._by_token = by_token
        self._buckets: dict[str, tuple[_Limit, ...]] = {}
        """Buckets of each token for the limited kinds, the last used ones at the end."""

    @property
    def scope(self) -> str:
        """Value of the metric label ``scope``: ``token`` if each token has its own buckets, else ``stream``."""
        return "token" if self._by_token else "stream"

    def __len__(self) -> int:
        return len(self._buckets)

    def charge(self, messages: Messages, batch_records: int, now_ns: int, *, forced: bool = False) -> list[int] | None:
        """Charge messages to the quota.

        Args:
            messages: The messages.
            batch_records: Number of records if the only message is a batch. 0: each message is one record.
            now_ns: Monotonic clock, in nanoseconds.
            forced: True to accept all messages.

        Returns:
            None if all messages are accepted and charged. Otherwise nothing is charged, and the result is the wait of
            each message in milliseconds. It is 0 for messages that would be accepted alone.
        """
        records, sizes = batch_records or 1, self._sizes(messages)
        if not self._by_token:
            return _charge_all(len(messages), records, sizes, self._limits("", now_ns), forced)
        tokens, groups = self._tokens(messages)
        limits = [self._limits(token, now_ns) for token in tokens]
        if len(limits) == 1:
            return _charge_all(len(messages), records, sizes, limits[0], forced)
        waits_ms = np.zeros(len(messages))
        charges: list[tuple[list[TokenBucket], _Floats]] = []
        for of_kind in zip(*limits, strict=True):
            kind, first = of_kind[0]
            cost, buckets = _costs(kind, len(messages), records, sizes), [bucket for _, bucket in of_kind]
            left = np.array([bucket.tokens for bucket in buckets])
            waits_ms = np.maximum(waits_ms, _waits(_cost_before(cost, groups) - left[groups], first.per_s))
            charges.append((buckets, cost))
        if not forced and waits_ms.any():
            return _limit_waits(waits_ms)
        for charged, cost in charges:
            for bucket, paid in zip(charged, np.bincount(groups, cost, len(charged)).tolist(), strict=True):
                bucket.tokens -= paid
        return None

    def _sizes(self, messages: Messages) -> list[int]:
        if not self._rates[1]:
            return []
        _, _, payloads, blocks = zip(*messages, strict=True)
        return list(map(int.__add__, map(len, payloads), map(len, blocks)))

    def _tokens(self, messages: Messages) -> tuple[list[str], _Indices]:
        """Return the distinct values of the subject token of ``messages``, and for each message the index of its value."""
        subjects = [message[0] for message in messages]
        numbers: dict[str, int] = {}
        of_subject = {
            subject: numbers.setdefault(_token(subject, self._by_token), len(numbers)) for subject in dict.fromkeys(subjects)
        }
        return list(numbers), np.fromiter(map(of_subject.__getitem__, subjects), np.intp, len(subjects))

    def _limits(self, token: str, now_ns: int) -> tuple[_Limit, ...]:
        limits = touch_entry(self._buckets, token, MAX_BUCKETS, self._new_limits)
        for _, bucket in limits:
            bucket.refill(now_ns)
        return limits

    def _new_limits(self) -> tuple[_Limit, ...]:
        rates: tuple[tuple[_Kind, float], ...] = ((0, self._rates[0]), (1, self._rates[1]))
        return tuple((kind, TokenBucket(rate, max(rate * BURST_S, 1.0))) for kind, rate in rates if rate)


def quota_for(stream: StreamConfig, partitions: int, current: Quota | None) -> Quota | None:
    """Return the quota of one partition of ``stream``. None: the stream has no quota.

    ``partitions``: number of partitions, among which the quota is divided. ``current``: current quota, which is returned if
    nothing has changed.
    """
    if not stream.has_quota:
        return None
    share = max(partitions, 1)
    terms = (stream.quota_records_per_s / share, stream.quota_bytes_per_s / share), stream.quota_by_token
    return current if current is not None and current.terms == terms else Quota(*terms)


def _charge_all(count: int, records: int, sizes: list[int], limits: Sequence[_Limit], forced: bool) -> list[int] | None:
    """Charge ``count`` messages to the same buckets. Return None if they are accepted, otherwise the wait of each in milliseconds.

    ``records``: records per message. ``sizes``: size of each message in bytes, [] without a limit. ``forced``: accept all.
    """
    paid, last = (count * records, sum(sizes)), (records, sizes[-1] if sizes else 0)
    if forced or all(paid[kind] - last[kind] < bucket.tokens for kind, bucket in limits):
        for kind, bucket in limits:
            bucket.tokens -= paid[kind]
        return None
    waits_ms = np.zeros(count)
    for kind, bucket in limits:
        cost = _costs(kind, count, records, sizes)
        waits_ms = np.maximum(waits_ms, _waits(np.cumsum(cost) - cost - bucket.tokens, bucket.per_s))
    return _limit_waits(waits_ms)


def _costs(kind: _Kind, count: int, records: int, sizes: list[int]) -> _Floats:
    return np.array(sizes, np.float64) if kind else np.full(count, float(records))


def _token(subject: bytes, number: int) -> str:
    parts = subject.split(b".", number)
    token = parts[number - 1] if len(parts) >= number else b""
    if len(token) > _MAX_TOKEN_LENGTH:
        token = b"\0" + blake2b(token, digest_size=16).digest()
    return token.decode("latin-1")


def _cost_before(costs: _Floats, groups: _Indices) -> _Floats:
    order = np.argsort(groups, kind="stable")
    sums = np.cumsum(costs[order]) - costs[order]
    firsts = np.searchsorted(groups[order], np.arange(int(groups.max()) + 1))
    costs_before = np.empty(len(costs))
    costs_before[order] = sums - sums[firsts][groups[order]]
    return costs_before


def _waits(owed: _Floats, rate: float) -> _Floats:
    """Return for each message the time in milliseconds until the amount ``owed`` is refilled at ``rate`` per second. 0: no wait."""
    return np.where(owed >= 0, np.floor(owed * _MS / rate + _ROUNDING) + 1, 0.0)


def _limit_waits(waits_ms: _Floats) -> list[int]:
    limited_ms: list[int] = np.minimum(waits_ms, MAX_WAIT_MS).astype(np.int64).tolist()
    return limited_ms
