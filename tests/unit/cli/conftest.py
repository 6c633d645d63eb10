"""Runs commands in the process of the tests, for all tests of the command line."""

from __future__ import annotations

import pytest

from sidecar.cli.main import main


class Run:
    """A call runs a command, and returns its exit code, what it printed, and its errors."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(list(words))
        said = self._capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    def joined(self, *words: str) -> tuple[int, str]:
        """Return the exit code, and what the command printed with its errors."""
        code, out, err = self(*words)
        return code, out + err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)
