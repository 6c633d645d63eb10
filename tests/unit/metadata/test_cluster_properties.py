"""Test random sequences of requests: invariants, equal bytes on all nodes, snapshots and the feed.

Proves C1 C2 C3 C4 C5 C6 C7 C10 C11 M5 M6 M7 for the pure state machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cluster_driver import Driver, Error
from hypothesis import example, given, settings
from hypothesis import strategies as st

from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.codec import image_to_bytes
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.idempotency import IdempotencyCache
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.records import record_from_pb, replay_all
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.decode_errors import has_unknown_fields
from liftpy.errors import IncompatibleVersionError
from tests.born import born_fsm
from tests.long import examples
from tests.unit.metadata.image_checks import LeadershipHistory, check_image, check_step

NODES = ("n1", "n2", "n3", "n4")
STREAMS = ("s1", "s2")

nodes = st.sampled_from(NODES)
steps = st.one_of(
    st.tuples(st.just("register"), nodes, st.integers(0, 3), st.booleans(), st.booleans()),
    st.tuples(st.just("fence"), nodes, st.booleans()),
    st.tuples(st.just("unfence"), nodes, st.booleans()),
    st.tuples(st.just("remove"), nodes),
    st.tuples(st.just("create"), st.sampled_from(STREAMS), st.integers(0, 3), st.integers(0, 4)),
    st.tuples(st.just("delete"), st.sampled_from(STREAMS), st.booleans()),
    st.tuples(st.just("isr"), st.just("s1"), st.just(0), st.lists(nodes, min_size=1, max_size=1), st.just(9)),
    st.tuples(st.just("isr"), st.sampled_from(STREAMS), st.integers(0, 1), st.lists(nodes, max_size=3), st.integers(0, 9)),
    st.tuples(st.just("report"), nodes, st.integers(1, 3), st.booleans()),
    st.tuples(st.just("promote"), st.integers(0, 3)),
    st.tuples(st.just("pass over"), st.booleans()),
    st.tuples(st.just("conclude"), st.booleans()),
    st.tuples(st.just("elect"), st.sampled_from(("", *NODES)), st.booleans()),
    st.tuples(st.just("drain"), nodes),
    st.tuples(st.just("again"), st.integers(0, 40)),
    st.tuples(st.just("garbage"), st.binary(max_size=40)),
    st.tuples(st.just("barrier")),
    st.tuples(st.just("clock"), st.integers(-(10**10), 10**10)),
)


def perform(driver: Driver, step: tuple) -> None:  # type: ignore[type-arg]
    """Turn an abstract step into a log entry that is sometimes right, sometimes stale, sometimes nonsense."""
    image = driver.fsm.image
    match step:
        case ("register", node, back, clean, flushed):
            held = image.nodes.get(node)
            previous = max(0, held.incarnation - back) if held and back < 3 else 0
            driver.register(node, previousIncarnation=previous, cleanStop=clean, flushedAlways=flushed)
            if held and (previous == 0 or not (clean or flushed)):
                check_has_left(driver.fsm.image, node)
        case ("fence" | "unfence" as kind, node, right):
            held = image.nodes.get(node)
            incarnation = (held.incarnation if held else 0) + (0 if right else 1)
            if kind == "fence":
                driver.ask(fenceNode=pb.FenceNode(nodeId=node, incarnation=incarnation))
            else:
                driver.ask(unfenceNode=pb.UnfenceNode(nodeId=node, incarnation=incarnation))
        case ("remove", node):
            driver.ask(removeNode=pb.RemoveNode(nodeId=node))
        case ("create", name, partitions, factor):
            driver.create(name, "x." + name, partitions=partitions, replicationFactor=factor)
        case ("delete", name, by_uid):
            held_stream = image.streams.get(name)
            driver.ask(deleteStream=pb.DeleteStream(name=name, uid=held_stream.uid if held_stream and by_uid else ""))
        case ("isr", name, number, isr, wrong):
            driver.ask(changeIsr=isr_request(driver, name, number, isr, wrong))
        case ("drain", node):
            held = image.nodes.get(node)
            driver.ask(drainNode=pb.DrainNode(nodeId=node, incarnation=held.incarnation if held else 0))
        case ("report" | "promote" | "pass over" | "conclude" | "elect", *_):
            found = image.find("s1", "", 0)
            if found is not None:
                perform_election(driver, step, *found)
        case ("again", back):
            if back < len(driver.log):
                driver.apply(driver.log[-1 - back])
        case ("garbage", data):
            try:
                driver.apply(data)
            except IncompatibleVersionError:  # it may be of a newer version: a controller ends here, and does not log it
                driver.log.pop()
        case ("barrier",):
            driver.ask(barrier=pb.Barrier())
        case ("clock", step_ns):
            driver.now_ns = max(0, driver.now_ns + step_ns)


def check_has_left(image: ClusterImage, node: str) -> None:
    """Check C7 and C10: the replica is in no ISR, except as the only member of a partition without leader."""
    for stream, partition in image.partitions_of(node):
        if node in partition.isr:
            assert partition.isr == (node,)
            assert node in partition.incomplete
            assert len(partition.incomplete) == 1 or stream.commits_by_quorum, "others matter where any majority elects"
            assert partition.leader != node


def perform_election(driver: Driver, step: tuple, stream: StreamImage, partition: PartitionState) -> None:  # type: ignore[type-arg]
    known = driver.fsm.image.nodes
    about = {"stream": stream.name, "uid": stream.uid, "partition": 0}
    match step:
        case ("report", node, offset, right):
            report = pb.ReportLeader(
                **about, witness=node, witnessIncarnation=known[node].incarnation if node in known else 0,
                leader=partition.leader, leaderEpoch=partition.leader_epoch - (not right), newestOffset=offset,
            )  # fmt: skip
            driver.ask(reportLeader=report)
        case ("promote", wrong):
            candidate = partition.candidate or partition.replicas[-1]
            promotion = pb.ReportPromotion(
                **about, candidate=candidate, candidateIncarnation=known[candidate].incarnation - (wrong == 1),
                leaderEpoch=partition.leader_epoch - (wrong == 2), epoch=partition.epoch - (wrong == 3), finished=True,
            )  # fmt: skip
            driver.ask(reportPromotion=promotion)
        case ("pass over", right):
            epoch = partition.epoch - (not right)
            passing = pb.PassOver(**about, candidate=partition.candidate, leaderEpoch=partition.leader_epoch, epoch=epoch)
            driver.ask(passOver=passing)
        case ("conclude", right):
            driver.ask(concludeElection=pb.ConcludeElection(**about, epoch=partition.epoch - (not right)))
        case ("elect", node, unclean):
            driver.ask(electLeader=pb.ElectLeader(**about, node=node, unclean=unclean))


def isr_request(driver: Driver, name: str, number: int, isr: list[str], wrong: int) -> pb.ChangeIsr:
    found = driver.fsm.image.find(name, "", number)
    if found is None:
        return pb.ChangeIsr(stream=name, partition=number, isr=isr)
    stream, partition = found
    members = list(dict.fromkeys([partition.leader, *isr] if wrong != 1 else isr))
    if wrong > 3 and isr:  # one more or one less, as a real leader asks
        members = [n for n in partition.replicas if (n in partition.isr) != (n == isr[0])]
    incarnations = {n: driver.incarnation(n) + (wrong == 2) for n in members if n in driver.fsm.image.nodes}
    return pb.ChangeIsr(
        stream=name, uid=stream.uid, partition=number, leader=partition.leader, leaderEpoch=partition.leader_epoch,
        epoch=partition.epoch - (wrong == 3), isr=members, incarnations=incarnations,
    )  # fmt: skip


class Follower:
    """A node that is not a controller: it replays records that went through bytes."""

    def __init__(self) -> None:
        self.image = ClusterImage()

    def follow(self, fsm: ClusterFsm) -> None:
        records = [record_from_pb(pb.Record.FromString(r.SerializeToString())) for r in fsm.records]
        self.image = replace(replay_all(self.image, records), index=fsm.image.index, time_ns=fsm.image.time_ns)


_ALL_EMPTIED = [("register", node, 0, False, False) for node in ("n1", "n1", "n1", "n2", "n3")]


@settings(max_examples=examples(200), deadline=None)
@example(history=_ALL_EMPTIED, cut=0, elections=False, quorum=True)
@given(st.lists(steps, min_size=5, max_size=60), st.integers(0, 59), st.booleans(), st.booleans())
def test_cluster_state_invariants_hold_after_any_sequence_of_requests(
    history: list[tuple],  # type: ignore[type-arg]
    cut: int,
    elections: bool,
    quorum: bool,
) -> None:
    policy = "quorum" if quorum else "isr"
    driver = Driver(NODES[:3], elections=elections)
    follower, seen = Follower(), LeadershipHistory()
    driver.create("s1", "x.s1", config=pb.StreamConfig(commitPolicy=policy))
    follower.image = driver.fsm.image
    restored: ClusterFsm | None = None
    commanded = False
    for number, step in enumerate(history):
        before, applied = driver.fsm.image, driver.index
        perform(driver, step)
        if driver.index > applied:
            follower.follow(driver.fsm)
            if restored is not None:
                restored.apply(driver.log[-1], driver.index)
        check_step(before, driver.fsm.image)
        check_image(driver.fsm.image)
        seen.add_image(driver.fsm.image)
        commanded = commanded or (step[0] == "elect" and step[2])
        assert commanded or not any(p.unclean_elected for s in driver.fsm.image.streams.values() for p in s.partitions)  # C11
        if number == cut:
            restored = born_fsm(elections=elections)
            restored.restore(driver.fsm.snapshot())
    assert driver.fsm.failure_count == 0
    assert image_to_bytes(follower.image, operations=False) == image_to_bytes(driver.fsm.image, operations=False)
    if restored is not None:
        assert image_to_bytes(restored.image) == image_to_bytes(driver.fsm.image)
        none = IdempotencyCache()
        assert replace(restored.image, operations=none) == replace(driver.fsm.image, operations=none)
        check_image(restored.image)
    again = born_fsm(elections=elections)
    for number, entry in enumerate(driver.log, 1):
        again.apply(entry, number)
    assert image_to_bytes(again.image) == image_to_bytes(driver.fsm.image)
    assert again.image == driver.fsm.image


HISTORY = """
import sys
sys.path.insert(0, "tests/unit/metadata")
from cluster_driver import Driver
from liftpy.core.metadata.codec import image_to_bytes
from tests.long import examples
driver = Driver(tuple(f"node{n}" for n in range(9)))
for n in range(20):
    driver.create(f"stream{n}", "x.y", partitions=4)
driver.fence("node3")
for n in range(9):
    driver.restart(f"node{n}", emptied=n % 2 == 0)
driver.unfence("node3") if driver.fsm.image.nodes["node3"].fenced else None
driver.create("last", partitions=7)
print(image_to_bytes(driver.fsm.image).hex())
"""


def test_cluster_state_does_not_depend_on_the_python_hash_seed() -> None:
    root = Path(__file__).parents[3]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", HISTORY], cwd=root, check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1000


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=10))
def test_fsm_apply_of_random_bytes_never_raises(entries: list[bytes]) -> None:
    driver = Driver(("a", "b"))
    driver.create()
    for entry in entries:
        _apply(driver, entry)
    assert driver.fsm.failure_count == 0
    check_image(driver.fsm.image)


def _apply(driver: Driver, entry: bytes) -> None:
    """An entry of a newer version ends apply and changes nothing; the metadata leader logs none."""
    before = driver.fsm.image
    try:
        driver.apply(entry)
    except IncompatibleVersionError:
        assert has_unknown_fields(pb.ControlRequest.FromString(entry))
        assert driver.fsm.image is before


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_fsm_apply_of_damaged_requests_never_raises(data: st.DataObject) -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    driver.change_isr(["a", "b"])
    entry = bytearray(data.draw(st.sampled_from(driver.log)))
    for _ in range(data.draw(st.integers(1, 4))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    _apply(driver, bytes(entry))
    assert driver.fsm.failure_count == 0
    check_image(driver.fsm.image)
    last = driver.ask(b"of no entry here", createStream=pb.CreateStream(name="last", subject="alone.last"))
    assert last.error in (Error.OK, Error.NOT_ENOUGH_NODES)
