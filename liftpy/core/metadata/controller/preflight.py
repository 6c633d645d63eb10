"""Answers requests that cannot succeed before they are logged. Pure.

The metadata leader makes the decision of the state machine on its own image, as a trial. If the decision has no record,
the leader answers at once. Otherwise the request goes into the log. The answer is valid if this controller leads and
the operation is not in the log yet.

Example: ``createStream`` of an existing name is answered EXISTS without a log entry.

``reasons_to_keep_running`` returns what stopping a node would do to partitions and to the majority of the controllers.
Rolling restarts call it before each node.
"""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller.request_batcher import answer_of
from liftpy.core.metadata.controller.requests import decide_on, kind_of
from liftpy.core.metadata.controller.state_machine import refusal
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.record_builder import RecordBuilder, Rules, repeated_answer
from liftpy.core.metadata.records import Record
from liftpy.core.metadata.request_limits import MAX_REQUESTS
from liftpy.core.wire._pb import cluster_pb2 as pb


class _WouldChangeError(Exception):
    """Raised when a trial decision adds a record, takes long, or needs a log entry. Then the log must decide the request."""


class _TrialBuilder(RecordBuilder):
    """Runs a decision as a trial. It raises ``_WouldChangeError`` if the decision would add a record."""

    def needs_entry(self) -> None:
        raise _WouldChangeError

    def takes_long(self) -> None:
        """End the trial, because the decision would take too many steps for one call on the metadata leader."""
        raise _WouldChangeError

    def add(self, record: Record) -> None:
        raise _WouldChangeError


def answer_without_log(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
    """Return the answer to a request that changes nothing in ``image``. None: the log must decide.

    ``now_ns``: image time in ns since 1970.
    """
    if kind_of(request).read_only:
        return None  # a barrier, or a description that waits for one
    # A missing id is filled in, and the metadata leader sets the time: here only a malformed id can be wrong.
    wrong = refusal(pb.ControlRequest(operationId=request.operationId)) if request.operationId else None
    if wrong is not None:
        return wrong.response
    operation = image.operations.get(request.operationId)
    if operation is not None:
        return pb.ControlResponse.FromString(repeated_answer(image, operation))
    if request.HasField("batch"):
        return _batch(image, request.batch, now_ns, rules)
    return _try_decision(image, request, now_ns, rules)


def _try_decision(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
    try:
        return decide_on(_TrialBuilder(image, now_ns, rules), request).response
    except _WouldChangeError:
        return None
    except Exception:  # a bug: the log shows it to everybody, and counts it
        return None


def _batch(image: ClusterImage, batch: pb.Batch, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
    """Return the answer to a batch if none of its requests changes anything. None: the log must decide the whole batch.

    The reason is that an earlier request of the batch may let a later one succeed.
    """
    answers = pb.BatchAnswers()
    for item in batch.requests[:MAX_REQUESTS]:
        if not kind_of(item.request).batched:
            return None
        answer = _try_decision(image, item.request, now_ns, rules)
        if answer is None:
            return None
        answers.answers.append(answer_of(item.number, answer))
    return pb.ControlResponse(batch=answers)


def reasons_to_keep_running(image: ClusterImage, node_id: str, controllers: dict[str, bool]) -> list[str]:
    """Return the reasons why the node should not be stopped now, as texts. []: it can be stopped.

    ``controllers``: each voter of the metadata group, True if it is connected.
    """
    if node_id not in image.nodes:
        return [f"there is no node {node_id!r}"]
    reasons = []
    for stream, partition in image.partitions_of(node_id):
        name = f"{stream.name}/{partition.partition}"
        if node_id not in partition.replicas or len(partition.replicas) == 1:
            continue
        if partition.status is not PartitionStatus.ONLINE:
            reasons.append(f"{name} has no leader now")
            continue
        left = [node for node in partition.isr if node != node_id and image.is_live(node)]
        least = partition.min_isr(stream.config)
        if node_id in partition.isr and len(left) < least:
            reasons.append(f"{name} would have {len(left)} of the {least} in-sync replicas that it needs")
    if node_id in controllers:
        left_count = sum(connected for name, connected in controllers.items() if name != node_id)
        majority = len(controllers) // 2 + 1
        if len(controllers) > 1 and left_count < majority:
            reasons.append(
                f"the metadata group would have {left_count} of its {len(controllers)} members, and needs {majority}"
            )
    return reasons
