"""The metadata group as a worker process sees it: data and requests go through the first process."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import record_from_pb
from liftpy.core.metadata.replay import replay_all
from liftpy.core.metadata.snapshot import decode_snapshot
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.worker_frames import FrameKind
from liftpy.errors import ProtocolError
from sidecar.metadata.group import MetadataGroup

_PROPOSAL = struct.Struct(">I")

Send = Callable[[FrameKind, int, bytes], None]


class RelayedGroup(MetadataGroup):
    """The metadata group as a worker process sees it.

    It never says that this process is a controller. So the worker asks a controller before it deletes data.
    """

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self._asked: dict[int, asyncio.Future[pb.ControlResponse]] = {}
        self._token = 0
        self._image = ClusterImage()

    # ---- frames of the node -----------------------------------------------------------------------------------------------
    def replace_image(self, snapshot: bytes) -> None:
        """Replace the metadata image by ``snapshot``, which the first process has sent. Raises LiftError if it is invalid."""
        self._show(decode_snapshot(snapshot))

    def apply_entry(self, body: bytes) -> None:
        """Apply a change of the metadata that the first process has sent.

        Raises LiftError if the change is invalid or does not follow the current image.
        """
        entry = pb.FeedEntry.FromString(body)
        if entry.previousIndex != self.image.index:
            raise ProtocolError(
                f"Internal error: an entry follows {entry.previousIndex}, but the image is at {self.image.index}. Please report it."
            )
        image = replay_all(self.image, [record_from_pb(record) for record in entry.records])
        self._show(replace(image, index=entry.index))

    def process_answer(self, token: int, body: bytes) -> None:
        """Pass the answer of the metadata group to the call of ``propose`` that has sent the request ``token``."""
        waiting = self._asked.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(pb.ControlResponse.FromString(body))

    def _show(self, new: ClusterImage) -> None:
        old, self._image = self._image, new
        self._notify(old, new)

    # ---- MetadataGroup -----------------------------------------------------------------------------------------------------
    @property
    def image(self) -> ClusterImage:
        return self._image

    def distrust(self) -> None:
        self._send(FrameKind.DISTRUST, 0, b"")

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Send ``request`` to the metadata group through the first process, and return the answer.

        ``timeout_s``: time limit of the first process, in seconds. It always answers, and this process ends when it ends.
        """
        self._token += 1
        token = self._token
        answer: asyncio.Future[pb.ControlResponse] = asyncio.get_running_loop().create_future()
        self._asked[token] = answer
        self._send(FrameKind.PROPOSE, token, _PROPOSAL.pack(round(timeout_s * 1000)) + request.SerializeToString())
        try:
            return await answer
        finally:
            self._asked.pop(token, None)
