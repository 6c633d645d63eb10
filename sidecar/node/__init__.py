"""One node: its parts, put together, started, reloaded and stopped."""
