"""Strikes: the faults of a stage that a script strikes by hand, and how each ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from liftpy.core.log.storage import MemoryStorage
from liftpy.core.replication.messages import LeaderNotice
from liftpy.core.wire.batch import parse_header
from tests.simulation.replica.clock import MS, S
from tests.simulation.replica.cluster import STREAM, Cluster
from tests.simulation.replica.trace import Trace


class Strikes:
    """What can happen to nodes, disks, clocks and links."""

    cluster: Cluster
    trace: Trace

    def _note(self, text: str) -> None:
        self.trace.note(f"*** {text}")

    # ---- processes and disks ---------------------------------------------------------------------------------------------
    def crash(self, *nodes: str) -> None:
        """The processes are gone at once; what they wrote stays in the page cache (a kill)."""
        for node in nodes:
            self._note(f"{node} is killed")
            self.cluster.crash(node, power=False)

    def power_off(self, *nodes: str, tail: str = "lost") -> None:
        """The machines are gone; of what was not flushed the disk keeps nothing ('lost'), a part ('torn') or all ('kept')."""
        for node in nodes:
            self._note(f"{node} loses power")
            disk = self.cluster.nodes[node].disk
            keep = {"lost": lambda n, s, w: s, "torn": lambda n, s, w: (s + w) // 2, "kept": lambda n, s, w: w}[tail]
            self._cut_power(node, disk, keep)

    def _cut_power(self, node: str, disk: Any, keep: Callable[[str, int, int], int]) -> None:
        if self.cluster.nodes[node].up:
            self.cluster.nodes[node].stop_process()
            disk.cut_power(keep)

    def start(self, *nodes: str) -> None:
        """Start the processes, if they don't run."""
        for node in nodes:
            self._note(f"{node} is started")
            self.cluster.nodes[node].start()

    def restart(self, node: str) -> None:
        """Kill and start; wait until it has registered and hosts its replica again."""
        self.crash(node)
        self.start(node)
        self.cluster.wait_for(lambda: self.cluster.replica(node) is not None, 30)

    def empty_disk(self, node: str) -> None:
        """The disk of a node that is down is replaced by an empty one."""
        machine = self.cluster.nodes[node]
        assert not machine.up, f"{node} runs"
        self._note(f"{node} gets an empty disk")
        machine.disk.empty()
        machine.lost_data = True

    def copy_disk(self, node: str, *, clean: bool = False) -> None:
        """The disk of a node is copied; ``clean``: the node is down, and its last process had stopped in good order."""
        machine = self.cluster.nodes[node]
        assert not (clean and machine.up), f"{node} runs"
        self._note(f"{node}'s disk is copied")
        machine.disk.clean_stop = machine.disk.clean_stop or clean
        machine.copy = machine.disk.copy()

    def put_back(self, node: str) -> None:
        """The last copy takes the place of what is on the disk of a node that is down."""
        machine = self.cluster.nodes[node]
        assert not machine.up, f"{node} runs"
        assert machine.copy is not None
        self._note(f"{node}'s disk is put back from the copy")
        machine.disk.put_back(machine.copy)
        machine.lost_data = True
        self.cluster.checkers.disk_lost()

    def put_back_logs(self, node: str) -> None:
        """The same for the logs alone: so that nothing of the node's registration shows it."""
        machine = self.cluster.nodes[node]
        assert not machine.up, f"{node} runs"
        assert machine.copy is not None
        self._note(f"{node}'s logs are put back from the copy")
        identity = machine.disk.copy()
        machine.disk.put_back(replace(identity, folders=machine.copy.folders))
        machine.lost_data = machine.went_back = True
        self.cluster.checkers.disk_lost()

    def forge_notice(self, node: str, *, high_watermark: int, log_start_offset: int = 0) -> None:
        """Somebody who may publish sends ``node`` a LeaderNotice in its leader's name."""
        self._note(f"{node} gets a forged notice: HW {high_watermark}, log start {log_start_offset}")
        truth = self.cluster.group.partition(STREAM, 0)
        notice = LeaderNotice(
            leader=truth.leader,
            leader_epoch=truth.leader_epoch,
            epoch=truth.epoch,
            epoch_start_offset=0,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
        )
        self.cluster.network.publish("anybody", f"notify.{node}.{STREAM}.0", notice)

    def storage(self, node: str) -> MemoryStorage:
        """The files of ``node``'s replica; to be damaged while it is down, by ``storage(node).files[name].data``."""
        folders = self.cluster.nodes[node].disk.folders
        return folders[f"{STREAM}-{self.cluster.key.uid}-0"]

    def flip_bit(self, node: str, offset: int, *, running: bool = False, header: bool = False) -> None:
        """One bit in the body (or ``header``) of the batch with ``offset`` changes on ``node``'s disk."""
        assert self.cluster.nodes[node].up is running, f"{node} runs, or does not"
        self._note(f"a bit flips at offset {offset} on {node}")
        for name, file in self.storage(node).files.items():
            position = 0
            while name.endswith(".log") and position < len(file.data):
                batch = parse_header(memoryview(bytes(file.data)), position)
                if batch.base_offset <= offset <= batch.last_offset:
                    file.data[position + (20 if header else batch.size_bytes - 1)] ^= 1
                    self.cluster.nodes[node].lost_data = True
                    return
                position += batch.size_bytes
        raise AssertionError(f"{node} has no offset {offset}")

    def pause(self, node: str) -> None:
        """The process stands still (SIGSTOP): what comes for it waits, its flushes go on."""
        process = self.cluster.nodes[node].process
        assert process is not None
        self._note(f"{node} is paused")
        process.paused = True

    def suspend(self, node: str) -> None:
        """Its host sleeps: the monotonic and the wall clock go on, the event loop's timers do not."""
        process = self.cluster.nodes[node].process
        assert process is not None
        self._note(f"{node}'s host sleeps")
        process.pause(suspended=True)

    def resume(self, node: str, *, timers_first: bool = False) -> None:
        """The process goes on; everything that waited comes at once, messages before timers or after them."""
        process = self.cluster.nodes[node].process
        assert process is not None
        self._note(f"{node} is resumed")
        process.resume(timers_first=timers_first)

    def slow_disk(self, node: str, latency_ms: float) -> None:
        """Every flush that begins from now on takes about this long; 1 is the usual."""
        self.cluster.nodes[node].disk.flush_ns = round(latency_ms * MS)

    def fail_next_flush(self, node: str) -> None:
        """The next flush reports an error."""
        self.cluster.nodes[node].disk.fail_syncs = 1

    def fill_disk(self, node: str, free_bytes: int = 0) -> None:
        """No space but for ``free_bytes``."""
        self._note(f"{node}'s disk is full")
        self.cluster.nodes[node].disk.set_capacity(free_bytes)

    def free_disk(self, node: str) -> None:
        """There is space again."""
        self.cluster.nodes[node].disk.set_capacity(None)

    def wall_clock(self, node: str, offset_s: float) -> None:
        """The node's wall clock is off by this much."""
        self.cluster.nodes[node].wall_offset_ns = round(offset_s * S)

    # ---- the network -----------------------------------------------------------------------------------------------------
    def isolate(self, *nodes: str) -> None:
        """No data path: cut off from NATS for streams, while the metadata path goes on."""
        self._note(f"{nodes} lose the data path")
        self.cluster.network.down.update(nodes)

    def reconnect(self, *nodes: str) -> None:
        """The data path is back."""
        self._note(f"{nodes} have the data path back")
        self.cluster.network.down.difference_update(nodes)

    def cut_metadata(self, *nodes: str) -> None:
        """No metadata path: heartbeats, requests and images are lost."""
        self._note(f"{nodes} lose the metadata path")
        self.cluster.group.cut.update(nodes)

    def mend_metadata(self, *nodes: str) -> None:
        """The metadata path is back."""
        self._note(f"{nodes} have the metadata path back")
        self.cluster.group.cut.difference_update(nodes)

    def partition_off(self, *nodes: str) -> None:
        """Neither path."""
        self.isolate(*nodes)
        self.cut_metadata(*nodes)

    def rejoin(self, *nodes: str) -> None:
        """Both paths are back."""
        self.reconnect(*nodes)
        self.mend_metadata(*nodes)

    def cut(self, sender: str, receiver: str, *, both: bool = True) -> None:
        """Nothing passes from ``sender`` to ``receiver`` on the data path, nor (``both``) the other way."""
        self._note(f"cut {sender} -> {receiver}, both={both}")
        self.cluster.network.cuts.add((sender, receiver))
        if both:
            self.cluster.network.cuts.add((receiver, sender))

    def mend(self, one: str, other: str) -> None:
        """The link is whole in both directions."""
        self._note(f"mend {one} - {other}")
        self.cluster.network.cuts -= {(one, other), (other, one)}

    def slow_consumer(self, *nodes: str) -> None:
        """NATS takes the nodes for slow consumers: everything for them is dropped, and nobody is told."""
        self._note(f"{nodes} are slow consumers")
        self.cluster.network.slow.update(nodes)

    def keeps_up(self, *nodes: str) -> None:
        """They are no slow consumers any more."""
        self._note(f"{nodes} keep up again")
        self.cluster.network.slow.difference_update(nodes)
