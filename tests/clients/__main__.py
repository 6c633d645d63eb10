"""``python -m tests.clients [--client nats.go,...] [--check TEXT] [--jetstream] [--kills N]``: a table, client x check.

Real clients of several languages, each with its defaults, against a cluster of three nodes; with ``--jetstream`` against three real
JetStream servers, to show that the checks are fair. A client whose tools or packages are not here is left out, with the reason.
``--kills``: nothing of that, but each client publishes while the stream's leader is killed so many times (``tests/clients/kills.py``),
with ``--nats-restarts`` NATS, too; with ``--standby`` nobody may be left without an answer. ``--how`` it publishes: ``protocol.py``.
Ends with 1 where a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.clients.answered import Tap
from tests.clients.build import PROGRAMS, MissingError, Program
from tests.clients.checks import CHECKS, NEEDS, Asking
from tests.clients.kills import Blows, under_kills
from tests.clients.plain import plain_under_kills
from tests.clients.protocol import HOW, Process
from tests.clients.targets import Target, jetstream, ours

MANY = 10_000
_ANSWERS = "one answer each"


async def checked(target: Target, program: Program, wanted: str = "", many: int = MANY) -> dict[str, str]:
    """Check -> '' where it holds, else what is wrong. Raises MissingError."""
    command, folder = await asyncio.to_thread(program.ready)
    found = {}
    async with Process([*command, target.url], folder) as process, Tap(target.url, "clients.>") as tap:
        names = [name for name in CHECKS if NEEDS.get(name) not in program.lacks and wanted in name]
        asked = {name: Asking(target, process.ask, program.name.replace(".", "-"), many) for name in names}
        await asyncio.gather(*(target.create(asking.stream, f"{asking.base}.>") for asking in asked.values()))
        for name, asking in asked.items():
            try:
                await CHECKS[name](asking)
                found[name] = ""
            except (AssertionError, TimeoutError) as error:
                found[name] = str(error) or repr(error)
        found[_ANSWERS] = await tap.wrong()
    return found


async def table(target: Target, programs: list[Program], wanted: str) -> bool:
    """Print what was found; whether all of it holds."""
    columns: dict[str, dict[str, str]] = {}
    for program in programs:
        try:
            columns[program.name] = await checked(target, program, wanted)
        except MissingError as missing:
            print(f"{program.name} is left out: {missing}")
    width = max(map(len, [*CHECKS, _ANSWERS])) + 2
    print(" " * width + "".join(f"{name:>12}" for name in columns))
    for name in [*CHECKS, _ANSWERS]:
        cells = [{None: "-", "": "ok"}.get(found.get(name), "FAILS") for found in columns.values()]
        print(f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells))
    for client, found in columns.items():
        for name, wrong in found.items():
            if wrong:
                print(f"{client}, {name}: {wrong[:400]}")
    failed = sum(bool(wrong) for found in columns.values() for wrong in found.values())
    print(f"{sum(map(len, columns.values()))} checks, {failed} fail")
    return not failed


async def main() -> bool:
    """Whether all holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients")
    parser.add_argument("--client", default=",".join(PROGRAMS), help="names, with commas: " + ", ".join(PROGRAMS))
    parser.add_argument("--check", default="", help="only checks whose name has this in it")
    parser.add_argument("--jetstream", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--moves", type=int, default=0, help="as --kills, but the leadership moves by command")
    parser.add_argument("--standby", action="store_true", help="followers listen too, with --kills")
    parser.add_argument("--no-ids", action="store_true", help="without message ids, with --kills")
    parser.add_argument("--rate", type=int, default=200, help="messages a second, with --kills")
    parser.add_argument("--how", default="together", help="with --kills; with commas: " + ", ".join(HOW))
    parser.add_argument(
        "--server-deaths", type=int, default=0, help="of NATS servers, of three in a cluster; with or without --kills"
    )
    parser.add_argument("--plain", action="store_true", help="publishes that nobody answers, with --kills and a standby")
    parser.add_argument("--nats-restarts", action="store_true", help="with each kill")
    given = parser.parse_args()
    unknown = set(given.client.split(",")) - set(PROGRAMS)
    if unknown:
        parser.error(f"no client {', '.join(unknown)}")
    programs = [PROGRAMS[name] for name in given.client.split(",")]
    if unknown := set(given.how.split(",")) - set(HOW):
        parser.error(f"no way {', '.join(unknown)}")
    if given.plain:
        return await plain_under_kills(given.kills, given.rate)
    if given.kills or given.moves or given.server_deaths:
        blows = Blows(
            kills=given.kills,
            moves=given.moves,
            server_deaths=given.server_deaths,
            nats_restarts=given.nats_restarts,
            standby=given.standby,
            msg_ids=not given.no_ids,
            rate=given.rate,
            how=tuple(given.how.split(",")),
        )
        return await under_kills(programs, blows)
    async with jetstream() if given.jetstream else ours() as target:
        return await table(target, [program for program in programs if not program.only_kills], given.check)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
