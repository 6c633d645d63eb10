"""What a control request would do, said before it is put into the metadata group's log. Pure.

Goal: what can't succeed costs nobody a byte of the journal: neither a flood of wrong requests nor a tool that creates what is there
already. Constraint: the rules are those of apply and no others, so that nothing is refused here that the log would take.
Algorithm: the very decision that apply would make is made on the leader's image, on a draft that stops at the first record. No record:
the answer is given as it is. A record: the log decides, on the image as it is by then, and what it costs to find that out is little.

The answer is as good as one from the log if this controller leads (a majority has confirmed it just now: nobody else can have decided
anything) and the operation is not in the log already: a repeated one gets the answer that it got, or waits for it there.

Worked example: ``createStream`` of a name that exists is answered EXISTS here. ``deleteStream`` of one that is being created is
answered NOT_FOUND: the creation has not been answered yet, so the two may have come in either order.
"""

from __future__ import annotations

from liftpy.cluster.batch_bounds import MAX_REQUESTS
from liftpy.cluster.batches import answer_of
from liftpy.cluster.controller import decide_on
from liftpy.cluster.draft import Draft, Rules
from liftpy.cluster.fsm import again, refusal
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.records import Record
from liftpy.cluster.requests import kind_of
from liftpy.wire._pb import cluster_pb2 as pb


class _WouldChangeError(Exception):
    """The decision has a first record, takes long, or needs an entry."""


class _Trial(Draft):
    """A draft that nothing can be added to."""

    def needs_entry(self) -> None:
        """Stop here: the log has to hold it."""
        raise _WouldChangeError

    def takes_long(self) -> None:
        """Stop here as well: a trial is made in one go, on the metadata leader, and apply works in steps."""
        raise _WouldChangeError

    def add(self, record: Record) -> None:
        """Stop here."""
        raise _WouldChangeError


def without_log(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
    """The answer to a request that changes nothing of ``image``, or None: the log has to decide. ``now_ns``: as for ``decide``."""
    if kind_of(request).read_only:
        return None  # a barrier, or a description that waits for one
    # A missing id is filled in, and the metadata leader sets the time: here only a malformed id can be wrong.
    wrong = refusal(pb.ControlRequest(operationId=request.operationId)) if request.operationId else None
    if wrong is not None:
        return wrong.response
    held = image.operations.get(request.operationId)
    if held is not None:
        return pb.ControlResponse.FromString(again(image, held))
    if request.HasField("batch"):
        return _batch(image, request.batch, now_ns, rules)
    return _tried(image, request, now_ns, rules)


def _tried(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
    try:
        return decide_on(_Trial(image, now_ns, rules), request).response
    except _WouldChangeError:
        return None
    except Exception:  # a bug: the log shows it to everybody, and counts it
        return None


def _batch(image: ClusterImage, batch: pb.Batch, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
    """As a whole: what one of its requests changes may make room for the next."""
    answers = pb.BatchAnswers()
    for item in batch.requests[:MAX_REQUESTS]:
        if not kind_of(item.request).batched:
            return None
        answer = _tried(image, item.request, now_ns, rules)
        if answer is None:
            return None
        answers.answers.append(answer_of(item.number, answer))
    return pb.ControlResponse(batch=answers)
