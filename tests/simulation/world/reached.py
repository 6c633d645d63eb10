"""Records which lines of the shells a history runs, and lists the functions that no history enters."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.simulation.world.machine import scheduler

ROOT = Path(__file__).resolve().parents[3]


class Reached:
    """Lines of the modules below ``folders`` that have run. It traces from ``start`` on."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = tuple(str(ROOT / folder) for folder in folders)
        self.lines: dict[str, set[int]] = {}
        """File, relative to the root -> numbers of the lines that have run."""
        self._left: dict[CodeType, set[int] | None] = {}
        """Function -> lines that have not run yet. None: the function is in no folder."""

    def start(self) -> None:
        """Trace all further calls, in all threads."""
        threading.settrace(self._called)
        scheduler.Scheduler.limits_cpu = False
        sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            if code in self._left:
                return None
            if not code.co_filename.startswith(self._folders):
                self._left[code] = None
                return None
            left = self._left[code] = {line for _, _, line in code.co_lines() if line is not None}
        if not left:
            return None
        lines = self.lines.setdefault(str(Path(code.co_filename).relative_to(ROOT)), set())

        def ran(frame: FrameType, event: str, _: Any) -> Any:
            line = frame.f_lineno
            left.discard(line)
            lines.add(line)
            return ran

        return ran(frame, event, None)


def report(folders: Iterable[str], reached: dict[str, set[int]]) -> str:
    """Return the share of lines that ran in each file, and the lines of each function that did not run."""
    text = []
    all_lines = all_ran = 0
    for folder in folders:
        path = ROOT / folder
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            name = str(file.relative_to(ROOT))
            ran = reached.get(name, set())
            functions = list(_functions(compile(file.read_text(encoding="utf-8"), name, "exec"), ""))
            total = set().union(*(lines for _, _, lines in functions)) if functions else set()
            all_lines, all_ran = all_lines + len(total), all_ran + len(total & ran)
            text.append(f"{name}: {len(total & ran)} of {len(total)} lines")
            for function, first, lines in functions:
                if missed := sorted(lines - ran):
                    if lines & ran:
                        text.append(f"    {function}: {', '.join(map(str, missed))}")
                    else:
                        text.append(f"    {function}: never entered ({first})")
    text.append(f"all: {all_ran} of {all_lines} lines ({100 * all_ran / max(all_lines, 1):.0f} %)")
    return "\n".join(text)


def _functions(code: CodeType, before: str) -> Iterable[tuple[str, int, set[int]]]:
    """Yield the name, the first line and the lines of each function below ``code``."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = f"{before}{constant.co_name}"
            is_function = bool(constant.co_flags & 0x02)  # the body of a class has no CO_NEWLOCALS and no fast locals
            if is_function and constant.co_flags & 0x01:
                lines = {line for _, _, line in constant.co_lines() if line is not None}
                yield name, constant.co_firstlineno, lines - {constant.co_firstlineno} or lines
            yield from _functions(constant, f"{name}.")
