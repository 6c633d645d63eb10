"""The node's own spans: made by ``liftpy.trace``, handed to OpenTelemetry in a thread."""
