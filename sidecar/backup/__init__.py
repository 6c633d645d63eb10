"""Backups, done: stores, taking, verifying, restoring; and the rescue of a metadata group that has lost its majority."""
