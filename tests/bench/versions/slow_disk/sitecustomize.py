"""Make each ``fdatasync`` of this process take at least BENCH_FLUSH_MS milliseconds, as on a slow disk.

Python imports this module at its start if this folder is in PYTHONPATH. So it works for a node of any version.
"""

import os
import time

_fdatasync = os.fdatasync
_least_s = float(os.environ["BENCH_FLUSH_MS"]) / 1000


def _flush(descriptor: int) -> None:
    began_s = time.perf_counter()
    _fdatasync(descriptor)
    left_s = _least_s - (time.perf_counter() - began_s)
    if left_s > 0:
        time.sleep(left_s)


os.fdatasync = _flush  # type: ignore[assignment]
