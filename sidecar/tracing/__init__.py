"""Spans of the node: created by ``liftpy.trace``, exported to OpenTelemetry in a thread."""
