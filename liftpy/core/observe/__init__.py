"""Traces: what of a batch's way is told to OpenTelemetry, and when. Nothing here imports OpenTelemetry."""
