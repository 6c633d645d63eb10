"""A large cluster of shipped nodes: thousands of partitions, load on a few of them, and the loss of one node.

The world samples what may grow: memory, timers, messages, and the work of one turn of an event loop. It checks that another node
leads every partition of the lost one, that acknowledgements continue, and that the cluster is as quiet at the end as before.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.image import ClusterImage
from tests.simulation.world.checks.logs import records_of, workers_of
from tests.simulation.world.checks.messages import MessageRules
from tests.simulation.world.load.clients import Model, Place
from tests.simulation.world.machine import virtual_descriptors
from tests.simulation.world.machine.interposition import running
from tests.simulation.world.machine.nats_server import Message
from tests.simulation.world.profiles import Profile
from tests.simulation.world.world import Outcome, World

_STREAMS = 8
_LOADED = 8
"""Number of partitions that publishers use."""
_PUBLISH_EVERY_S = 0.5
_SAMPLE_S = 15.0
_TIMERS_S = 2.0
_TIMER_COUNTS = 41
"""Number of counts of the timers in ``_TIMERS_S``, at the end of each sample."""
_START_S = 120.0
_CREATE_S = 300.0
_FAILOVER_S = 30.0
"""Virtual seconds within which each partition of the lost node has another leader."""
_MOST_GAP_S = 15.0
"""Maximum virtual time between two acknowledgements of a partition."""
_MOST_GROWTH = 1.3
"""Maximum ratio of a figure in the last two samples to the largest one before the loss of the node."""


@dataclass(frozen=True)
class Size:
    """Size of a large cluster."""

    nodes: int = 100
    partitions: int = 20_000
    minutes: float = 5.0

    @property
    def lost_at_s(self) -> float:
        """Virtual seconds after the creation of the streams at which the node is lost: minute 2 of 5."""
        return self.minutes * 60 * 2 / 5


@dataclass
class _Sample:
    virtual_s: float
    cpu_s: float
    resident_mib: float
    timers: int
    events: int
    messages_per_s: float
    bytes_per_s: float


@dataclass
class _Traffic:
    """Delivered messages by kind of subject."""

    messages: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)

    def published(self, _: str, message: Message, receivers: int) -> None:
        """Count a message once for each receiver."""
        tokens = message.subject.split(".")
        kind = ".".join(tokens[:2]) if tokens[0] == "liftpy" else "inboxes" if tokens[0].startswith("_INBOX") else "data"
        self.messages[kind] += receivers
        self.size_bytes[kind] += receivers * len(message.content)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


class _Large:
    """The story of a large cluster."""

    def __init__(self, world: World, size: Size) -> None:
        self.world = world
        self.size = size
        self.model = Model(world.scheduler)
        self.traffic = _Traffic()
        self.samples: list[_Sample] = []
        self.newest_ack_s: dict[Place, float] = {}
        self.stopping = False
        count = min(_STREAMS, size.partitions)
        self.streams = [
            (f"s{number}", f"large.s{number}", size.partitions // count + (number < size.partitions % count))
            for number in range(count)
        ]
        self.began_s = world.scheduler.passed_s

    # ---- what the metadata group says ------------------------------------------------------------------------------------
    def image(self) -> ClusterImage | None:
        """Return the newest image of a controller that runs."""
        images = [node.node.group.image for node in self.world.nodes if node.node is not None and node.node.group is not None]
        return max(images, key=lambda image: image.index) if images else None

    def partitions(self) -> Iterator[PartitionState]:
        """Yield the partitions of the streams."""
        image = self.image()
        if image is not None:
            for name, _, _ in self.streams:
                if name in image.streams:
                    yield from image.streams[name].partitions

    def _leaderless(self, lost: str = "") -> int:
        return self.size.partitions - sum(state.leader not in ("", lost) for state in self.partitions())

    # ---- figures ---------------------------------------------------------------------------------------------------------
    def say(self, what: str) -> None:
        """Print a line with the virtual time and the real CPU time."""
        used = os.times()
        print(f"{self.world.scheduler.passed_s:>8.1f} s virtual {used.user + used.system:>7.1f} s CPU  {what}", flush=True)

    async def _sample(self, for_s: float) -> _Sample:
        scheduler, before, before_bytes = self.world.scheduler, self.traffic.messages.total(), self.traffic.size_bytes.total()
        began_s = scheduler.passed_s
        await asyncio.sleep(max(for_s - _TIMERS_S, 0.0))
        timers = await self._most_timers()
        scheduler.after(0, lambda: cast(None, gc.collect()))  # outside of the turn of this loop, whose CPU time has a limit
        await asyncio.sleep(0.01)
        took_s = scheduler.passed_s - began_s
        used = os.times()
        sample = _Sample(
            scheduler.passed_s,
            used.user + used.system,
            _resident_mib(),
            timers,
            scheduler.event_count,
            (self.traffic.messages.total() - before) / took_s,
            (self.traffic.size_bytes.total() - before_bytes) / took_s,
        )
        self.samples.append(sample)
        self.say(
            f"{sample.resident_mib:.0f} MiB, {sample.timers} timers, {sample.events} events, "
            f"{sample.messages_per_s:.0f} messages/s, {sample.bytes_per_s / 1024:.0f} KiB/s"
        )
        return sample

    async def _most_timers(self) -> int:
        """Return the largest number of timers in ``_TIMERS_S``. At one moment there are more or fewer: requests have timers."""
        most = 0
        for _ in range(_TIMER_COUNTS):
            most = max(most, sum(loop.timer_count for loop in self.world.scheduler.loops))
            await asyncio.sleep(_TIMERS_S / _TIMER_COUNTS)
        return most

    def _say_traffic(self, what: str) -> None:
        kinds = sorted(self.traffic.size_bytes, key=lambda kind: -self.traffic.size_bytes[kind])[:8]
        shown = ", ".join(
            f"{kind} {self.traffic.messages[kind]} of {self.traffic.size_bytes[kind] / 1024:.0f} KiB" for kind in kinds
        )
        self.say(f"{what}: {shown}")
        scheduler = self.world.scheduler
        self.say(
            f"{what}: one turn at most: {scheduler.most_callbacks[0]} callbacks ({scheduler.most_callbacks[1]}), "
            f"{scheduler.most_writes[0]} writes ({scheduler.most_writes[1]}), "
            f"{scheduler.most_cpu[0] / 1e9:.3f} s of CPU ({scheduler.most_cpu[1]})"
        )
        self.traffic.messages.clear()
        self.traffic.size_bytes.clear()
        scheduler.most_callbacks = scheduler.most_writes = scheduler.most_cpu = (0, "")

    # ---- the load --------------------------------------------------------------------------------------------------------
    async def _publish(self, place: Place) -> None:
        async with self.world.connect() as client:
            number = 0
            while not self.stopping:
                number += 1
                value = b"%s-%d-%d" % (place[0].encode(), place[1], number)
                work = client.publish(place[0], value, partition=place[1], ack=AckPolicy.ALL, timeout_s=30.0)
                ack = await self.model.call("publish", work)
                now_s = self.world.scheduler.passed_s
                if ack is not None:
                    self.model.acknowledge(place, ack.offset, value, AckPolicy.ALL)
                    gap_s = now_s - self.newest_ack_s.get(place, now_s)
                    self.newest_ack_s[place] = now_s
                    self.longest_gap_s = max(self.longest_gap_s, gap_s)
                await asyncio.sleep(_PUBLISH_EVERY_S)

    longest_gap_s = 0.0

    # ---- the story -------------------------------------------------------------------------------------------------------
    async def tell(self) -> None:
        """Run the history."""
        world, size = self.world, self.size
        MessageRules(world)
        world.nats.watchers.append(self.traffic.published)
        world.scheduler.marks_each_turn = True
        for node in world.nodes:
            node.start()
        if not await world.until("all nodes are ready", lambda: all(node.is_ready for node in world.nodes), _START_S):
            return
        self._say_traffic("ready")
        async with world.connect() as client:
            for name, subject, partitions in self.streams:
                made = client.create_stream(
                    name, subject, partitions=partitions, replicas=3, config=StreamConfig(segment_bytes=64 * 1024), ready_s=0
                )
                await self.model.call("create", made)
        if not await world.until("all partitions have a leader", lambda: self._leaderless() == 0, _CREATE_S):
            return
        expected = 3 * size.partitions
        if not await world.until("all replicas run", lambda: self._running() >= expected, _CREATE_S):
            return
        self._say_traffic(f"{size.partitions} partitions have leaders and replicas")
        began_s = world.scheduler.passed_s
        places = self._loaded()
        for number, place in enumerate(places):
            world.run_in(world.client_process(f"publisher{number}"), lambda place=place: self._publish(place))  # type: ignore[misc]
        await self._samples_until(began_s + size.lost_at_s)
        before = list(self.samples)
        self._say_traffic("before the loss")
        await self._lose_a_node(places)
        await self._samples_until(began_s + size.minutes * 60)
        self._say_traffic("after the loss")
        self.stopping = True
        await asyncio.sleep(1)
        self._check_end(before, places)

    def _running(self) -> int:
        return sum(len(node.node.partitions) for node in self.world.nodes if node.node is not None and node.node.partitions)

    def _loaded(self) -> list[Place]:
        """Return the partitions with load: some are led by the node that is lost, and some are not."""
        chosen: list[Place] = []
        for number in range(min(_LOADED, self.size.partitions)):
            name, _, partitions = self.streams[number % len(self.streams)]
            chosen.append((name, number * 7 % partitions))
        return chosen

    async def _samples_until(self, end_s: float) -> None:
        while (left_s := end_s - self.world.scheduler.passed_s) > 0.1:
            await self._sample(min(_SAMPLE_S, left_s))

    async def _lose_a_node(self, places: list[Place]) -> None:
        """Kill the leader of the first partition with load, and do not restart it."""
        image = self.image()
        assert image is not None
        lost = image.streams[places[0][0]].partitions[places[0][1]].leader
        led = sum(state.leader == lost for state in self.partitions())
        at_s = self.world.scheduler.passed_s
        next(node for node in self.world.nodes if node.name == lost).kill()
        await self.world.until(f"each of {led} partitions has another leader", lambda: self._leaderless(lost) == 0, _FAILOVER_S)
        self.say(f"{lost} is lost: its {led} partitions have leaders after {self.world.scheduler.passed_s - at_s:.2f} s")
        await self.world.until(
            "the ISR of each partition has two members",
            lambda: all(lost not in state.isr and len(state.isr) >= 2 for state in self.partitions()),
            _FAILOVER_S,
        )
        self.say(f"{lost} is in no ISR after {self.world.scheduler.passed_s - at_s:.2f} s")

    # ---- the end ---------------------------------------------------------------------------------------------------------
    def _check_end(self, before: list[_Sample], places: list[Place]) -> None:
        violated, after = self.world.scheduler.violated, self.samples[-2:]
        for what in ("resident_mib", "timers", "events", "messages_per_s", "bytes_per_s"):
            early = max(getattr(sample, what) for sample in before)
            late = min(getattr(sample, what) for sample in after)  # what grows, grows in both
            if late > _MOST_GROWTH * early + 10:
                violated(f"{what} has grown from {early:.0f} to {late:.0f}")
        now_s = self.world.scheduler.passed_s
        for place in places:
            if now_s - self.newest_ack_s.get(place, 0.0) > _MOST_GAP_S:
                violated(f"{place} has acknowledged nothing since {self.newest_ack_s.get(place, 0.0):.1f} s")
        if self.longest_gap_s > _MOST_GAP_S:
            violated(f"{self.longest_gap_s:.1f} s between two acknowledgements")
        acked = sum(len(offsets) for offsets in self.model.acked.values())
        self.say(f"{acked} acknowledged, longest gap {self.longest_gap_s:.2f} s")
        self._check_logs(places)
        self.model.check_overdue()

    def _check_logs(self, places: list[Place]) -> None:
        """Check that the running replicas of the partitions with load have every acknowledged record."""
        running = workers_of(self.world)
        for place in places:
            copies = [records_of(self.world, worker) for worker in running.get(place, [])]
            if len(copies) < 2:
                self.world.scheduler.violated(f"{place} has {len(copies)} replicas")
            for copy in copies:
                for offset, value in self.model.acked.get(place, {}).items():
                    if copy.get(offset) != value:
                        self.world.scheduler.violated(f"{place}: {value!r} was acknowledged at {offset}, and is missing")
                        return


def _require_descriptors(size: Size, most_open: int) -> None:
    """Raise the soft limit of open files. Raise an error if the hard limit is too low. ``most_open``: 0 for all log files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = (most_open or 3 * size.partitions) + 50 * size.nodes
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(
            f"{size.partitions} partitions on {size.nodes} nodes need {wanted} open files, and the limit is {hard}. "
            "Raise it with ulimit -Hn, or choose a smaller --open-files."
        )


def run_large(seed: int, size: Size, most_open: int = 0) -> Outcome:
    """Run a large cluster in its own Python process. ``most_open``: maximum number of open log files, 0 for no maximum."""
    _require_descriptors(size, most_open)
    profile = Profile("large", nodes=size.nodes, controllers=3, servers=3, users=False)
    world = World(seed, profile)
    files = virtual_descriptors.install(world.folder / "open", most_open, running) if most_open else None
    for node in world.nodes:
        node.disk.loses_power = False
    world.most_s = size.minutes * 60 + _START_S + 2 * _CREATE_S
    began = time.monotonic()
    try:
        outcome = world.run(lambda _: _Large(world, size).tell())
    finally:
        world.clean()
    print(f"{time.monotonic() - began:.0f} s, at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if files is not None:
        print(f"{files.most_files} log files at most, {most_open} of them open, opened again {files.reopened} times")
    return outcome
