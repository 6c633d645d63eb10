"""Test which errors a node answers with a restart, and how long it waits [L11]."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from liftpy.errors import (
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    NodeRemovedError,
    NoSpaceError,
    StorageError,
    UnknownFormatError,
    UnusableDataDirectoryError,
)
from sidecar.cli import sidecar as command
from sidecar.runtime.restarts import EXIT_TO_REPAIR, count_restart, exit_after, is_temporary, pause_s, prevents_restart
from tests.each import each
from tests.only_in import only_in


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EIO, "broken"),
        NoSpaceError("full"),
        StorageError("Cannot write journal: 3 of 9 bytes. Check the disk and the permissions of the data directory."),
        caused(StorageError("write journal"), OSError(errno.EIO, "broken")),
        caused(StorageError("the snapshot failed"), caused(NoSpaceError("write"), OSError(errno.ENOSPC, "full"))),
    ],
)
def test_restart_policy_of_a_temporary_disk_error_allows_a_restart(error: Exception) -> None:
    assert is_temporary(error)


@each(
    "error",
    [
        None,
        CorruptionError("damaged"),
        UnknownFormatError("newer"),
        DataDirectoryLockedError("in use"),
        UnusableDataDirectoryError("the lock is a link"),
        ConfigError("wrong"),
        ConnectionRefusedError(errno.ECONNREFUSED, "no NATS"),
        caused(StorageError("the snapshot failed"), CorruptionError("damaged")),
        caused(StorageError("the state machine failed"), KeyError("a bug")),
    ],
)
def test_restart_policy_of_a_permanent_error_allows_no_restart(error: Exception | None) -> None:
    assert not is_temporary(error)


@each("error", [UnusableDataDirectoryError("the lock is a link"), NodeRemovedError("removed while paused")])
def test_restart_policy_of_a_state_that_only_an_operator_changes_forbids_a_restart(error: Exception) -> None:
    assert prevents_restart(error)


def test_restart_policy_pause_doubles_up_to_30_s_and_resets_after_a_run_of_a_minute() -> None:
    pauses, count = [], 0
    for _ in range(40):
        count = count_restart(count, ran_s=1.0)
        pauses.append(pause_s(count))
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    assert pause_s(count_restart(count, ran_s=61.0)) == 0.5


def restart(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, stopped: Callable[[], object], pause: Any = None, execute: Any = None
) -> Any:
    """Run the command of a node that asks for a restart. Return its result.

    ``stopped``, ``pause`` and ``execute`` are called at these steps.
    """

    def run(main: Any) -> int:
        main.close()
        stopped()
        return EXIT_TO_REPAIR

    monkeypatch.setattr(command, "run_loop", run)
    monkeypatch.setattr(command.LOGS, "configure", lambda *given: None)
    only_in(monkeypatch, command, "time", sleep=pause or (lambda _: None))
    monkeypatch.setattr(command.os, "execve", execute or (lambda *_: None))
    before = signal.getsignal(signal.SIGHUP)
    try:
        return command.sidecar.main(["--node-id", "n1", "--controllers", "n1", "--data", str(folder)], standalone_mode=False)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_node_stop_deadline_does_not_run_during_the_restart_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def pause(_: float) -> None:
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        seen.append(all(timer.finished.is_set() for timer in timers))

    restart(monkeypatch, tmp_path, stopped=lambda: exit_after(60.0), pause=pause)
    assert seen == [True]


def test_restart_ignores_sighup_until_the_next_node_handles_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that the process executes inherits an ignored signal. A default action would end it, also during the pause."""
    seen: list[Any] = []

    def see(*_: Any) -> None:
        seen.append(signal.getsignal(signal.SIGHUP))

    restart(monkeypatch, tmp_path, stopped=lambda: None, pause=see, execute=see)
    assert seen == [signal.SIG_IGN, signal.SIG_IGN]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_restart_pause_with_a_stop_signal_ends_with_exit_code_0(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[Any] = []

    def stopped() -> None:
        """Restore the default actions, as ``run_node`` does before a restart."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def pause(_: float) -> None:
        assert signal.getsignal(number) is not signal.SIG_DFL, "the signal would end the process"
        signal.raise_signal(number)

    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = restart(monkeypatch, tmp_path, stopped=stopped, pause=pause, execute=lambda *_: executed.append(1))
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert (code, executed) == (0, [])
