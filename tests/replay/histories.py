"""Makes histories for the corpus: those of the control plane's own test, and beside them every other kind of request, right or wrong.

Entries are what a metadata leader would have logged: numbered, with a time, with operation ids. Everything is drawn from the seed.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from liftpy.core.metadata.features import LevelRange
from liftpy.core.wire._pb import cluster_pb2 as pb

_DRIVERS = str(Path(__file__).parents[1] / "unit" / "metadata")
if _DRIVERS not in sys.path:
    sys.path.insert(0, _DRIVERS)

from cluster_driver import Driver  # noqa: E402  (a module beside unit tests, which are no package)
from test_random_control_plane_faults import NODES, World  # noqa: E402

_MOST = 100
_SETTINGS = {
    "retentionRecords": lambda rng: rng.choice((0, 10, 5000)),
    "readOnly": lambda rng: rng.random() < 0.5,
    "minIsr": lambda rng: rng.choice((0, 1, 2, 3, 9)),
    "maxHeldS": lambda rng: rng.choice((0.0, 2.5)),
    "ackPolicy": lambda rng: rng.choice(("all", "leader", "none", "some")),
    "codec": lambda rng: rng.choice(("none", "lz4", "zip")),
}


class RecordedDriver(Driver):
    """Without the forecast that tests compare with: here it is the log alone that counts."""

    def apply(self, entry: bytes) -> pb.ControlResponse:
        """Put an entry into the log."""
        self.log.append(entry)
        return pb.ControlResponse.FromString(self.fsm.apply(entry, len(self.log)))


class RecordedWorld(World):
    """A world in which everything is asked for that can be asked for."""

    def __init__(self, seed: int) -> None:
        self.more = random.Random(f"{seed}/more")
        super().__init__(seed)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "driver":  # made by World: this one takes its place, before anything is asked for
            value = RecordedDriver(elections=True)
        super().__setattr__(name, value)

    def ask(self, **request: Any) -> pb.ControlResponse:
        """Unchecked: some of it is nonsense. Nodes speak all levels, so that each can be recorded."""
        if "registerNode" in request:
            LevelRange(1, _MOST).write_to(request["registerNode"])
            if self.more.random() < 0.3:
                request["registerNode"].flushedAlways = False
        response = self.driver.ask(**request)
        self.duties.image_changed(self.driver.fsm.image, self.now_ns)
        return response

    def something(self) -> None:
        """One more request, drawn."""
        rng, image = self.more, self.driver.fsm.image
        names = sorted(image.streams)
        name = rng.choice(names)
        stream = image.streams[name]
        number = rng.randrange(len(stream.partitions) + 1)
        state = stream.partitions[number] if number < len(stream.partitions) else None
        uid = rng.choice(("", stream.uid, stream.uid, stream.uid, "gone"))
        of = {"stream": name, "uid": uid, "partition": number}
        node = rng.choice((*NODES, "e"))
        incarnation = self.nodes[node].incarnation if node in self.nodes else 7
        epoch = state.epoch if state is not None else 1
        leader_epoch = state.leader_epoch if state is not None else 1
        leader = state.leader if state is not None and state.leader and rng.random() < 0.8 else node
        leads = self.nodes[leader].incarnation if leader in self.nodes else 7
        setting = rng.choice(sorted(_SETTINGS))
        choices: list[dict[str, Any]] = [
            {"alterStream": pb.AlterStream(name=name, uid=uid, replicationFactor=rng.choice((0, 0, 2, 3, 5)),
                                           config=pb.StreamConfig(**{setting: _SETTINGS[setting](rng)}),
                                           changed=[setting] if rng.random() < 0.8 else [])},
            {"reassign": pb.Reassign(**of, replicas=rng.sample(NODES, rng.randint(1, 4)), cancel=rng.random() < 0.2,
                                     movedFor=rng.choice((0, 1, 3)))},
            {"beginCopy": pb.BeginCopy(**of, epoch=epoch, node=rng.choice(("", node)))},
            {"truncateBefore": pb.TruncateBefore(**of, offset=rng.randint(0, 400))},
            {"purgeRecords": pb.PurgeRecords(**of, subjects=["x.*"], keys=[b"k"] if rng.random() < 0.5 else [],
                                             endOffset=rng.randint(0, 400))},
            {"reportPurged": pb.ReportPurged(**of, node=node, incarnation=incarnation, number=epoch)},
            {"pausePartitions": pb.PausePartitions(stream=name, uid=uid, pause=rng.randrange(5),
                                                   partitions=[number] if rng.random() < 0.6 else [])},
            {"wakePartition": pb.WakePartition(**of, leader=leader, leaderEpoch=leader_epoch,
                                               pause=rng.randrange(5), pauses=state.pauses if state is not None else 0)},
            {"electLeader": pb.ElectLeader(**of, node=rng.choice(("", node)), unclean=rng.random() < 0.2)},
            {"leaveIsr": pb.LeaveIsr(**of, node=node, incarnation=incarnation, reason="its disk")},
            {"giveUpLeadership": pb.GiveUpLeadership(**of, leader=leader, incarnation=leads,
                                                     leaderEpoch=leader_epoch, toward=rng.choice(("", node)))},
            {"passOver": pb.PassOver(**of, candidate=node, leaderEpoch=leader_epoch, epoch=epoch)},
            {"concludeElection": pb.ConcludeElection(**of, epoch=epoch)},
            {"openGroups": pb.OpenGroups(partitions=rng.randint(1, 3), replicationFactor=rng.choice((0, 2)))},
            {"removeNode": pb.RemoveNode(nodeId=node)},
            {"fenceNode": pb.FenceNode(nodeId=node, incarnation=incarnation)},
            {"unfenceNode": pb.UnfenceNode(nodeId=node, incarnation=incarnation)},
            {"unfenceNode": pb.UnfenceNode(nodeId=node, incarnation=incarnation)},
            {"setNode": pb.SetNode(nodeId=node, leaving=rng.random() < 0.3, rackAsItSays=rng.random() < 0.1)},
            {"createStream": pb.CreateStream(name=rng.choice((name, "liftpy", "a b", "_own", "new")),
                                             subject=rng.choice(("x.0", "liftpy.info", "q.>", "q.1")))},
            {"barrier": pb.Barrier()},
            {"describeStream": pb.DescribeStream(name=name)},
        ]  # fmt: skip
        drawn = rng.sample(choices, rng.randint(1, 5))
        batched = [request for request in drawn if next(iter(request)) in _BATCHED]
        if len(batched) > 1 and rng.random() < 0.5:
            items = [pb.BatchedRequest(number=n, request=pb.ControlRequest(**request)) for n, request in enumerate(batched)]
            self.ask(batch=pb.Batch(requests=items))
        else:
            self.ask(**drawn[0])
        if rng.random() < 0.02:  # an operation that is repeated, and what is no request
            again = pb.ControlRequest.FromString(rng.choice(self.driver.log[-20:]))
            self.driver.ask(again.operationId, barrier=pb.Barrier())
            self.driver.ask(rng.randbytes(3), deleteStream=pb.DeleteStream(name="x" * rng.choice((3, 700))))


class QuotaWorld(RecordedWorld):
    """One in which streams get quotas, and the cluster a default."""

    def something(self) -> None:
        """Half of it is about quotas."""
        rng, names = self.more, sorted(self.driver.fsm.image.streams)
        if rng.random() < 0.5:
            super().something()
            return
        rates = {
            "recordsPerS": rng.choice((0, 10, 5000, 1 << 40)),
            "bytesPerS": rng.choice((0, 1 << 20)),
            "byToken": rng.choice((0, 2, 999)),
        }
        asked = {name: value for name, value in rates.items() if rng.random() < 0.6}
        own = pb.StreamConfig(
            quotaRecordsPerS=rates["recordsPerS"], quotaBytesPerS=rates["bytesPerS"], quotaByToken=rates["byToken"],
            quotaExempt=rng.random() < 0.5,
        )  # fmt: skip
        changed = [name for name in ("quotaRecordsPerS", "quotaBytesPerS", "quotaByToken", "quotaExempt") if rng.random() < 0.5]
        choices: list[dict[str, Any]] = [
            {"setDefaultQuota": pb.SetDefaultQuota(**asked)},
            {"alterStream": pb.AlterStream(name=rng.choice(names), config=own, changed=changed)},
            {"createStream": pb.CreateStream(name=f"q{rng.randrange(20)}", subject=f"q.{rng.randrange(20)}", config=own)},
            {"deleteStream": pb.DeleteStream(name=f"q{rng.randrange(20)}")},
        ]
        self.ask(**rng.choice(choices))


class TimesWorld(RecordedWorld):
    """One in which the cluster's session times change. It counts the changes that it asks for, some of which are wrong."""

    change, settled = 0, True

    def something(self) -> None:
        """A third of it is about the times."""
        rng = self.more
        if rng.random() < 0.67:
            super().something()
            return
        change = max(0, self.change + rng.choice((0, 0, 0, 0, 1, -1)))
        if rng.random() < 0.4:
            self.settled |= change == self.change
            self.ask(settleSessionTimes=pb.SettleSessionTimes(change=change))
            return
        session_ms, lease_ms = rng.choice((700, 2000, 5000, 60_000)), rng.choice((500, 600, 900, 3000))
        if rng.random() < 0.2:
            session_ms, lease_ms = rng.choice(((0, 0), (1 << 31, 900), (900, 900), (2000, 3)))
        elif self.settled and change == self.change and lease_ms < session_ms:
            self.settled, self.change = False, self.change + 1
        self.ask(setSessionTimes=pb.SetSessionTimes(sessionMs=session_ms, leaseMs=lease_ms, change=change))


class DamageWorld(RecordedWorld):
    """One in which nodes restart often, and name damaged logs when they register."""

    def ask(self, **request: Any) -> pb.ControlResponse:
        """Some logs belong to no stream, and some nodes name too many."""
        rng = self.more
        if "registerNode" in request and rng.random() < 0.7:
            streams = [*self.driver.fsm.image.streams.values()] if hasattr(self, "driver") else []
            known = [(stream.uid, partition.partition) for stream in streams for partition in stream.partitions]
            logs = rng.sample([*known, ("gone", 0)], rng.randint(1, min(4, 1 + len(known))))
            logs *= 20 if rng.random() < 0.05 else 1
            register = request["registerNode"]
            register.damagedLogs.extend(pb.DamagedLog(streamUid=uid, partition=partition) for uid, partition in logs)
            register.cleanStop = register.flushedAlways = False
        return super().ask(**request)

    def something(self) -> None:
        """A third of it is a restart."""
        if self.more.random() < 0.67:
            super().something()
            return
        name = self.more.choice(NODES)
        self.nodes[name].alive = False
        self.start(name, emptied=self.more.random() < 0.1)


WORLDS: dict[str, tuple[type[RecordedWorld], int, int]] = {
    "entries": (RecordedWorld, 20, 1000),
    "entries-quotas": (QuotaWorld, 2, 500),
    "entries-times": (TimesWorld, 2, 500),
    "entries-damage": (DamageWorld, 2, 500),
}
"""Name of a file of entries -> what its histories are of, how many there are, and how many entries each has."""

_BATCHED = {
    "reassign", "beginCopy", "truncateBefore", "purgeRecords", "reportPurged", "wakePartition", "electLeader", "leaveIsr",
    "giveUpLeadership", "passOver", "concludeElection",
}  # fmt: skip


def history(seed: int, entries: int, of: type[RecordedWorld] = RecordedWorld) -> list[bytes]:
    """So many entries."""
    world = of(seed)
    while len(world.driver.log) < entries:
        world.fault()
        world.order()
        world.tick(luck=0.3)
        for _ in range(3):
            world.something()
    assert world.driver.fsm.failure_count == 0
    return world.driver.log[:entries]
