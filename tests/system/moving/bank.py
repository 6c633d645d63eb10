"""A replicated service whose partition moves: a bank beside every node, and somebody who deposits one cent after the other.

Each deposit is answered with the balance: 1, 2, 3, and so on. One that was carried out twice, or forgotten, shows at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from liftpy.client import Client
from liftpy.client.placement_plans import PlacementOptions
from liftpy.errors import OutcomeUnknownError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from tests.examples.processes import start_service

COMMANDS, RECEIPTS = "bank", "receipts"
_CODE = "tests.examples.bank:Bank"
_CHECK_EVERY_S = 0.5
_PAUSE_S = 0.05
_ANSWER_S = 10.0


class Banks:
    """``open`` it, ``start`` it beside more nodes; ``check`` it at the end, and ``close``."""

    def __init__(self, client: Client, nats_url: str) -> None:
        self._client = client
        self._nats_url = nats_url
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-moving-"))
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ends = False
        self.answered = 0
        """Deposits; the account holds so many cents."""
        self.longest_s = 0.0
        """That a deposit waited for its answer."""
        self.restarts = 0
        self.wrong: list[str] = []

    async def open(self, nodes: Sequence[str]) -> None:
        """The streams, a service beside each of ``nodes``, and an account."""
        place = PlacementOptions(policy="manual", assignment=((0, tuple(nodes)),))
        for stream in (COMMANDS, RECEIPTS):
            await self._client.create_stream(stream, stream, placement=place)
        self.start(nodes)
        await self._call({"id": "open", "do": "open", "account": "a"})
        self._tasks = [asyncio.create_task(self._deposit()), asyncio.create_task(self._supervise())]

    def start(self, nodes: Sequence[str]) -> None:
        """A service beside each of ``nodes``."""
        for node in nodes:
            self._processes[node] = start_service(
                _CODE,
                stream=COMMANDS,
                node=node,
                data=self._folder,
                output=RECEIPTS,
                snapshot_interval_records=50,
                nats_url=self._nats_url,
            )

    async def answered_more(self, count: int, timeout_s: float) -> None:
        """Wait for so many answers more."""
        wanted = self.answered + count
        async with asyncio.timeout(timeout_s):
            while self.answered < wanted and not self._tasks[0].done():
                await asyncio.sleep(_PAUSE_S)

    async def check(self, timeout_s: float) -> None:
        """No more deposits; the account has every one of them, on whichever node."""
        self._ends = True
        async with asyncio.timeout(timeout_s):
            await self._tasks[0]
            answer = await self._client.services.query("bank", b'{"account": "a"}', timeout_s=timeout_s)
        balance = json.loads(answer.value)["balance"]
        if balance != self.answered:
            self.wrong.append(f"{self.answered} deposits were answered, and the balance is {balance}")

    async def close(self) -> None:
        """Stop all of it."""
        await end_tasks(self._tasks)
        for process in self._processes.values():
            process.kill()
            process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _deposit(self) -> None:
        while not self._ends:
            said = await self._call({"id": f"d{self.answered}", "do": "deposit", "account": "a", "amount": 1})
            self.answered += 1
            if said.get("balance") != self.answered:
                self.wrong.append(f"deposit {self.answered} was answered {said}")
                return
            await asyncio.sleep(_PAUSE_S)

    async def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        """Its answer, however often it has to be sent: under one message id."""
        message_id, began = secrets.token_hex(16), asyncio.get_running_loop().time()
        while True:
            with contextlib.suppress(OutcomeUnknownError, UnavailableError):
                answer = await self._client.services.call(
                    "bank", COMMANDS, json.dumps(command).encode(), message_id=message_id, timeout_s=_ANSWER_S
                )
                self.longest_s = max(self.longest_s, asyncio.get_running_loop().time() - began)
                return dict(json.loads(answer.value))
            await asyncio.sleep(_PAUSE_S)

    async def _supervise(self) -> None:
        """As systemd does: who ends is started again."""
        while True:
            for node, process in list(self._processes.items()):
                if process.poll() is not None:
                    self.restarts += 1
                    self.start((node,))
            await asyncio.sleep(_CHECK_EVERY_S)
