"""Command line ``liftpy``: one module for each noun, such as ``stream`` or ``node``, and modules that the commands share."""
