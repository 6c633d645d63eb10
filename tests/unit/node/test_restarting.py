"""Which failures a node heals by starting again, and how long it waits [L11]."""

from __future__ import annotations

import errno

import pytest

from liftpy.errors import ConfigError, CorruptionError, FolderLockedError, NoSpaceError, StorageError, UnknownFormatError
from sidecar.restarting import count_restart, momentary, pause_s
from sidecar.settings import restarted_environment, restarts_in_a_row


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EIO, "broken"),
        NoSpaceError("full"),
        StorageError("write journal: 3 of 9 bytes"),
        caused(StorageError("write journal"), OSError(errno.EIO, "broken")),
        caused(StorageError("the snapshot failed"), caused(NoSpaceError("write"), OSError(errno.ENOSPC, "full"))),
    ],
)
def test_a_disk_that_refused_once_is_tried_again(error: Exception) -> None:
    assert momentary(error)


@pytest.mark.parametrize(
    "error",
    [
        None,
        CorruptionError("damaged"),
        UnknownFormatError("newer"),
        FolderLockedError("in use"),
        ConfigError("wrong"),
        ConnectionRefusedError(errno.ECONNREFUSED, "no NATS"),
        caused(StorageError("the snapshot failed"), CorruptionError("damaged")),
        caused(StorageError("the state machine failed"), KeyError("a bug")),
    ],
)
def test_what_no_start_can_heal_ends_the_node(error: Exception | None) -> None:
    assert not momentary(error)


def test_the_pause_grows_to_a_bound_and_begins_anew_after_a_calm_time() -> None:
    pauses, count = [], 0
    for _ in range(40):
        count = count_restart(count, ran_s=1.0)
        pauses.append(pause_s(count))
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    assert pause_s(count_restart(count, ran_s=61.0)) == 0.5


def test_the_count_passes_to_the_next_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIFTPY_RESTARTS_IN_A_ROW", raising=False)
    assert restarts_in_a_row() == 0
    assert restarts_in_a_row(restarted_environment(3)) == 3
    assert restarts_in_a_row({"LIFTPY_RESTARTS_IN_A_ROW": "many"}) == 0
    assert restarts_in_a_row(restarted_environment(10**9)) == 1000
