"""Files: segments, checkpoints, the data directory. Implements the storage interface of ``liftpy.log``."""
