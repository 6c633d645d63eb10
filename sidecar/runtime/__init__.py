"""Shared parts of the daemon: clock, tasks, timers, settings, logs."""
