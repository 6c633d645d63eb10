"""Faults of a simulated history: one function per fault, drawn repeatedly, and their healing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from sidecar.partition.worker import PartitionWorker
from tests.simulation.world.checks.logs import workers_of
from tests.simulation.world.machine.nats_server import MAX_PENDING
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.node_process import NodeProcess
from tests.simulation.world.world import World

_MS = NS_PER_S // 1000
Fault = Callable[["Faults"], None]


class Faults:
    """Faults of one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.draw = random.Random(f"faults {world.seed} {world.profile.name}")
        self.victim = self.draw.choice(world.nodes)
        """The one node whose data may be lost: the others have all that was acknowledged."""
        self._lost_data = False

    async def run(self) -> None:
        """Run until the time of the profile is over."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.world.profile.busy_s
        while loop.time() < end_s:
            await asyncio.sleep(self.draw.random() * self.world.profile.pause_s)
            if self.world.profile.faults and loop.time() < end_s:
                name = self.draw.choice(self.world.profile.faults)
                self.world.scheduler.trace("fault", name)
                self.world.scheduler.counters[f"fault: {name}"] += 1
                _FAULTS[name](self)

    def heal(self) -> None:
        """Everything works again, and every node is started."""
        world = self.world
        world.scheduler.trace("heal")
        world.network.heal()
        world.nats.lose_one_in = 0
        world.nats.max_pending = MAX_PENDING
        world.nats.heal_routes()
        for server in world.nats.servers:
            if not server.is_up:
                server.start()
        for node in world.nodes:
            node.disk.heal()
            node.set_clock(rate=1.0)
            node.start()

    # ---- helpers ---------------------------------------------------------------------------------------------------------
    def node(self) -> NodeProcess:
        """Return a random node."""
        return self.draw.choice(self.world.nodes)

    def later(self, within_s: float, callback: Callable[[], None]) -> None:
        """The fault ends then."""
        self.world.scheduler.after(int(self.draw.uniform(0.1, within_s) * NS_PER_S), callback)

    def soon_ns(self) -> int:
        """Return a random delay before a restart."""
        return int(self.draw.choice((0.01, 0.3, 1.0, 4.0)) * NS_PER_S)

    @staticmethod
    def _newest_isr(workers: list[PartitionWorker]) -> set[str]:
        """Return the newest ISR that a running replica knows."""
        states = [worker.state for worker in workers if worker.state is not None]
        return set(max(states, key=lambda state: state.epoch).isr) if states else set()

    def may_lose_data(self) -> bool:
        """Return whether the victim may lose its data: once, and not while it is the only in-sync replica of a partition.

        Such a partition would then wait for an operator. A victim that is lost for ever has no data any more.
        """
        if (
            self._lost_data
            or self.victim.is_lost
            or any(self._newest_isr(workers) == {self.victim.name} for workers in workers_of(self.world).values())
        ):
            return False
        self._lost_data = True
        return True


def _cut(faults: Faults) -> None:
    connections = faults.world.network.connections
    if connections:
        faults.draw.choice(connections).cut()


def _partition(faults: Faults, *, both: bool = True) -> None:
    network, host = faults.world.network, faults.node().name
    server = faults.draw.choice(faults.world.nats.servers).name
    ways = [(host, server), (server, host)]
    for source, target in ways if both else [faults.draw.choice(ways)]:
        network.partition(source, target)
    faults.later(5.0, network.heal)


def _one_way(faults: Faults) -> None:
    _partition(faults, both=False)


def _slow_network(faults: Faults) -> None:
    host = faults.node().name
    faults.world.network.slow(host, faults.draw.choice((20, 200, 800)) * _MS)
    faults.later(4.0, lambda: faults.world.network.slow(host, 0))


def _lose(faults: Faults) -> None:
    nats = faults.world.nats
    nats.lose_one_in = faults.draw.choice((5, 30, 200))
    faults.later(4.0, lambda: setattr(nats, "lose_one_in", 0))


def _nats_restart(faults: Faults) -> None:
    server = faults.draw.choice(faults.world.nats.servers)
    if server.is_up:
        server.stop()
        faults.later(4.0, lambda: None if server.is_up else server.start())


def _route(faults: Faults) -> None:
    nats = faults.world.nats
    if len(nats.servers) > 1:
        one, other = faults.draw.sample([server.name for server in nats.servers], 2)
        nats.cut_route(one, other)
        faults.later(5.0, nats.heal_routes)


def _slow_consumer(faults: Faults) -> None:
    """NATS servers disconnect clients that are little behind."""
    nats = faults.world.nats
    nats.max_pending = faults.draw.choice((4_000, 30_000))
    faults.later(3.0, lambda: setattr(nats, "max_pending", MAX_PENDING))


def _garbled(faults: Faults) -> None:
    """A server sends bytes that are no command: the client must connect again."""
    connections = [one for one in faults.world.network.connections if one.is_open]
    if connections:
        line = faults.draw.choice((b"BOGUS\r\n", b"MSG x\r\n", b"HMSG a 1 9 2\r\nxx\r\n", b"MSG a 1 999999999999\r\n"))
        faults.draw.choice(connections).send(line)


def _reload(faults: Faults) -> None:
    """The settings file changes, perhaps to a wrong value, and SIGHUP says so."""
    faults.node().change_settings(faults.draw)


def _kill(faults: Faults) -> None:
    faults.node().kill(restart_after_ns=faults.soon_ns())


def _kill_one(faults: Faults) -> None:
    faults.node().kill_one(faults.draw)


def _pause_one(faults: Faults) -> None:
    faults.node().pause_one(faults.draw, int(faults.draw.choice((0.5, 3.0, 6.0)) * NS_PER_S))


def _terminate(faults: Faults) -> None:
    faults.node().terminate()


def _pause(faults: Faults) -> None:
    faults.node().pause(int(faults.draw.choice((0.05, 0.5, 1.2, 3.0, 6.0)) * NS_PER_S))


def _suspend(faults: Faults) -> None:
    faults.node().pause(int(faults.draw.choice((0.5, 1.5, 4.0)) * NS_PER_S), suspended=True)


def _power_cut(faults: Faults) -> None:
    if faults.draw.randrange(4) == 0:
        for node in faults.world.nodes:
            node.power_cut(restart_after_ns=faults.soon_ns())
    else:
        faults.node().power_cut(restart_after_ns=faults.soon_ns())


def _disk(name: str, *values: int) -> Fault:
    def fault(faults: Faults) -> None:
        disk = faults.node().disk
        setattr(disk, name, faults.draw.choice(values))
        faults.world.scheduler.trace("disk fault", disk.name, name, getattr(disk, name))
        faults.later(3.0, disk.heal)

    return fault


def _clock_drift(faults: Faults) -> None:
    faults.node().set_clock(rate=faults.draw.choice((0.999, 1.001, 0.9999, 1.0001)))


def _clock_jump(faults: Faults) -> None:
    faults.node().set_clock(wall_offset_ns=int(faults.draw.choice((-3600, -5, -0.3, 0.3, 5, 3600)) * NS_PER_S))


def _bit_flip(faults: Faults) -> None:
    if faults.may_lose_data():
        faults.victim.disk.flip_bit()


def _empty(faults: Faults) -> None:
    if faults.may_lose_data():
        faults.victim.kill()
        faults.victim.disk.empty()
        faults.world.scheduler.after(faults.soon_ns(), faults.victim.start)


_FAULTS: dict[str, Fault] = {
    "cut": _cut,
    "partition": _partition,
    "one-way": _one_way,
    "slow-network": _slow_network,
    "lose": _lose,
    "nats-restart": _nats_restart,
    "route": _route,
    "slow-consumer": _slow_consumer,
    "garbled": _garbled,
    "reload": _reload,
    "kill": _kill,
    "kill-one": _kill_one,
    "pause-one": _pause_one,
    "terminate": _terminate,
    "pause": _pause,
    "suspend": _suspend,
    "power-cut": _power_cut,
    "disk-error": _disk("fail_one_in", 10, 50, 300),
    "disk-slow": _disk("slow_ns", 50 * _MS, 500 * _MS, 4000 * _MS),
    "disk-full": _disk("is_full", 1),
    "disk-short": _disk("short_one_in", 3, 20),
    "clock-drift": _clock_drift,
    "clock-jump": _clock_jump,
    "bit-flip": _bit_flip,
    "empty": _empty,
}
