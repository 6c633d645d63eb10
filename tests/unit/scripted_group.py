"""A metadata group for unit tests: the test gives its answers and its image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from sidecar.metadata.group import MetadataGroup


class ScriptedGroup(MetadataGroup):
    """Answers each request with the next of ``answers``, and afterwards with OK."""

    def __init__(self, *answers: pb.ControlResponse) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[tuple[pb.ControlRequest, float]] = []
        """Requests and their timeouts in seconds."""
        self.shown = ClusterImage()

    @property
    def image(self) -> ClusterImage:
        """The image as the test has shown it."""
        return self.shown

    def show(self, **fields: Any) -> None:
        """Change fields of the image, and tell the watchers."""
        before, self.shown = self.shown, replace(self.shown, **fields)
        self._notify(before, self.shown)

    async def propose(self, request: pb.ControlRequest, timeout_s: float = 5.0) -> pb.ControlResponse:
        """Note the request, and answer it."""
        copy = pb.ControlRequest()
        copy.CopyFrom(request)
        self.asked.append((copy, timeout_s))
        return self.answers.pop(0) if self.answers else pb.ControlResponse()

    def send_heartbeat(self, request: pb.ControlRequest, answered: Callable[[pb.ControlResponse], None]) -> None:
        """Note the heartbeat, and answer it at once."""
        copy = pb.ControlRequest()
        copy.CopyFrom(request)
        self.asked.append((copy, 0.0))
        answered(self.answers.pop(0) if self.answers else pb.ControlResponse())
