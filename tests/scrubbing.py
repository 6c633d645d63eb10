"""``scrub_all``: checks the segments of a log for damage at once, as the scrub of a node does in the background."""

from __future__ import annotations

from collections.abc import Iterable

from liftpy.core.log.log import Log
from liftpy.core.log.scrub import is_confirmed_damage, scan_of
from liftpy.core.log.segment import Segment
from liftpy.errors import CorruptionError


def scrub_all(log: Log, segments: Iterable[Segment], max_bytes: int) -> bool:
    """Check all of ``segments`` now, in steps of ``max_bytes``. Return True if no damage was found."""
    for segment in segments:
        scan = scan_of(log, segment)
        try:
            while scan is not None and not scan.done:
                scan.step(segment.file, max_bytes)
        except CorruptionError:
            if scan is not None and is_confirmed_damage(log, segment, scan):
                return False
    return True
