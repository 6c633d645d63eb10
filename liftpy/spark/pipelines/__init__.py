"""Pipelines over streams: from a stream into a table (archive), back into a stream (replay), the latest of each key (compact); whether
replicas agree (audit), what there was over time (stats).

Each is a function, and a command ``liftpy spark ...``. pyspark, deltalake, pyiceberg and matplotlib are imported when they are called.
"""
