"""Parts that all modules of a node share: clock, tasks, timers, settings, logs."""
