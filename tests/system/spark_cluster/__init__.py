"""A standalone Spark cluster beside a liftpy cluster, all on loopback."""
