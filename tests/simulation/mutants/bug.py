"""What a mutant of the simulator is, and how it replaces a rule of the shipped code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from liftpy.core.metadata.controller.requests import REQUESTS

Patches = list[Any]
SEED_EVENTS = 8000


@dataclass(frozen=True)
class Mutant:
    """``patches()`` gives the replacements; ``profile`` says which plans are likely to show it ('quorum': those of that policy);
    ``seed``: one of them that does, within ``SEED_EVENTS`` events; the suite sees to it. 0: none is named."""

    name: str
    cites: str
    patches: Callable[[], Patches]
    profile: str | None = None
    seed: int = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for change in self.patches():
                stack.enter_context(change)
            yield


def method(owner: Any, name: str, new: Any) -> Any:
    return patch.object(owner, name, new)


def decided(kind: str, new: Any) -> Any:
    """A row of the table of control requests with another decision: it holds the functions, so it is what has to be patched."""
    return patch.dict(REQUESTS, {kind: replace(REQUESTS[kind], decide=new)})
