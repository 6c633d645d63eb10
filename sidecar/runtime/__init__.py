"""What every part of the daemon uses: clock, tasks, timers, settings, logs."""
