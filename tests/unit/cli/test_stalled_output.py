"""The reader of the output of a command pauses, or a file does not answer. A stop signal still ends the command."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from tests.each import each

_COMMAND = """
import asyncio, signal, sys
import click
from sidecar.cli import consume, output, session, stream
from sidecar.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
output.STALL_S = 0.2
where = sys.argv[1]

async def records():
    while True:
        write = lambda: consume.write_out([b"record\\n"] * 100)
        if where == "thread":
            await asyncio.shield(asyncio.to_thread(write))
        elif where == "standard error":
            click.echo("a message\\n" * 100, err=True)
            await asyncio.sleep(0)
        else:
            write()
            await asyncio.sleep(0)

def with_client(*_, **__):
    if where == "main thread":
        while True:
            click.echo("record\\n" * 100)
    return session.run_cancellable(records())

stream.with_client = with_client
main(["stream", "list"])
"""


def wait_until_stalled(read: int) -> None:
    """Wait until nothing more arrives in the pipe."""
    before, until = -1, time.monotonic() + 60
    while time.monotonic() < until:
        size = int.from_bytes(fcntl.ioctl(read, termios.FIONREAD, bytes(4)), sys.byteorder)
        if size == before > 0:
            return
        before = size
        time.sleep(0.3)
    pytest.fail("the command wrote nothing")


@each("where", ["event loop", "thread", "main thread", "standard error"])
@each("number", [signal.SIGTERM, signal.SIGINT])
def test_command_with_a_paused_reader_ends_by_a_stop_signal(where: str, number: signal.Signals) -> None:
    read, write = os.pipe()
    try:
        process = subprocess.Popen([sys.executable, "-c", _COMMAND, where], stdout=write, stderr=write)
        os.close(write)
        wait_until_stalled(read)
        process.send_signal(number)
        try:
            assert process.wait(30) == 128 + number
        finally:
            process.kill()
    finally:
        os.close(read)


def test_command_with_a_reader_that_pauses_writes_its_whole_output() -> None:
    words = [sys.executable, "-c", "from sidecar.cli.main import main; main()", "help", "stream", "create"]
    expected = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
    assert len(expected) > fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
    with subprocess.Popen(words, stdout=write) as process, os.fdopen(read, "rb") as out:
        os.close(write)
        wait_until_stalled(read)
        assert out.read() == expected
        assert process.wait(30) == 0


_BLOCKED_THREAD = """
import asyncio, signal, threading
from sidecar.cli import session, stream
from sidecar.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)
session.THREADS_S = 0.2

async def read_file():
    print("begun", flush=True)
    await asyncio.to_thread(threading.Event().wait)

stream.with_client = lambda *_, **__: session.run_cancellable(read_file())
main(["stream", "list"])
"""


@each("number", [signal.SIGTERM, signal.SIGINT])
def test_command_with_a_thread_that_is_blocked_ends_by_a_stop_signal(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _BLOCKED_THREAD], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        try:
            assert process.wait(30) == 128 + number
        finally:
            process.kill()
        text = b"A file or store does not answer. The command ends without waiting for it."
        assert process.stderr.read().strip() == text
