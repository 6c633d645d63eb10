"""Golden scripts of state machines: stories in text files, one request and its result a line.

A story begins with a line ``# what it shows``. An empty line ends it. Each other line is a request, `` => `` and its result. A request
is a verb, then names, then ``key=value``. A player is made for each story, and ``send`` returns the result of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_COLUMN = 40


class Player(Protocol):
    """Plays one story."""

    def send(self, verb: str, names: list[str], options: dict[str, str]) -> str:
        """Send a request and return its result."""


@dataclass(frozen=True, slots=True)
class Story:
    """A title, and lines of requests with their results."""

    title: str
    lines: tuple[str, ...]

    def play(self, player: Player) -> list[str]:
        """Return the lines with the results that the player gives."""
        return [f"{request:{_COLUMN}} => {player.send(*_parse(request))}" for request in map(_request_in, self.lines)]


def read_stories(folder: Path) -> list[Story]:
    """Return the stories of all files in ``folder``."""
    return [story for path in sorted(folder.glob("*.txt")) for story in _stories_in(path)]


def rewrite_stories(folder: Path, make_player: Callable[[], Player]) -> None:
    """Play all stories in ``folder``, and replace their results in the files."""
    for path in sorted(folder.glob("*.txt")):
        blocks = ("\n".join((f"# {story.title}", *story.play(make_player()))) for story in _stories_in(path))
        path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


def _stories_in(path: Path) -> Iterator[Story]:
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        title, *lines = block.strip().splitlines()
        yield Story(title.removeprefix("# "), tuple(lines))


def _request_in(line: str) -> str:
    return line.partition(" => ")[0].strip()


def _parse(request: str) -> tuple[str, list[str], dict[str, str]]:
    verb, *words = request.split()
    return verb, [word for word in words if "=" not in word], dict(word.split("=", 1) for word in words if "=" in word)
