"""The pure core: what decides. No clock, no sockets, no threads, no files."""
