"""What the runbooks ``clocks-jumped``, ``network-split`` and ``isr-stuck`` say, done on real processes with a NATS server each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from liftpy.client import Client, connect
from liftpy.client.placement_plans import PlacementOptions
from liftpy.config import StreamConfig
from liftpy.errors import LiftError
from sidecar.metadata.clock_watch import CLOCK_WAITS
from tests import fork_server
from tests.integration.apart import Apart
from tests.integration.conftest import Bench, close_bench, open_bench

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
YEAR_S = 365 * 86_400


@pytest.fixture(scope="module")
def ground() -> Iterator[Apart]:
    with Apart(4) as running:
        yield running


@pytest.fixture
async def bench(ground: Apart) -> AsyncIterator[Bench]:
    opened = await open_bench(ground.cluster)
    await opened.until(lambda: all_live(opened), "every node is live")
    yield opened
    ground.relays.heal()
    await close_bench(opened)


async def all_live(bench: Bench) -> bool:
    nodes = (await bench.client.admin.describe_cluster()).image.nodes
    return not any(node.fenced for node in nodes.values())


async def liftpy(url: str, *words: str) -> tuple[int, str]:
    """Exit code of the command, and what it says."""
    command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", *words, "--nats", url]
    done = await asyncio.to_thread(fork_server.run, command, text=True, timeout=60)
    print(words, done.returncode, done.stdout + done.stderr)
    return done.returncode, done.stdout


async def values(client: Client, stream: str) -> list[bytes]:
    async with asyncio.timeout(30):
        return [record.value async for record in client.consume(stream, until="end")]


async def create_on(bench: Bench, stream: str, *nodes: str, config: StreamConfig | None = None) -> None:
    """When all of them are live: who has just come back may still say so of those that it had not heard."""
    wish = PlacementOptions(assignment=((0, nodes),))
    await bench.until(lambda: bench.create(stream, placement=wish, config=config), f"{stream} is made")


async def under_replicated(bench: Bench, stream: str) -> int:
    """Replicas that are out of the ISR."""
    part = (await bench.client.stream(stream)).partitions[0]
    return len(part.replicas) - len(part.isr)


# ---- clocks-jumped ----------------------------------------------------------------------------------------------------------------
@pytest.mark.long
async def test_leader_with_a_clock_ten_years_ahead_deletes_no_records_by_age(ground: Apart, bench: Bench) -> None:
    config = StreamConfig(retention_age_s=3600)
    await create_on(bench, "aged", "n2", "n1", "n3", config=config)
    await create_on(bench, "old", "n2", "n1", "n3", config=config)
    for number in range(3):
        await bench.client.publish("aged", b"%d" % number)
        await bench.client.publish("old", b"%d" % number)

    async def clock(name: str) -> dict[str, Any]:
        return dict((await bench.client.admin.node_status(name))["clock"])

    async def doubts(*names: str) -> bool:
        return all([bool((await clock(name))["doubt"]) is (name in names) for name in ground.names])

    async def starts(stream: str) -> list[int]:
        return [(await bench.replica(name, stream))["log_start_offset"] for name in ("n1", "n2", "n3")]

    async def held_back() -> int:
        return int((await bench.client.admin.node_status("n2"))["counters"].get(CLOCK_WAITS, 0))

    await bench.until(doubts, "all clocks are trusted")
    before = await held_back()
    ground.set_clock("n2", 10 * YEAR_S)
    await bench.until(lambda: doubts("n2"), "its clock is in doubt, and no other one")
    assert abs((await clock("n2"))["skew_s"] - 10 * YEAR_S) < 60

    async def looked() -> bool:
        return await held_back() >= before + 4

    await bench.until(looked, "two rounds of retention have been")
    assert await starts("aged") == await starts("old") == [0, 0, 0]
    assert await bench.leader("aged") == "n2", "nobody is deposed"
    await bench.client.publish("aged", b"ahead")
    assert (await liftpy(ground.url("n1"), "partition", "transfer", "aged", "0", "--node", "n1"))[0] == 0
    await bench.client.publish("aged", b"now")
    assert await values(bench.client, "aged") == [b"0", b"1", b"2", b"ahead", b"now"]
    async with asyncio.timeout(30):
        stamps = [record.timestamp_ns async for record in bench.client.consume("aged", until="end")]
    assert all(abs(stamp - time.time_ns()) < 60e9 for stamp in stamps), "it stamps with the time of the others"
    assert any("wall clock not trusted" in line for line in ground.cluster.nodes["n2"].log)

    ground.set_clock("n2", 0)
    await bench.until(doubts, "all clocks are trusted again")
    assert (await liftpy(ground.url("n1"), "stream", "alter", "old", "--retention-age", "1"))[0] == 0

    async def gone() -> bool:
        return await starts("old") == [3, 3, 3]

    await bench.until(gone, "what is old by right clocks is removed")


# ---- network-split ----------------------------------------------------------------------------------------------------------------
@pytest.mark.long
async def test_network_split_leaves_only_the_majority_side_able_to_publish(ground: Apart, bench: Bench) -> None:
    await create_on(bench, "orders", "n3", "n1", "n2")
    for number in range(3):
        await bench.client.publish("orders", b"before %d" % number)
    async with connect(ground.url("n3")) as small:
        await small.publish("orders", b"before 3")
        ground.relays.cut(["n3"], ["n1", "n2", "n4"], silent=False)
        with pytest.raises(LiftError):
            await small.publish("orders", b"lost", timeout_s=3)

        async def led() -> bool:
            return await bench.leader("orders") in ("n1", "n2")

        await bench.until(led, "the larger side has a leader")
        assert "committed a barrier" in (await liftpy(ground.url("n1"), "health", "--cluster"))[1]
        code, said = await liftpy(ground.url("n3"), "health", "--cluster")
        assert code != 0
        assert "committed" not in said
        await bench.client.publish("orders", b"meanwhile")
        alone = next(p for p in (await small.admin.node_status("n3"))["partitions"] if p["stream"] == "orders")
        assert not alone["lease"]

        assert (await liftpy(ground.url("n1"), "node", "drain", "n3"))[0] == 0

        async def made_elsewhere() -> bool:
            part = (await bench.client.stream("orders")).partitions[0]
            return set(part.isr) == set(part.replicas) == {"n1", "n2", "n4"}

        await bench.until(made_elsewhere, "what the smaller side has is made on the larger one")
        ground.relays.heal()

        await bench.until(lambda: all_live(bench), "every node is live")
        assert (await liftpy(ground.url("n1"), "node", "drain", "n3", "--cancel"))[0] == 0
        wanted = [b"before 0", b"before 1", b"before 2", b"before 3", b"meanwhile"]

        async def all_of_it() -> bool:
            return await values(bench.client, "orders") == await values(small, "orders") == wanted

        await bench.until(all_of_it, "both sides read what was acknowledged, and nothing else")
        await bench.until(made_elsewhere, "nothing is under-replicated")


# ---- isr-stuck ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.long
async def test_follower_without_a_network_path_to_its_leader_leaves_the_isr(ground: Apart, bench: Bench) -> None:
    group = (await bench.client.admin.describe_cluster()).metadata_leader
    leader, stuck, spare = (name for name in ground.names if name != group)
    await create_on(bench, "stuck", leader, group, stuck)
    await bench.client.publish("stuck", b"0")
    ground.relays.cut([leader], [stuck], silent=True)
    await bench.client.publish("stuck", b"1")

    async def is_out() -> bool:
        return await bench.isr("stuck") == {leader, group}

    await bench.until(is_out, "it leaves the ISR")
    node = ground.cluster.nodes[stuck]
    await asyncio.to_thread(node.terminate)
    node.start()
    await asyncio.to_thread(node.wait_ready)

    async def live() -> bool:
        return (await bench.client.admin.describe_cluster()).image.is_live(stuck)

    await bench.until(live, "it is back")
    assert await is_out(), "a restart does not help"
    assert (await bench.leader("stuck"), await under_replicated(bench, "stuck")) == (leader, 1)
    await bench.client.publish("stuck", b"2")
    assert (await liftpy(ground.url(leader), "partition", "move", "stuck", "0", "--node", f"{leader},{group},{spare}"))[0] == 0

    async def whole() -> bool:
        return await bench.isr("stuck") == {leader, group, spare}

    await bench.until(whole, "another node has its place")
    assert await under_replicated(bench, "stuck") == 0
    assert await values(bench.client, "stuck") == [b"0", b"1", b"2"]
