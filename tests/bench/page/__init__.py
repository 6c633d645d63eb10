"""What the page costs."""
