"""The bank of ``tests/examples/bank.py`` in operation: commands that are answered, a query, a record that can't be applied, new code
node by node while commands go on, and the death of the leader's node. At the end everything equals a replay of the log."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.services import CommandFailedError
from sidecar.dev.cluster import DevCluster
from tests import fork_server
from tests.examples.bank import FEE
from tests.integration.conftest import Bench, close_bench, open_bench, show
from tests.integration.running_services import NODES, QUICK, Running, running_services

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0
IN, OUT = 10, 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, settings=QUICK, on_line=show) as running:
        yield running


@pytest.fixture
async def service(cluster: DevCluster) -> AsyncIterator[Running]:
    bench = await open_bench(cluster)
    async with running_services(bench, "commands") as begin:
        yield await begin("upgradedbank")
    await close_bench(bench)


class Customer:
    """Sends one command after the other, each under a message id of its own, and keeps what it was answered."""

    def __init__(self, service: Running) -> None:
        self.service = service
        self.bench: Bench = service.bench
        self.replies: dict[str, bytes] = {}
        self.going = True

    async def call(self, do: str, amount: int = 0, message_id: str = "") -> dict[str, Any]:
        """One command about account a; what it was answered."""
        name = message_id or f"c{len(self.replies)}"
        command = json.dumps({"id": name, "do": do, "account": "a", "amount": amount}).encode()
        answer = await self.bench.client.services.call(
            self.service.name, self.service.stream, command, message_id=name, timeout_s=PATIENCE_S
        )
        assert self.replies.setdefault(name, answer.value) == answer.value, "one command has one answer"
        return dict(json.loads(answer.value))

    async def work(self) -> None:
        """Pay in and take out, for ever."""
        while self.going:
            await self.call("deposit", IN)
            await self.call("withdraw", OUT)

    async def goes_on(self) -> None:
        """Return once 20 more commands are answered."""
        wanted = len(self.replies) + 20

        async def answered() -> bool:
            return len(self.replies) >= wanted

        await self.bench.until(answered, "commands are answered", PATIENCE_S)


async def said_by(*words: str) -> bytes:
    """What the command line says."""
    command = (sys.executable, "-c", "from sidecar.cli.main import main; main()", *words)
    done = await asyncio.to_thread(fork_server.run, command, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return bytes(done.stdout)


@pytest.mark.long
async def test_bank_service_applies_each_command_once_despite_a_version_rollout_and_a_killed_leader(service: Running) -> None:
    bench, customer = service.bench, Customer(service)
    page = (Path(__file__).parents[2] / "docs/replicated-services.md").read_text()
    (printed,) = re.findall(r"liftpy (service call bank .*)", page)
    assert (
        await said_by(*shlex.split(printed), "--timeout", "60", "--nats", bench.cluster.nats_url)
        == b'{"balance": 0, "id": "1", "ok": true}\n'
    )
    (printed,) = re.findall(r"answer = (await client\.services\.call\(\"bank\", .*)", page)
    client = SimpleNamespace(services=SimpleNamespace(call=partial(bench.client.services.call, timeout_s=PATIENCE_S)))
    found: dict[str, Any] = {}
    exec(f"async def call(client):\n    return {printed}", found)
    assert json.loads((await found["call"](client)).value) == {"balance": 5, "id": "2", "ok": True}
    assert await customer.call("withdraw", 5) == {"id": "c0", "ok": True, "balance": 0}
    with pytest.raises(CommandFailedError, match="could not apply this record"):
        await customer.call("audit", message_id="audit in version 1")
    working = asyncio.create_task(customer.work())
    await customer.goes_on()
    for node in NODES:
        service.processes[node].terminate()
        assert await asyncio.to_thread(service.processes[node].wait, PATIENCE_S) == 0
        service.start(node, "tests.examples.bank:Bank")

        async def has_new_code(node: str = node) -> bool:
            return bool((await service.said(node)).get("version") == 2)

        await bench.until(has_new_code, f"{node} has the new code", PATIENCE_S)
        await customer.goes_on()

    async def all_changed() -> bool:
        return all([(await service.said(node)).get("active_version") == 2 for node in NODES])

    await bench.until(all_changed, "version 2 is active on all nodes", PATIENCE_S)
    await customer.goes_on()
    led = await bench.until(service.leads, "a service leads", PATIENCE_S)
    bench.cluster.nodes[led].kill()
    await customer.goes_on()
    bench.cluster.nodes[led].start()
    await asyncio.to_thread(bench.cluster.nodes[led].wait_ready)
    await customer.goes_on()
    customer.going = False
    await working
    asked = await bench.client.services.query(service.name, b'{"account": "a"}', timeout_s=PATIENCE_S)
    last = json.loads(list(customer.replies.values())[-1])
    assert json.loads(asked.value) == {"account": "a", "balance": last["balance"], "locked": False}
    assert (await customer.call("audit"))["percent"] == 100
    await bench.until(service.went_on, "all go on", PATIENCE_S)
    await customer.call("withdraw", OUT, message_id="c2")  # again: it has its answer
    await bench.until(service.went_on, "all go on", PATIENCE_S)
    await service.check()

    # Each answer is in the output stream, once; every withdrawal paid the fee from one record on.
    receipts = [record.value or b"" async for record in bench.client.consume(service.outputs, until="end")]
    counts = Counter(receipts)
    assert [name for name, reply in customer.replies.items() if counts[reply] != 1] == []
    balances = [json.loads(reply)["balance"] for reply in customer.replies.values()][:-1]
    assert {after - before for before, after in zip(balances[::2], balances[1::2], strict=False)} == {IN}
    taken = [before - after for before, after in zip(balances[1::2], balances[2::2], strict=False)]
    assert taken == sorted(taken)
    assert set(taken) == {OUT, OUT + FEE}
    log = [record async for record in bench.client.consume(service.stream, until="end")]
    dead = [record async for record in bench.client.consume(service.dead_letters, until="end")]
    sources = {int(dict(record.headers)["Lift-Dead-Letter-Source"].rsplit(b"/", 1)[1]) for record in dead}
    assert sources == {record.offset for record in log if b'"audit in version 1"' in (record.value or b"")} != set()
