"""Stage: a simulated cluster that a script plays on. One script tells one story, and a person can read it as such.

    with Stage() as s:                      # n1, n2, n3 under virtual time; one stream of one partition; a reader that reads on
        s.publish(5)                        # five messages, each acknowledged ALL
        s.power_off(s.leader)               # faults are struck by hand; nothing happens by chance
        s.wait_for_leader("n2", "n3")
        assert s.isr == {"n2", "n3"}

The real ``Replica``, ``Log`` and metadata state machine run; every invariant that ``tests.simulation.replica.checkers`` knows is
checked after every step. When the block ends, everything is healed and the cluster has to become whole: leader, full ISR, HW
at the log's end, readers drained, nothing lost [L1-L5, L8, D1, D24]; ``ends_whole=False`` where the story ends otherwise. A
failure prints the trace.

Faults are in ``strikes``. Times are virtual: five minutes of a cluster take milliseconds. A script is deterministic: the same
steps give the same trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from liftpy.config import AckPolicy, CommitPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.props import KINDS, Author, Held, Sent
from tests.scripts.strikes import Strikes
from tests.simulation.replica.clients import PUBLISH_TIMEOUT_NS, SimReader
from tests.simulation.replica.clock import MS, S
from tests.simulation.replica.cluster import STREAM, Cluster
from tests.simulation.replica.ghost import PartitionGhost, Shadow
from tests.simulation.replica.messages import ReadAnswer, ReadFrame
from tests.simulation.replica.network import Noise
from tests.simulation.replica.plan import Plan
from tests.simulation.replica.sim_replica import SimReplica
from tests.simulation.replica.trace import Trace

_TRACE_LINES_SHOWN = 60
_TRY_EVERY_S = 0.2
_SUBSCRIBED_S = 0.005
"""Time after which all servers of the simulated NATS know a subscription. Before, a publish may be lost."""


class Stage(Strikes):
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
        self.author: Author

    def __enter__(self) -> Stage:
        self.cluster.boot()
        self.author = Author(self.cluster, "p0")
        self.cluster.publishers.append(self.author)
        if self._wants_reader:
            self.cluster.readers.append(SimReader(self.cluster, "r0", self.cluster.key, 80 * MS))
        self.until(lambda: len(self.isr) == self.cluster.plan.replication_factor)
        self.wait_for_leader()
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
    def partition(self) -> PartitionState:
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

    def acked_again(self, within_s: float) -> float:
        """Publish until one is acknowledged, at most ``within_s`` from now [L10]; the seconds it took."""
        tried: list[Sent] = []

        def acknowledged() -> bool:
            if not tried or self.now_s - started_s[-1] >= _TRY_EVERY_S:
                tried.append(self.send())
                started_s.append(self.now_s)
            return any(sent.acked for sent in tried)

        started_s: list[float] = []
        return self.cluster.wait_for(acknowledged, within_s, "L10")

    def outcome(self, sent: Sent) -> str:
        """Wait until the publish is answered or has timed out, and say which."""
        return self.outcomes([sent])[0]

    def outcomes(self, sent: list[Sent]) -> list[str]:
        """The same for many."""
        self.until(lambda: all(s.outcome != "waiting" for s in sent), within_s=PUBLISH_TIMEOUT_NS / S + 1)
        return [s.outcome for s in sent]

    def ask_latest(self, node: str) -> client_pb2.ReadResponse | None:
        """What ``node`` answers when it is asked for the partition's latest offset; None: nothing within a second."""
        answer = self.ask(node, boundsOnly=True, minHighWatermark=-1)
        return None if answer is None else answer[0]

    def ask(self, node: str, **fields: Any) -> tuple[client_pb2.ReadResponse, memoryview] | None:
        """What ``node`` answers to a ReadRequest of these fields, (header, batches); None: nothing within a second."""
        answers: list[Any] = []
        request = ReadFrame(frames.encode(client_pb2.ReadRequest(**fields)))
        self.cluster.network.request("asker", f"{STREAM}.0.read.{node}", request, answers.append)
        end_ns = self.cluster.clock.now_ns + S
        while not answers and self.cluster.clock.now_ns < end_ns:
            self.cluster.clock.step()
        return answers[0].decoded() if answers and isinstance(answers[0], ReadAnswer) else None

    # ---- messages held back ------------------------------------------------------------------------------------------
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
        self.run(_SUBSCRIBED_S)
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
