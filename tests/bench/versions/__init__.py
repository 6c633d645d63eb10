"""Compares two installed versions of liftpy on one machine."""
