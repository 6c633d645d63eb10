"""Combines the requests of a node's partitions into one entry of the metadata log. Pure.

Goal: the cost of a cluster event for the metadata group grows with the number of changes, not of messages. A thousand
promotions are a few entries. Each request of a batch is decided on the image after the earlier ones, by its own
compare-and-set, as if it had its own entry. A request that is rejected, or raises an unexpected error, does not affect
the others.

An answer contains the number that its request had at the sender. The metadata leader answers some requests itself
(delayed reports, progress of candidates). These are not in the entry, and a repeated batch may be divided differently.

``RequestBatcher`` collects the requests of a node's replicas to the metadata group. Goal: an event that affects all
partitions of a node requests each change once.

Algorithm: for each partition and kind, only the newest request waits. It takes the place of the earlier one. One batch
is in flight at a time. The next one is sent after the answer or a timeout. So the number of waiting requests is limited
by the number of the node's partitions, and a lost metadata leader costs one repeated batch. Requests that give a
partition a leader go before changes of an ISR.

Worked example: 3,000 followers detect within a second that the node of their leader has failed. The first report is
sent alone, 200 more with the next batch, and so on. If a follower reports again while it waits, the newer report
replaces the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState
from liftpy.core.base.purge import to_report
from liftpy.core.metadata.controller.record_builder import Rules
from liftpy.core.metadata.controller.requests import decide, kind_of
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import CountersMoved, Record, replay_all
from liftpy.core.metadata.request_limits import MAX_BATCH_BYTES, MAX_REQUESTS, SENT_TOGETHER
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import IncompatibleVersionError

MAX_DETAIL_LENGTH = 120
Answer = Callable[[pb.ControlResponse | None], None]
"""Callback for the answer to a request, called once. None: the outcome is unknown."""
_LATER = frozenset({"changeIsr", "reportPurged", "reportService"})
_UNKNOWN = (
    pb.ControlResponse.UNKNOWN,
    pb.ControlResponse.UNAVAILABLE,
    pb.ControlResponse.OUTCOME_UNKNOWN,
    pb.ControlResponse.NOT_METADATA_LEADER,
)
_SUPERSEDED = pb.ControlResponse(error=pb.ControlResponse.STALE, detail="a newer request took its place before it was sent")


def batch_of(requests: list[pb.ControlRequest]) -> pb.ControlRequest:
    """Combine ``requests`` into one batch request, numbered from 0. A single request is returned unchanged."""
    if len(requests) == 1:
        return requests[0]
    items = (pb.BatchedRequest(number=number, request=request) for number, request in enumerate(requests))
    return pb.ControlRequest(batch=pb.Batch(requests=items))


def answer_of(number: int, response: pb.ControlResponse) -> pb.BatchedAnswer:
    """Return the answer to the request with this number in a batch.

    The state of the partition is left out, because the node has it in its image.
    """
    return pb.BatchedAnswer(number=number, error=response.error, detail=response.detail[:MAX_DETAIL_LENGTH])


def decide_batch(
    image: ClusterImage, batch: pb.Batch, now_ns: int, rules: Rules
) -> tuple[ClusterImage, tuple[Record, ...], pb.ControlResponse, int]:
    """Decide each request of a batch in order.

    Returns:
        The image after the requests, the records, the answers, and the number of requests with an unexpected error.
    """
    records: list[Record] = []
    answers = pb.BatchAnswers()
    failures = 0
    for item in batch.requests[:MAX_REQUESTS]:
        if not kind_of(item.request).batched:
            name = item.request.WhichOneof("request")
            refused = pb.ControlResponse(error=pb.ControlResponse.INVALID, detail=f"{name} does not belong in a batch")
            answers.answers.append(answer_of(item.number, refused))
            continue
        try:
            decision = decide(image, item.request, now_ns, rules)
            image = replay_all(image, decision.records)
            records += decision.records
            response = decision.response
        except (MemoryError, IncompatibleVersionError):
            raise
        except Exception as error:  # a bug, the same on every controller: this request alone is taken back
            failures += 1
            response = pb.ControlResponse(error=pb.ControlResponse.UNKNOWN, detail=f"{type(error).__name__}: {error}")
        answers.answers.append(answer_of(item.number, response))
    return image, _one_count(records), pb.ControlResponse(batch=answers), failures


def _one_count(records: list[Record]) -> tuple[Record, ...]:
    """Return ``records`` without all CountersMoved records except the last one, which has the counters after the whole batch."""
    counts = [record for record in records if isinstance(record, CountersMoved)]
    if len(counts) <= 1:
        return tuple(records)
    return (*(record for record in records if not isinstance(record, CountersMoved)), counts[-1])


def purge_report(
    key: PartitionKey, partition: PartitionState, node: str, incarnation: int, purged: Collection[int]
) -> pb.ControlRequest | None:
    """Return the report to the metadata group that a replica on ``node`` has completed purges. None: there is nothing new.

    ``purged``: numbers of the completed purges.
    """
    number = to_report(partition, node, purged)
    if not number:
        return None
    report = pb.ReportPurged(
        stream=key.stream, uid=key.uid, partition=key.partition, node=node, incarnation=incarnation, number=number
    )
    return pb.ControlRequest(reportPurged=report)


@dataclass(frozen=True, slots=True)
class _QueuedRequest:
    request: pb.ControlRequest
    on_answer: Answer


class RequestBatcher:
    """Collects requests of a node's replicas to the metadata group, and sends them in batches.

    ``put`` adds a request, ``next_batch`` returns a batch to send, ``batch_answered`` ends the batch.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[PartitionKey, str], _QueuedRequest] = {}
        self._then: dict[tuple[PartitionKey, str], _QueuedRequest] = {}
        self._out: list[_QueuedRequest] = []

    def __len__(self) -> int:
        return len(self._first) + len(self._then)

    def put(self, key: PartitionKey, request: pb.ControlRequest, on_answer: Answer) -> None:
        """Queue a request about the partition ``key``. It replaces a waiting request of the same kind for this partition.

        ``on_answer``: called with the answer. The kind must be one that ``requests.py`` allows in batches.
        """
        kind = request.WhichOneof("request") or ""
        waiting = self._then if kind in _LATER else self._first
        if kind == "reportService":
            kind += f" {request.reportService.service}"  # each service of a partition has its own
        before = waiting.get((key, kind))
        waiting[key, kind] = _QueuedRequest(request, on_answer)
        if before is not None:
            before.on_answer(_SUPERSEDED)

    def next_batch(self) -> pb.ControlRequest | None:
        """Return the next batch to send, or None if no request waits or the last batch is not answered yet."""
        if self._out:
            return None
        size_bytes = 0
        for waiting in (self._first, self._then):
            while waiting and len(self._out) < SENT_TOGETHER:
                slot = next(iter(waiting))
                added = waiting[slot].request.ByteSize() + 8
                if self._out and size_bytes + added > MAX_BATCH_BYTES:
                    break
                size_bytes += added
                self._out.append(waiting.pop(slot))
        if not self._out:
            return None
        return batch_of([entry.request for entry in self._out])

    def batch_answered(self, response: pb.ControlResponse | None) -> None:
        """Pass the answers to the last batch to the callbacks of its requests. ``response`` None: no answer arrived."""
        out, self._out = self._out, []
        single = len(out) == 1
        unknown = response is None or response.error in _UNKNOWN
        if not unknown and response is not None and not single and not response.HasField("batch"):
            each: dict[int, pb.ControlResponse] = dict.fromkeys(range(len(out)), response)  # refused as a whole
        elif unknown or response is None:
            each = {}
        elif single:
            each = {0: response}
        else:
            each = {a.number: pb.ControlResponse(error=a.error, detail=a.detail) for a in response.batch.answers}
        for number, entry in enumerate(out):
            answer = each.get(number)
            entry.on_answer(None if answer is None or answer.error in _UNKNOWN else answer)

    def drop(self) -> None:
        """Drop all waiting requests without calling their callbacks, because the node stops."""
        self._first.clear()
        self._then.clear()
