"""Backups: stores, creation, verification, restore and drill."""
