"""Rounds of what operators meet, on three nodes with a replicated service beside each: ``python -m tests.system.service_chaos``.

Each round publishes acknowledged commands and strikes once or twice, drawn from a seed. Then every service must have applied the whole
log; the states of all nodes must be the model's, and the output stream must hold every output of the model, once, in order. What can't
go on must say so by name: SERVICE_DIVERGED, a refused version, a compacted stream. The input's retention deletes all the time.
"""
