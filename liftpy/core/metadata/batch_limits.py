"""Size limits of request batches, for clients that send them and controllers that decide them. Pure."""

from __future__ import annotations

MAX_REQUESTS = 200
"""Requests in a batch that is accepted; never changed, because an entry of the log must be decided as it was."""
SENT_TOGETHER = 80
"""Number of requests in a batch as built. It takes about 10 ms of every controller, and four times that on a busy machine.

Meanwhile a member neither sends nor receives.
"""
MAX_BATCH_BYTES = 48 * 1024
"""Bytes of one batch's requests; an entry of the log is held to 64 KiB."""
