"""What traces cost, off and on."""
