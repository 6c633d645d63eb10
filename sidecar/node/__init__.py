"""One node: creates, starts, reloads and stops its parts."""
