"""How large a record batch is: for who only moves pieces of one, and needs nothing of what is in it."""

from __future__ import annotations

HEADER_SIZE_BYTES = 64
MAX_BATCH_BYTES = 64 * 1024 * 1024
"""Bound of a batch and of its body before compression; anything larger is refused unread."""
