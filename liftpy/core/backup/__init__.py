"""Backups: manifests, reuse of data files of an earlier backup, and checks. Pure: no store, no network."""
