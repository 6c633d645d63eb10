"""The metadata group as one log: ``SingleLogGroup`` on the clock and the network of the simulator.

Raft has its own simulator; here the group is what it promises to be, one order of decisions, and the faults are those that
a node sees: requests and answers that are lost (the outcome is unknown), no metadata leader for a while, and an image
that reaches every node late, in order, and not at all while its metadata path is cut.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from liftpy.config import ReplicationConfig, SessionTimes
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.controller.election_triggers import LeaderCheck, ProbeResult
from liftpy.core.metadata.controller.feature_levels import begin_at
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.testing.memory.group import SingleLogGroup
from tests.born import born_image
from tests.simulation.replica.clock import MS, Clock

_TICK_NS = 50 * MS

Answer = Callable[[pb.ControlResponse | None], None]
Heard = Callable[[pb.ControlResponse], None]
Gate = Callable[[str, str, Callable[[], None]], bool]


class SimGroup(SingleLogGroup):
    """Simulated metadata group.

    ``watch(old, new)`` is called at each change. Nodes learn of it through ``deliver``. ``times``: first session times, None:
    those of the settings.
    """

    def __init__(self, clock: Clock, seed: int, config: ReplicationConfig, times: SessionTimes | None = None) -> None:
        super().__init__(config)
        self.clock = clock
        if times is None:
            self.fsm.image = replace(born_image(), session_times=None)
        self.images: list[ClusterImage] = [self.fsm.image]
        """Every image that there was, in order."""
        self.cut: set[str] = set()
        """Nodes whose metadata path is cut."""
        self.loss = 0.0
        self.slow_ns = 5 * MS
        """Requests, answers and images take up to this long."""
        self.late_ns: dict[str, int] = {}
        """Host -> by how much longer everything takes that is for it."""
        self.beats: dict[str, tuple[int, int]] = {}
        """Node -> (incarnation, when) of the last heartbeat that this metadata leader has taken."""
        self.unheard: set[str] = set()
        """Hosts of which nothing arrives; what is for them does."""
        self.twins: set[str] = set()
        """Hosts on which another process of a node may run. They get the messages of the node."""
        self.wall_offset_ns = 0
        """Offset of the metadata leader's wall clock, in nanoseconds."""
        self.available = False
        self.fenced_at: dict[str, int] = {}
        """Node -> index of the image that fenced it last."""
        self.counters: Counter[str] = Counter()
        self.watch: Callable[[ClusterImage, ClusterImage], None] = lambda old, new: None
        self.deliver: Callable[[str, ClusterImage], None] = lambda node, image: None
        self.ask: Callable[[LeaderCheck, Callable[[ProbeResult], None]], None] = lambda question, answer: None
        """Puts a question on the bus."""
        self.look_for: Callable[[str, Callable[[], None]], None] = lambda node, absent: None
        """Asks the bus for a node; the callback is for "no responders"."""
        self.gate: Gate | None = None
        """Function of a script: ``gate(node, what, arrive)`` returns True to keep a message, and calls ``arrive`` later to
        deliver it.
        """
        self._term = 0
        self._rng = random.Random(f"{seed}/group")
        if times is not None:
            self.apply(begin_at(SUPPORTED_LEVELS.most, self.fsm.rules, times))
        self.set_available(True)
        self._tick()

    def now_ns(self) -> int:
        """Return the time of the simulation, in nanoseconds."""
        return self.clock.now_ns

    def time_ns(self) -> int:
        """Return the wall clock of the metadata leader, in nanoseconds since 1970."""
        return max(1, self.clock.now_ns + self.wall_offset_ns)

    def partition(self, stream: str, number: int) -> PartitionState:
        """Return the truth about one partition."""
        return self.fsm.image.streams[stream].partitions[number]

    def set_available(self, available: bool) -> None:
        """Set whether there is a metadata leader. A new one knows no heartbeats."""
        if available == self.available:
            return
        self.available = available
        if available:
            self._term += 1
            self.beats.clear()
            self.duties.lead(self.image, self.clock.now_ns, self._term)
        else:
            self.duties.resign()

    # ---- requests --------------------------------------------------------------------------------------------------------
    def propose(self, host: str, request: pb.ControlRequest, on_answer: Answer) -> None:
        """Send one request of ``host``. ``on_answer`` may never be called: then the outcome is unknown."""
        self._travel(host, request.WhichOneof("request"), lambda: self._requested(host, request, on_answer))

    def _requested(self, host: str, request: pb.ControlRequest, on_answer: Answer) -> None:
        if not self.available:
            self.counters["no metadata leader"] += 1
            return
        response = self.decide(request)
        self._travel(host, f"{request.WhichOneof('request')} answer", lambda: on_answer(response))

    def response_received(self, request: pb.ControlRequest, response: pb.ControlResponse) -> None:
        """Count requests by kind and result, those of a batch separately."""
        if not request.HasField("batch"):
            self.counters[f"{request.WhichOneof('request')} {pb.ControlResponse.Error.Name(response.error)}"] += 1
            return
        self.counters["batches"] += 1
        answers = {answer.number: answer for answer in response.batch.answers}
        for item in request.batch.requests:
            answer = answers[item.number]
            self.counters[f"{item.request.WhichOneof('request')} {pb.ControlResponse.Error.Name(answer.error)}"] += 1

    def new_operation_id(self) -> bytes:
        """Return a new operation id. A retry keeps its id."""
        return self._rng.randbytes(16)

    def image_changed(self, before: ClusterImage) -> None:
        image, now_ns = self.image, self.clock.now_ns
        for node_id, node in image.nodes.items():
            old = before.nodes.get(node_id)
            if node.fenced and (old is None or not old.fenced):
                self.fenced_at[node_id] = image.index
        self.images.append(image)
        if self.available:
            self.duties.image_changed(image, now_ns)
        self.watch(before, image)
        for host in (*sorted(image.nodes), *sorted(self.twins)):
            self.send_image(host)

    def send_image(self, host: str) -> None:
        """The newest image, on its way to ``host``."""
        image = self.image
        self._travel(host, "image", lambda: self.deliver(host, image))

    def heartbeat(self, host: str, node: str, incarnation: int, seen_index: int, on_heard: Heard) -> None:
        """``on_heard(answer)``; a host that is behind gets the image again."""
        self._travel(host, "heartbeat", lambda: self._heartbeat(host, node, incarnation, seen_index, on_heard))

    def _heartbeat(self, host: str, node: str, incarnation: int, seen_index: int, on_heard: Heard) -> None:
        if not self.available:
            return
        index = self.image.index
        response = self.beat(node, incarnation)
        self.beats[node] = (incarnation, self.clock.now_ns)
        if seen_index < index:
            self.send_image(host)
        self._travel(host, "heartbeat answer", lambda: on_heard(response))

    def _travel(self, host: str, what: str, arrive: Callable[[], None]) -> None:
        """Carry a message between a host and the metadata leader."""
        if self.gate is not None and self.gate(host, what, arrive):
            return
        is_for_it = what == "image" or what.endswith(" answer")
        if host in self.cut or self._rng.random() < self.loss or (host in self.unheard and not is_for_it):
            self.counters["lost on the metadata path"] += 1
            return
        delay_ns = MS // 2 + int(self._rng.random() ** 4 * self.slow_ns)
        if is_for_it:
            delay_ns += self.late_ns.get(host, 0)
        self.clock.after(delay_ns, lambda: None if host in self.cut else arrive())

    def _tick(self) -> None:
        now_ns = self.clock.now_ns
        if self.available:
            self.apply_due()
            reports = self.duties.failure_reports
            for question in reports.take_leader_checks():
                self.ask(question, partial(reports.record_testimony, question))
            for node in self.duties.overdue(now_ns):
                self.look_for(node, partial(self.duties.sessions.record_no_responders, node))
        self.clock.after(_TICK_NS, self._tick)
