"""``python -m tests.bench.raft [--short] [--json]``: operations a second of the metadata group, beside the library's own TCP.

Per size of the group: our driver (NATS, the journal flushed on every member before anything is shown) and PySyncObj as
shipped (TCP, in memory, never flushed), one after the other in one run; operations of 100 bytes submitted at the leader.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sidecar.dev.nats_server import NatsServer, free_ports


class Group:
    """The processes of one group; ``leader`` is the one that leads."""

    def __init__(self, kind: str, members: list[str], folder: Path, url: str) -> None:
        command = [sys.executable, "-m", "tests.bench.raft.member_process", kind]
        self._processes = [
            subprocess.Popen(
                [*command, member, ",".join(members), str(folder / member), url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for member in members
        ]
        states = [self._answer(process) for process in self._processes]
        self.leader = next((p for p, s in zip(self._processes, states, strict=True) if s["leader"]), self._processes[0])

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("a member of the benchmarked group ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def measure(self, window: int, operations: int) -> dict[str, Any]:
        """Figures of one run at the leader."""
        assert self.leader.stdin is not None
        self.leader.stdin.write(json.dumps({"window": window, "operations": operations}) + "\n")
        self.leader.stdin.flush()
        return self._answer(self.leader)

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()


def rows(sizes: tuple[int, ...], scale: float) -> list[dict[str, Any]]:
    """All figures; ``scale`` shortens the runs."""
    found = []
    runs = ((1, int(400 * scale)), (64, int(6000 * scale)), (1000, int(20_000 * scale)))
    with tempfile.TemporaryDirectory() as folder, NatsServer() as server:
        for size in sizes:
            for kind in ("ours", "library"):
                ports = free_ports(size)
                members = [f"m{i}" if kind == "ours" else f"127.0.0.1:{ports[i]}" for i in range(size)]
                group = Group(kind, members, Path(folder) / f"{kind}{size}", server.url)
                group.measure(64, int(500 * scale))
                for window, operations in runs:
                    if kind == "library" and window == 1:
                        operations = min(operations, 200)
                    found.append({"kind": kind, "members": size, "window": window, **group.measure(window, operations)})
                group.stop()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="one group of three, few operations")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = rows((3,) if given.short else (1, 3, 5), 0.1 if given.short else 1.0)
    if given.json:
        print(json.dumps(found))
        return
    peers = {(r["members"], r["window"]): r["operations_per_s"] for r in found if r["kind"] == "library"}
    for row in found:
        ratio = row["operations_per_s"] / peers[(row["members"], row["window"])]
        print(
            f"{row['kind']:<8} {row['members']} members  window {row['window']:>4}  {row['operations_per_s']:>8.0f} op/s  "
            f"p50 {row['p50_ms']:7.2f} ms  p99 {row['p99_ms']:7.2f} ms  {ratio:6.2f} x the library"
        )


if __name__ == "__main__":
    main()
