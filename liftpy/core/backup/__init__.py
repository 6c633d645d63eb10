"""Backups: what one says of itself, which of an earlier one's pieces it keeps, what is checked of it. Pure; no store, no network."""
