"""Start and end of commands: connection and credentials, exit codes, closed connections, and closed pipes."""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from liftpy.client import Client
from liftpy.errors import ConfigError, NotAllowedError, NotFoundError, UnavailableError
from sidecar.cli import consume, controllers, output, session
from sidecar.disk.data_folder import DataDirectory
from sidecar.metadata.identity import NodeFile
from sidecar.runtime.settings import Target
from tests.flat_client import FlatClient
from tests.unit.cli.conftest import Run


# ---- the console script ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ends", "code", "text"),
    [
        (lambda: 7, 7, ""),
        (lambda: None, 0, ""),
        (lambda: "text", 0, ""),
        (lambda: _raise(ConfigError("a")), 2, "Error: a"),
        (lambda: _raise(UnavailableError("b")), 3, "Error: b (try again)"),
        (lambda: _raise(NotFoundError("c")), 1, "Error: c"),
        (lambda: _raise(click.UsageError("d")), 2, "d"),
        (lambda: _raise(click.Abort()), 130, ""),
        (lambda: _raise(KeyboardInterrupt()), 130, ""),
        (lambda: _raise(SystemExit(9)), 9, ""),
    ],
)
def test_command_that_raises_an_error_exits_with_the_code_of_the_error(
    ends: Any, code: int, text: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.cli.controllers.with_client", lambda *_: None)
    monkeypatch.setattr("sidecar.cli.controllers._show", lambda _: None)
    monkeypatch.setattr(controllers.controllers, "callback", lambda **_: ends())
    found, out, err = run("controllers")
    assert (found, out) == (code, "")
    assert text in err
    assert "(try again)" not in err or code == 3


def _raise(error: BaseException) -> None:
    raise error


def test_command_passes_an_error_that_python_ignores_to_the_hook_of_the_process(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("a bug")

    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: reported.append(ignored.exc_type))
    monkeypatch.setattr("sidecar.cli.controllers.with_client", lambda *_: Broken() and None)
    monkeypatch.setattr("sidecar.cli.controllers._show", lambda _: None)
    assert run("controllers")[0] == 0
    assert reported == [ValueError]


@pytest.mark.parametrize("words", ["--help", "stream --help", "context list"])
@pytest.mark.parametrize(
    ("stdout", "code", "text"),
    [
        ("closed pipe", 0, ""),
        ("full disk", 1, "Error: Cannot write the output: No space left on device."),
        ("closed", 0, ""),
    ],
)
def test_command_with_a_closed_or_full_stdout_exits_without_a_traceback(
    words: str, stdout: str, code: int, text: str, tmp_path: Path
) -> None:
    command = shlex.join([sys.executable, "-c", "from sidecar.__main__ import liftpy; liftpy()", *words.split()])
    read, write = os.pipe()
    os.close(read)
    to = {"closed pipe": f">&{write}", "full disk": ">/dev/full", "closed": ">&-"}[stdout]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    found = subprocess.run(
        ["bash", "-c", f"{command} {to}"], stderr=subprocess.PIPE, text=True, pass_fds=(write,), env=environment, check=False,
        timeout=60,
    )  # fmt: skip
    os.close(write)
    assert (found.returncode, found.stderr.strip()) == (code, text)


@pytest.mark.parametrize("stderr", ["closed pipe", "full disk"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("stream list --nats nats://127.0.0.1:1", 3),
        ("stream list --unknown-option", 2),
        ("sidecar --node-id n2 --controllers n2", 78),
    ],
)
def test_command_with_a_closed_or_full_stderr_exits_with_the_code_of_its_error(
    words: str, code: int, stderr: str, tmp_path: Path
) -> None:
    folder = DataDirectory(tmp_path / "data")
    NodeFile(folder, "n1").begin(1)
    folder.close()
    read, write = os.pipe()
    os.close(read)
    command = shlex.join([sys.executable, "-c", "from sidecar.__main__ import liftpy; liftpy()", *words.split()])
    to = {"closed pipe": f"2>&{write}", "full disk": "2>/dev/full"}[stderr]
    environment = {**os.environ, "LIFTPY_DATA": str(tmp_path / "data")}
    found = subprocess.run(
        ["bash", "-c", f"{command} {to}"], stdout=subprocess.PIPE, pass_fds=(write,), env=environment, check=False, timeout=60
    )
    os.close(write)
    assert (found.returncode, found.stdout) == (code, b"")


@pytest.mark.parametrize("encoding", ["latin-1:strict", "utf-8:strict"])
def test_command_prints_a_name_that_the_encoding_lacks_as_escape_sequence(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).touch()
    found = subprocess.run(
        [sys.executable, "-c", "from sidecar.__main__ import liftpy; liftpy()", "log", "dump", str(tmp_path)],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=False, timeout=60,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout.endswith(b"other files: caf\\udce9\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_command_with_a_closed_standard_stream_uses_its_descriptor_for_no_socket(closed: str) -> None:
    words = ["stream", "list", "--nats", "nats://127.0.0.1:1"]
    command = shlex.join([sys.executable, "-c", "from sidecar.__main__ import liftpy; liftpy()", *words])
    assert subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, check=False, timeout=60).returncode == 3


# ---- pipes -------------------------------------------------------------------------------------------------------------------
async def test_closed_pipe_check_raises_broken_pipe_when_the_reader_closes_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_CHECK_INTERVAL_S", 0.0)
    read, write = os.pipe()
    with os.fdopen(write, "w") as out:
        watching = asyncio.ensure_future(output.wait_for_closed_pipe(out))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not watching.done(), "the reader is there"
        os.close(read)
        with pytest.raises(BrokenPipeError):
            async with asyncio.timeout(30):
                await watching


@pytest.mark.parametrize("what", ["file", "memory"])
async def test_closed_pipe_check_of_an_output_file_never_ends(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_CHECK_INTERVAL_S", 0.0)
    with (tmp_path / "out").open("w") if what == "file" else io.StringIO() as out:
        watching = asyncio.ensure_future(output.wait_for_closed_pipe(out))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not watching.done()
        watching.cancel()


# ---- the session ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fails", [False, True])
def test_client_session_closes_its_connection_after_success_and_after_an_error(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    given: list[Any] = []

    class Connected(FlatClient):
        async def __aenter__(self) -> Connected:
            return self

        async def __aexit__(self, *_: object) -> None:
            ended.append("closed")

        async def check_majority(self) -> None:
            assert not ended

    async def connect(*args: Any, **how: Any) -> Connected:
        given.append((*args, how["credentials"]))
        return Connected()

    async def work(client: Client) -> int:
        assert not ended
        if fails:
            raise NotFoundError("nothing")
        return 5

    monkeypatch.setattr(session, "connect", connect)
    target = Target(("nats://a:1", "nats://b:2"), "ns")
    if fails:
        with pytest.raises(NotFoundError):
            session.with_client(target, work)
    else:
        assert session.with_client(target, work) == 5
    assert given == [(target.nats, "ns", target.credentials)]
    assert ended == ["closed"]


@pytest.mark.parametrize(
    ("permissions", "advice"),
    [("", ""), ("--role reader", " This command needs those of `liftpy permissions --role reader`.")],
)
def test_client_session_without_a_permission_names_the_permissions_of_a_command_that_needs_several_roles(
    permissions: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def connect(*_: object, **__: object) -> Client:
        raise NotAllowedError("denied.")

    monkeypatch.setattr(session, "connect", connect)
    with pytest.raises(NotAllowedError) as denied:
        session.with_client(Target(), lambda _: asyncio.sleep(0), permissions=permissions)
    assert str(denied.value) == f"denied.{advice}"


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [
        (("--creds", "{0}"), "", "Cannot read --creds {0}: No such file"),
        (("--nkey", "{0}"), "", "Cannot read --nkey {0}: No such file"),
        (("--tls-ca", "{0}"), "", "Cannot use --tls-ca {0}"),
        (("--tls-cert", "{0}"), "", "--tls-cert and --tls-key belong together"),
        ((), "LIFTPY_CREDS_FILE", "Cannot read LIFTPY_CREDS_FILE {0}: No such file"),
    ],
)
def test_credential_error_contains_the_flag_or_variable_and_the_path(
    arguments: tuple[str, ...], variable: str, expected: str, tmp_path: Path,
    run: Run, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / "creds_file"
    if variable:
        monkeypatch.setenv(variable, str(path))
    code, _, err = run("stream", "list", *(argument.format(path) for argument in arguments))
    assert (code, expected.format(path) in err) == (2, True), err


# ---- liftpy consume, with who reads it -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ends", ["reader", "records", "failure"])
def test_consume_command_ends_when_its_pipe_closes_or_the_last_record_is_printed(
    ends: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[str] = []

    async def last(name: str, now: bool, error: BaseException | None) -> None:
        try:
            if not now:
                await asyncio.Event().wait()
            if error is not None:
                raise error
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def stream(name: str) -> None:
        assert name == "s"

    client = SimpleNamespace(stream=stream, consume=lambda *_, **__: SimpleNamespace(), counters={"b": 2, "a": 1})
    monkeypatch.setattr(consume, "with_client", lambda _, work, **__: asyncio.run(work(client)))
    failure = NotFoundError("gone") if ends == "failure" else None
    monkeypatch.setattr(consume, "_print", lambda *_: last("printing", ends != "reader", failure))
    monkeypatch.setattr(consume, "wait_for_closed_pipe", lambda _: last("watching", ends == "reader", BrokenPipeError()))
    monkeypatch.setattr("sidecar.cli.main.discard_stdout", lambda: None)
    code, _, err = run("consume", "s")
    assert (code, cancelled) == (1 if ends == "failure" else 0, ["printing" if ends == "reader" else "watching"])
    assert err.startswith("a: 1\nb: 2\n")
    assert ("gone" in err) is (ends == "failure")
