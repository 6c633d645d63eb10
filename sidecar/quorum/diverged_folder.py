"""The Raft directory of a controller whose image differs from the majority: marked at once, quarantined at the next start.

<data>/raft/diverged           index where it was found; the directory is not used any more
<data>/raft-diverged/          the last quarantined directory; a later one replaces it
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from sidecar.disk.files import replace_file, sync_folder

logger = logging.getLogger("liftpy.quorum")
MARK = "diverged"


def mark_diverged(folder: Path, index: int) -> None:
    """Durable, before the process ends. Raises StorageError."""
    replace_file(folder / MARK, f"{index}\n".encode())


def set_aside_diverged(folder: Path) -> bool:
    """Quarantine the directory if it was marked. Return whether it was. Raises OSError."""
    if not (folder / MARK).exists():
        return False
    aside = folder.with_name(f"{folder.name}-{MARK}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    sync_folder(folder.parent)
    logger.error("the raft folder held another image than the majority's: it is put aside as %s", aside)
    return True
