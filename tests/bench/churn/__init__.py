"""Clients that come, go and are broken off, for a long time: nothing may grow."""
