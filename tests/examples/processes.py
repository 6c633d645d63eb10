"""Starting a replicated service as its users do: one ``liftpy service`` process beside a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sidecar.dev.nats_server import spawn

ROOT = Path(__file__).parents[2]


def start_service(
    module_and_class: str,
    *,
    stream: str,
    node: str,
    data: Path,
    output: str,
    snapshot_interval_records: int,
    nats_url: str,
    more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[Any]:
    """The process; it dies with this one. Its log goes to ``data``/``node``.log, its snapshots below ``data``/``node``.

    ``more``: flags beside these. ``environment``: beside this process's own.
    """
    flags = {
        "--stream": stream,
        "--node": node,
        "--data": str(data / node),
        "--output-stream": output,
        "--snapshot-interval-records": str(snapshot_interval_records),
        "--nats": nats_url,
    }
    command = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "service", module_and_class]
    for name, value in flags.items():
        command += [name, value]
    command += more
    with (data / f"{node}.log").open("ab") as log:
        return spawn(command, signal.SIGKILL, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **(environment or {})})


def snapshot_path(data: Path, node: str, service: str, stream: str, uid: str, position: int) -> Path:
    """Where the service of that name beside ``node`` keeps its snapshot at ``position`` of partition 0."""
    return data / node / service / f"{stream}-{uid}" / "0" / f"{position:020d}.snapshot"
