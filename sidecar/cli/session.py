"""Session of a command with the cluster: an event loop, a client, and cancellation by a signal."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import click
import uvloop

from liftpy.client import Client, connect
from liftpy.errors import LiftError, NoMajorityError, NotAllowedError
from sidecar.cli.output import OutputStalledError
from sidecar.runtime.settings import Target
from sidecar.runtime.tasks import start_attended

T = TypeVar("T")


MAJORITY_CHECK_DELAY_S = 0.25
"""Time after which a running command asks whether the controllers have a majority, in seconds."""


def with_client(
    target: Target, work: Callable[[Client], Awaitable[T]], *, needs_majority: bool = True, permissions: str = ""
) -> T:
    """Run ``work`` with a Client of the cluster that ``target`` names.

    Args:
        target: The cluster.
        work: The command.
        needs_majority: Whether the command is ended when it turns out that the controllers have no majority. False for commands that
            show or do something without one.
        permissions: Options of ``liftpy permissions`` that print what the command needs, for the error. '': one role is enough.

    Raises:
        NotAllowedError: The user lacks a permission.
        NoMajorityError: Too few controllers answer, some three seconds after the command began.
        UnavailableError: NATS or the cluster does not answer.
    """

    async def session() -> T:
        client = await connect(target.nats, target.namespace, credentials=target.credentials, name="liftpy-cli")
        if target.internal:
            client.admin.allow_internal()
        async with client:
            return await (_with_majority(client, work(client)) if needs_majority else work(client))

    try:
        return run_cancellable(session())
    except NotAllowedError as error:
        if permissions:
            error.args = (f"{error} This command needs those of `liftpy permissions {permissions}`.", *error.args[1:])
        raise


async def _with_majority(client: Client, work: Awaitable[T]) -> T:
    """Await ``work`` and return its result. If the controllers have no majority, cancel ``work`` and raise NoMajorityError.

    If ``work`` fails, the controllers are also asked, because the missing majority may be the cause.
    """
    task = asyncio.current_task()
    assert task is not None
    lost: list[NoMajorityError] = []

    async def watch() -> None:
        await asyncio.sleep(MAJORITY_CHECK_DELAY_S)
        try:
            await client.admin.watch_majority()
        except NoMajorityError as error:
            lost.append(error)
            task.cancel()

    watching = start_attended(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if lost and not task.uncancel():
            raise lost[0] from None
        raise
    except NoMajorityError:
        raise
    except (LiftError, click.ClickException):
        watching.cancel()
        if lost and not task.uncancel():
            raise lost[0] from None
        await client.admin.check_majority()
        raise
    finally:
        watching.cancel()


THREADS_S = 10.0
"""Maximum time to wait for the threads of a canceled command, in seconds. A file or store that does not answer blocks a thread."""


_exit_codes = [130]
"""Exit codes of a canceled command. The last one counts: that of Ctrl-C, or that of the signal of ``cancel_running``."""


def _leave() -> None:
    """End the process, because a thread of the canceled command does not end."""
    click.echo("A file or store does not answer. The command ends without waiting for it.", err=True)
    os._exit(_exit_codes[-1])


_running: list[asyncio.Task[Any]] = []
"""Tasks of the running ``run_cancellable`` calls, the innermost last."""
_cancelled: set[asyncio.Task[Any]] = set()
"""Tasks that a signal has cancelled, or will cancel when their event loop runs."""


def run_cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` in its own event loop. Ctrl-C and ``cancel_running`` cancel it once.

    Raises what it raises, and KeyboardInterrupt when it was cancelled.
    """
    was_cancelled = False
    leaving: threading.Timer | None = None

    async def run() -> T:
        nonlocal was_cancelled
        task = asyncio.current_task()
        assert task is not None
        _running.append(task)
        try:
            return await work
        finally:
            _running.remove(task)
            if task.cancelling():
                was_cancelled = True
                _cancelled.add(task)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                return runner.run(run())
            finally:
                if was_cancelled:  # the end of the runner waits for its threads
                    leaving = threading.Timer(THREADS_S, _leave)
                    leaving.daemon = True
                    leaving.start()
    except KeyboardInterrupt:  # a second Ctrl-C. The end of Python waits for the threads, too
        leaving = None
        raise
    except OutputStalledError:  # a signal has cancelled the task, but a write has blocked its event loop
        raise KeyboardInterrupt from None
    except asyncio.CancelledError:
        if was_cancelled:
            raise KeyboardInterrupt from None
        raise
    finally:
        if leaving is not None:
            leaving.cancel()


def cancel_running(code: int) -> bool:
    """Cancel the work of the innermost ``run_cancellable``, from a signal handler. Return whether there is such work.

    ``code``: exit code of the process if a thread of the command does not end.

    The function does not rely on the handler of SIGINT, because a shell starts background jobs (``&``) with SIGINT ignored.
    """
    if not _running:
        return False
    task = _running[-1]
    _exit_codes.append(code)
    _cancelled.add(task)
    if not task.cancelling():
        task.get_loop().call_soon_threadsafe(task.cancel)
    return True


def is_cancelled() -> bool:
    """Return whether a signal has cancelled a call of ``run_cancellable``. Its event loop may be blocked, or may have ended."""
    return bool(_cancelled) or (bool(_running) and _running[-1].cancelling() > 0)
