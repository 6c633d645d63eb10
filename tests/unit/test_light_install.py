"""The light installation (``pip install liftpy``): a client without the packages of the extra ``node``."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

_HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""

_CLIENT = """
import asyncio
from liftpy.testing.memory import memory_cluster

async def main():
    with memory_cluster() as cluster:
        async with cluster.client() as client:
            await use(client)

async def use(client):
    await client.create_stream("orders", "shop.orders")
    for value in (b"one", b"two"):
        await client.publish("orders", value)
    print(*[record.value.decode() async for record in client.consume("orders", until="end")])
    batch = await anext(aiter(client.consume("orders", until="end").batches()))
    try:
        batch.to_arrow()
    except Exception as error:
        print(type(error).__name__, error)

asyncio.run(main())
"""


def without_node_packages(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that does not find the packages of the extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [package for extra in ("arrow", "node", "spark") for package in extras[extra]]
    names = {re.split(r"[\[=<>]", package)[0].replace("-", "_") for package in wanted} - {"liftpy"}
    assert {"click", "pyarrow", "pysyncobj", "pyspark"} <= names
    words = [sys.executable, "-c", _HIDDEN.format(hidden=names) + program]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_client_without_node_packages_publishes_and_reads_and_names_the_extra_for_arrow() -> None:
    done = without_node_packages(_CLIENT)
    assert done.returncode == 0, done.stderr
    values, error = done.stdout.splitlines()
    assert values == "one two"
    assert error.startswith("ConfigError")
    assert "pip install 'liftpy[arrow]'" in error


def test_liftpy_command_without_node_packages_names_the_extra_and_exits_with_1() -> None:
    done = without_node_packages("from sidecar.__main__ import liftpy; liftpy(['--help'])")
    assert done.returncode == 1
    assert "click" in done.stderr
    assert "pip install 'liftpy[node]'" in done.stderr


def test_liftpy_script_of_the_package_runs_the_command_line() -> None:
    program = "from importlib.metadata import entry_points; (one,) = entry_points(group='console_scripts', name='liftpy')"
    words = [sys.executable, "-c", f"{program}; one.load()(['--version'])"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("liftpy ")
