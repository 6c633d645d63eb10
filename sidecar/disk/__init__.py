"""Files: segments, checkpoints and the data directory. Implements the storage interface of ``liftpy.core.log``."""
