"""Size limits of request batches, for clients that send them and controllers that decide them. Pure."""

from __future__ import annotations

MAX_REQUESTS = 200
"""Requests in a batch that is accepted; never changed, because an entry of the log must be decided as it was."""
SENT_TOGETHER = 80
"""Requests of a batch as made: some 10 ms of every controller's time, four times that where the machine is busy; meanwhile a member
neither hears nor is heard."""
MAX_BATCH_BYTES = 48 * 1024
"""Bytes of one batch's requests; an entry of the log is held to 64 KiB."""
