"""Streams that wait for nodes (``insufficient-nodes``). Pure.

A stream with too few nodes is created without partitions. When nodes change, the metadata leader checks the waiting
streams, the oldest first, and proposes PlaceStream.
"""

from __future__ import annotations

from liftpy.config import NS_PER_S
from liftpy.core.metadata.controller.placements import facts_of
from liftpy.core.metadata.controller.streams import waiting_for
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.placement import candidates_for
from liftpy.core.metadata.placement.facts import PlacementError
from liftpy.core.wire._pb import cluster_pb2 as pb

AT_ONCE = 8
LOOK_EVERY_NS = NS_PER_S // 4
AGAIN_AFTER_NS = 10 * NS_PER_S
"""Time after which an unplaced stream is proposed again. The proposal may be lost, or nodes have room now."""
NO_ROOM = "the nodes there are have no room for it: add nodes, delete streams, or raise their limits of open files"


def why_it_waits(image: ClusterImage, stream: StreamImage) -> str:
    """Return why ``stream`` waits."""
    try:
        candidates_for(facts_of(image), waiting_for(stream, 0))
    except PlacementError as error:
        return str(error)
    return NO_ROOM


class WaitingStreams:
    """The metadata leader's look at them. ``now_ns`` is monotonic."""

    def __init__(self) -> None:
        self._image: ClusterImage | None = None
        self._look_at_ns: int | None = None
        """Time of the next check. None: nothing has changed since the last one."""
        self._earliest_ns = 0
        self._proposed_ns: dict[str, int] = {}
        """Uid -> time of the last proposal."""

    def lead(self, image: ClusterImage, now_ns: int) -> None:
        """Begin: this node is the metadata leader."""
        self._image = ClusterImage()
        self._proposed_ns.clear()
        self._earliest_ns = now_ns
        self.image_changed(image, now_ns)

    def resign(self) -> None:
        """End: this node lost the metadata leadership."""
        self._image = self._look_at_ns = None

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        """Record that an entry was applied."""
        if self._image is None:
            return
        before, self._image = self._image, image
        if not image.waiting:
            self._look_at_ns = None
        elif any(getattr(before, of) is not getattr(image, of) for of in ("nodes", "waiting", "replica_counts")):
            self._look_at_ns = self._earliest_ns

    def due(self, now_ns: int) -> list[pb.PlaceStream]:
        """Return what to propose now."""
        image = self._image
        if image is None or self._look_at_ns is None or now_ns < self._look_at_ns:
            return []
        self._earliest_ns, self._look_at_ns = now_ns + LOOK_EVERY_NS, now_ns + AGAIN_AFTER_NS
        streams = sorted((image.streams[name] for name in image.waiting), key=lambda stream: stream.uid)
        uids = {stream.uid for stream in streams}
        self._proposed_ns = {
            uid: at_ns for uid, at_ns in self._proposed_ns.items() if uid in uids and now_ns - at_ns < AGAIN_AFTER_NS
        }
        nodes, found = facts_of(image), list[pb.PlaceStream]()
        enough: dict[tuple[str, int], bool] = {}
        for stream in streams:
            if stream.uid in self._proposed_ns:
                continue
            kind = (stream.placement, stream.replica_count)
            if kind not in enough:
                try:
                    enough[kind] = bool(candidates_for(nodes, waiting_for(stream, 0)))
                except PlacementError:
                    enough[kind] = False
            if not enough[kind]:
                continue
            if len(found) == AT_ONCE:
                self._look_at_ns = self._earliest_ns
                break
            self._proposed_ns[stream.uid] = now_ns
            found.append(pb.PlaceStream(name=stream.name, uid=stream.uid))
        return found

    def next_deadline_ns(self) -> int | None:
        """Return the time of the next call of ``due``."""
        return self._look_at_ns if self._image is not None else None
