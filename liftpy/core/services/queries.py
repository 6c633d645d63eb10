"""Queries of a service's state: which ones wait, for which position, and which can be answered. Pure.

A query changes nothing, and the service on any node answers it. It is linearizable: the answer contains all records that
were committed when the query arrived. For this, the node asks the partition's leader after the arrival how far the log is
committed. The leader answers under its lease. The query waits until the state has reached that offset (Raft's ReadIndex).
One such request serves all queries that arrived before it. A query that names an offset itself waits only for this offset.

Goal: an answer is never wrong, and a query that waits too long fails. The number, the bytes and the wait of queries are
limited.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.errors import LiftError

AT_LEAST_HEADER = "Lift-At-Least"
"""Header of a query: an offset. The answer must contain all records below it. Default: all committed records."""
POSITION_HEADER = "Lift-Position"
"""Header of an answer: an offset. The answer contains all records below it and no later ones."""
PARTITIONS_HEADER = "Lift-Partitions"
"""Header of an answer: number of partitions of the service's stream. Each partition has its own instance and state."""
NODE_HEADER = "Lift-Node"
ERROR_HEADER = "Lift-Error"
"""Header of an error answer: the code. The payload has the details."""
MAX_QUERIES = 1024
MAX_WAITING_BYTES = 8 * 1024 * 1024
PATIENCE_S = 2.0


class QueryFailedError(LiftError):
    """Raised if ``on_query`` raised an error, or if the service takes no queries. The state did not change."""

    code = "QUERY_FAILED"
    partitions = 0
    """Number of partitions of the service's stream. 0: not known."""


@dataclass(slots=True, eq=False)
class Query:
    """One waiting query. ``body``: its bytes. ``reply``: inbox for the answer. ``arrived_s``: monotonic time of its arrival.

    ``position``: the state must contain all records below this offset before the answer. None: not known yet.
    """

    body: bytes
    reply: str
    arrived_s: float
    position: int | None = None


class PendingQueries:
    """The queries that wait in one service process until its state can answer them."""

    def __init__(
        self, max_queries: int = MAX_QUERIES, max_bytes: int = MAX_WAITING_BYTES, patience_s: float = PATIENCE_S
    ) -> None:
        self._max_queries = max_queries
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._waiting: dict[Query, None] = {}
        """Waiting queries in the order of their arrival."""
        self._waiting_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def try_add(self, query: Query) -> bool:
        if len(self._waiting) >= self._max_queries or self._waiting_bytes + len(query.body) > self._max_bytes:
            return False
        self._waiting[query] = None
        self._waiting_bytes += len(query.body)
        return True

    def without_position(self) -> list[Query]:
        """Return the waiting queries for which the leader was not asked yet how far the log is committed."""
        return [query for query in self._waiting if query.position is None]

    def set_position(self, queries: list[Query], position: int) -> None:
        """Set the position of ``queries``: the leader has answered that every record below it is committed."""
        for query in queries:
            query.position = position

    def pop_ready(self, position: int) -> Query | None:
        """Remove and return a query that a state with all records below ``position`` can answer. None: there is none."""
        ready = (query for query in self._waiting if query.position is not None and query.position <= position)
        return None if (query := next(ready, None)) is None else self._remove([query])[0]

    def pop_expired(self, now_s: float) -> list[Query]:
        return self._remove([query for query in self._waiting if now_s - query.arrived_s >= self._patience_s])

    def drop(self, queries: list[Query]) -> list[Query]:
        """Remove those of ``queries`` that still wait, and return them. The caller rejects them."""
        return self._remove([query for query in queries if query in self._waiting])

    def _remove(self, queries: list[Query]) -> list[Query]:
        for query in queries:
            del self._waiting[query]
            self._waiting_bytes -= len(query.body)
        return queries


def position_in(header: str | None) -> int | None:
    """Return the offset that a query requires, from the value of ``AT_LEAST_HEADER``. None: the query has no such header.

    Raises QueryFailedError if it is invalid.
    """
    if header is None:
        return None
    if not (header.isascii() and header.isdigit() and len(header) <= 19):
        raise QueryFailedError(
            f"Invalid header {AT_LEAST_HEADER}: {header[:40]!r}. Use an offset, a whole number of 0 or more."
        )
    return int(header)
