"""Test what the standard library gives to a simulated process: nothing of the machine that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_PROGRAM = """
from tests.simulation.world.machine import interposition
interposition.install()
import tests.simulation.world.story
from tests.simulation.world.profiles import PROFILES
from tests.simulation.world.world import World
interposition.adapt()
import asyncio, os, secrets, shutil, socket, sys, time
from liftpy.client import consumer
from liftpy.client.closest_replica import this_host

seen = []

async def tell(world):
    disk = world.nodes[0].disk
    world.driver.disk = disk
    seen.append((time.time_ns(), consumer.datetime.now().isoformat(), os.getpid(), socket.gethostname(), this_host()))
    seen.append((secrets.token_hex(8), shutil.disk_usage(disk.folder).free))
    disk.is_full = True
    seen.append(shutil.disk_usage(disk.folder).free)
    loop = asyncio.get_running_loop()
    tasks = {loop.create_task(asyncio.sleep(0), name=str(number)) for number in range(50)}
    seen.append([task.get_name() for task in tasks])
    await asyncio.gather(*tasks)
    try:
        os.kill(1, 0)
    except ProcessLookupError as error:
        seen.append(error.errno)

world = World(1, PROFILES["one"])
outcome = world.run(tell)
world.clean()
assert outcome.violations == [], outcome.violations
print(*seen, outcome.digest, sep="\\n")
"""


def _run(hash_seed: int, allocator: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONMALLOC": allocator},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_simulated_process_sees_equal_clocks_disks_names_and_orders_in_two_runs() -> None:
    first = _run(1, "pymalloc")
    assert first == _run(2, "malloc")
    clock_ns, host, free = first.splitlines()[0], first.splitlines()[0].split(", ")[3], first.splitlines()[2]
    assert clock_ns.startswith("(1700000000")
    assert (host, free) == ("'driver'", "0")
