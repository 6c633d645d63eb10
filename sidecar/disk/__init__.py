"""Files: segments, checkpoints, the data folder. Implements the storage seam of ``liftpy.log``."""
