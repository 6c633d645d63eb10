"""Asking a replicated service for its state: a plain NATS request, answered by one of its processes [protocol: Replicated services].

answer = await client.query_service("bank", b'{"account": "a"}')
answer.value, answer.position
"""

from __future__ import annotations

from liftpy.client.retrying import retrying
from liftpy.client.transport import Transport
from liftpy.dataclass import dataclass
from liftpy.errors import LiftError, ProtocolError
from liftpy.ids import check_name
from liftpy.wire.subjects import Subjects, data_subject

AT_LEAST_HEADER = "Lift-At-Least"
"""Of a query: the state has to hold every record below this offset; without it, every record that was committed before."""
POSITION_HEADER = "Lift-Position"
"""Of an answer: the state held every record below this offset, and none from it on."""
NODE_HEADER = "Lift-Node"
ERROR_HEADER = "Lift-Error"
"""Of an answer that is none: the code; the payload says the rest."""
_ATTEMPT_S = 3.0
"""Longer than a service lets a query wait."""


class QueryFailedError(LiftError):
    """``on_query`` raised, or the service takes no queries. Blame: the query or the service; the state is as it was."""

    code = "QUERY_FAILED"


class QueryRefusedError(LiftError):
    """The query can't be answered here and now: ask again. Blame: load, or a service that is behind."""

    code = "QUERY_REFUSED"
    retryable = True


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """``value``: what ``on_query`` returned. ``position``: the state held every record below it. ``node``: whose service answered."""

    value: bytes
    position: int
    node: str


async def ask(
    transport: Transport, subjects: Subjects, service: str, query: bytes, partition: int, at_least: int | None, timeout_s: float
) -> QueryAnswer:
    """One query, tried again until it is answered or ``timeout_s`` have passed; see ``Client.query_service``."""
    subject = data_subject(subjects.service_query(check_name(service, "service")), partition)
    headers = None if at_least is None else {AT_LEAST_HEADER: str(at_least)}
    async for attempt in retrying(timeout_s):
        with attempt:
            answer = await transport.exchange(subject, query, min(_ATTEMPT_S, timeout_s), headers)
            return _read(subject, bytes(answer.data), dict(answer.headers or {}))
    raise AssertionError("unreachable: the attempts end with a result or an error")


def _read(subject: str, data: bytes, headers: dict[str, str]) -> QueryAnswer:
    code, position = headers.get(ERROR_HEADER), headers.get(POSITION_HEADER, "")
    if code is not None:
        kind = QueryRefusedError if code == QueryRefusedError.code else QueryFailedError
        raise kind(data.decode(errors="replace"))
    if not (position.isascii() and position.isdigit()):
        raise ProtocolError(f"what answers on {subject} is no service: its answer has no {POSITION_HEADER}")
    return QueryAnswer(data, int(position), headers.get(NODE_HEADER, ""))
