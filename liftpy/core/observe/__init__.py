"""Observation of a node and a cluster for operators: summaries, health, history, status pages and traces. Pure.

Nothing in this package imports OpenTelemetry.
"""
