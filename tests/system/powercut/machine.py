"""One data folder with the shim below whatever runs on it: small programs, and power cuts between them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.system.powercut.cut import PowerCut

_CHECKOUT = Path(__file__).resolve().parents[3]
_PRELUDE = """
import os, time
APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT
def opened(name, flags=APPEND):
    return os.open(name, flags, 0o640)
def sync_folder(name="."):
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)
def failure_of(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return -error.errno
def made(name, data, durable=True):
    file = opened(name)
    os.write(file, data)
    if durable:
        os.fdatasync(file)
        sync_folder()
    return file
"""


class Machine:
    """A data folder with the shim below whatever runs on it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.power = PowerCut(self.data, folder / "shadow")

    def run(self, program: str) -> str:
        """Run ``program`` in the data folder, in a process of its own; return what it said."""
        command = [sys.executable, "-c", _PRELUDE + program]
        environment = {**os.environ, **self.power.environment, "PYTHONPATH": str(_CHECKOUT)}
        done = subprocess.run(command, env=environment, cwd=self.data, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def cut(self, chance: random.Random | None = None) -> dict[str, bytes]:
        """What a power cut leaves: path -> bytes."""
        self.power.cut(chance=chance)
        return self.files()

    def files(self) -> dict[str, bytes]:
        """What is visible: path -> bytes."""
        return {str(p.relative_to(self.data)): p.read_bytes() for p in sorted(self.data.rglob("*")) if p.is_file()}
