"""Traces: which steps of a batch are exported to OpenTelemetry, and when. Nothing in this package imports OpenTelemetry."""
