"""The metadata group on the Raft library PySyncObj: transport over NATS, journal, and the connection to the event loop."""
