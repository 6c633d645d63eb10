"""Test a child process that ends with its parent and then runs its program."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar.dev import dies_with_parent


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    library = SimpleNamespace(prctl=lambda *given: made.append(("prctl", *given)))
    monkeypatch.setattr(dies_with_parent, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    system = SimpleNamespace(
        getppid=lambda: made.append("whose child") or 77,
        execvp=lambda program, command: made.append(("exec", program, command)),
    )
    monkeypatch.setattr(dies_with_parent, "os", system)
    monkeypatch.setattr(dies_with_parent.signal, "signal", lambda number, what: made.append((number, what)))
    return made


def test_child_process_helper_sets_the_death_signal_before_the_parent_check(calls: list[Any]) -> None:
    dies_with_parent.main(["9", "77", "program", "-x", "y"])
    assert calls == [
        ("prctl", 1, 9),
        "whose child",
        (signal.SIGPIPE, signal.SIG_DFL),
        (signal.SIGXFSZ, signal.SIG_DFL),
        ("exec", "program", ["program", "-x", "y"]),
    ]


def test_child_process_helper_exits_when_the_parent_has_ended(calls: list[Any]) -> None:
    with pytest.raises(SystemExit) as left:
        dies_with_parent.main(["15", "78", "program"])
    assert left.value.code == 1
    assert calls == [("prctl", 1, 15), "whose child"]


def test_child_process_helper_runs_the_program_without_prctl(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dies_with_parent, "ctypes", SimpleNamespace(CDLL=lambda name: SimpleNamespace()))
    dies_with_parent.main(["9", "77", "program"])
    assert calls[0] == "whose child"
    assert calls[-1] == ("exec", "program", ["program"])
