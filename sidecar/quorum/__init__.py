"""The metadata group on PySyncObj: transport over NATS subjects, journal, bridge to the event loop."""
