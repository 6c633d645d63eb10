"""How a client's program is asked, whatever language it is written in: lines of JSON, one answer for each command.

``PROGRAM URL`` connects with its client's defaults and reads commands from its standard input:

``publish`` (``subject``, ``value``, ``headers``, and what ``OPTIONS`` names): one message, with its ack. The answer is
``stream, seq, duplicate``, or ``code, err_code, description``, or ``failed``.
``many`` (``subject``, ``count``): the values 0, 1, ... all in flight at once; ``seqs``, in the order of the values, and ``failed``.
``steady`` (``subject``, ``value``, ``rate``, ``msg_ids``, ``how``): the values 0, 1, ... so many a second; {}. ``how`` of ``HOW``:
"together", none waiting for another; "one by one", each after the ack of the one before; "async", with the client's own call for
that, where it has one beside its ordinary publish.
``stop``: ends that; ``sent``, ``acked`` ([number, seq] each), ``failed`` ([number, text] each).
``atomic``, ``fast`` (``subject``): a batch of two messages, where the client has such a thing; answered as ``publish``.

An option is given the way the client offers it, not as a header, where it offers one. With ``msg_ids`` number N has the message id
``value`` + N. ``failed`` is text: a time-out, nobody there, an answer that the client could not read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

Asked = dict[str, Any]
Answer = dict[str, Any]
OPTIONS = {
    "msg_id": "Nats-Msg-Id",
    "expect_stream": "Nats-Expected-Stream",
    "expect_last": "Nats-Expected-Last-Sequence",
    "expect_last_of_subject": "Nats-Expected-Last-Subject-Sequence",
    "expect_last_msg_id": "Nats-Expected-Last-Msg-Id",
}
"""Field of ``publish`` -> the header that it becomes."""
HOW = ("together", "one by one", "async")
_LONGEST_LINE_BYTES = 64 * 1024 * 1024
_ANSWER_S = 60.0


class ClientInPython(Protocol):
    """What a program in Python brings."""

    async def publish(self, asked: Asked) -> Answer:
        """One, with its ack."""

    async def many(self, asked: Asked) -> Answer:
        """All in flight at once."""

    async def close(self) -> None:
        """End the connection."""


class Steady:
    """Publishes at a rate, none waiting for another."""

    def __init__(self, client: ClientInPython, asked: Asked) -> None:
        own_async = getattr(client, "publish_async", None) if asked["how"] == "async" else None
        self._publish: Callable[[Asked], Awaitable[Answer]] = own_async or client.publish
        self._asked = asked
        self._found: Answer = {"sent": 0, "acked": [], "failed": []}
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        began, waiting = loop.time(), set()
        try:
            while True:
                due = int((loop.time() - began) * self._asked["rate"])
                if self._asked["how"] == "one by one":
                    due = min(due, self._found["sent"] + (not waiting))
                for number in range(self._found["sent"], due):
                    waiting.add(task := asyncio.create_task(self._one(number)))
                    task.add_done_callback(waiting.discard)
                self._found["sent"] = max(due, self._found["sent"])
                await asyncio.sleep(0.005)
        finally:
            while waiting:
                await asyncio.wait(set(waiting))

    async def _one(self, number: int) -> None:
        one: Asked = {"subject": self._asked["subject"], "value": str(number)}
        if self._asked.get("msg_ids"):
            one["msg_id"] = f"{self._asked['value']}{number}"
        said = await self._publish(one)
        if "seq" in said:
            self._found["acked"].append([number, said["seq"]])
        else:
            self._found["failed"].append([number, json.dumps(said)])

    async def stop(self) -> Answer:
        """Wait for all answers."""
        self._task.cancel()
        await asyncio.wait([self._task])
        return self._found


async def serve(connect: Callable[[str], Awaitable[ClientInPython]]) -> None:
    """A whole program in Python: answer the commands of the standard input, until that ends."""
    client = await connect(sys.argv[1])
    steady: Steady | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        if asked["op"] == "steady":
            steady, said = Steady(client, asked), {}
        elif asked["op"] == "stop":
            assert steady is not None
            said = await steady.stop()
        else:
            said = await getattr(client, asked["op"])(asked)
        print(json.dumps(said), flush=True)
    await client.close()


class Process:
    """A program that runs. Use as ``async with``; ``ask`` one thing at a time."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Process:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=self._folder, stdin=pipe, stdout=pipe, limit=_LONGEST_LINE_BYTES
        )
        return self

    async def ask(self, op: str, **fields: Any) -> Answer:
        """Its answer to one command; raise RuntimeError when it has ended, TimeoutError after a minute."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        async with asyncio.timeout(_ANSWER_S):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._command[0]} has ended at {op}")
        return json.loads(line)  # type: ignore[no-any-return]

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
