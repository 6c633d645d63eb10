"""A cluster of shipped nodes in virtual time, and a function that runs one command line against it.

``tests.simulation.world`` changes the standard library. So a Python process that imports this module does nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.simulation.world.machine import interposition

interposition.install()

import uvloop  # noqa: E402

from liftpy.client import GroupOptions, QueueOptions  # noqa: E402
from sidecar.cli.main import main  # noqa: E402
from tests.simulation.world.machine import scheduler as scheduling  # noqa: E402
from tests.simulation.world.machine.loop import VirtualLoop  # noqa: E402
from tests.simulation.world.machine.scheduler import NS_PER_S, Process  # noqa: E402
from tests.simulation.world.node_process import NodeProcess, begin  # noqa: E402
from tests.simulation.world.profiles import Profile  # noqa: E402
from tests.simulation.world.world import World  # noqa: E402

interposition.adapt()

MOST_S = 120.0
"""Virtual seconds that a command may take."""
MOST_REAL_S = 60
"""Real seconds that a command may take. Longer: it waits for something outside of the simulation."""
WIDTH = 100
"""Columns of the terminal."""


class EndlessCommandError(AssertionError):
    """A command has not ended within its limit."""


class Screen:
    """Bytes that a command prints, in the order in which it prints them, each with the mark of its stream."""

    def __init__(self) -> None:
        self._pieces: list[tuple[str, bytes]] = []

    def stream(self, mark: str) -> io.TextIOWrapper:
        """Return a text stream of this screen."""
        pieces = self._pieces

        class Raw(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                if pieces and pieces[-1][0] == mark:
                    pieces[-1] = mark, pieces[-1][1] + bytes(data)
                else:
                    pieces.append((mark, bytes(data)))
                return len(data)

        return io.TextIOWrapper(Raw(), encoding="utf-8", write_through=True)  # type: ignore[type-var]

    def lines(self) -> list[tuple[str, str]]:
        """Return each line with the mark of its stream."""
        return [(mark, line) for mark, data in self._pieces for line in data.decode(errors="replace").splitlines()]


class Session:
    """A cluster of three nodes, and a home directory."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed, Profile("golden", controllers=1, servers=1, users=False))
        self.scheduler = self.world.scheduler
        self.folder = Path(tempfile.mkdtemp(prefix="liftpy-golden-"))
        self.clock_error_s = 0
        logging.getLogger().handlers[:] = [logging.NullHandler()]  # not the log of the nodes
        for node in self.world.nodes:  # one after another, so that n1 is the metadata leader
            self.on_start(node.name)
        for name in ("n2", "n3"):
            self.run(["controllers", "add", name])

    def close(self) -> None:
        """Remove the files."""
        self.world.clean()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self, holds: Callable[[], bool]) -> None:
        self.scheduler.run(self.scheduler.now_ns + int(MOST_S * NS_PER_S), holds)
        if not holds():
            raise EndlessCommandError(f"not done within {MOST_S:g} virtual seconds")

    # ---- commands --------------------------------------------------------------------------------------------------------
    def run(self, words: list[str], stdin: bytes = b"") -> tuple[list[tuple[str, str]], int]:
        """Run a command line. Return its lines, each with "" for standard output and "!" for standard error, and the exit code.

        The last word ``&`` lets the command run in the background.
        """
        screen, wait = Screen(), self._wait
        program = self._process("liftpy")
        in_background = words[-1:] == ["&"]

        class Loop(VirtualLoop):
            def run_until_complete(self, future: Any) -> Any:
                task = asyncio.ensure_future(future, loop=self)
                wait(task.done)
                return task.result()

        with contextlib.ExitStack() as changes:
            changes.enter_context(patch.object(uvloop, "new_event_loop", Loop))
            changes.enter_context(patch.object(asyncio.events, "new_event_loop", Loop))
            if in_background:
                changes.enter_context(patch.object(asyncio, "Runner", _BackgroundRunner))
            changes.enter_context(patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")))
            changes.enter_context(contextlib.redirect_stdout(screen.stream("")))
            changes.enter_context(contextlib.redirect_stderr(screen.stream("!")))
            changes.enter_context(patch.dict(os.environ, self._environment(), clear=True))
            changes.enter_context(contextlib.chdir(self.folder))
            changes.enter_context(_limited(MOST_REAL_S))
            self.scheduler.process = program
            try:
                main([word.replace("~", str(self.folder)) for word in words if word != "&"])
            except SystemExit as end:
                code = int(end.code or 0)
            except EndlessCommandError as error:
                raise EndlessCommandError(f"liftpy {' '.join(words)}: {error}. Printed: {screen.lines()}") from error
            finally:
                self.scheduler.process = None
                self.scheduler.elapsed_ns = 0
                logging.getLogger().handlers[:] = [logging.NullHandler()]
                if not in_background:
                    program.end(0)
                    self.world.network.process_ended(program)
        return screen.lines(), code

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[4]),
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "LIFTPY_NATS": ",".join(self.world.nats.urls),
            "COLUMNS": str(WIDTH),
        }

    def _process(self, name: str) -> Process:
        """Return a process with the clock of the nodes, plus its error."""
        return Process(self.scheduler, name, wall_offset_ns=int((self.scheduler.passed_s + self.clock_error_s) * NS_PER_S))

    # ---- events ----------------------------------------------------------------------------------------------------------
    def event(self, text: str) -> None:
        """Call ``on_NAME(WORDS)``."""
        name, *words = text.split()
        getattr(self, f"on_{name}")(*words)

    def _node(self, name: str) -> NodeProcess:
        return next(node for node in self.world.nodes if node.name == name)

    def on_kill(self, name: str) -> None:
        """Kill a node, and wait until the cluster has fenced it."""
        self._node(name).kill()

        async def fenced(client: Any) -> None:
            while not (await client.admin.describe_cluster()).image.nodes[name].fenced:
                await asyncio.sleep(0.1)

        self._run_client(fenced)

    def on_stop(self, name: str) -> None:
        """Kill a node. The cluster may be unable to fence it."""
        self._node(name).kill()

    def on_start(self, name: str) -> None:
        """Start a killed node, and wait until it is ready."""
        self._node(name).start()
        self._wait(lambda: self._node(name).is_ready)

    def on_pass(self, seconds: str) -> None:
        """Let time pass."""
        self.scheduler.run(self.scheduler.now_ns + int(float(seconds) * NS_PER_S), lambda: False)

    def on_clock(self, error_s: str) -> None:
        """Let the wall clock of the commands differ from the clock of the nodes, from now on."""
        self.clock_error_s = int(error_s)

    def _run_client(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        ready: list[bool] = []

        async def run() -> None:
            async with self.world.connect() as client:
                async with asyncio.timeout(MOST_S):
                    await work(client)
                ready.append(True)
                await asyncio.Event().wait()  # members and workers stay

        self.world.run_in(self._process("application"), run)
        self._wait(lambda: bool(ready))

    def on_join(self, group: str, stream: str) -> None:
        """Let an application join a consumer group, and read and commit all records of the stream."""

        async def work(client: Any) -> None:
            self.member = await client.group(group, [stream], options=GroupOptions(auto_commit_s=0.5))
            await self.member.take()
            await self.member.commit()

        self._run_client(work)

    def on_position(self, group: str, stream: str) -> None:
        """Let a group without members have a committed position."""

        async def work(client: Any) -> None:
            await client.groups.reset(group, {(await client.stream(stream)).key(0): 1})

        self._run_client(work)

    def on_work(self, group: str, stream: str) -> None:
        """Let a worker take one record of a queue, without an ack."""

        async def work(client: Any) -> None:
            self.worker = await client.queue(stream, group, options=QueueOptions(ack_wait_s=600.0))
            await self.worker.take(1)

        self._run_client(work)

    def on_copy(self, node: str, stream: str, number: str) -> None:
        """Copy the directory of a partition to ``./partition``."""
        (found,) = self._node(node).disk.folder.glob(f"streams/{stream}-*/{number}")
        shutil.rmtree(self.folder / "partition", ignore_errors=True)
        shutil.copytree(found, self.folder / "partition")

    def on_data(self, node: str) -> None:
        """Copy the data directory of a node to ``./NODE``."""
        shutil.copytree(self._node(node).disk.folder, self.folder / node)

    def on_damage(self) -> None:
        """Flip a bit of a record in ``./partition``."""
        path = min((self.folder / "partition").glob("*.log"))
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)

    def on_write(self, name: str, *words: str) -> None:
        """Write a file."""
        (self.folder / name).write_text(" ".join(words) + "\n", encoding="utf-8")


class _BackgroundRunner:
    """Takes the place of ``asyncio.Runner``: the work goes on after the command line has returned."""

    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> _BackgroundRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin the work."""
        scheduler = scheduling.active
        assert scheduler is not None
        assert scheduler.process is not None
        begin(scheduler.process, lambda: work, lambda _: None)


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """End this Python process with a traceback if this block takes longer. A blocked main thread gets no signal."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
