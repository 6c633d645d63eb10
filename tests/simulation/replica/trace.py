"""Trace of a simulation: one line per event with its effects, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy.core.metadata.image import ClusterImage
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from tests.simulation.replica.clock import START_NS, Clock

if TYPE_CHECKING:
    from tests.simulation.replica.sim_replica import SimReplica

_QUIET = (ev.LeaseChanged,)
_SILENT = (do.SetDeadline,)


class Trace:
    """Keeps the last ``limit`` lines."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.limit = limit
        self.clock: Clock | None = None
        self._kept: list[tuple[int, str, tuple[object, ...]]] = []
        """Time, text, and the event and its effects, which get a text only when somebody reads the lines."""

    @property
    def lines(self) -> list[str]:
        """Return the text of each line."""
        return [f"{now_ns / 1e9:11.6f}  {text}{_told(what)}" for now_ns, text, what in self._kept]

    def note(self, text: str, what: tuple[object, ...] = ()) -> None:
        """Add one line at the current time. ``what``: an event and its effects."""
        now_ns = self.clock.now_ns - START_NS if self.clock is not None else 0
        self._kept.append((now_ns, text, what))
        if len(self._kept) > 2 * self.limit:
            del self._kept[: self.limit]

    def step(self, replica: SimReplica, event: ev.Event, effects: list[do.Effect]) -> None:
        """Add an event of a replica and its effects."""
        shown = [effect for effect in effects if not isinstance(effect, _SILENT)]
        if isinstance(event, _QUIET) and not shown:
            return
        core = replica.replica
        head = f"{replica.host} {core.role[:4]} e{core.leader_epoch} hw={core.high_watermark} end={core.log.log_end_offset}"
        self.note(f"{head:32} <- ", (event, *shown))

    def image(self, old: ClusterImage, new: ClusterImage) -> None:
        """A change of the metadata."""
        for node_id in sorted(new.nodes):
            node, before = new.nodes[node_id], old.nodes.get(node_id)
            if node is not before:
                self.note(f"METADATA {new.index}: {node_id} incarnation {node.incarnation}{' FENCED' if node.fenced else ''}")
        for name in sorted(new.streams):
            for number, p in enumerate(new.streams[name].partitions):
                before_stream = old.streams.get(name)
                if before_stream is None or before_stream.partitions[number] is not p:
                    who = p.leader or p.candidate
                    self.note(f"METADATA {new.index}: {p.status.name} {who} e{p.leader_epoch} E{p.epoch} isr={','.join(p.isr)}")


def _told(what: tuple[object, ...]) -> str:
    return _short(what[0]) + "".join(f"\n{'':47}-> {_short(effect)}" for effect in what[1:]) if what else ""


def _short(what: object) -> str:
    if isinstance(what, ev.PartitionChanged):
        s = what.metadata.state
        live = dict(sorted(what.incarnations.items()))
        head = f"{s.status.name} {s.leader or s.candidate} e{s.leader_epoch} E{s.epoch}"
        return f"PartitionChanged({head} isr={sorted(s.isr)} live={live})"
    if isinstance(what, do.ProposeIsr):
        return f"ProposeIsr({sorted(what.isr)} e{what.leader_epoch} E{what.epoch} {what.incarnations})"
    return repr(what)
