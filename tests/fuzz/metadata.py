"""Decoders of the metadata: requests, entries, images, the feed."""

from __future__ import annotations

import struct
from typing import Any

import crc32c

from liftpy.core.metadata import codec as cluster_codec
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller.admission import RequestSubject, refusal
from liftpy.core.metadata.controller.state_machine import answer_without_log
from liftpy.core.metadata.controller_list import CONTROLLERS, ControllerList, list_of, well_formed
from liftpy.core.metadata.feed import FeedSubscription
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.request_limits import fit
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.errors import CorruptionError, IncompatibleVersionError, InvariantError, ProtocolError, StorageError
from tests.born import born_fsm, registration
from tests.fuzz.decoder import NAMES, RNG, Decoder, messages
from tests.fuzz.mutate import spoiled


def _request(**fields: Any) -> bytes:
    return cluster_pb2.ControlRequest(operationId=bytes(RNG.randbytes(16)), timeNs=5, **fields).SerializeToString()


def _requests() -> list[bytes]:
    pb = cluster_pb2
    nodes = [
        _request(registerNode=registration(nodeId=n, folderId=n, start=1, nonce=1, partitionBudget=99))
        for n in ("n1", "n2", "n3")
    ]
    streams = [_request(createStream=pb.CreateStream(name=s, subject=f"data.{s}", partitions=2)) for s in ("orders", "u1")]
    return nodes + streams + [m.SerializeToString() for m in messages(pb.ControlRequest, 40)]


class _Applied:
    """A state machine that has nodes and streams; begun anew now and then."""

    def __init__(self) -> None:
        self.count = 0
        self.fsm = born_fsm(elections=True)

    def __call__(self, data: bytes) -> None:
        if self.count % 500 == 0:
            self.fsm = born_fsm(elections=True)
            for index, request in enumerate(_REQUESTS[:5], 1):
                self.fsm.apply(request, index)
        self.count += 1
        answer = self.fsm.apply(data, self.fsm.image.index + 1)
        cluster_pb2.ControlResponse.FromString(answer)
        assert self.fsm.failure_count == 0, "an unexpected error within apply"
        held = cluster_codec.image_to_bytes(self.fsm.image)
        if self.count % 20 == 0:
            assert cluster_codec.image_to_bytes(cluster_codec.image_from_bytes(held)) == held


def _doors(data: bytes) -> None:
    request = frames.parse(data, cluster_pb2.ControlRequest)
    wrong = fit(request, len(data)) or refusal(RequestSubject.NODE, "n1", request) or refusal(RequestSubject.ADMIN, "", request)
    if not wrong:
        refusal(RequestSubject.INFO, "", request)
    answer_without_log(_IMAGE, request, 5, born_fsm().rules)


_REQUESTS = _requests()


def _image() -> ClusterImage:
    fsm = born_fsm(elections=True)
    for index, request in enumerate(_REQUESTS[:5], 1):
        fsm.apply(request, index)
    return fsm.image


_IMAGE = _image()


class _Fed:
    """A node that follows the feed."""

    def __init__(self) -> None:
        self.count = 0
        self.feed = FeedSubscription("n9")

    def __call__(self, data: bytes) -> None:
        if self.count % 200 == 0:
            self.feed = FeedSubscription("n9")
            self.feed.image, self.feed.synced = _IMAGE, True
        self.count += 1
        self.feed.entry_received(frames.parse(data, cluster_pb2.FeedEntry))
        self.feed.response_received(frames.parse(data, cluster_pb2.FeedSnapshotResponse))


def _entries() -> list[bytes]:
    found = messages(cluster_pb2.FeedEntry, 40)
    for entry in found:
        entry.previousIndex, entry.index = _IMAGE.index, _IMAGE.index + 1
    return [entry.SerializeToString() for entry in found]


def _image_in(data: bytes) -> ClusterImage:
    """With the errors that ``decode_snapshot`` makes CorruptionError."""
    try:
        return cluster_codec.image_from_bytes(data)
    except Exception as error:
        from google.protobuf.message import DecodeError

        from liftpy.errors import LiftError

        if isinstance(error, DecodeError | ValueError | KeyError | LiftError):
            raise CorruptionError(str(error)) from None
        raise


def _mend_snapshot(data: bytes) -> bytes:
    head, body = data[:24], data[28:]
    return head + struct.pack(">I", crc32c.crc32c(body, crc32c.crc32c(head))) + body


_CHANGE = cluster_pb2.ControlRequest(
    operationId=b"c" * 16,
    timeNs=5,
    changeControllers={"after": 7, "list": {"voters": ["n1", "n2", "n3"], "learner": "n4", "leaving": "n3"}},
)


def _change(data: bytes) -> ControllerList | None:
    found = list_of(data, 9)
    copy = CONTROLLERS.from_pb(CONTROLLERS.to_pb(found)) if found is not None else None
    assert found is None or (copy is not None and found.index == 9 and well_formed(copy)), "a list that there can't be"
    return found


def decoders() -> list[Decoder]:
    """Every one of them."""
    p, s = (ProtocolError,), (StorageError,)
    image = encode_snapshot(_IMAGE)
    return [
        Decoder(
            "metadata snapshot",
            [image],
            decode_snapshot,
            (StorageError, InvariantError, IncompatibleVersionError),
            encode_snapshot,
            _mend_snapshot,
            covers=(
                "liftpy.core.metadata.codec:decode_snapshot",
                "liftpy.core.metadata.codec:image_from_bytes",
                "liftpy.core.metadata.codec:image_from_pb",
            ),
        ),
        Decoder(
            "metadata image",
            [cluster_codec.image_to_bytes(_IMAGE), *[m.SerializeToString() for m in messages(cluster_pb2.Image)]],
            _image_in,
            s,
            cluster_codec.image_to_bytes,
        ),
        Decoder(
            "metadata entries",
            _REQUESTS,
            _Applied(),
            (IncompatibleVersionError,),
            covers=(
                "liftpy.core.metadata.controller.state_machine:ClusterFsm._apply_in_steps",
                "liftpy.core.metadata.controller.record_builder:repeated_answer",
                "liftpy.core.metadata.controller.streams:assignment_from_pb",
            ),
            make=lambda rng, d: spoiled(rng, cluster_pb2.ControlRequest.FromString(d), NAMES).SerializeToString(),
        ),
        Decoder(
            "control requests",
            _REQUESTS,
            _doors,
            p,
            covers=("liftpy.core.metadata.controller.state_machine:answer_without_log",),
            make=lambda rng, d: spoiled(rng, cluster_pb2.ControlRequest.FromString(d), NAMES).SerializeToString(),
        ),
        Decoder(
            "changes of the controllers",
            [_CHANGE.SerializeToString()],
            _change,
            (),
            covers=("liftpy.core.metadata.controller_list:list_of",),
            make=lambda rng, d: spoiled(rng, cluster_pb2.ControlRequest.FromString(d), NAMES).SerializeToString(),
        ),
        Decoder("feed", _entries(), _Fed(), p, covers=("liftpy.core.metadata.records:record_from_pb",)),
    ]
