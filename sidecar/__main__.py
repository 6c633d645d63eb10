"""Runs ``liftpy sidecar`` with ``python -m sidecar``."""

from __future__ import annotations

import sys

from sidecar.cli.main import main

if __name__ == "__main__":
    main(["sidecar", *sys.argv[1:]])
