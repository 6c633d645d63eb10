"""All decisions of liftpy, as pure code: no clock, no sockets, no threads, no files."""
