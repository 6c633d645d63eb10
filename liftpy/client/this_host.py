"""Which machine this is, as far as it matters for opening each other's files."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def this_host() -> str:
    """Name and boot of the machine, the same for all its processes until it restarts; '' where the system does not say. Containers of
    one machine may say the same: whether a file can be opened shows when it is."""
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return f"{socket.gethostname()}/{boot}" if boot else ""
