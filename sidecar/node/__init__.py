"""One node: its parts, connected, started, reloaded and stopped."""
