"""RelayedGroup: the metadata group as a worker process sees it: by what its node tells it, and through its node."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.records import record_from_pb
from liftpy.core.metadata.replay import replay_all
from liftpy.core.metadata.snapshot import decode_snapshot
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.worker_frames import FrameKind
from liftpy.errors import ProtocolError
from sidecar.metadata.group import Watcher

_PROPOSAL = struct.Struct(">I")

Send = Callable[[FrameKind, int, bytes], None]


class RelayedGroup:
    """Satisfies ``MetadataGroup``. It decides nothing: whether data may be deleted is asked of a controller, as on any node that
    follows the feed."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._watchers: list[Watcher] = []
        self._asked: dict[int, asyncio.Future[pb.ControlResponse]] = {}
        self._token = 0
        self.image = ClusterImage()
        self.leader = ""
        self.is_controller = False
        self.decides = False
        self.counters: dict[str, int] = {}
        self.held: dict[str, int] = {}

    # ---- what the node says ----------------------------------------------------------------------------------------------
    def image_told(self, snapshot: bytes) -> None:
        """An image in the place of the one before. Raises LiftError."""
        self._show(decode_snapshot(snapshot))

    def entry_told(self, body: bytes) -> None:
        """What has changed. Raises LiftError, above all where it does not follow."""
        entry = pb.FeedEntry.FromString(body)
        if entry.previousIndex != self.image.index:
            raise ProtocolError(
                f"Internal error: an entry follows {entry.previousIndex}, but the image is at {self.image.index}."
            )
        image = replay_all(self.image, [record_from_pb(record) for record in entry.records])
        self._show(replace(image, index=entry.index))

    def answered(self, token: int, body: bytes) -> None:
        """What was proposed has come to this."""
        waiting = self._asked.pop(token, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(pb.ControlResponse.FromString(body))

    def _show(self, new: ClusterImage) -> None:
        old, self.image = self.image, new
        for watcher in self._watchers:
            watcher(old, new)

    # ---- MetadataGroup -----------------------------------------------------------------------------------------------------
    def watch(self, callback: Watcher) -> None:
        """Call ``callback`` after each change of the image."""
        self._watchers.append(callback)

    def distrust(self) -> None:
        """The node's image is contradicted."""
        self._send(FrameKind.DISTRUST, 0, b"")

    async def start(self) -> None:
        """The node has."""

    def retire(self) -> None:
        """The node does."""

    async def hand_over(self) -> None:
        """The node does."""

    async def stop(self) -> None:
        """The node does."""

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Through the node, which answers always, and ends this process where it ends."""
        self._token += 1
        token = self._token
        answer: asyncio.Future[pb.ControlResponse] = asyncio.get_running_loop().create_future()
        self._asked[token] = answer
        self._send(FrameKind.PROPOSE, token, _PROPOSAL.pack(round(timeout_s * 1000)) + request.SerializeToString())
        try:
            return await answer
        finally:
            self._asked.pop(token, None)

    async def barrier(self, timeout_s: float = 5.0) -> bool:
        """The node's work."""
        return False

    async def events(self, asked: bytes) -> dict[str, Any] | None:
        """The node tells them."""
        return None

    def status(self) -> list[pb.ControllerStatus]:
        """The node tells it."""
        return []

    def ticks(self) -> dict[str, float]:
        """The node tells it."""
        return {}
