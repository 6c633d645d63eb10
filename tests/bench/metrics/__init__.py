"""What measuring costs."""
