"""A sidecar whose wall clock is off by what a file says: ``python wrong_clock.py FILE [flags of the sidecar]``.

FILE holds 8 bytes, little endian: by how many ns. It is looked at whenever the time is, so the clock can be set while the process runs.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

OFF = struct.Struct("<q")


def set_clock(path: Path, off_s: float) -> None:
    """From now on; the file is made where it is not there."""
    if not path.exists():
        path.write_bytes(OFF.pack(0))
    with path.open("r+b") as file:
        file.write(OFF.pack(round(off_s * 1e9)))


def main() -> None:
    """Run it; the modules of the sidecar find the time in ``time`` as ever."""
    path, *flags = sys.argv[1:]
    with open(path, "r+b") as file:
        held = mmap.mmap(file.fileno(), OFF.size)
    real_ns, real_s = time.time_ns, time.time
    time.time_ns = lambda: real_ns() + OFF.unpack_from(held)[0]
    time.time = lambda: real_s() + OFF.unpack_from(held)[0] / 1e9
    sys.argv = ["sidecar", *flags]
    sys.path.pop(0)  # of this folder
    runpy.run_module("sidecar", run_name="__main__")


if __name__ == "__main__":
    main()
