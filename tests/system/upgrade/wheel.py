"""The version before: a wheel built from a commit of the history, installed without dependencies into an environment of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BEFORE = "6ef61ecd"
"""The last commit before folders, names and feature levels changed. It speaks levels 1 to 5."""
_WHAT_IT_IS = """
try:
    from liftpy.core.metadata.features import SUPPORTED_LEVELS as levels
except ImportError:
    try:
        from liftpy.core.metadata.features import SPOKEN as levels
    except ImportError:
        from liftpy.cluster.features import SPOKEN as levels
import liftpy, sidecar
print(liftpy.__file__, sidecar.__file__, levels.least, levels.most)
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with an old version."""

    python: Path
    wheel_bytes: int
    where: Path
    """Of its package."""
    least: int
    most: int
    """Feature levels that it speaks."""


def _run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def install(commit: str, folder: Path) -> Installed:
    """Build and install. The dependencies are those of the environment that runs this, behind the old version on its path. Raises
    RuntimeError."""
    source, wheels, environment = folder / "source", folder / "wheels", folder / "environment"
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    pip = (sys.executable, "-m", "pip")
    _run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source)
    (wheel,) = wheels.glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    _run(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = environment.glob("lib/python*/site-packages")
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
    *imported, least, most = _run(python, "-P", "-c", _WHAT_IT_IS, cwd=folder).split()
    for where in map(Path, imported):
        if environment not in where.parents:
            raise RuntimeError(f"the old environment imports {where}")
    return Installed(python, wheel.stat().st_size, Path(imported[0]), int(least), int(most))
