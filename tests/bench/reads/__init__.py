"""What readers notice of nodes that are silent, killed, or cut off for a moment."""
