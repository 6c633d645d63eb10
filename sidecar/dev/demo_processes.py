"""The demo's helpers as processes: started, spoken to by lines, ended with all they started; never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from liftpy.errors import LiftError, UnavailableError
from sidecar.dev.nats_server import dies_with_parent
from sidecar.runtime.settings import child_environment

_STOP_TIMEOUT_S = 20.0
_ABANDON_TIMEOUT_S = 1.0
_LAST_WORDS_BYTES = 2000


def _import_path() -> str:
    """Return the import path for a child process. Spark searches directories and ignores the hooks of an editable install."""
    source = importlib.util.find_spec("pyspark_liftpy")
    folders = [*sys.path, str(Path(source.origin).parent) if source is not None and source.origin else ""]
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))


class LineProcess:
    """A Python module run as a process; ``say`` writes a line to it, ``lines`` are what it prints.

    Its standard error goes to ``<folder>/<name>.log`` and its last words into the error when it fails.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, module: str, arguments: list[str], folder: Path) -> LineProcess:
        """Start ``python -m module arguments`` in ``folder``, in its own process group."""
        log = folder / f"{module.rpartition('.')[2]}.log"
        environment = {**child_environment(), "PYTHONPATH": _import_path(), "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *dies_with_parent([sys.executable, "-m", module, *arguments], signal.SIGKILL),
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        return cls(module.rpartition(".")[2], process, log)

    def say(self, line: str) -> None:
        """Write one line; nothing if it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(line.encode() + b"\n")

    async def lines(self) -> AsyncIterator[str]:
        """Iterate over its output lines until it ends. Raise LiftError with its last log lines after a failure."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line.decode(errors="replace").rstrip()
        if await self._process.wait() != 0:
            raise LiftError(f"The {self.name} process of the demo failed: {self.last_words()}")

    async def expect(self, wanted: str, timeout_s: float) -> None:
        """Wait for the line ``wanted``. Raise UnavailableError after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                async for line in self.lines():
                    if line == wanted:
                        return
        except TimeoutError:
            raise UnavailableError(
                f"The {self.name} process of the demo did not print {wanted!r} within {timeout_s:g} s. The machine "
                "may be overloaded: run the demo again."
            ) from None
        raise LiftError(f"The {self.name} process of the demo ended before it printed {wanted!r}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its standard error."""
        return self._log.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip() or "it said nothing"

    async def __aenter__(self) -> LineProcess:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.end(_STOP_TIMEOUT_S if kind is None else _ABANDON_TIMEOUT_S)

    async def end(self, timeout_s: float) -> None:
        """Close its input and wait. Kill its process group if it does not end or leaves processes."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            await self._read_to_the_end()

    async def _read_to_the_end(self) -> None:
        """Asyncio closes a pipe only at its end; one left open would complain when the loop is gone."""
        assert self._process.stdout is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ABANDON_TIMEOUT_S):
                while await self._process.stdout.read(_LAST_WORDS_BYTES):
                    pass
