"""Stage: a simulated cluster that a script plays on. One script tells one story, and a person can read it as such.

    with Stage() as s:                      # n1, n2, n3 under virtual time; one stream of one partition; a reader that reads on
        s.publish(5)                        # five messages, each acknowledged ALL
        s.power_off(s.leader)               # faults are struck by hand; nothing happens by chance
        s.until(lambda: s.leader in "n2 n3")
        assert s.isr == {"n2", "n3"}

The real ``Replica``, ``Log`` and metadata state machine run; every invariant that ``liftpy.testing.checkers`` knows is checked after
every step. When the block ends, everything is healed and the cluster has to become whole: leader, full ISR, HW at the log's end,
readers drained, nothing lost [L1-L5, L8, D1, D24]; ``ends_whole=False`` where the story ends otherwise. A failure prints the trace.

Times are virtual: five minutes of a cluster take milliseconds. A script is deterministic: the same steps give the same trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from liftpy.cluster.image import PartitionImage, PartitionStatus
from liftpy.config import AckPolicy, CommitPolicy, ReplicationConfig, StreamConfig
from liftpy.errors import InvariantError
from liftpy.log.memory import MemoryStorage
from liftpy.replica import events as ev
from liftpy.replica.effects import SendEpochAnswer, SendFetchRefusal
from liftpy.testing.clients import PUBLISH_TIMEOUT_NS, Publisher, Reader
from liftpy.testing.clock import MS, S
from liftpy.testing.cluster import STREAM, Cluster
from liftpy.testing.faults import Plan
from liftpy.testing.ghost import PartitionGhost, Shadow
from liftpy.testing.messages import Ack, EpochRequest, FetchRequest, FetchResponse, Publish, ReadRequest, ReadResponse
from liftpy.testing.network import Noise
from liftpy.testing.sim_replica import SimReplica
from liftpy.testing.trace import Trace
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire.batch import parse_header

_TRACE_LINES_SHOWN = 60

KINDS: dict[type, str] = {
    Publish: "publish", Ack: "ack", FetchRequest: "fetch", FetchResponse: "data", SendFetchRefusal: "refusal",
    EpochRequest: "epoch query", SendEpochAnswer: "epoch answer", ev.NoticeReceived: "notice", ev.WokenUp: "wake",
    ReadRequest: "read", ReadResponse: "read answer",
}  # fmt: skip
"""What ``hold`` calls a message of the data path. On the metadata path it is the request's field name in ``ControlRequest``
(``changeIsr``, ``reportLeader``, ``registerNode``...), or that with " answer" behind it, or ``heartbeat``, ``heartbeat answer``,
``image``."""


class Sent:
    """One publish, and what its publisher knows of it."""

    def __init__(self, number: int, ids: tuple[int, ...]) -> None:
        self.number = number
        self.ids = ids
        """Of its messages; the checkers and ``Stage.ids`` know them by these."""
        self.ack: Ack | None = None
        self.timed_out = False

    @property
    def acked(self) -> bool:
        """A positive ack came."""
        return self.ack is not None and not self.ack.reason

    @property
    def outcome(self) -> str:
        """'acked', the reason of a negative ack, 'no responders', 'timed out', or 'waiting'."""
        if self.ack is not None:
            return self.ack.reason or "acked"
        return "timed out" if self.timed_out else "waiting"


class Author(Publisher):
    """A publisher that speaks when the script says so, and remembers every answer."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name, f"{STREAM}.0", MS)
        self.stopped = True
        self.sent: dict[int, Sent] = {}

    def send(self, policy: AckPolicy = AckPolicy.ALL, records: int = 1) -> Sent:
        """Publish ``records`` messages as one batch."""
        first = len(self.cluster.publishes) + 1
        number = self.publish(policy, records)
        self.sent[number] = Sent(number, tuple(range(first, first + records)))
        return self.sent[number]

    def _answered(self, number: int, policy: AckPolicy, ack: Any) -> None:
        if number in self.waiting:
            self.sent[number].ack = ack if isinstance(ack, Ack) else Ack("", str(ack))
        super()._answered(number, policy, ack)

    def _timed_out(self, number: int) -> None:
        self.sent[number].timed_out = number in self.waiting
        super()._timed_out(number)


@dataclass
class Held:
    """Messages that a script keeps from their receivers (``Stage.hold``); in order."""

    kinds: frozenset[str]
    sender: str
    receiver: str
    at_most: int | None
    """How many are kept; None: all."""
    open: bool = True
    """Whether more are kept."""
    kept: list[Callable[[], None]] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    """The data path's messages; on the metadata path the names of what was kept."""

    @property
    def count(self) -> int:
        """How many were kept so far."""
        return len(self.messages)

    def takes(self, kind: str, sender: str, receiver: str) -> bool:
        """Whether this message is to be kept."""
        full = self.at_most is not None and self.count >= self.at_most
        return (
            self.open and not full and kind in self.kinds
            and self.sender in ("", sender) and self.receiver in ("", receiver)
        )  # fmt: skip

    def release(self) -> None:
        """Let everything in now, and keep nothing more. What was for a process that is gone is lost."""
        self.open = False
        kept, self.kept = self.kept, []
        for arrive in kept:
            arrive()

    def drop(self) -> None:
        """Lose what was kept, and keep nothing more."""
        self.open = False
        self.kept.clear()


class Stage:
    """See the module. ``settings`` are those of ``ReplicationConfig``; ``stream`` those of ``StreamConfig``."""

    def __init__(
        self, nodes: int = 3, *, factor: int = 3, min_isr: int = 2, quorum: bool = False, ends_whole: bool = True,
        seed: int = 1, stream: StreamConfig | None = None, reader: bool = True, **settings: Any,
    ) -> None:  # fmt: skip
        plan = Plan(
            seed=seed, node_count=nodes, replication_factor=min(factor, nodes), min_isr=min_isr,
            policy=CommitPolicy.QUORUM if quorum else CommitPolicy.ISR, config=replace(ReplicationConfig(), **settings),
            stream_config=stream or StreamConfig(), noise=Noise(), metadata_loss=0.0, metadata_slow_ns=5 * MS,
            flush_ns=MS, publish_interval_ns=S, publisher_count=0, faults=(),
        )  # fmt: skip
        self.trace = Trace()
        self.cluster = Cluster(plan, self.trace)
        self.cluster.network.gate = self._gate_network
        self.cluster.group.gate = self._gate_group
        self._ends_whole = ends_whole
        self.holds: list[Held] = []
        """Everything that is, or was, held back."""
        self._wants_reader = reader
        self.author = Author(self.cluster, "p0")

    def __enter__(self) -> Stage:
        self.cluster.boot()
        self.cluster.publishers.append(self.author)
        if self._wants_reader:
            self.cluster.readers.append(Reader(self.cluster, "r0", self.cluster.key, 80 * MS))
        self.until(lambda: len(self.isr) == self.cluster.plan.replication_factor)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if error is None and self._ends_whole:
                self.become_whole()
        except BaseException as failure:
            error = failure
            raise
        finally:
            if error is not None:
                for line in self.trace.lines[-_TRACE_LINES_SHOWN:]:
                    print(line[:500], file=sys.stderr)
                print(self.cluster.describe(), file=sys.stderr)

    def become_whole(self) -> None:
        """Everything is healed; then L1-L5, L8, and nothing is lost."""
        for held in self.holds:
            held.drop()
        self.cluster.heal()
        self.cluster.become_whole()

    # ---- what is so ----------------------------------------------------------------------------------------------------
    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.cluster.clock.now_ns / S

    @property
    def partition(self) -> PartitionImage:
        """The truth about the partition, as the metadata group recorded it."""
        return self.cluster.group.partition(STREAM, 0)

    @property
    def status(self) -> PartitionStatus:
        """Of the partition."""
        return self.partition.status

    @property
    def leader(self) -> str:
        """The recorded leader; '' in an election."""
        return self.partition.leader

    @property
    def followers(self) -> list[str]:
        """The other replicas, in replica order."""
        return [node for node in self.partition.replicas if node != self.leader]

    @property
    def isr(self) -> set[str]:
        """The recorded ISR."""
        return set(self.partition.isr)

    def isr_known_to(self, node: str) -> set[str]:
        """What ``node`` takes for the ISR: the image reaches it a little later."""
        return set(self.replica(node).replica.state.isr)

    @property
    def leader_epoch(self) -> int:
        """The recorded LeaderEpoch."""
        return self.partition.leader_epoch

    @property
    def ghost(self) -> PartitionGhost:
        """What a spectator who sees everything knows: the one true log."""
        return self.cluster.checkers.ghost(self.cluster.key)

    @property
    def true_hw(self) -> int:
        """Newest offset that anyone has ever taken for committed; inclusive."""
        return self.ghost.high_watermark

    def replica(self, node: str) -> SimReplica:
        """The running replica of ``node``."""
        found = self.cluster.replica(node)
        assert found is not None, f"{node} runs no replica"
        return found

    def role(self, node: str) -> str:
        """LEADER, FOLLOWER, CANDIDATE, WAITING, FAILED; DOWN when nothing runs."""
        found = self.cluster.replica(node)
        return found.replica.role if found is not None else "DOWN"

    def phase(self, node: str) -> str:
        """LEADER_READY, FOLLOWER_IDLE..."""
        return self.replica(node).replica.phase

    def end(self, node: str) -> int:
        """Log end offset of ``node``, exclusive."""
        return self.replica(node).log.log_end_offset

    def hw(self, node: str) -> int:
        """What ``node`` takes for the high watermark, inclusive."""
        return self.replica(node).log.high_watermark

    def epochs(self, node: str) -> tuple[tuple[int, int], ...]:
        """(LeaderEpoch, offset of its first record) of ``node``'s log."""
        return self.replica(node).log.epochs.entries

    def position(self, follower: str) -> int | None:
        """Where the leader thinks that ``follower`` is, inclusive; None: it does not know in this epoch."""
        snapshot = self.replica(self.leader).replica.snapshot(self.cluster.clock.now_ns)
        return next(f.position for f in snapshot.followers if f.replica == follower)

    def shadow(self, node: str) -> Shadow:
        """What ``node``'s disk holds, whether it runs or not."""
        return self.ghost.shadows[node]

    def ids(self, node: str) -> list[int]:
        """Message ids on ``node``'s log, in order, whether it runs or not."""
        shadow = self.shadow(node)
        keys = zip(shadow.epochs, shadow.lasts, strict=True)
        return [i for key in keys for i in self.ghost.spans[key][1]]

    def counted(self, what: str) -> int:
        """How often something happened (``Cluster.counters``, the network's and the group's)."""
        cluster = self.cluster
        return cluster.counters[what] + cluster.network.counters[what] + cluster.group.counters[what]

    # ---- time ----------------------------------------------------------------------------------------------------------
    def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> float:
        """Run until ``condition`` holds; the seconds it took."""
        return self.cluster.wait_for(condition, within_s, "L1")

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.cluster.run_for(seconds)

    def always(self, condition: Callable[[], bool], seconds: float) -> None:
        """Let time pass, and look after every step: ``condition`` never fails."""
        clock = self.cluster.clock
        end_ns = clock.now_ns + round(seconds * S)
        clock.at(end_ns, lambda: None)
        while clock.now_ns < end_ns:
            assert condition()
            clock.step()
        assert condition()

    def settle(self) -> None:
        """Until every running replica of the set has the leader's log and HW."""
        self.until(self._is_settled)

    def _is_settled(self) -> bool:
        leader = self.cluster.leader()
        running = [r for r in map(self.cluster.replica, self.partition.replicas) if r is not None]
        ends = {(r.log.flushed_end_offset, r.log.high_watermark) for r in running}
        return leader is not None and len(ends) == 1 and ends == {(leader.log.log_end_offset, leader.log.newest_offset)}

    # ---- publishing ------------------------------------------------------------------------------------------------------
    def send(self, policy: AckPolicy = AckPolicy.ALL, records: int = 1) -> Sent:
        """Publish, and don't wait."""
        return self.author.send(policy, records)

    def publish(self, count: int = 1, policy: AckPolicy = AckPolicy.ALL, records: int = 1) -> list[Sent]:
        """Publish ``count`` times to an open leader, one after the other, each acknowledged."""
        done: list[Sent] = []
        self.wait_for_leader()
        for _ in range(count):
            sent = self.send(policy, records)
            outcome = self.outcome(sent)
            assert sent.acked, f"publish {sent.number}: {outcome}"
            done.append(sent)
        return done

    def outcome(self, sent: Sent) -> str:
        """Wait until the publish is answered or has timed out, and say which."""
        return self.outcomes([sent])[0]

    def outcomes(self, sent: list[Sent]) -> list[str]:
        """The same for many."""
        self.until(lambda: all(s.outcome != "waiting" for s in sent), within_s=PUBLISH_TIMEOUT_NS / S + 1)
        return [s.outcome for s in sent]

    def ask_latest(self, node: str) -> ReadResponse | None:
        """What ``node`` answers when it is asked for the partition's latest offset; None: nothing within a second."""
        return self.ask(node, ReadRequest(0, 1, latest=True))

    def ask(self, node: str, request: ReadRequest) -> ReadResponse | None:
        """What ``node`` answers to a read; None: nothing within a second."""
        answers: list[Any] = []
        self.cluster.network.request("asker", f"{STREAM}.0.read.{node}", request, answers.append)
        end_ns = self.cluster.clock.now_ns + S
        while not answers and self.cluster.clock.now_ns < end_ns:
            self.cluster.clock.step()
        return answers[0] if answers and isinstance(answers[0], ReadResponse) else None

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
        self.until(lambda: self.role(node) != "DOWN")

    def empty_disk(self, node: str) -> None:
        """The disk of a node that is down is replaced by an empty one."""
        machine = self.cluster.nodes[node]
        assert not machine.up, f"{node} runs"
        self._note(f"{node} gets an empty disk")
        machine.disk.empty()
        machine.lost_data = True

    def storage(self, node: str) -> MemoryStorage:
        """The files of ``node``'s replica; to be damaged while it is down, by ``storage(node).files[name].data``."""
        folders = self.cluster.nodes[node].disk.folders
        return folders[f"{STREAM}-{self.cluster.key.uid}-0"]

    def flip_bit(self, node: str, offset: int) -> None:
        """One bit in the body of the batch with ``offset`` changes on ``node``'s disk, while it is down."""
        assert not self.cluster.nodes[node].up, f"{node} runs"
        self._note(f"a bit flips at offset {offset} on {node}")
        for name, file in self.storage(node).files.items():
            position = 0
            while name.endswith(".log") and position < len(file.data):
                header = parse_header(memoryview(bytes(file.data)), position)
                if header.base_offset <= offset <= header.last_offset:
                    file.data[position + header.size_bytes - 1] ^= 1
                    self.cluster.nodes[node].lost_data = True
                    return
                position += header.size_bytes
        raise AssertionError(f"{node} has no offset {offset}")

    def pause(self, node: str) -> None:
        """The process stands still (SIGSTOP): what comes for it waits, its flushes go on."""
        process = self.cluster.nodes[node].process
        assert process is not None
        self._note(f"{node} is paused")
        process.paused = True

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

    def hold(self, *kinds: str, sender: str = "", receiver: str = "", at_most: int | None = None) -> Held:
        """Keep messages of these kinds (``KINDS``) from their receivers until ``release`` or ``drop``.

        On the metadata path, ``sender`` is the node that asks and ``receiver`` the node that is answered or told.
        """
        held = Held(frozenset(kinds), sender, receiver, at_most)
        self.holds.append(held)
        return held

    @contextmanager
    def holding(self, *kinds: str, sender: str = "", receiver: str = "") -> Iterator[Held]:
        """Keep them within the block, and let them in at its end."""
        held = self.hold(*kinds, sender=sender, receiver=receiver)
        yield held
        held.release()

    def _gate_network(self, sender: str, receiver: str, message: Any, arrive: Callable[[], None]) -> bool:
        return self._keep(KINDS.get(type(message), "other"), sender, receiver, message, arrive)

    def _gate_group(self, node: str, what: str, arrive: Callable[[], None]) -> bool:
        to_node = what == "image" or what.endswith(" answer")
        sender, receiver = ("", node) if to_node else (node, "")
        return self._keep(what, sender, receiver, what, arrive)

    def _keep(self, kind: str, sender: str, receiver: str, message: Any, arrive: Callable[[], None]) -> bool:
        for held in self.holds:
            if held.takes(kind, sender, receiver):
                held.messages.append(message)
                held.kept.append(arrive)
                self._note(f"held back: {kind} {sender} -> {receiver}")
                return True
        return False

    # ---- the metadata group and the operator -----------------------------------------------------------------------------
    def command(self, request: pb.ControlRequest) -> pb.ControlResponse:
        """Apply a request of the operator's (or of anyone's) at once."""
        return self.cluster.group.apply(request)

    def move_leader(self, node: str, *, wait: bool = True) -> None:
        """A planned change of leader (ElectLeader); ``wait`` until the new one is open."""
        self._note(f"leadership is moved to {node}")
        request = pb.ElectLeader(stream=STREAM, uid=self.cluster.key.uid, partition=0, node=node)
        response = self.command(pb.ControlRequest(electLeader=request))
        assert response.error == pb.ControlResponse.OK, response.detail
        if wait:
            self.wait_for_leader(node)

    def is_open(self, node: str) -> bool:
        """Whether ``node`` is the recorded leader, and takes publishes."""
        leader = self.cluster.leader()
        return leader is not None and leader.node_id == node

    def wait_for_leader(self, *among: str) -> str:
        """Until there is an open leader (one of ``among``, if given) and everyone's NATS knows its subscriptions; who it is."""
        self.until(lambda: any(map(self.is_open, among or self.partition.replicas)))
        self.run(0.005)
        return self.leader

    def metadata_down(self) -> None:
        """There is no metadata leader."""
        self._note("the metadata leader is lost")
        self.cluster.group.set_available(False)

    def metadata_up(self) -> None:
        """There is a new metadata leader; it knows no heartbeats yet."""
        self._note("there is a metadata leader")
        self.cluster.group.set_available(True)

    def drop_prefix(self, node: str, log_start_offset: int) -> None:
        """Retention on ``node``: the log starts there."""
        self.replica(node).drop_prefix(log_start_offset)

    def _note(self, text: str) -> None:
        self.trace.note(f"*** {text}")


BROKEN = (InvariantError, AssertionError)
"""What a script that fails raises."""
