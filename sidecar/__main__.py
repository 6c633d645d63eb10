"""The commands ``liftpy`` and ``python -m sidecar``. The second one runs ``liftpy sidecar``."""

from __future__ import annotations

import sys


def liftpy(arguments: list[str] | None = None) -> None:
    """Run the command line. It always ends by SystemExit.

    A light installation (``pip install liftpy``) has the client only. Then the command says how to install the rest.
    """
    try:
        from sidecar.cli.main import main
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "liftpy", "sidecar"}:
            raise
        sys.exit(
            f"Error: The command liftpy needs the package {package}, which is not installed. "
            "Install the command line and the node with: pip install 'liftpy[node]'"
        )
    main(arguments)


if __name__ == "__main__":
    liftpy(["sidecar", *sys.argv[1:]])
