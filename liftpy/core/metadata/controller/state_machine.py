"""``ClusterFsm``: the state machine of the metadata group. It applies the bytes of log entries and returns answers. Pure.

It is deterministic: time is a field of the request, and it uses no random numbers and no hash order. So controllers
that apply the same entries have the same image [M5]. If a request cannot be fulfilled, ``apply`` returns a rejection
and never raises [M6]. Two kinds of entries raise IncompatibleVersionError: an entry that this version does not
understand, and an entry that decides something before the group has a feature level [M14].

``answer_without_log`` makes a decision on the image of the metadata leader, as a trial. If the decision has no record,
the leader answers at once. Otherwise the request goes into the log. The answer is valid if this controller leads and
the operation is not in the log yet. Example: ``createStream`` of an existing name is answered EXISTS without a log entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from liftpy.core.base.cooperative_apply import Steps, run_to_end
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller.record_builder import Decision, RecordBuilder, Rules, refuse, repeated_answer
from liftpy.core.metadata.controller.request_batcher import answer_of, decide_batch
from liftpy.core.metadata.controller.requests import changes_nothing, deciding_on, kind_of
from liftpy.core.metadata.features import FEATURES, NO_LEVEL, UNSUPPORTED, Feature, check_level, level_range_of
from liftpy.core.metadata.idempotency import OPERATION_ID_SIZE_BYTES, Operation
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import OperationDone, Record, record_to_pb, replay, replaying_all
from liftpy.core.metadata.request_limits import MAX_REQUESTS
from liftpy.core.metadata.state_checksum import compute_digest
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
from liftpy.errors import IncompatibleVersionError

MAX_TIME_NS = 1 << 63
_ERROR = pb.ControlResponse


@dataclass(frozen=True, slots=True)
class _ApplyResult:
    """Result of one applied log entry."""

    image: ClusterImage
    records: tuple[Record, ...]
    answer: bytes
    failures: int = 0
    refused: int = 0


@dataclass(slots=True)
class _EarlyDecision:
    """Decision on the next log entry, which is computed before the entry is applied."""

    entry: bytes
    index: int
    work: Steps[_ApplyResult]
    applied: _ApplyResult | None = None
    """Result of the work. None: the work is not finished."""

    def step(self) -> bool:
        """Do one step of the decision. Return whether it is complete."""
        if self.applied is None:
            try:
                next(self.work)
            except StopIteration as end:
                self.applied = end.value
        return self.applied is not None


class ClusterFsm:
    """State machine of the metadata group: it holds the image.

    Only ``apply`` of the next log entry and ``restore`` of a snapshot change the image.
    """

    def __init__(self, namespace: str = "liftpy", *, elections: bool = False, features: tuple[Feature, ...] = FEATURES) -> None:
        self.rules = Rules(namespace, elections, features)
        self.spoken = level_range_of(features)
        self.image = ClusterImage()
        self.last_records: tuple[Record, ...] = ()
        """Records of the last ``apply``, in order. (): the entry changed only index and time."""
        self.failure_count = 0
        """Number of entries that raised an unexpected error. Such an entry changed nothing and was answered UNKNOWN."""
        self.refused_count = 0
        """Number of entries that are not a ControlRequest. Another program may have written to the log."""
        self._ahead: _EarlyDecision | None = None

    @property
    def records(self) -> list[pb.Record]:
        """Return the records of the last applied entry as protobufs, without those that only controllers need."""
        return [record_to_pb(record) for record in self.last_records if not isinstance(record, OperationDone)]

    def precompute(self, entry: bytes, index: int) -> bool:
        """Compute a part of the decision on the next entry ahead of ``apply``, so that ``apply`` takes less time.

        Return whether the decision is complete. The result is visible only after ``apply``. The number of calls does not change it.
        """
        if self._ahead is None or (self._ahead.entry, self._ahead.index) != (entry, index):
            self._ahead = _EarlyDecision(entry, index, self._apply_in_steps(entry, index))
        try:
            return self._ahead.step()
        except BaseException:
            self._ahead = None  # its generator has ended, so the entry must be decided again
            raise

    def apply(self, entry: bytes, index: int) -> bytes:
        """Apply the log entry ``entry``, a serialized ControlRequest.

        Return the serialized ControlResponse. ``index`` must be above all applied indexes. A lower index changes nothing, and the
        answer is INVALID. Raise IncompatibleVersionError if this version does not understand the entry.
        """
        while not self.precompute(entry, index):
            pass
        assert self._ahead is not None
        applied, self._ahead = self._ahead.applied, None
        assert applied is not None
        self.image, self.last_records = applied.image, applied.records
        self.failure_count += applied.failures
        self.refused_count += applied.refused
        return applied.answer

    def _apply_in_steps(self, entry: bytes, index: int) -> Steps[_ApplyResult]:
        before = self.image
        if index <= before.index:
            detail = f"entry {index} comes after {before.index}"
            answer = pb.ControlResponse(error=_ERROR.INVALID, detail=detail, index=before.index)
            return _ApplyResult(before, (), answer.SerializeToString())
        try:
            request = pb.ControlRequest.FromString(entry)
        except DecodeError:
            response = refuse(_ERROR.INVALID, "the entry is not a ControlRequest").response
            after = yield from _with_digest(replace(before, index=index), ())
            return _ApplyResult(after, (), _finish(response, b"", index), refused=1)
        if has_unknown_fields(request):
            raise IncompatibleVersionError(
                f"{UNSUPPORTED}this version cannot apply entry {index} of the metadata log, because a newer version wrote it. Start "
                "that version."
            )
        now_ns = request.timeNs if 0 < request.timeNs < MAX_TIME_NS else before.time_ns
        try:
            applied = yield from self._apply(replace(before, index=index, time_ns=now_ns), request)
            return replace(applied, image=(yield from _with_digest(applied.image, applied.records)))
        except (MemoryError, IncompatibleVersionError):
            raise  # not a function of the log: a controller that went on would differ from the others
        except Exception as error:
            # A bug, and the same one on every controller. The entry is taken back as a whole, so that the group goes on.
            response = pb.ControlResponse(error=_ERROR.UNKNOWN, detail=f"{type(error).__name__}: {error}"[:500])
            after = yield from _with_digest(replace(before, index=index), ())
            return _ApplyResult(after, (), _finish(response, request.operationId, index), failures=1)

    def snapshot(self) -> bytes:
        """Return the image as bytes, for ``restore``. To encode it in a thread, use ``encode_snapshot(fsm.image)``."""
        return encode_snapshot(self.image)

    def restore(self, data: bytes) -> None:
        """Load the image of a snapshot.

        Raise StorageError and keep the old image if it is damaged, IncompatibleVersionError if its feature level or a field is
        unknown.
        """
        image = decode_snapshot(data)
        check_level(image.feature_level, self.spoken)
        self.image = image
        self.last_records = ()
        self._ahead = None

    def _apply(self, image: ClusterImage, request: pb.ControlRequest) -> Steps[_ApplyResult]:
        if changes_nothing(request):
            decision = yield from deciding_on(RecordBuilder(image, image.time_ns, self.rules), request)
            return _ApplyResult(image, (), _finish(decision.response, request.operationId, image.index))
        operation = image.operations.get(request.operationId)
        if operation is not None:
            return _ApplyResult(image, (), repeated_answer(image, operation))
        if image.feature_level == NO_LEVEL and not request.HasField("setFeatureLevel"):
            raise IncompatibleVersionError(
                f"{UNSUPPORTED}this version ({self.spoken}) cannot apply entry {image.index} of the metadata log, because the cluster "
                "has no feature level yet. Start the version that wrote the log, and run `liftpy upgrade finalize` with it. Then "
                "upgrade."
            )
        after, (records, response), failures = yield from self._decide(image, request)
        answer = _finish(response, request.operationId, image.index)
        if len(request.operationId) == OPERATION_ID_SIZE_BYTES:
            done = OperationDone(Operation(request.operationId, image.time_ns, _without_partitions(response, answer)))
            after, records = replay(after, done), (*records, done)
        return _ApplyResult(after, records, answer, failures)

    def _decide(self, image: ClusterImage, request: pb.ControlRequest) -> Steps[tuple[ClusterImage, Decision, int]]:
        """Decide the request on ``image``, in steps.

        Return the new image, the decision, and the number of requests of a batch with an unexpected error.
        """
        refused = refusal(request)
        if refused is not None:
            return image, refused, 0
        if request.HasField("batch"):
            after, records, response, failures = decide_batch(image, request.batch, image.time_ns, self.rules)
            return after, Decision(records, response), failures
        decision = yield from deciding_on(RecordBuilder(image, image.time_ns, self.rules), request)
        return (yield from replaying_all(image, decision.records)), decision, 0


def _with_digest(image: ClusterImage, records: tuple[Record, ...]) -> Steps[ClusterImage]:
    digest = yield from compute_digest(image, records)
    return image if digest == image.digest else replace(image, digest=digest)


def refusal(request: pb.ControlRequest) -> Decision | None:
    """Return a rejection if the operation id or the time of the request is invalid. None: they are valid."""
    if len(request.operationId) != OPERATION_ID_SIZE_BYTES:
        return refuse(_ERROR.INVALID, f"an operation id has {OPERATION_ID_SIZE_BYTES} bytes, not {len(request.operationId)}")
    if request.timeNs >= MAX_TIME_NS:
        return refuse(_ERROR.INVALID, f"timeNs = {request.timeNs} is beyond the year 2262")
    return None


def _finish(response: pb.ControlResponse, operation_id: bytes, index: int) -> bytes:
    response.operationId = operation_id
    response.index = index
    return response.SerializeToString(deterministic=True)


def _without_partitions(response: pb.ControlResponse, answer: bytes) -> bytes:
    """Return ``answer``, the bytes of ``response``, without the partitions of a stream.

    A repeated request gets the partitions from the image.
    """
    if not response.HasField("stream"):
        return answer
    short = pb.ControlResponse()
    short.CopyFrom(response)
    del short.stream.partitions[:]
    return short.SerializeToString(deterministic=True)


# ---- answers without the log ------------------------------------------------------------------------------------------


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
        return _answer_batch_without_log(image, request.batch, now_ns, rules)
    return _try_decision(image, request, now_ns, rules)


def _try_decision(image: ClusterImage, request: pb.ControlRequest, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
    try:
        return run_to_end(deciding_on(_TrialBuilder(image, now_ns, rules), request)).response
    except _WouldChangeError:
        return None
    except Exception:  # a bug: the log shows it to everybody, and counts it
        return None


def _answer_batch_without_log(image: ClusterImage, batch: pb.Batch, now_ns: int, rules: Rules) -> pb.ControlResponse | None:
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
