"""Tracing of the node. ``liftpy.core.observe.tracing`` makes the spans, and a thread exports them to OpenTelemetry."""
