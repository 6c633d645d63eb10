"""How fast Spark reads a stream, beside other sources."""
