"""List the files that this process has open below a folder.

A count of all descriptors of the process changes when the garbage collector closes a socket of an earlier test.
"""

from __future__ import annotations

import os
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Return the path of each open file below ``folder``, once for each descriptor."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        found += [path] if path.startswith(f"{folder}/") else []
    return sorted(found)
