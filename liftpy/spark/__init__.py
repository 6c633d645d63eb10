"""Spark reads committed offsets: the data source and the pipelines. Never imports the sidecar."""
