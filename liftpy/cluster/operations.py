"""The window of done operations: a request that comes twice is applied once [spec 6, point 9].

A caller that hears nothing retries with the same operation id, on any node, through any metadata leader; the first
entry of that id decides, the later ones get its answer. The window is part of the image, so that it survives
snapshots, and is bounded by count and by image time: a retry later than that is a new operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from immutables import Map

OPERATION_ID_SIZE_BYTES = 16
MAX_OPERATIONS = 65_536
MAX_AGE_NS = 600 * 1_000_000_000
_EVICT_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Operation:
    """One done operation."""

    operation_id: bytes
    time_ns: int
    """Image time at which it was applied."""
    response: bytes
    """The serialized ControlResponse that it got."""


@dataclass(frozen=True, slots=True)
class OperationWindow:
    """A persistent queue of operations with look-up by id, oldest first."""

    by_id: Map[bytes, Operation] = field(default_factory=Map)
    order: Map[int, bytes] = field(default_factory=Map)
    """Sequence -> operation id, for ``oldest <= sequence < next_sequence``."""
    oldest: int = 0
    next_sequence: int = 0

    def __len__(self) -> int:
        return self.next_sequence - self.oldest

    def __iter__(self) -> Iterator[Operation]:
        return (self.by_id[self.order[n]] for n in range(self.oldest, self.next_sequence))

    def get(self, operation_id: bytes) -> Operation | None:
        """The operation of that id, if it is in the window."""
        return self.by_id.get(operation_id)

    def with_operation(self, operation: Operation) -> OperationWindow:
        """With one more operation (of an id that is not in the window); what is too old or too much goes, oldest first.

        Age evicts a few at a time, so that one apply after a quiet night stays as cheap as any other.
        """
        by_id, order, oldest = self.by_id, self.order, self.oldest
        too_old = operation.time_ns - MAX_AGE_NS
        for _ in range(_EVICT_AT_ONCE):
            if oldest == self.next_sequence:
                break
            held = by_id[order[oldest]]
            if held.time_ns >= too_old and self.next_sequence - oldest < MAX_OPERATIONS:
                break
            by_id, order, oldest = by_id.delete(held.operation_id), order.delete(oldest), oldest + 1
        return OperationWindow(
            by_id.set(operation.operation_id, operation),
            order.set(self.next_sequence, operation.operation_id),
            oldest,
            self.next_sequence + 1,
        )

    @classmethod
    def of(cls, operations: list[Operation]) -> OperationWindow:
        """From operations in their order, as a snapshot holds them."""
        return cls(
            Map((o.operation_id, o) for o in operations), Map(enumerate(o.operation_id for o in operations)), 0, len(operations)
        )
