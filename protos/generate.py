"""Regenerate ``liftpy/core/wire/_pb`` from the ``.proto`` files beside this file: ``python protos/generate.py``.

``--check`` generates into a temporary folder instead and exits 1 when the committed modules differ (a test runs it).
Needs ``grpcio-tools`` (extra ``test``), whose bundled protoc keeps everybody's output the same.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
TARGET = Path("liftpy/core/wire/_pb")


def generate(root: Path) -> list[Path]:
    """Write the modules and their stubs below ``root`` and return them, sorted."""
    import grpc_tools
    from grpc_tools import protoc

    (root / TARGET).mkdir(parents=True, exist_ok=True)
    sources = [f"{TARGET}/{p.name}" for p in sorted(PROTOS.glob("*.proto"))]
    standard = Path(str(grpc_tools.__file__)).parent / "_proto"
    paths = [f"--proto_path={TARGET}={PROTOS}", f"--proto_path={standard}"]
    arguments = ["protoc", *paths, f"--python_out={root}", f"--pyi_out={root}", *sources]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed: see its message above")
    return sorted((root / TARGET).glob("*_pb2.py*"))


def main() -> int:
    """Regenerate, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the committed modules are up to date")
    checking = parser.parse_args().check
    committed = PROTOS.parent
    if not checking:
        for path in generate(committed):
            print(path.relative_to(committed))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        names = {path.name for path in fresh}
        stale = [p.name for p in fresh if not _same(p, committed / TARGET / p.name)]
        stale += [p.name for p in (committed / TARGET).glob("*_pb2.py*") if p.name not in names]
    if stale:
        print("out of date, run `python protos/generate.py`:", *sorted(stale))
    return 1 if stale else 0


def _same(left: Path, right: Path) -> bool:
    return right.exists() and filecmp.cmp(left, right, shallow=False)


if __name__ == "__main__":
    sys.exit(main())
