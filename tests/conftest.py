"""The suite on two cores: ``python -m pytest -n 2``. What starts processes of its own stays on one worker, one test after another."""

from __future__ import annotations

from typing import Any

import pytest

ONE_AT_A_TIME = ("tests/bench/", "tests/integration/", "tests/system/", "tests/unit/test_compose.py")
"""Where the tests marked ``processes`` and ``spark`` are (``test_tidy`` sees to it): they wait for elections, beside their own load."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker takes all that starts processes; the rest goes by file to whoever is free."""
    from xdist.scheduler import LoadScopeScheduling

    class Halves(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "processes" if nodeid.startswith(ONE_AT_A_TIME) else nodeid.split("::", 1)[0]

    return Halves(config, log)
