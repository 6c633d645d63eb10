"""The ghost: what the group has decided, as the first member to apply it saw it; everybody else is held against it.

Checked at every apply: every index holds the same entry everywhere [M3, M5], in order, with the same answer and the same records; no
operation changes anything twice, and none is applied that its caller was told is refused; no folder's clean stop is claimed that there
was not [S9]. An image that came by a snapshot or by the feed is the one that the group has had at its index [M5].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.features import FEATURES, Feature
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb


class Violation(AssertionError):
    """An invariant broke; the text names it."""


class Ghost:
    """``watch(before, after, request)`` is called when an entry is applied for the first time anywhere."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.images: dict[int, ClusterImage] = {}
        self.ids: dict[bytes, int] = {}
        """Operation id -> index of its first entry."""
        self.refused: set[bytes] = set()
        """Ids of operations whose callers were told that nothing came, or will come, of them."""
        self.gone_uids: set[str] = set()
        """Streams that the group has deleted."""
        self.watch: Callable[[ClusterImage, ClusterImage, pb.ControlRequest], None] = lambda *_: None
        self._answers: dict[int, bytes] = {}
        self._changed: dict[bytes, int] = {}
        """Operation id -> index at which it changed something."""
        self.newest = ClusterImage()
        self._fed = cache(lambda index: _as_fed(self.images[index]))
        self._whole = cache(lambda index: encode_snapshot(self.images[index]))

    def applied(self, entry: bytes, index: int, before: ClusterImage, fsm: ClusterFsm, answer: bytes) -> None:
        """A member has applied an entry."""
        if self.entries.setdefault(index, entry) != entry:
            raise Violation(f"M5: index {index} holds {entry!r} here and {self.entries[index]!r} elsewhere")
        if before.index >= index:
            raise Violation(f"M5: index {index} is applied after {before.index}")
        if self._answers.setdefault(index, answer) != answer:
            raise Violation(f"M5: index {index} is answered differently here")
        if index in self.images:
            return
        if index < self.newest.index:
            raise Violation(f"M5: index {index} is applied for the first time after {self.newest.index}")
        self.images[index] = fsm.image
        self._first(entry, index, before, fsm)

    def _first(self, entry: bytes, index: int, before: ClusterImage, fsm: ClusterFsm) -> None:
        request = pb.ControlRequest.FromString(entry)
        self.ids.setdefault(request.operationId, index)
        if request.operationId in self.refused:
            raise Violation(
                f"D8: {request.WhichOneof('request')} at {index} is applied, its caller was told that it is refused"
            )
        if fsm.last_records and self._changed.setdefault(request.operationId, index) != index:
            raise Violation(f"applied twice: {request.WhichOneof('request')} at {index}")
        if fsm.failure_count:
            raise Violation(f"M6: the state machine fails at {index}: {request}")
        was, now = before.controllers, fsm.image.controllers
        if request.HasField("changeControllers") and (
            now.index != index or (was.index and len({*was.voters} ^ {*now.voters}) > 1)
        ):
            raise Violation(f"M10: a change of the controllers at {index} is not the next after {was}: {now}")
        after = {s.uid for s in fsm.image.streams.values()}
        self.gone_uids.update(s.uid for s in before.streams.values() if s.uid not in after)
        self.newest = fsm.image
        self.watch(before, fsm.image, request)

    def told_refused(self, request: pb.ControlRequest) -> None:
        """The caller takes it that the operation never happened, and never will."""
        if request.operationId in self.ids:
            raise Violation(f"D8: a {request.WhichOneof('request')} was applied, and its caller is told that it is refused")
        self.refused.add(request.operationId)

    def check_restored(self, image: ClusterImage, who: str) -> None:
        """An image came by a snapshot."""
        if image.index and (image.index not in self.images or encode_snapshot(image) != self._whole(image.index)):
            raise Violation(f"M5: the snapshot of {who} at {image.index} is not the group's")

    def check_fed(self, image: ClusterImage, who: str) -> None:
        """An image came by the feed."""
        if not image.index:
            raise Violation(f"M11: {who} takes an image of index 0 for the cluster's")
        if image.index not in self.images or _as_fed(image) != self._fed(image.index):
            raise Violation(f"M5: the image of {who} at {image.index} is not the group's")


def _as_fed(image: ClusterImage) -> bytes:
    """What a follower of the feed knows of an image: not when it was made, nor which operations are done."""
    return encode_snapshot(replace(image, time_ns=0), operations=False)


class CheckedFsm(ClusterFsm):
    """The shipped state machine of one member, watched by the ghost. ``steps``: how many the work on the next entry takes, at least;
    a tick has room for a few, and what happens before the last one must not matter. ``first``: its first image,
    None: of a new group."""

    def __init__(
        self,
        ghost: Ghost,
        who: str,
        steps: Callable[[], int] = lambda: 1,
        features: tuple[Feature, ...] = FEATURES,
        first: ClusterImage | None = None,
    ) -> None:
        super().__init__(elections=True, features=features)
        if first is not None:
            self.image = first
        self._ghost = ghost
        self._who = who
        self._steps = steps
        self._working_on = 0
        """Index of the entry that is to be applied next."""
        self._left = 0

    def precompute(self, entry: bytes, index: int) -> bool:
        if self._working_on != index:
            self._working_on, self._left = index, self._steps()
        before = self.image
        done = super().precompute(entry, index)
        if self.image is not before:
            raise Violation(f"M5: the work ahead on {index} shows before it is applied")
        self._left -= 1
        return done and self._left <= 0

    def apply(self, entry: bytes, index: int) -> bytes:
        before = self.image
        answer = super().apply(entry, index)
        self._ghost.applied(entry, index, before, self, answer)
        return answer

    def restore(self, data: bytes) -> None:
        super().restore(data)
        self._ghost.check_restored(self.image, self._who)
