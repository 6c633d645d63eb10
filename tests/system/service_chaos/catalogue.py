"""The faults of replicated services. Each strikes, publishes while it is struck, heals, and says what it did."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from liftpy.config import StreamConfig
from liftpy.errors import LiftError
from sidecar.cli.service import EXIT_CONFIG, EXIT_DIVERGED
from tests.examples.processes import start_service
from tests.system.service_chaos.ground import CODE, EVERY, NODES, OUTPUTS, PATIENCE_S, SERVICE, STREAM, Ground
from tests.system.service_chaos.model import ViolationError

_SOME = 12
"""Commands while something is struck: fewer than lie between two snapshots."""


def _drawn(ground: Ground) -> str:
    return ground.rng.choice(NODES)


async def service_killed(ground: Ground) -> str:
    """Kill one to all services with SIGKILL, and start them again after some commands."""
    struck = ground.rng.sample(NODES, ground.rng.randint(1, len(NODES)))
    for node in struck:
        ground.kill(node)
    await ground.publish(_SOME)
    for node in struck:
        ground.start(node)
    return "+".join(sorted(struck))


async def service_stopped(ground: Ground) -> str:
    """Stop a service with SIGTERM. It stores its state, ends with exit code 0, and is started again."""
    node = _drawn(ground)
    await ground.stop(node)
    await ground.publish(_SOME)
    ground.start(node)
    return node


async def sidecar_killed(ground: Ground) -> str:
    """kill -9 of the leader's node, or of a follower's; its service stays."""
    leader = await ground.leader()
    node = ground.rng.choice([leader, ground.rng.choice([node for node in NODES if node != leader])])
    ground.cluster.nodes[node].kill()
    await ground.publish(_SOME)
    await ground.revive(node)
    return f"{node}, {'leader' if node == leader else 'follower'}"


async def both_killed(ground: Ground) -> str:
    """kill -9 of the leader's node and of the service beside it, at once."""
    node = await ground.leader()
    ground.cluster.nodes[node].kill()
    ground.kill(node)
    await ground.publish(_SOME)
    await ground.revive(node)
    ground.start(node)
    return node


async def poison(ground: Ground) -> str:
    """Records that no service can apply, between others that they can."""
    offsets = []
    for _ in range(ground.rng.randint(1, 2)):
        await ground.publish(3)
        offsets.append(await ground.poison())
    await ground.publish(3)
    return f"at {', '.join(map(str, offsets))}"


async def operators_skip(ground: Ground) -> str:
    """``liftpy service skip`` of a good record that no service has applied; of one that was applied it is refused."""
    await ground.settle()
    words = ("skip", SERVICE, "--stream", STREAM, "--dead-letter-stream", "dead", "--offset")
    applied = max(ground.acked)
    code, text = await ground.command(*words, str(applied))
    if code != EXIT_CONFIG or f"already applied offset {applied}" not in text:
        raise ViolationError(f"the skip of {applied}, which was applied, ended with {code}: {text}")
    for node in NODES:
        ground.kill(node)
    await ground.publish(3)
    offset = await ground.publish_one(b"wrong")
    await ground.publish(3)
    ground.model.ordered.add(offset)
    code, text = await ground.command(*words, str(offset))
    if code:
        raise ViolationError(f"the skip of {offset} ended with {code}: {text}")
    for node in NODES:
        ground.start(node)
    return f"of {offset}; of {applied} refused"


async def snapshots_removed(ground: Ground) -> str:
    """The folder of one node's service is gone: it takes a peer's snapshot where the log begins later."""
    await ground.settle()
    node = _drawn(ground)
    ground.kill(node)
    ground.forget_snapshots(node)
    await ground.publish(_SOME)
    begins = (await ground.client.bounds(STREAM)).log_start_offset
    ground.start(node)
    if not begins:
        return f"{node}, replays from 0"

    async def fetched() -> bool:
        return bool((await ground.said(node)).get("fetched_bytes"))

    await ground.until(fetched, f"{node} takes a snapshot: the log begins at {begins}")
    return f"{node}, fetched; the log begins at {begins}"


async def upgrade(ground: Ground) -> str:
    """Version N + 1, node by node: active when all have it, on all; then the old code is refused."""
    await ground.settle()
    old = ground.versions[NODES[0]]
    order = ground.rng.sample(NODES, len(NODES))
    for number, node in enumerate(order):
        await ground.stop(node)
        ground.versions[node] = old + 1
        ground.start(node)
        await ground.publish(4)
        await ground.settle()
        last = number == len(order) - 1

        async def active(wanted: int = old + 1 if last else old) -> bool:
            return {(await ground.said(beside))["active_version"] for beside in NODES} == {wanted}

        await ground.until(active, f"version {old + 1} is active beside all{'' if last else ' only when all have it'}")
    await ground.publish(4)
    await ground.settle()
    node = _drawn(ground)
    await ground.stop(node)
    ground.start(node, version=old)
    code = await ground.ended(node)
    if code != EXIT_CONFIG or f"need version {old + 1} of the service" not in ground.words(node):
        raise ViolationError(f"the old code beside {node} ended with {code}")
    ground.start(node)
    return f"to {old + 1}; {old} refused"


async def _diverges(ground: Ground, plant: str) -> str:
    """The plant acts on what the service replays, whose outputs are written by others: it may never be LEADER with it."""
    await ground.settle()
    node = _drawn(ground)
    ground.kill(node)
    await ground.publish(_SOME)

    async def written() -> bool:
        said = [await ground.said(other) for other in NODES if other != node]
        end = (await ground.client.bounds(OUTPUTS)).end_offset
        return all(s.get("output_count") == end and s["position"] == ground.model.position for s in said)

    await ground.apply()
    await ground.until(written, "the outputs are written")
    ground.start(node, plant=plant, below=ground.model.position)
    led = ground.rng.random() < 0.5
    if led:  # a promotion waits for it, and it may not lead
        with contextlib.suppress(LiftError):
            await ground.client.admin.elect_leader(STREAM, 0, node)
    while ground.processes[node].poll() is None and plant == "state":
        await ground.publish(EVERY // 4)  # up to positions at which the nodes compare their snapshots
    code = await ground.ended(node)
    if code != EXIT_DIVERGED or "SERVICE_DIVERGED" not in ground.words(node).rsplit("Error: ", 1)[-1]:
        raise ViolationError(f"the service beside {node} has planted {plant} and ended with {code}")
    ground.start(node)
    return f"{node}{', elected' if led else ''}: SERVICE_DIVERGED"


async def other_outputs(ground: Ground) -> str:
    """One node's service emits something else."""
    return await _diverges(ground, "outputs")


async def other_state(ground: Ground) -> str:
    """One node's service has another state and emits the same."""
    return await _diverges(ground, "state")


async def transfer(ground: Ground) -> str:
    """A planned transfer of the leadership, under commands."""
    leader = await ground.leader()
    node = ground.rng.choice([node for node in NODES if node != leader])
    await ground.client.admin.elect_leader(STREAM, 0, node)
    await ground.publish(_SOME)
    return f"{leader} -> {node}"


async def compaction(ground: Ground) -> str:
    """A service over a compacted stream ends at once; one whose outputs would go to one says so, and writes nothing."""
    client, name = ground.client, f"compacted{ground.rng.getrandbits(32)}"
    await client.create_stream(name, name, config=StreamConfig(compaction=True))
    await client.create_stream(plain := f"{name}-input", plain)
    data = ground.folder / name
    data.mkdir()

    async def said() -> bool:
        return f"{name} is compacted" in (data / f"{NODES[0]}.log").read_text()

    for stream, output in ((name, OUTPUTS), (plain, name)):
        process = start_service(
            CODE,
            stream=stream,
            node=NODES[0],
            data=data,
            output=output,
            snapshot_interval_records=EVERY,
            nats_url=ground.cluster.nats_url,
            more=("--name", f"over-{stream}"),
        )
        try:
            await ground.until(said, f"a service from {stream} to {output} is refused")
            if stream == name and await asyncio.to_thread(process.wait, PATIENCE_S) != EXIT_CONFIG:
                raise ViolationError(f"a service over a compacted stream ended with {process.poll()}")
        finally:
            process.kill()
            process.wait(10)
        (data / f"{NODES[0]}.log").unlink()
    if end := (await client.bounds(name)).end_offset:
        raise ViolationError(f"{end} outputs are in a compacted stream")
    for made in (name, plain):
        await client.admin.delete_stream(made)
    return "refused as input and as output"


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` returns what it did."""

    name: str
    strike: Callable[[Ground], Awaitable[str]]


FAULTS = {
    name: Fault(name, strike)
    for name, strike in {
        "service-killed": service_killed,
        "service-stopped": service_stopped,
        "sidecar-killed": sidecar_killed,
        "both-killed": both_killed,
        "poison": poison,
        "operators-skip": operators_skip,
        "snapshots-removed": snapshots_removed,
        "upgrade": upgrade,
        "other-outputs": other_outputs,
        "other-state": other_state,
        "transfer": transfer,
        "compaction": compaction,
    }.items()
}
