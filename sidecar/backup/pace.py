"""So many bytes a second, shared by all that copy at once."""

from __future__ import annotations

import asyncio

DEFAULT_BYTES_PER_S = 50 * 1024 * 1024
"""``backup_bytes_per_s``: of what a backup reads from the cluster."""


class BackupPace:
    """``bytes_per_s`` 0: as fast as it goes."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    async def spent(self, size_bytes: int) -> None:
        """Return when what was copied is paid for."""
        if not self._bytes_per_s:
            return
        now_s = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
        await asyncio.sleep(self._free_s - now_s)
