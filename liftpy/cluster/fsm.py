"""ClusterFsm: the metadata group's state machine. Bytes of the log in, bytes of an answer out.

Deterministic: no clock (time is a field of the request), no random, no hash order, so that every controller that
applies the same entries has the same image [M5]. ``apply`` never raises: what can't be done is an answer [M6].
"""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import DecodeError

from liftpy.cluster.batches import decide_batch
from liftpy.cluster.codec import stream_to_pb
from liftpy.cluster.controller import decide
from liftpy.cluster.draft import Decision, Rules, refuse
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.operations import OPERATION_ID_SIZE_BYTES, Operation
from liftpy.cluster.records import OperationDone, Record, record_to_pb
from liftpy.cluster.replay import replay, replay_all
from liftpy.cluster.requests import kind_of
from liftpy.cluster.snapshot import decode_snapshot, encode_snapshot
from liftpy.wire._pb import cluster_pb2 as pb

MAX_TIME_NS = 1 << 63
_ERROR = pb.ControlResponse


class ClusterFsm:
    """The image, and the one way to move it: ``apply`` of the next log entry, or ``restore`` of a snapshot."""

    def __init__(self, namespace: str = "liftpy", *, elections: bool = False) -> None:
        self.rules = Rules(namespace, elections)
        self.image = ClusterImage()
        self.last_records: tuple[Record, ...] = ()
        """What the last apply did, in order; empty when it changed nothing but index and time."""
        self.failure_count = 0
        """Entries that ended in an unexpected error: each is a bug, answered UNKNOWN, and changed nothing."""
        self.refused_count = 0
        """Entries that are not a ControlRequest: somebody has put foreign bytes into the log."""

    @property
    def records(self) -> list[pb.Record]:
        """``last_records`` as protobufs, without what only controllers need; made on demand."""
        return [record_to_pb(record) for record in self.last_records if not isinstance(record, OperationDone)]

    def apply(self, entry: bytes, index: int) -> bytes:
        """Apply the log entry ``entry`` (a serialized ControlRequest) at ``index`` (above every earlier one).

        Returns the serialized ControlResponse. An index that was applied before changes nothing and is answered INVALID.
        """
        self.last_records = ()
        if index <= self.image.index:
            detail = f"entry {index} comes after {self.image.index}"
            return pb.ControlResponse(error=_ERROR.INVALID, detail=detail, index=self.image.index).SerializeToString()
        before = self.image
        try:
            request = pb.ControlRequest.FromString(entry)
        except DecodeError:
            self.refused_count += 1
            self.image = replace(before, index=index)
            return _finish(refuse(_ERROR.INVALID, "the entry is not a ControlRequest").response, b"", index)
        now_ns = request.timeNs if 0 < request.timeNs < MAX_TIME_NS else before.time_ns
        try:
            self.image, self.last_records, answer = self._apply(replace(before, index=index, time_ns=now_ns), request)
        except MemoryError:
            raise  # not a function of the log: a controller that went on would differ from the others
        except Exception as error:
            # A bug, and the same one on every controller. The entry is taken back as a whole, so that the group goes on.
            self.failure_count += 1
            self.image, self.last_records = replace(before, index=index), ()
            detail = f"{type(error).__name__}: {error}"[:500]
            return _finish(pb.ControlResponse(error=_ERROR.UNKNOWN, detail=detail), request.operationId, index)
        return answer

    def snapshot(self) -> bytes:
        """The image as bytes, for ``restore``. To encode it in a thread, use ``encode_snapshot(fsm.image)``."""
        return encode_snapshot(self.image)

    def restore(self, data: bytes) -> None:
        """Take the image of a snapshot; raise StorageError, and keep the own image, if it is damaged or unknown."""
        self.image = decode_snapshot(data)
        self.last_records = ()

    def _apply(self, image: ClusterImage, request: pb.ControlRequest) -> tuple[ClusterImage, tuple[Record, ...], bytes]:
        if kind_of(request).read_only:
            decision = decide(image, request, image.time_ns, self.rules)
            return image, (), _finish(decision.response, request.operationId, image.index)
        held = image.operations.get(request.operationId)
        if held is not None:
            return image, (), again(image, held)
        after, (records, response) = self._decide(image, request)
        answer = _finish(response, request.operationId, image.index)
        if len(request.operationId) == OPERATION_ID_SIZE_BYTES:
            done = OperationDone(Operation(request.operationId, image.time_ns, _shortened(response, answer)))
            after, records = replay(after, done), (*records, done)
        return after, records, answer

    def _decide(self, image: ClusterImage, request: pb.ControlRequest) -> tuple[ClusterImage, Decision]:
        """The image after the request, and what was decided."""
        refused = refusal(request)
        if refused is not None:
            return image, refused
        if request.HasField("batch"):
            after, records, response, failures = decide_batch(image, request.batch, image.time_ns, self.rules)
            self.failure_count += failures
            return after, Decision(records, response)
        decision = decide(image, request, image.time_ns, self.rules)
        return replay_all(image, decision.records), decision


def refusal(request: pb.ControlRequest) -> Decision | None:
    """Of what is no operation, whatever it asks for; None: it is one."""
    if len(request.operationId) != OPERATION_ID_SIZE_BYTES:
        return refuse(_ERROR.INVALID, f"an operation id has {OPERATION_ID_SIZE_BYTES} bytes, not {len(request.operationId)}")
    if request.timeNs >= MAX_TIME_NS:
        return refuse(_ERROR.INVALID, f"timeNs = {request.timeNs} is beyond the year 2262")
    return None


def _finish(response: pb.ControlResponse, operation_id: bytes, index: int) -> bytes:
    response.operationId = operation_id
    response.index = index
    return response.SerializeToString(deterministic=True)


def _shortened(response: pb.ControlResponse, answer: bytes) -> bytes:
    """The answer to keep: partitions of a stream are left out, they are found in the image again."""
    if not response.HasField("stream"):
        return answer
    short = pb.ControlResponse()
    short.CopyFrom(response)
    del short.stream.partitions[:]
    return short.SerializeToString(deterministic=True)


def again(image: ClusterImage, done: Operation) -> bytes:
    """The answer that the operation got; a stream that is still there is shown as it is now."""
    response = pb.ControlResponse.FromString(done.response)
    held = image.streams.get(response.stream.name) if response.HasField("stream") else None
    if held is None or held.uid != response.stream.uid:
        return done.response
    response.stream.CopyFrom(stream_to_pb(held))
    return response.SerializeToString(deterministic=True)
