"""Batches: what the many partitions of a node ask, in one entry of the metadata log. Pure.

Goal: what a cluster event costs the group grows with what changes, not with the number of messages: a thousand promotions are a few
entries, flushed and sent a few times. Each request of a batch is decided on the image that the ones before it have made, by its own
compare-and-set, as if it had an entry of its own; one that is refused, or meets a bug, keeps none of the others back.

An answer says the number that its request had with the sender: what the metadata leader answered itself (reports that it keeps back,
progress of candidates) is not in the entry, and a repeated batch may be divided otherwise than the first time.
"""

from __future__ import annotations

from liftpy.cluster.batch_bounds import MAX_REQUESTS
from liftpy.cluster.controller import decide
from liftpy.cluster.draft import Rules
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.records import CountersMoved, Record
from liftpy.cluster.replay import replay_all
from liftpy.cluster.requests import kind_of
from liftpy.errors import UnspokenError
from liftpy.wire._pb import cluster_pb2 as pb

MAX_DETAIL_LENGTH = 120


def batch_of(requests: list[pb.ControlRequest]) -> pb.ControlRequest:
    """One request that holds them, numbered from 0; one alone is sent as it is."""
    if len(requests) == 1:
        return requests[0]
    items = (pb.BatchedRequest(number=number, request=request) for number, request in enumerate(requests))
    return pb.ControlRequest(batch=pb.Batch(requests=items))


def answer_of(number: int, response: pb.ControlResponse) -> pb.BatchedAnswer:
    """A response as a part of the batch's: what it says, without the state, which the node's image shows."""
    return pb.BatchedAnswer(number=number, error=response.error, detail=response.detail[:MAX_DETAIL_LENGTH])


def decide_batch(
    image: ClusterImage, batch: pb.Batch, now_ns: int, rules: Rules
) -> tuple[ClusterImage, tuple[Record, ...], pb.ControlResponse, int]:
    """Decide every request in order; return the image after them, what was done, the answers, and how many met a bug."""
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
        except (MemoryError, UnspokenError):
            raise
        except Exception as error:  # a bug, the same on every controller: this request alone is taken back
            failures += 1
            response = pb.ControlResponse(error=pb.ControlResponse.UNKNOWN, detail=f"{type(error).__name__}: {error}")
        answers.answers.append(answer_of(item.number, response))
    return image, _one_count(records), pb.ControlResponse(batch=answers), failures


def _one_count(records: list[Record]) -> tuple[Record, ...]:
    """The counters as the last request left them, once."""
    counts = [record for record in records if isinstance(record, CountersMoved)]
    if len(counts) <= 1:
        return tuple(records)
    return (*(record for record in records if not isinstance(record, CountersMoved)), counts[-1])
