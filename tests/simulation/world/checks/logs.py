"""Rules of records: whether a cluster has recovered, and whether its logs have what clients were told."""

from __future__ import annotations

from liftpy.core.wire.batch import split_batches
from liftpy.errors import CorruptionError
from sidecar.partition.worker import PartitionWorker
from tests.simulation.world.load.clients import Model, Place
from tests.simulation.world.world import World

_RAFT_BYTES = 1 << 40
MOST_REPLICAS = 3
"""Number of replicas of a partition in a cluster that has so many nodes."""


def workers_of(world: World) -> dict[Place, list[PartitionWorker]]:
    """Return all running replicas."""
    found: dict[Place, list[PartitionWorker]] = {}
    for node in world.nodes:
        replicas = [replica for program in node.programs if program.partitions is not None for replica in program.partitions]
        for worker in sorted(replicas, key=lambda one: (one.key.stream, one.key.partition)):
            found.setdefault((worker.key.stream, worker.key.partition), []).append(worker)
    return found


def unsettled(world: World, streams: list[tuple[str, str, int]]) -> str:
    """Return why the cluster has not recovered, '' if it has: all partitions led, all replicas in sync with all committed
    records."""
    for node in world.nodes:
        if not node.is_ready or node.is_stopping:
            return f"{node.name} is not ready or stops (life {node.lives}, exits {node.exits[-3:]})"
    running = workers_of(world)
    for name, _, partitions in streams:
        for number in range(partitions):
            replicas = running.get((name, number), [])
            if len(replicas) < min(MOST_REPLICAS, len(world.nodes)):
                return f"{name}/{number} has {len(replicas)} replicas that run"
            if failed := [replica.log.closed for replica in replicas if replica.log.closed]:
                return f"{name}/{number} has a failed log, which its node opens again: {failed[0]}"
            states = [replica.state for replica in replicas]
            if any(state is None or not state.leader for state in states):
                return f"{name}/{number} has no leader"
            if any(state is not None and len(state.isr) < len(replicas) for state in states):
                return f"{name}/{number} has an ISR of {[sorted(s.isr) for s in states if s is not None]}"
            marks = {(replica.high_watermark, replica.log.log_end_offset - 1) for replica in replicas}
            if len(marks) != 1 or any(high != last for high, last in marks):
                return f"{name}/{number} has (HW, last offset) {sorted(marks)}"
    return ""


def records_of(world: World, worker: PartitionWorker) -> dict[int, bytes]:
    """Return offset -> value of all committed records.

    The process of the replica reads them: if it meets damage, it reacts as to damage that a reader finds.
    """
    processes = [one for node in world.nodes if node.process is not None for one in node.process.running]
    owner = next(one for one in processes if one.program is not None and worker in (one.program.partitions or ()))
    found: dict[int, bytes] = {}
    errors: list[CorruptionError] = []

    def read() -> None:
        try:
            found.update(_read(worker))
        except CorruptionError as error:
            errors.append(error)

    world.scheduler.run_as(owner, read)
    if errors:
        raise errors[0]
    return found


def _read(worker: PartitionWorker) -> dict[int, bytes]:
    log = worker.log
    found: dict[int, bytes] = {}
    offset, end = log.log_start_offset, worker.high_watermark + 1
    while offset < end:
        part = log.read(offset, _RAFT_BYTES, end_offset=end)
        if not part.chunks:
            break
        for chunk in part.chunks:
            for batch in split_batches(chunk):
                for record in batch.records():
                    if offset <= record.offset:
                        found[record.offset] = record.value or b""
        offset = part.next_offset
    return found


def check_logs(world: World, model: Model, streams: list[tuple[str, str, int]]) -> dict[Place, set[int]]:
    """Check that all replicas have the same records, with all acknowledged and read ones, and no message twice."""
    committed: dict[Place, set[int]] = {}
    violated = world.scheduler.violated
    running = workers_of(world)
    for name, _, partitions in streams:
        for number in range(partitions):
            place = name, number
            copies = {}
            for worker in running.get(place, []):
                try:
                    copies[worker.node_id] = records_of(world, worker)
                except CorruptionError as error:  # a flipped bit that no reader has met until now
                    world.scheduler.counters["copies with damage that nobody has met"] += 1
                    if not next(node for node in world.nodes if node.name == worker.node_id).disk.is_damaged:
                        violated(f"{place}: {worker.node_id}: {error}")
            if not copies:
                violated(f"{place}: no replica")
                continue
            start = max(worker.log.log_start_offset for worker in running[place])
            if place not in model.may_shrink and start > model.deleted_below.get(place, 0):
                violated(f"{place}: the records below {start} were deleted, and nobody has asked for it")
            # each replica deletes in its next round of retention, so a replica that has just started may have older records
            copies = {node: {o: value for o, value in copy.items() if o >= start} for node, copy in copies.items()}
            first_id, first = next(iter(copies.items()))
            committed[place] = set(first)
            for node_id, copy in copies.items():
                if copy != first:
                    differ = sorted(o for o in first.keys() | copy.keys() if first.get(o) != copy.get(o))[:5]
                    violated(f"{place}: {node_id} and {first_id} differ at {differ}")
            world.scheduler.trace("log", *place, len(first))
            world.scheduler.counters["records committed"] += len(first)
            if model.may_lose:
                continue
            for offset, value in model.acked.get(place, {}).items():
                if offset >= start and first.get(offset) != value:
                    violated(f"{place}: {value[:20]!r} was acknowledged at {offset}, where {first.get(offset, b'')[:20]!r} is")
                    break
            for offset, value in model.seen.get(place, {}).items():
                if offset >= start and first.get(offset) != value:
                    violated(f"{place}: {value[:20]!r} was read at {offset}, where {first.get(offset, b'')[:20]!r} is")
                    break
            if wrong := sorted(model.rejected.get(place, set()) & set(first.values())):
                violated(f"{place}: {wrong[0][:20]!r} was rejected and is stored")
            met: set[bytes] = set()
            for offset, value in first.items():
                if value in met and value in model.once and name not in model.may_repeat:
                    violated(f"{place}: {value[:20]!r} is there twice, again at {offset}")
                    break
                met.add(value)
    return committed
