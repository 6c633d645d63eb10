"""``python -m tests.system.newcomer``: a newcomer's session. A copy of what is committed, a fresh virtual environment, and nothing but
the blocks of docs/tutorial.md, in order, until the last one says what the page promises.

It needs a package index for pip, as newcomers do, and Java for the last block. Where somebody has the tutorial's ports already, others
are taken (``--own-ports`` always). Ends with 0, or with 1 and the block that says something else.
"""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import click

from tests.docs.pages import ROOT, Block, blocks
from tests.docs.running import Reader, UnexpectedOutputError, compare

PAGE = "docs/tutorial.md"
LONGEST_S = 900.0
"""Of one command: pip may fetch half a gigabyte."""
OTHER_PORTS = {"--data shop-data": "--data shop-data --port 0", "liftpy dashboard": "liftpy dashboard --listen 127.0.0.1:0"}
_PORTS = (4222, 8223)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def fresh_environment() -> dict[str, str]:
    """That of this process, without its virtual environment and without settings of nodes."""
    own = {str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent)} if sys.prefix != sys.base_prefix else set()
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder not in own]
    gone = ("LIFTPY_", "PYTHON", "VIRTUAL_ENV", "PYSPARK_", "SPARK_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(gone)}
    return {**kept, "PATH": os.pathsep.join(path), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def copy_of_the_repository(folder: Path) -> None:
    """What is committed, and nothing else."""
    made = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        archive.extractall(folder, filter="data")


def session(reader: Reader, page: list[Block]) -> int:
    """Do what the blocks say; how many were done. Raises UnexpectedOutputError."""
    said = ""
    for block in page:
        began = time.monotonic()
        if block.language == "console":
            reader.console(block.text, block.at)
        elif block.language == "python":
            said = reader.python(block.text, block.line)
        else:
            compare(block.text, said, block.at)
            continue
        first = block.text.splitlines()[0]
        click.echo(f"{time.monotonic() - began:6.1f} s  {block.at}: {first if block.language == 'console' else 'a program'}")
    return len(page)


@click.command()
@click.option("--own-ports", is_flag=True, help="Take other ports than the tutorial's, whether they are free or not.")
def main(own_ports: bool) -> None:
    """A newcomer's session with the tutorial, in a fresh environment."""
    began = time.monotonic()
    instead = OTHER_PORTS if own_ports or not all(map(_is_free, _PORTS)) else {}
    with tempfile.TemporaryDirectory(prefix="liftpy-newcomer-") as name:
        folder = Path(name)
        copy_of_the_repository(folder)
        text = (folder / PAGE).read_text(encoding="utf-8")
        if text != (ROOT / PAGE).read_text(encoding="utf-8"):
            raise click.ClickException(f"{PAGE} has changes that are not committed: a newcomer would not see them")
        page = blocks(PAGE)
        try:
            with Reader(folder, fresh_environment(), instead, in_each=". .venv/bin/activate; ", longest_s=LONGEST_S) as reader:
                count = session(reader, page)
        except UnexpectedOutputError as error:
            raise click.ClickException(str(error)) from None
    click.echo(f"\n{page[-1].text}\n{count} blocks in {time.monotonic() - began:.0f} s: all is as {PAGE} promises")


if __name__ == "__main__":
    main()
