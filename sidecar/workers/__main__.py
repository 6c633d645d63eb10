"""``python -m sidecar.workers CHANNEL LOCK``: one worker process, as a node starts it; the numbers are descriptors that it inherits."""

from __future__ import annotations

import sys

from sidecar.workers.child import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
