"""The metadata group on PySyncObj: transport over NATS, journal, and the connection to the event loop."""
