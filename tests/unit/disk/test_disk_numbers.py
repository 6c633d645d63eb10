"""The numbers of the disk, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
sidecar.disk.data_folder: _FORMAT 1, NodeIdentity.incarnation 0, NodeIdentity.clean_incarnation 0
sidecar.disk.descriptors: RESERVE 256, MOST_MAPS 4Ki, _UNLIMITED 1Mi, _SPARE 0.8
sidecar.disk.files: _COPY_BYTES 8Mi, _MODE 416, _SMALL_BYTES 64Ki, OpenMaps.__init__(bound) 64, OpenMaps.used(opened) no
sidecar.disk.flush_probe: _WITHIN_S 0.02
sidecar.disk.flush_times: SLOW_S 1.0, WARN_EVERY_S 10.0, KEPT_OF_NODE 2048, KEPT_OF_PARTITION 128, FlushTimes.__init__(kept)
  128
sidecar.disk.heap: RETAINED_BYTES 16Mi, retain_freed_memory(size_bytes) 16Mi
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
