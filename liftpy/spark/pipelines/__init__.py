"""Pipelines over streams: archive to a table, replay from it, compact, audit replicas, statistics.

Each is a function and a command ``liftpy spark ...``. pyspark, deltalake, pyiceberg and matplotlib are imported on use.
"""
