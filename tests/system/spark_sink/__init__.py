"""A streaming query of Spark that writes a stream, while whoever has a part in it is killed."""
