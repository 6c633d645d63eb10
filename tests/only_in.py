"""A module's own view of another module, changed for one test: nobody else who uses that other module sees it.

``monkeypatch.setattr(one.asyncio, "sleep", ...)`` changes it for the whole process: for the loops of clusters that earlier tests'
modules still hold, whose pauses then end at once, and are counted.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def only_in(monkeypatch: pytest.MonkeyPatch, module: ModuleType, used: str, **changed: Any) -> None:
    """``module`` sees ``changed`` in the module that it calls ``used``."""
    monkeypatch.setattr(module, used, SimpleNamespace(**{**vars(getattr(module, used)), **changed}))
