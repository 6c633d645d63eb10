"""Replicated services on real processes: three nodes, three service processes, kills of sidecars and of services.

Two things are shown after each: the state of every node's service is that of a replay of the log from the start, byte for byte;
and the output stream holds every output once, in order.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.client import QueryFailedError
from liftpy.core.observe.node_summary import MOST_ENDED_CHARS
from sidecar.cli.dashboard import ClusterSite
from sidecar.cli.service import EXIT_CONFIG, EXIT_DIVERGED, EXIT_IN_USE
from sidecar.dev.cluster import DevCluster
from tests import fork_server
from tests.examples.echo import TIMES
from tests.integration.conftest import Bench, close_bench, open_bench, page_data, show
from tests.integration.running_services import NODES, QUICK, Running, answers, running_services

pytestmark = pytest.mark.processes
ENDED_WORDS = ("service-diverged", "service-ended")
"""Words of the verdicts about services that have ended."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, settings=QUICK, on_line=show) as running:
        yield running


@pytest.fixture
async def bench(cluster: DevCluster) -> AsyncIterator[Bench]:
    for node in cluster.nodes.values():
        if not node.running:
            node.start()
            node.wait_ready()
    opened = await open_bench(cluster)
    yield opened
    await close_bench(opened)


@pytest.fixture
async def run(bench: Bench, stream_name: str) -> AsyncIterator[Callable[..., Any]]:
    async with running_services(bench, stream_name) as begin:
        yield begin


async def test_service_version_that_is_rolled_out_becomes_active_at_the_same_record_on_all_nodes(run: Any) -> None:
    service: Running = await run("sums")
    bench = service.bench
    for node in (*NODES, ""):
        await service.publish(20)

        async def are_of_version(active: int = 1 if node else 2) -> bool:
            return all([(await service.said(node)).get("active_version") == active for node in NODES])

        await bench.until(are_of_version, f"all are of the version that the code allows beside {node or 'all'}")
        if node:
            service.kill(node)
            service.start(node, "tests.examples.versioned:CountedSums")
            await bench.until(lambda node=node: _has_version(service, node, 2), f"{node} has the new code")
    await bench.until(service.went_on, "all go on")
    await service.publish(20)
    await service.check()
    service.kill("n1")
    where = f"n1 lost a service: {service.stream}/0: sums"
    await _shows_end(bench, [f"{where} silent: nothing is heard from it"])
    service.start("n1")  # the old code, by mistake
    assert await asyncio.to_thread(service.processes["n1"].wait, 30) == EXIT_CONFIG
    why = "need version 2 of the service, but this is version 1"
    assert why in (service.data / "n1.log").read_text()
    await _shows_end(bench, [f"{where} failed: Records before offset {service.sent} {why}. Start version 2."])
    before = (await bench.client.bounds(service.outputs)).end_offset
    await service.publish(10)

    async def are_written() -> bool:
        return (await bench.client.bounds(service.outputs)).end_offset >= before + 10

    await bench.until(are_written, "others have written the outputs")
    service.start("n1", "tests.examples.versioned:WrongSums")  # it replays the records whose outputs others have written
    assert await asyncio.to_thread(service.processes["n1"].wait, 30) == EXIT_DIVERGED
    log = (service.data / "n1.log").read_text()
    _, _, why = next(line for line in log.splitlines() if "SERVICE_DIVERGED: " in line).partition("SERVICE_DIVERGED: ")
    shown = f"{service.stream}/0: sums diverged: {why.removesuffix(' (a new start does not help)')}"[:MOST_ENDED_CHARS]
    await _shows_end(bench, [f"service next to n1 diverged: {shown}"])
    service.start("n1", "tests.examples.versioned:CountedSums")
    await _shows_end(bench, [])


async def skips(service: Running, offset: int, *more: str) -> tuple[int, str]:
    """Let an operator skip a record. Return the exit code and the texts of the command."""
    command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "service", "skip", service.name]
    command += ["--stream", service.stream, "--offset", str(offset), "--nats", service.bench.cluster.nats_url, *more]
    done = await asyncio.to_thread(fork_server.run, command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


async def test_service_skip_of_an_applied_record_is_done_by_all_nodes_or_changes_nothing(run: Any) -> None:
    service: Running = await run("quiet")
    bench = service.bench
    await service.publish(120)
    await bench.until(service.caught_up, "all have applied the record")
    code, text = await skips(service, 110)
    assert (code, "--force" in text) == (2, True), text
    code, text = await skips(service, 110, "--force")
    assert code == 0, text
    await bench.until(service.went_on, "all have read the decision")
    await service.check()
    for node in NODES:
        assert service.processes[node].poll() is None, "no instance takes another for a diverged one"

    for _ in range(2):
        await service.publish(10)
    await bench.until(service.caught_up, "all have applied the next record")
    await bench.client.admin.truncate_before(service.stream, 0, service.sent - 10)
    code, text = await skips(service, service.sent - 5, "--force")
    assert (code, "no instance can rebuild its state" in text) == (2, True), text
    await service.publish(10)
    await bench.until(service.caught_up, "all go on")


async def _shows_end(bench: Bench, reasons: list[str]) -> None:
    """Wait until the page gives ``reasons`` about services that have ended; then ``health``, ``status`` and the events say the same."""
    page = ClusterSite(bench.client, bench.cluster.namespace, ("127.0.0.1",))

    async def told() -> bool:
        shown = (await page_data(page, "cluster"))["cluster"]["reasons"]
        return [one["text"] for one in shown if one["word"] in ENDED_WORDS] == reasons

    async def services_say() -> bool:
        problems = [row["problem"] for row in (await page_data(page, "services"))["page"]["rows"] if row["problem"]]
        return bool(problems) is bool(reasons)

    await bench.until(told, f"the page gives the reasons {reasons}")
    await bench.until(services_say, "the page of services shows a problem only if a service has ended")
    words = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "health", "--nats", bench.cluster.nats_url]

    async def health_says() -> bool:
        health = await asyncio.to_thread(fork_server.run, words, capture_output=True, text=True, timeout=60, check=False)
        lines = [line for line in health.stdout.splitlines() if any(f"] {word}: " in line for word in ENDED_WORDS)]
        whys = [f"{reason} (docs/runbooks/service-ended.md)" for reason in reasons]
        as_wanted = len(lines) == len(whys) and all(map(str.endswith, lines, whys))
        return as_wanted and (health.returncode == 1 or not reasons)  # a slow machine may have other complaints

    await bench.until(health_says, f"health gives the reasons {reasons}")
    controller = (await bench.client.admin.controller_ids())[0]
    for reason in reasons:
        why = reason.partition("sums ")[2]

        async def is_an_event(why: str = why) -> bool:
            events = (await bench.client.admin.cluster_events(controller, (0, -1)))["events"]
            return any(why in event["detail"] for event in events if event["kind"] == "service_ended")

        await bench.until(is_an_event, f"an event says {why}")


async def _has_version(service: Running, node: str, version: int) -> bool:
    return bool((await service.said(node)).get("version") == version)


async def test_service_query_on_any_node_includes_every_acknowledged_deposit(run: Any) -> None:
    """Over the death of the leader's node, too: an answer may come late, never from a state that lacks something."""
    service: Running = await run("bank")
    bench, acked, nodes, asked = service.bench, 0, set(), 0
    opened = await bench.client.publish(service.stream, b'{"id": "o", "do": "open", "account": "a"}')
    assert opened is not None
    answer = await bench.client.services.query("bank", b'{"account": "a"}', at_least=opened.offset + 1, timeout_s=30)
    assert (json.loads(answer.value)["balance"], answer.position) == (0, opened.offset + 1)
    with pytest.raises(QueryFailedError, match="there is no account nobody"):
        await bench.client.services.query("bank", b'{"account": "nobody"}', timeout_s=30)
    command = ("service", "query", "bank", '{"account": "a"}', "--show-offset", "--nats", bench.cluster.nats_url)
    asking = [sys.executable, "-c", "from sidecar.cli.main import main; main()", *command]
    asked_once = await asyncio.to_thread(fork_server.run, asking, timeout=60)
    said, position = asked_once.stdout, asked_once.stderr
    assert (asked_once.returncode, json.loads(said)["balance"]) == (0, 0), position
    assert position.startswith(b"position 1 on n")
    going = True

    async def deposit() -> None:
        nonlocal acked
        while going:
            order = b'{"id": "d%d", "do": "deposit", "account": "a", "amount": 1}' % acked
            reply = await bench.client.services.call("bank", service.stream, order, timeout_s=60)
            acked += 1
            assert json.loads(reply.value) == {"id": f"d{acked - 1}", "ok": True, "balance": acked}, "each has one effect"

    async def query() -> None:
        nonlocal asked
        while going:
            before = acked
            answer = await bench.client.services.query("bank", b'{"account": "a"}', timeout_s=30)
            assert json.loads(answer.value)["balance"] >= before, answer
            nodes.add(answer.node)
            asked += 1

    async def so_many(count: int) -> bool:
        return asked >= count

    async def everybody() -> bool:
        return nodes == set(NODES)

    depositing = asyncio.create_task(deposit())
    tasks = [asyncio.create_task(query()) for _ in range(3)]
    await bench.until(lambda: so_many(30), "queries are answered")
    await bench.until(everybody, "one group, and every node's service is in it")
    victim, before = await service.leads(), asked
    bench.cluster.nodes[victim].kill()
    await bench.until(lambda: so_many(before + 30), "queries are answered after the leader's death")
    going = False
    await asyncio.gather(*tasks, depositing)
    bench.cluster.nodes[victim].start()
    await asyncio.to_thread(bench.cluster.nodes[victim].wait_ready)
    service.sent = (await bench.client.bounds(service.stream)).end_offset
    await service.check()


async def test_candidate_whose_service_process_is_paused_is_replaced_by_the_next_candidate(run: Any) -> None:
    service: Running = await run("bank")
    bench = service.bench
    await service.publish(100)
    await bench.until(service.caught_up, "caught up")
    first = await service.leads()
    mute, other = [node for node in NODES if node != first]
    service.send(mute, signal.SIGSTOP)
    await service.elect(mute)

    async def waits() -> bool:
        replica = await bench.replica(mute, service.stream)
        return replica["phase"] == "LEADER_REPLAY" and replica["services"][0]["promotion_waits"]

    await bench.until(waits, f"{mute} waits for its service")
    leader = await bench.until(service.leads, "the next candidate leads")
    assert leader in (first, other)
    await service.publish(75)  # a service that stands still blocks nobody

    async def excused_or_forgotten() -> bool:
        said = await service.said(mute)
        return not said or (said["excused"], said["lag"]) == (True, 75)

    await bench.until(excused_or_forgotten, "its lag is shown")
    service.send(mute, signal.SIGCONT)
    await service.check()
    await service.elect(mute)
    await bench.until(lambda: answers(service.leads, mute), f"{mute} leads once its service answers")
    await service.check()


async def test_service_leader_paused_together_with_its_node_writes_no_output_twice(run: Any) -> None:
    service: Running = await run("echo")
    bench = service.bench
    total = 800 * TIMES
    await service.publish(800)
    first = await service.leads()
    await bench.until(lambda: _beyond(service, 300), "outputs flow")
    service.send(first, signal.SIGSTOP)
    written = (await bench.client.bounds(service.outputs)).end_offset
    assert written < total, "nothing was on its way"
    bench.cluster.nodes[first].send(signal.SIGSTOP)
    second = await bench.until(lambda: _another(service, first), "another service leads")
    assert second != first
    await bench.until(lambda: _beyond(service, min(written + 600, total) - 1), "its outputs flow")
    service.send(first, signal.SIGCONT)  # believes to be LEADER, with a window of outputs in its buffers
    bench.cluster.nodes[first].send(signal.SIGCONT)
    await service.check()


async def _another(service: Running, first: str) -> str:
    leader = await service.leads()
    return leader if leader != first else ""


async def _beyond(service: Running, count: int) -> bool:
    return (await service.bench.client.bounds(service.outputs)).end_offset > count


async def test_service_process_runs_one_instance_per_partition(run: Any) -> None:
    service: Running = await run("ratelimiter", partitions=2, more=("--partition", "all"))
    bench = service.bench
    for partition in (0, 1):
        for n in range(5 + partition):
            await bench.client.publish(service.stream, b"r", key=b"%d" % n, partition=partition)

    async def written() -> bool:
        return [(await bench.client.bounds(service.outputs, partition)).end_offset for partition in (0, 1)] == [5, 6]

    await bench.until(written, "the outputs of each partition are in that of the same number")

    async def known(partition: int, node: str) -> bool:
        (said,) = (await bench.replica(node, service.stream, partition))["services"]
        return bool((said["position"], said["output_count"]) == (5 + partition, 5 + partition))

    for node in NODES:
        for partition in (0, 1):
            await bench.until(lambda n=node, p=partition: known(p, n), f"{node} has an instance over {partition}")
    first = service.processes["n1"]
    service.start("n1")  # a second one, by mistake
    assert await asyncio.to_thread(service.processes["n1"].wait, 60) == EXIT_IN_USE
    assert first.poll() is None
    first.terminate()
    assert await asyncio.to_thread(first.wait, 60) == 0
    stored = {(path.parent.name, int(path.stem)) for path in service.data.glob("n1/*/*/*/*.snapshot")}
    assert {("0", 5), ("1", 6)} <= stored


async def test_service_effect_of_a_killed_process_runs_on_another_node_and_writes_one_result(run: Any, tmp_path: Path) -> None:
    """And a timer fires meanwhile, on a stream where nothing arrives."""
    service: Running = await run("till", more=("--set", f"folder={tmp_path}", "--tick-interval", "0.1"))
    bench, hold, begun = service.bench, tmp_path / "hold", tmp_path / "begun"
    hold.touch()
    await bench.client.publish(service.stream, b"7 cents")
    await bench.until(lambda: _beyond(service, 0), "the timer fires by ticks")
    before = begun.read_text().split()
    (first,) = [node for node in NODES if str(service.processes[node].pid) == before[-1]]
    service.kill(first)

    async def begins_again() -> bool:
        return len(begun.read_text().split()) > len(before)

    await bench.until(begins_again, "another process begins it")
    hold.unlink()
    await bench.until(lambda: _beyond(service, 1), "it has its result")
    service.start(first)
    await bench.until(service.went_on, "all go on")
    await bench.until(service.emitted, "all have the same outputs, and they are written")
    tries = begun.read_text().split()
    assert len(set(tries[::2])) == 1, "under one id"
    late, charged = [record.value async for record in bench.client.consume(service.outputs, until="end")]
    assert late == b"7 cents: late"
    assert charged in {b"7 cents: charged by " + process.encode() for process in tries[len(before) + 1 :: 2]}
