"""Progress of replica moves on the command line: the number of moves, the bytes and the time that are left.

``liftpy partition move``, ``rebalance``, ``node drain`` and ``stream alter --replicas`` wait for moves with ``follow``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from liftpy.client import Client
from liftpy.client.stream_info import StreamInfo
from liftpy.core.metadata.controller.reassignment import Movement, Phase, movements
from liftpy.core.metadata.image import ClusterImage
from liftpy.errors import NotFoundError, UnavailableError
from sidecar.cli.node_reports import NodeReports, ask_nodes
from sidecar.cli.options import timeout_option

POLL_S = 1.0
_MEGABYTE = 1_000_000.0

wait_option = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Show the progress until the move is complete."
)
move_timeout_option = timeout_option(
    "1d", "Maximum time to wait. After that the move continues in the background.", high=30 * 86_400.0
)


class Estimate:
    """Estimates the remaining time of replica moves from their average rate so far."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds(self, now_s: float, remaining_bytes: int) -> float | None:
        """Return the estimated remaining time in seconds, None if unknown."""
        if self._first is None or remaining_bytes > self._first[1]:
            self._first = (now_s, remaining_bytes)  # the move has only begun, or another one was added
        began_s, first_bytes = self._first
        done_bytes = first_bytes - remaining_bytes
        return remaining_bytes * (now_s - began_s) / done_bytes if done_bytes > 0 else None


def remaining_bytes(movement: Movement, reports: NodeReports) -> int:
    """Return the number of bytes that a move still has to copy, from the log sizes that nodes report. 0 if unknown."""

    def held(node_id: str) -> int:
        report = reports.get(node_id, {}).get((movement.uid, movement.partition)) or {}
        return int(report.get("log_bytes", 0))

    whole = max((held(node_id) for node_id in movement.replicas), default=0)
    to_come = [n for n in movement.target if n not in movement.replicas]
    return sum(max(0, whole - held(node_id)) if node_id == movement.into else whole for node_id in to_come)


def movement_json(movement: Movement, reports: NodeReports) -> dict[str, Any]:
    """Return one move of replicas as a JSON object, with the bytes that are still to be copied."""
    return {
        "stream": movement.stream,
        "uid": movement.uid,
        "partition": movement.partition,
        "replicas": list(movement.replicas),
        "target": list(movement.target),
        "phase": movement.phase.value,
        "into": movement.into,
        "out": movement.out,
        "why": movement.why,
        "left_bytes": remaining_bytes(movement, reports),
    }


async def follow(
    client: Client,
    concerns: Callable[[Movement], bool],
    timeout_s: float,
    *,
    quiet: bool,
    is_done: Callable[[ClusterImage], bool] | None = None,
    stays: Callable[[ClusterImage], list[str]] = lambda image: [],
) -> None:
    """Wait until the moves are done, and print each change of their progress.

    ``concerns``: selects the moves. ``is_done``: returns True at the end. Default: none of the moves is left. ``stays``: returns texts
    about replicas that cannot move, which are printed too. ``quiet``: True to print nothing. Raises UnavailableError after
    ``timeout_s`` seconds. The moves then continue.
    """
    give_up_at, last_line, reasons, estimate = time.monotonic() + timeout_s, "", list[str](), Estimate()
    while True:
        image = (await client.admin.describe_cluster()).image
        moves = [movement for movement in movements(image) if concerns(movement)]
        if not moves if is_done is None else is_done(image):
            return
        nodes = {node_id for movement in moves for node_id in (*movement.replicas, movement.into)}
        reports = await ask_nodes(client, sorted(nodes & set(image.nodes)))
        left_bytes = sum(remaining_bytes(movement, reports) for movement in moves)
        line = sentence(moves, left_bytes, estimate.seconds(time.monotonic(), left_bytes))
        if line != last_line and not quiet:
            click.echo(line)
        last_line, before, reasons = line, reasons, stays(image)
        for reason in reasons if not quiet else ():
            if reason not in before:
                click.echo(reason, err=True)
        if time.monotonic() >= give_up_at:
            why = "; ".join((line, *reasons))
            raise UnavailableError(
                f"The move is not complete after {timeout_s:g} s (--timeout): {why}. It continues in the "
                "background: `liftpy status` shows the progress."
            )
        await asyncio.sleep(min(POLL_S, max(0.01, give_up_at - time.monotonic())))


async def same_stream(client: Client, before: StreamInfo) -> StreamInfo:
    """Return the current description of the stream ``before``.

    Raises:
        NotFoundError: The stream was deleted. Another stream may have its name now.
    """
    now = await client.stream(before.name)
    if now.uid != before.uid:
        raise NotFoundError(
            f"Stream {before.name} was deleted and created again while its replicas moved. The move has ended. Check the new "
            f"stream: `liftpy stream show {before.name}`."
        )
    return now


def sentence(moves: Sequence[Movement], left_bytes: int, left_s: float | None) -> str:
    """Return the progress of ``moves`` as text for people.

    ``left_bytes``: bytes still to be copied, as far as nodes have reported the size of logs. ``left_s``: estimated remaining time in
    seconds, None: unknown.
    """
    if not moves:
        return "nothing moves yet: the move waits for nodes that can take the replicas"
    copying = sum(movement.phase is Phase.COPIES for movement in moves)
    size = f"{left_bytes / _MEGABYTE:.1f} MB left"
    time_left = "" if left_s is None else f", about {left_s:.0f} s"
    move = "partition moves" if len(moves) == 1 else "partitions move"
    return f"{len(moves)} {move}, {copying} {'is' if copying == 1 else 'are'} being copied, {size}{time_left}"
