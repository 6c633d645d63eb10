"""The console script ``liftpy``: one module per group of commands."""
