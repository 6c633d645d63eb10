"""``python -m sidecar.workers CHANNEL LOCK``: starts one worker process. The numbers are inherited file descriptors."""

from __future__ import annotations

import atexit
import gc
import sys

from sidecar.node.worker_node import main

if __name__ == "__main__":
    atexit.register(gc.freeze)  # exit at once, as every command does, because the node waits for the end of this process
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
