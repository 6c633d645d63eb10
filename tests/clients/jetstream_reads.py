"""``python -m tests.clients.jetstream_reads``: nats.js, nats.go with orbit, and the ``nats`` command read a stream through JetStream's
API, of real JetStream and of a cluster of ours; what they print is the same."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import nats

from liftpy.client import connect
from sidecar.bench.systems import JetStream
from sidecar.dev.cluster import DevCluster
from tests.clients.build import PROGRAMS, READS, MissingError, Program

STREAM, DOMAIN = "orders", "liftpy"
_LIMIT_S = 120.0
_COMMANDS = (
    ("stream", "ls", "--names"),
    ("stream", "get", STREAM, "2", "--json"),
    ("stream", "get", STREAM, "-S", f"{STREAM}.a", "--json"),
)
_INFO = ("stream", "info", STREAM, "--json")


async def fill(url: str, domain: str | None) -> None:
    """Six messages, and wait until the API gives the last one."""
    nc: Any = await nats.connect(url)
    js = nc.jetstream() if domain is None else nc.jetstream(domain=domain)
    for number in range(6):
        headers = {"A": "b"} if number == 1 else None
        await nc.request(f"{STREAM}.{'ab'[number % 2]}", b"v%d" % number, timeout=20, headers=headers)
    async with asyncio.timeout(_LIMIT_S):
        while True:
            try:
                await js.get_msg(STREAM, 6)
                break
            except Exception:
                await asyncio.sleep(0.1)
    await nc.close()


async def said(command: list[str], folder: Path) -> str:
    """The standard output."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(_LIMIT_S):
        out, err = await process.communicate()
    assert process.returncode == 0, f"{command}: {err.decode()[-500:]}"
    return out.decode()


async def by_program(program: Program, url: str, domain: str | None) -> dict[str, Any]:
    """Name of a question -> what it shows."""
    command, folder = await asyncio.to_thread(program.ready)
    lines = (await said([*command, url, STREAM, *([domain] if domain else [])], folder)).splitlines()
    return dict(json.loads(line) for line in lines)


async def by_command(url: str, domain: str | None) -> dict[str, Any]:
    """The same of the ``nats`` command."""
    _, folder = await asyncio.to_thread(PROGRAMS["nats-cli"].ready)
    start = [str(folder / "nats"), "-s", url, *(["--js-domain", domain] if domain else [])]
    shown: dict[str, Any] = {}
    for words in _COMMANDS:
        text = await said([*start, *words], folder)
        shown[" ".join(words)] = _message(json.loads(text)) if text.startswith("{") else text.split()
    state = json.loads(await said([*start, *_INFO], folder))["state"]
    shown["stream info"] = [state[name] for name in ("messages", "first_seq", "last_seq")]
    return shown


def _message(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found.get(name) for name in ("subject", "seq", "data", "hdrs")}


async def shown_by_all(url: str, domain: str | None) -> dict[str, dict[str, Any]]:
    """Client -> what it shows; those that can't be built say so on the standard error."""
    found: dict[str, dict[str, Any]] = {}
    for program in READS:
        try:
            found[program.name] = await by_program(program, url, domain)
        except MissingError as missing:
            print(f"{program.name}: left out: {missing}", file=sys.stderr)
    try:
        found["nats-cli"] = await by_command(url, domain)
    except MissingError as missing:
        print(f"nats-cli: left out: {missing}", file=sys.stderr)
    return found


async def ours(dev: DevCluster) -> dict[str, dict[str, Any]]:
    """Of a cluster whose nodes answer the API."""
    async with connect(dev.nats_url) as client:
        await client.create_stream(STREAM, f"{STREAM}.*")
    await fill(dev.nats_url, DOMAIN)
    return await shown_by_all(dev.nats_url, DOMAIN)


async def theirs() -> dict[str, dict[str, Any]]:
    """Of three servers with JetStream."""
    with JetStream(sync_always=False) as cluster:
        url = f"nats://127.0.0.1:{cluster.port}"
        nc = await nats.connect(url)
        async with asyncio.timeout(_LIMIT_S):
            while True:  # its servers elect a leader first
                try:
                    await nc.jetstream().add_stream(name=STREAM, subjects=[f"{STREAM}.*"], num_replicas=3, allow_direct=True)
                    break
                except (nats.errors.Error, nats.js.errors.Error):
                    await asyncio.sleep(0.2)
        await nc.close()
        await fill(url, None)
        return await shown_by_all(url, None)


def main() -> None:
    """Both, side by side; exit code 1 where they differ."""
    with DevCluster(3, settings={"LIFTPY_JETSTREAM_API": DOMAIN}) as dev:
        mine = asyncio.run(ours(dev))
    other = asyncio.run(theirs())
    differ = 0
    for client, questions in mine.items():
        for question, value in questions.items():
            same = other[client].get(question) == value
            differ += not same
            print(f"{'same' if same else 'DIFFERENT'}  {client}: {question}: {json.dumps(value)[:200]}")
            if not same:
                print(f"      JetStream: {json.dumps(other[client].get(question))[:200]}")
    sys.exit(1 if differ or not mine else 0)


if __name__ == "__main__":
    main()
