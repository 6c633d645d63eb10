"""Queries to a replicated service: NATS requests that one of its processes answers.

Example:
    answer = await client.services.query("bank", b'{"account": "a"}')
    answer.value, answer.position
"""

from __future__ import annotations

from dataclasses import dataclass

from liftpy.client.retrying import retry_attempts
from liftpy.core.base.ids import check_name
from liftpy.core.services.queries import (
    AT_LEAST_HEADER,
    ERROR_HEADER,
    NODE_HEADER,
    PARTITIONS_HEADER,
    POSITION_HEADER,
    QueryFailedError,
)
from liftpy.core.wire.partitioner import partition_of
from liftpy.core.wire.subjects import Subjects, data_subject
from liftpy.errors import ConfigError, LiftError, NotFoundError, OutcomeUnknownError, ProtocolError, UnavailableError
from liftpy.nats.transport import NoRespondersError, Transport

_MAX_DIGITS = 9
_ATTEMPT_S = 3.0
"""Time limit of one attempt, in seconds. It is longer than the time that a service lets a query wait."""


class QueryRejectedError(LiftError):
    """The service cannot answer the query now, because of load or because it is behind. Retry."""

    code = "QUERY_REJECTED"
    retryable = True


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The answer of a replicated service to a query.

    Attributes:
        value: Bytes that ``Service.on_query`` returned.
        position: The state contained every record below this offset.
        node: Node of the service that answered.
        partition: Partition of the instance that answered.
        partitions: Number of partitions of the service. 0: not known.
    """

    value: bytes
    position: int
    node: str
    partition: int = 0
    partitions: int = 0


async def ask_for(
    transport: Transport,
    subjects: Subjects,
    service: str,
    query: bytes,
    partition: int | None,
    key: bytes | None,
    at_least: int | None,
    timeout_s: float,
) -> QueryAnswer:
    """Send a query to the instance of ``partition``, or to the instance that has the records of ``key``. Return the answer.

    For a key, the instance of partition 0 is first asked for the number of partitions. ``Services.query`` describes the arguments.
    """
    for what, given in (("query", query), ("key", b"" if key is None else key)):
        if not isinstance(given, bytes | bytearray | memoryview):
            raise ConfigError(f"Invalid {what} of type {type(given).__name__}. It must be bytes: encode text first.")
    if partition is not None and key is not None:
        raise ConfigError("partition and key cannot be combined. Set one of them.")
    if partition is not None:
        return await ask(transport, subjects, service, query, partition, at_least, timeout_s)
    try:
        answer = await ask(transport, subjects, service, query, 0, at_least if key is None else 0, timeout_s)
        partitions = answer.partitions
    except QueryFailedError as error:
        if error.partitions <= 1:
            raise
        partitions = error.partitions
    if key is not None:
        return await ask(transport, subjects, service, query, partition_of(key, max(1, partitions)), at_least, timeout_s)
    if partitions > 1:
        raise ConfigError(
            f"Service {service} has {partitions} partitions, each with its own state. Name the partition "
            "(partition=, --partition) or the key of the records (key=, --key)."
        )
    return answer


async def ask(
    transport: Transport, subjects: Subjects, service: str, query: bytes, partition: int, at_least: int | None, timeout_s: float
) -> QueryAnswer:
    """Send a query to the instance of ``partition`` and return the answer. Retry for at most ``timeout_s`` seconds.

    ``at_least``: offset below which the state must contain all records. None: linearizable.
    """
    subject = data_subject(subjects.service_query(check_name(service, "service")), partition)
    headers = None if at_least is None else {AT_LEAST_HEADER: str(at_least)}

    async def attempt() -> QueryAnswer:
        try:
            answer = await transport.exchange(subject, query, min(_ATTEMPT_S, timeout_s), headers)
        except NoRespondersError:
            await _check_partition(transport, subjects, service, query, partition)
            raise NoRespondersError(
                f"No process of service {service} answers queries of partition {partition}. Check the name, the partition and "
                "--namespace, and that the service runs (`liftpy status`) and its class defines on_query."
            ) from None
        return _read_answer(subject, partition, bytes(answer.data), dict(answer.headers or {}))

    return await retry_attempts(timeout_s)(attempt)


async def _check_partition(transport: Transport, subjects: Subjects, service: str, query: bytes, partition: int) -> None:
    """Raise NotFoundError if the service has no partition with this number.

    The instance of partition 0 is asked for the number of partitions. If it does not answer, no error is raised.
    """
    if partition == 0:
        return
    subject = data_subject(subjects.service_query(service), 0)
    try:
        answer = await transport.exchange(subject, query, _ATTEMPT_S, {AT_LEAST_HEADER: "0"})
        partitions = _read_answer(subject, 0, bytes(answer.data), dict(answer.headers or {})).partitions
    except QueryFailedError as error:
        partitions = error.partitions
    except (UnavailableError, OutcomeUnknownError, ProtocolError, QueryRejectedError):
        return  # the number of partitions is unknown
    if 0 < partitions <= partition:
        which = "the partition 0" if partitions == 1 else f"the partitions 0 to {partitions - 1}"
        raise NotFoundError(f"Service {service} has no partition {partition}. It has {which}.")


def _read_answer(subject: str, partition: int, data: bytes, headers: dict[str, str]) -> QueryAnswer:
    code, position = headers.get(ERROR_HEADER), headers.get(POSITION_HEADER, "")
    count = headers.get(PARTITIONS_HEADER, "")
    partitions = int(count) if count.isascii() and count.isdigit() and len(count) <= _MAX_DIGITS else 0
    if code == QueryRejectedError.code:
        raise QueryRejectedError(data.decode(errors="replace"))
    if code is not None:
        failed = QueryFailedError(data.decode(errors="replace"))
        failed.partitions = partitions
        raise failed
    if not (position.isascii() and position.isdigit()):
        raise ProtocolError(
            f"The answer on {subject} does not come from a service: it has no header {POSITION_HEADER}. Check the "
            "service name and --namespace."
        )
    return QueryAnswer(data, int(position), headers.get(NODE_HEADER, ""), partition, partitions)
