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

import numpy as np

from liftpy.config import NS_PER_S, StreamConfig

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


class _Bucket:
    """Two token buckets, for records and bytes. ``left``: amounts that may pass now. Negative ones must be refilled first."""

    __slots__ = ("left", "seen_ns")

    def __init__(self, left: list[float], now_ns: int) -> None:
        self.left = left
        self.seen_ns = now_ns


class Quota:
    """Quota of one partition. ``rates``: records and bytes per second. 0: no limit.

    ``by_token``: number of the subject token whose values have their own buckets. 0: all messages share one pair of buckets.
    """

    def __init__(self, rates: tuple[float, float], by_token: int = 0) -> None:
        self.terms = rates, by_token
        self._rates = rates
        self._most = [max(rate * BURST_S, 1.0) if rate else 0.0 for rate in rates]
        self._by_token = by_token
        self._buckets: dict[str, _Bucket] = {}
        """Buckets by token, the last used one at the end."""

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
            return self._charge_all(len(messages), records, sizes, self._bucket("", now_ns), forced)
        tokens, groups = self._tokens(messages)
        buckets = [self._bucket(token, now_ns) for token in tokens]
        if len(buckets) == 1:
            return self._charge_all(len(messages), records, sizes, buckets[0], forced)
        costs = [np.full(len(messages), float(records)), np.array(sizes, np.float64)]
        waits_ms = np.zeros(len(messages))
        for kind, rate in enumerate(self._rates):
            if rate:
                left = np.array([bucket.left[kind] for bucket in buckets])
                waits_ms = np.maximum(waits_ms, _waits(_cost_before(costs[kind], groups) - left[groups], rate))
        if forced or not waits_ms.any():
            sums = [np.bincount(groups, cost, len(buckets)).tolist() for cost in costs]
            for bucket, *paid in zip(buckets, *sums, strict=True):
                self._pay(bucket, paid)
            return None
        return _limit_waits(waits_ms)

    def _charge_all(self, count: int, records: int, sizes: list[int], bucket: _Bucket, forced: bool) -> list[int] | None:
        """Charge ``count`` messages to one bucket. Return None if they are accepted, otherwise the wait of each in milliseconds.

        ``records``: records per message. ``sizes``: size of each message in bytes, [] without a limit. ``forced``: accept all
        of them.
        """
        paid, last = [float(count * records), float(sum(sizes))], (records, sizes[-1] if sizes else 0)
        if forced or all(not self._rates[kind] or paid[kind] - last[kind] < bucket.left[kind] for kind in (0, 1)):
            self._pay(bucket, paid)
            return None
        waits_ms = np.zeros(count)
        for kind, rate in enumerate(self._rates):
            if rate:
                cost = np.array(sizes, np.float64) if kind else np.full(count, float(records))
                waits_ms = np.maximum(waits_ms, _waits(np.cumsum(cost) - cost - bucket.left[kind], rate))
        return _limit_waits(waits_ms)

    def _pay(self, bucket: _Bucket, paid: Sequence[float]) -> None:
        bucket.left = [left - cost if rate else left for left, cost, rate in zip(bucket.left, paid, self._rates, strict=True)]

    def _sizes(self, messages: Messages) -> list[int]:
        """Return the size of each message (payload and headers) in bytes. []: there is no limit for bytes."""
        if not self._rates[1]:
            return [0] * len(messages) if self._by_token else []
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

    def _bucket(self, token: str, now_ns: int) -> _Bucket:
        """Return the bucket of the token value ``token``, refilled up to ``now_ns`` (monotonic)."""
        bucket = self._buckets.pop(token, None)
        if bucket is None:
            bucket = _Bucket(list(self._most), now_ns)
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
        elif now_ns != bucket.seen_ns:
            passed_s = max(now_ns - bucket.seen_ns, 0) / NS_PER_S
            filled = zip(bucket.left, self._rates, self._most, strict=True)
            bucket.left = [min(most, left + passed_s * rate) for left, rate, most in filled]
            bucket.seen_ns = now_ns
        self._buckets[token] = bucket
        return bucket


def quota_for(stream: StreamConfig, partitions: int, held: Quota | None) -> Quota | None:
    """Return the quota of one partition of ``stream``. None: the stream has no quota.

    ``partitions``: number of partitions, among which the quota is divided. ``held``: current quota, which is returned if
    nothing has changed.
    """
    if not stream.has_quota:
        return None
    share = max(partitions, 1)
    terms = (stream.quota_records_per_s / share, stream.quota_bytes_per_s / share), stream.quota_by_token
    return held if held is not None and held.terms == terms else Quota(*terms)


def _token(subject: bytes, number: int) -> str:
    parts = subject.split(b".", number)
    token = parts[number - 1] if len(parts) >= number else b""
    if len(token) > _MAX_TOKEN_LENGTH:
        token = b"\0" + blake2b(token, digest_size=16).digest()
    return token.decode("latin-1")


def _cost_before(costs: _Floats, groups: _Indices) -> _Floats:
    """Return for each message the total cost of the earlier messages of its group. ``groups``: group of each message."""
    order = np.argsort(groups, kind="stable")
    sums = np.cumsum(costs[order]) - costs[order]
    firsts = np.searchsorted(groups[order], np.arange(int(groups.max()) + 1))
    found = np.empty(len(costs))
    found[order] = sums - sums[firsts][groups[order]]
    return found


def _waits(owed: _Floats, rate: float) -> _Floats:
    """Return for each message the time in milliseconds until the amount ``owed`` is refilled at ``rate`` per second. 0: no wait."""
    return np.where(owed >= 0, np.floor(owed * _MS / rate + _ROUNDING) + 1, 0.0)


def _limit_waits(waits_ms: _Floats) -> list[int]:
    found: list[int] = np.minimum(waits_ms, MAX_WAIT_MS).astype(np.int64).tolist()
    return found
