"""One node: builds, connects, starts, reloads and stops its parts."""
