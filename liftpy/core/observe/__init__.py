"""What operators see of a node or cluster: summaries, health, history, status pages and traces. Pure.

Nothing in this package imports OpenTelemetry.
"""
