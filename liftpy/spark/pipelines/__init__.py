"""Pipelines over streams: from a stream into a table (archive), back into a stream (replay), the latest of each key (compact).

Each is a function, and a command ``liftpy spark ...``. pyspark, deltalake and pyiceberg are imported when they are called.
"""
