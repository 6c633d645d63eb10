"""The numbers of the formats, as they were decided (``decided.py``)."""

from __future__ import annotations

from tests.unit.decided import differences

NUMBERS = """
liftpy.wire.batch: HEADER_SIZE_BYTES 64, MAGIC 16972, VERSION 1, SIGNATURE_POSITION 4, MAX_BATCH_BYTES 64Mi, seal(base_offset)
  0, seal(leader_epoch) 0, seal(timestamp_ns) 0, seal(producer_id) 0, seal(producer_epoch) 0, seal(base_sequence) 0,
  seal(control) no, build_batch(base_offset) 0, build_batch(leader_epoch) 0, build_batch(timestamp_ns) 0,
  build_batch(producer_id) 0, build_batch(producer_epoch) 0, build_batch(base_sequence) 0, build_batch(control) no,
  parse_header(position) 0, parse_batch(position) 0, parse_batch(verify) yes, split_batches(verify) yes
liftpy.wire.batch_columns: _FEW 24, _MAX_COLUMN_BYTES 2Gi, decode_columns(exact) no
liftpy.wire.codecs: _LZ4_RATIO 255, _LZ4_SLACK_BYTES 64, _WINDOW_BYTES 128Mi
liftpy.wire.envelope: _FLAG_CRC 1, _FLAG_ADDRESS 2, VERSION 0, HEADER_SIZE_BYTES 8, CRC_HEADER_SIZE_BYTES 12,
  ADDRESS_SIZE_BYTES 16, encode(crc) no
liftpy.wire.frames: PIECE_OVERHEAD_BYTES 56, RESPONSE_HEADER_SIZE_BYTES 16
liftpy.wire.inboxes: MAX_REPLY_BYTES 255
liftpy.wire.keyed: _U32 4294967295, _POSITIVE 2147483647
liftpy.wire.pieces: PIECE_BYTES 1Mi, SMALLEST_PIECE_BYTES 64, Held.position 0, Held.crc 0
liftpy.wire.rights: RESPONSES_MAX 1000, RESPONSES_EXPIRE_S 30, QUERY_RESPONSES_MAX 1, QUERY_RESPONSES_EXPIRE_S 5,
  _MAX_LISTED_PARTITIONS 64
"""


def test_every_number_is_as_decided() -> None:
    assert differences(NUMBERS) == []
