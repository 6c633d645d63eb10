"""The CPU of trees of processes: what a query costs is spread over a JVM, its Python workers, nodes, brokers and nats-servers."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int, without: Collection[int] = ()) -> float:
    """User and system time of ``root`` and all below it, those included that have ended and were waited for; without the trees of
    ``without``."""
    children: dict[int, list[int]] = {}
    times: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
            times[int(folder.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        if pid in without:
            continue
        total += times.get(pid, 0)
        waiting += children.get(pid, [])
    return total / _TICKS


def trees_cpu_s(roots: Collection[int]) -> float:
    """Of several trees."""
    return sum(tree_cpu_s(root) for root in roots)
