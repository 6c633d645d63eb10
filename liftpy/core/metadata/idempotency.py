"""Idempotent requests: a sender repeats a request with one operation id, and the group applies it once. Pure.

``ForwardedRequest`` repeats a request until it is decided or its time is over. The first entry of an operation decides,
and later entries get its answer [protocol: The metadata group].

``IdempotencyCache`` is the window of finished operations. It is part of the image, and limited by number, size and age.
The age is the sum of the steps between operations, each limited to ``MAX_STEP_NS``. So one wrong clock neither empties
the window nor keeps it forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from immutables import Map

from liftpy.config import NS_PER_S
from liftpy.core.wire._pb import cluster_pb2 as pb

OPERATION_ID_SIZE_BYTES = 16
MAX_OPERATIONS = 65_536
MAX_AGE_NS = 600 * 1_000_000_000
MAX_STEP_NS = 10 * 1_000_000_000
MAX_SIZE_BYTES = 32 << 20
"""Maximum total size of all answers in the window, in bytes. Each answer counts with ``_ENTRY_BYTES`` of overhead."""
_ENTRY_BYTES = 400
_EVICT_AT_ONCE = 16
ATTEMPT_NS = NS_PER_S
"""Maximum time of one attempt over NATS, in nanoseconds."""
PAUSE_NS = NS_PER_S // 20
"""Shortest pause between two attempts, in nanoseconds."""
MAX_PAUSE_NS = NS_PER_S // 2
"""Longest pause between two attempts, in nanoseconds."""
_OUTAGE_SHARE = 20
_JITTER = 0.25
UNDECIDED = (pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.OUTCOME_UNKNOWN, pb.ControlResponse.NOT_METADATA_LEADER)
"""Errors after which the sender repeats a request."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One finished operation with its answer (``response``). Times are in ns."""

    operation_id: bytes
    time_ns: int
    """Image time when the operation was applied. It may be lower than the time of an earlier operation."""
    response: bytes
    """Serialized ControlResponse to the operation."""
    age_ns: int = 0
    """Age of the window at this operation, in nanoseconds: sum of the limited steps of ``time_ns`` since the first
    operation.
    """


@dataclass(frozen=True, slots=True)
class IdempotencyCache:
    """The window of finished operations, oldest first, with a lookup by operation id. The value is never changed in place."""

    by_id: Map[bytes, Operation] = field(default_factory=Map)
    order: Map[int, bytes] = field(default_factory=Map)
    """Sequence number -> operation id, from ``oldest`` (inclusive) to ``next_sequence`` (exclusive)."""
    oldest: int = 0
    next_sequence: int = 0
    size_bytes: int = 0
    """Total size of the answers in bytes, counted as for ``MAX_SIZE_BYTES``."""

    def __len__(self) -> int:
        return self.next_sequence - self.oldest

    def __iter__(self) -> Iterator[Operation]:
        return (self.by_id[self.order[n]] for n in range(self.oldest, self.next_sequence))

    def get(self, operation_id: bytes) -> Operation | None:
        return self.by_id.get(operation_id)

    def with_operation(self, operation: Operation) -> IdempotencyCache:
        """Return the window with one more operation. Drop the oldest operations beyond the limits of number, size and age.

        Only a few operations are dropped for their age at a time, so that an entry after hours without requests is not
        slower.
        """
        by_id, order, oldest = self.by_id, self.order, self.oldest
        size_bytes = self.size_bytes + _size_bytes(operation)
        aged = replace(operation, age_ns=self._age_ns(operation.time_ns))
        too_old = aged.age_ns - MAX_AGE_NS
        evicted = 0
        while oldest < self.next_sequence:
            oldest_operation = by_id[order[oldest]]
            too_much = self.next_sequence - oldest >= MAX_OPERATIONS or size_bytes > MAX_SIZE_BYTES
            if not too_much and (oldest_operation.age_ns >= too_old or evicted >= _EVICT_AT_ONCE):
                break
            evicted, size_bytes = evicted + 1, size_bytes - _size_bytes(oldest_operation)
            by_id, order, oldest = by_id.delete(oldest_operation.operation_id), order.delete(oldest), oldest + 1
        return IdempotencyCache(
            by_id.set(operation.operation_id, aged),
            order.set(self.next_sequence, operation.operation_id),
            oldest,
            self.next_sequence + 1,
            size_bytes,
        )

    def _age_ns(self, time_ns: int) -> int:
        if self.oldest == self.next_sequence:
            return 0
        last = self.by_id[self.order[self.next_sequence - 1]]
        return last.age_ns + min(max(time_ns - last.time_ns, 0), MAX_STEP_NS)

    @classmethod
    def of(cls, operations: list[Operation]) -> IdempotencyCache:
        """Return a window with these operations, oldest first. A snapshot stores them in this order."""
        return cls(
            Map((o.operation_id, o) for o in operations),
            Map(enumerate(o.operation_id for o in operations)),
            0,
            len(operations),
            sum(map(_size_bytes, operations)),
        )


def _size_bytes(operation: Operation) -> int:
    return len(operation.response) + _ENTRY_BYTES


def error_response(request: pb.ControlRequest, error: pb.ControlResponse.Error, detail: str) -> pb.ControlResponse:
    """Return the response to ``request`` that reports ``error``. ``detail``: text for the sender."""
    return pb.ControlResponse(operationId=request.operationId[:OPERATION_ID_SIZE_BYTES], error=error, detail=detail)


class RetryPauses:
    """Pauses between the attempts of a node to reach the metadata leader. Pure.

    A pause is 5 % of the time since the first attempt that failed, from ``PAUSE_NS`` to ``MAX_PAUSE_NS``, less up to a quarter at
    random. So a node reaches a new leader soon after a short failover, and sends few requests while there is none for long.
    """

    def __init__(self) -> None:
        self._failed_ns: int | None = None
        """Time of the first failed attempt since the last answer. None: the last attempt was answered."""

    def answered(self) -> None:
        """Note that a metadata leader has answered, or that there is a new one. The next pause is the shortest one."""
        self._failed_ns = None

    def next_ns(self, now_ns: int, draw: Callable[[], float]) -> int:
        """Return the pause after an attempt that failed at ``now_ns``, in nanoseconds.

        ``draw``: returns a random number from 0 to 1. The shortest pause needs none.
        """
        if self._failed_ns is None:
            self._failed_ns = now_ns
        pause_ns = min(max((now_ns - self._failed_ns) // _OUTAGE_SHARE, PAUSE_NS), MAX_PAUSE_NS)
        return pause_ns if pause_ns == PAUSE_NS else pause_ns - round(pause_ns * _JITTER * draw())


class ForwardedRequest:
    """One request that is forwarded to the metadata leader, in several attempts if needed.

    Send attempts until ``decided`` is True or ``remaining_ns`` returns 0. Then use ``response``.
    """

    def __init__(self, request: pb.ControlRequest, deadline_ns: int) -> None:
        self.request = request
        self._deadline_ns = deadline_ns
        self._last = error_response(request, pb.ControlResponse.UNAVAILABLE, "no metadata leader answered")
        self._maybe_applied = False
        self.decided = False

    def remaining_ns(self, now_ns: int) -> int:
        return max(self._deadline_ns - now_ns, 0)

    def response_received(self, response: pb.ControlResponse) -> bool:
        """Process the response to an attempt. Return whether it is the final decision."""
        self._last = response
        self.decided = response.error not in UNDECIDED
        self._maybe_applied = self._maybe_applied or response.error == pb.ControlResponse.OUTCOME_UNKNOWN
        return self.decided

    def attempt_failed(self, detail: str, *, sent: bool) -> None:
        """Record that an attempt over NATS failed. ``detail``: reason.

        ``sent``: a leader may have received the request, and may still decide it.
        """
        error = pb.ControlResponse.OUTCOME_UNKNOWN if sent else pb.ControlResponse.UNAVAILABLE
        self.response_received(error_response(self.request, error, detail))

    @property
    def response(self) -> pb.ControlResponse:
        """Decision of the metadata leader, or an error.

        If an attempt may be in the log, the error says that the outcome is unknown.
        """
        if self._maybe_applied and not self.decided:
            self._last.error = pb.ControlResponse.OUTCOME_UNKNOWN
        return self._last
