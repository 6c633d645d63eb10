"""Runs a node as a process until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from liftpy.nats.cancellation import end_tasks
from sidecar.node.node import HARD_STOP_S, Node
from sidecar.runtime.gc_tuning import look_seldom
from sidecar.runtime.memory import retain_freed_memory
from sidecar.runtime.restarts import leave_the_process_in, momentary
from sidecar.runtime.settings import GivenSettings, NodeSettings
from sidecar.runtime.tasks import attended, spawn


async def run_node(
    settings: NodeSettings, say_ready: Callable[[dict[str, Any]], None], again: GivenSettings | None = None
) -> int:
    """Run one node until SIGTERM (transfer first) or SIGINT (at once).

    ``again``: reads the settings again for SIGHUP. Return the exit code. A failed start raises, except after a temporary disk
    error.
    """
    retain_freed_memory()
    look_seldom()
    node = Node(settings, again=again)
    loop = asyncio.get_running_loop()

    def stop(hand_over: bool) -> None:
        leave_the_process_in(HARD_STOP_S)
        node.request_stop(hand_over=hand_over)

    loop.add_signal_handler(signal.SIGTERM, stop, True)
    loop.add_signal_handler(signal.SIGINT, stop, False)
    loop.add_signal_handler(
        signal.SIGHUP, lambda: spawn(node.reloading.signalled(node.supervisor), "reading the settings again")
    )
    starting = attended(node.start())
    stopping = attended(node.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            if momentary(failure := starting.exception()):
                assert isinstance(failure, Exception)
                node.fatal(failure)
            else:
                say_ready(starting.result())
            await stopping
    finally:
        await end_tasks([starting, stopping])
        code = await node.stop()
    return code
