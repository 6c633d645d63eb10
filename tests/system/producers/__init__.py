"""Producers that are killed, and come back, while leaders are killed."""
